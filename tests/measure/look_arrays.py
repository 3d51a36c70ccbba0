"""The looks of a plan over arrays of log ratios: thousands of cases in the time that a few take as trial lines.

When to look, by which bound, and whether to stop are the product's own functions of the plan; units, estimate and
verdict are the few lines below. A test holds them against comparisons that went the long way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specbench.measure.effects import estimate_units_of
from specbench.measure.looks import LooksTaken, bound_of, due_look, family_alpha, planned_end, stops_early
from specbench.records import LookRecord
from specbench.scenario.enumeration import planned_units
from specbench.scenario.plan import RunPlan, settings_of
from specbench.stats.equivalence import log_margin
from specbench.stats.exact import ProportionInterval, clopper_pearson
from specbench.stats.sequential import Bound

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
CERTAIN = 0.999


@dataclass(frozen=True)
class Ends:
    """What every case [cases] came to at its last look."""

    differs: BoolArray
    small: BoolArray
    mean: FloatArray
    error: FloatArray
    half: FloatArray
    units: npt.NDArray[np.int64]

    def covering(self, effect: float) -> BoolArray:
        return np.asarray(np.abs(self.mean - effect) <= self.half)


def list_looks(
    plan: RunPlan, comparison: int = 0, *, budget: int | None = None, alpha: float | None = None
) -> list[tuple[int, Bound]]:
    """(units or processes, bound) of every look that a comparison takes if none settles it.

    :param budget: units after which time is over.
    :param alpha: that the bounds spend; None: the comparison's share of the family's.
    """
    taken: list[LookRecord] = []
    found = []
    share = family_alpha(plan) if alpha is None else alpha

    def look(count: int, is_last: bool) -> None:
        taken.append(LookRecord(comparison, len(taken) + 1, count, is_last, "INCONCLUSIVE", 0.0, None, None, False))
        found.append((count, bound_of(plan, comparison, LooksTaken.of(taken), share)))

    end = planned_end(plan, comparison)
    for count in range(1, (budget or end) + 1):
        if due_look(plan, comparison, count, taken):
            look(count, count == end)
    if budget is not None and budget < end:
        look(budget, True)
    return found


def look_through(plan: RunPlan, values: FloatArray, comparison: int = 0, *, budget: int | None = None) -> Ends:
    """Look at ``values`` [cases, units] of one process as the plan does, all cases at once."""
    stops = stops_early(plan)
    margin = log_margin(settings_of(plan).margin)
    cases = len(values)
    live = np.ones(cases, dtype=bool)
    differs, small = np.zeros(cases, dtype=bool), np.zeros(cases, dtype=bool)
    mean, error, half = np.zeros(cases), np.zeros(cases), np.full(cases, np.inf)
    units = np.zeros(cases, dtype=np.int64)
    for count, bound in list_looks(plan, comparison, budget=budget):
        seen = values[live, :count]
        mean[live], units[live] = seen.mean(1), count
        error[live] = seen.std(1, ddof=1) / np.sqrt(count)
        half[live] = bound.difference_critical(count - 1.0) * error[live]
        differs[live] = np.abs(mean[live]) > half[live]
        small[live] = np.abs(mean[live]) + bound.equivalence_critical(count - 1.0) * error[live] < margin
        live &= ~(stops & (differs | small))
    return Ends(differs, small, mean, error, half, units)


def look_at_processes(plan: RunPlan, values: FloatArray, comparison: int = 0) -> Ends:
    """The same of a plan of several processes, whose errors within and between are estimated case by case."""
    processes = settings_of(plan).processes
    per_process = planned_units(plan, comparison) // processes
    process = np.repeat(np.arange(processes), per_process)
    looks = [(count * per_process, bound) for count, bound in list_looks(plan, comparison)]
    rows = []
    for case in values:
        for count, bound in looks:
            estimate = estimate_units_of(case[:count], process[:count]).estimate
            half = estimate.half_width(bound.difference_critical)
            assert half is not None
            if abs(estimate.mean) > half:
                break
        rows.append((estimate.mean, half, count))
    mean, half_widths, units = (np.array(column) for column in zip(*rows, strict=True))
    return Ends(np.abs(mean) > half_widths, np.zeros(len(mean), dtype=bool), mean, mean * 0, half_widths, units)


def rate(hits: BoolArray) -> ProportionInterval:
    return clopper_pearson(int(hits.sum()), len(hits), CERTAIN)


def assert_rare(hits: BoolArray, name: str, limit: float = 0.05) -> None:
    """At most ``limit``, but for what chance allows the estimate itself: 0.9% at 5000 cases, 0.3% at 50,000."""
    found = rate(hits)
    print(f"{name}: {found.estimate:.4f} ({found.low:.4f} to {found.high:.4f}) of {len(hits)}")
    slack = 3 * np.sqrt(limit * (1 - limit) / len(hits))
    assert found.estimate <= limit + slack, name
