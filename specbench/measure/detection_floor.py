"""The smallest effect that a machine shows in a given time, from the noise that equal arms had on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbench.records import Comparison
from specbench.scenario.enumeration import units_per_visit
from specbench.scenario.plan import AbSettings, RunPlan
from specbench.stats.checks import FloatArray
from specbench.stats.estimate import StandardError, to_percent
from specbench.stats.power import DEFAULT_POWER, detectable_effect
from specbench.stats.sequential import plan_looks


@dataclass(frozen=True)
class Floor:
    """What so many minutes of one comparison show here, by the noise of the equal arms.

    :param half_width_pct: of the 95% interval at the last look; ``smallest_pct`` is found eight times in ten.
    """

    minutes: int
    units: int
    half_width_pct: float | None
    smallest_pct: float | None


def log_ratios(comparison: Comparison) -> FloatArray:
    """d of each unit, log points [units]."""
    return np.log1p(np.array([unit.d_pct for unit in comparison.units]) / 100)


def unit_deviation(equal: Sequence[Comparison]) -> float | None:
    """Standard deviation of a unit in log points, pooled over comparisons, each around its own mean."""
    samples = [values for values in map(log_ratios, equal) if values.size]
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in samples)
    df = sum(values.size - 1 for values in samples)
    return math.sqrt(squares / df) if df > 0 and squares > 0 else None


def units_per_minute(comparisons: Sequence[Comparison]) -> float | None:
    """Units that a minute of wall time gives, whatever lies between measured windows included.

    The comparisons share the time, so that their paces add up to that of one alone. The time of a comparison's last
    segment is not known, and left out with its units.
    """
    paces = [pace for pace in map(_pace, comparisons) if pace is not None]
    return sum(paces) if paces else None


def _pace(comparison: Comparison) -> float | None:
    starts: dict[tuple[int, int], float] = {}
    for unit in comparison.units:
        starts.setdefault((unit.process, unit.segment), unit.elapsed_s)
    last = max(starts, key=starts.__getitem__, default=None)
    if last is None or starts[last] <= 0:
        return None
    before = sum((unit.process, unit.segment) != last for unit in comparison.units)
    return 60 * before / starts[last]


def calibrated_pace(plan: RunPlan) -> float | None:
    """Units a minute by the block that was run before the plan, where no comparison has a second segment to tell."""
    seconds = plan.calibration.get("seconds_per_block")
    if plan.settings is None or not seconds or sum(seconds) <= 0:
        return None
    units = sum(units_per_visit(comparison, plan.settings) for comparison in plan.comparisons)
    return 60 * units / float(sum(seconds))


def find_floor(minutes: int, deviation: float | None, pace: float | None, settings: AbSettings) -> Floor:
    """The half-width and the smallest effect that ``minutes`` of one comparison have at their last look.

    :param deviation: of one unit, log points; ``pace`` units a minute.
    """
    units = int(minutes * pace) if pace is not None else 0
    if deviation is None or units < 2:
        return Floor(minutes, units, None, None)
    looks = plan_looks(units, settings.num_looks, alpha=1 - settings.confidence)
    bound = looks.bound(looks.look_units)
    error = StandardError(deviation / math.sqrt(units), units - 1.0, units, "units")
    half = bound.difference_critical(error.df) * error.value
    smallest = detectable_effect(error, bound, DEFAULT_POWER)
    return Floor(minutes, units, _finite_percent(half), _finite_percent(smallest))


def _finite_percent(log_points: float) -> float | None:
    percent = to_percent(log_points)
    return percent if math.isfinite(percent) else None
