"""Effects with intervals from a table of units: of the whole, of components of a step, and of named ranges."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specbench.errors import InputError
from specbench.measure.unit_table import PARTS, ArmUnits, FloatArray, IntArray, UnitTable
from specbench.records import Effect, RangeEffect
from specbench.stats.autocorrelation import batch_means, lag1_autocorrelation
from specbench.stats.decomposition import StepCosts, decompose
from specbench.stats.estimate import Estimate, to_percent
from specbench.stats.processes import ProcessEstimate, estimate_processes
from specbench.stats.sequential import Bound
from specbench.stats.verdict import WIDEST_HALF_WIDTH

WIDEST_PCT = to_percent(WIDEST_HALF_WIDTH)
"""An interval that reaches further from its middle says nothing."""
STEP = "step"
NO_TOKENS = "an arm committed no token in a unit"


def estimate_units_of(values: FloatArray, process: IntArray) -> ProcessEstimate:
    """The mean of ``values`` [n] over units and processes, with every error that may bound it.

    Where neighbours within a process are correlated, the error of ten batch means counts too.

    :raises InputError: there is no unit, or a value is not finite.
    """
    numbers, starts = np.unique(process, return_index=True)
    groups = np.split(values, starts[1:]) if numbers.size > 1 else [values]
    found = estimate_processes(groups)
    correlation = lag1_autocorrelation(values, process)
    if correlation is None or not correlation.is_high:
        return found
    errors = found.estimate.errors + batch_means(values).errors
    return dataclasses.replace(found, estimate=dataclasses.replace(found.estimate, errors=errors))


def unit_weights(process: IntArray) -> FloatArray:
    """[n] what each unit weighs in a mean in which every process weighs the same; they sum to 1."""
    _, group, counts = np.unique(process, return_inverse=True, return_counts=True)
    weights: FloatArray = 1.0 / (counts[group] * counts.size)
    return weights


def make_effect(estimate: Estimate, bound: Bound, as_percent: Callable[[float], float]) -> Effect:
    """The estimate and its interval at ``bound``, as percentages."""
    half = estimate.half_width(bound.difference_critical)
    mean = as_percent(estimate.mean)
    if half is None or not math.isfinite(half):
        return Effect(mean, None, None)
    ends = as_percent(estimate.mean - half), as_percent(estimate.mean + half)
    if max(abs(end - mean) for end in ends) > WIDEST_PCT:
        return Effect(mean, None, None)
    return Effect(mean, *ends)


@dataclass(frozen=True)
class Parts:
    """The decomposition of the mean: log points that add up to it, and each part with its interval."""

    log_points: dict[str, float]
    effects: dict[str, Effect]
    not_computed: str | None = None


def split_effect(units: UnitTable, bound: Bound) -> Parts:
    """Why the candidate is faster: tokens a step, and the time of a step by component."""
    try:
        parts = decompose(_costs(units, units.baseline), _costs(units, units.candidate)).parts
    except InputError as error:
        return Parts({}, {}, error.what)
    found = {name: estimate_units_of(values, units.process).estimate for name, values in parts.items()}
    weights = unit_weights(units.process)
    means = {name: float(weights @ values) for name, values in parts.items()}
    effects = {name: make_effect(item, bound, to_percent) for name, item in found.items()}
    # Equal in every unit by construction, as tokens a step are on identical tokens: nothing is uncertain about it.
    effects |= {name: Effect(0.0, 0.0, 0.0) for name, values in parts.items() if not values.any()}
    return Parts(means, effects)


def _costs(units: UnitTable, arm: ArmUnits) -> StepCosts:
    if not units.has_steps:
        raise InputError("what was measured tells no steps")
    tokens = arm.tokens
    if not tokens.all():
        if not units.equal_tokens:
            raise InputError(NO_TOKENS)
        tokens = np.maximum(tokens, 1.0)  # equal in both arms: any number gives the same ratio
    per_step = 1 / arm.steps / 1e6
    known = PARTS if units.has_parts else ()
    components = {name: arm.parts_ns[name] * per_step for name in known} or {STEP: arm.time_ns * per_step}
    return StepCosts(tokens / arm.steps, components)


def compare_ranges(units: UnitTable, bound: Bound) -> dict[str, RangeEffect]:
    """Named range -> how the time that it takes a step changed, in the order of first use."""
    if not len(units) or not units.has_steps:
        return {}
    weights = unit_weights(units.process)
    step_us = float(weights @ (units.baseline.time_ns / units.baseline.steps)) / 1e3
    return {
        name: _compare_range(units, name, weights, step_us, bound)
        for name in units.lanes
        if name in units.baseline.ranges_ns
    }


def _compare_range(units: UnitTable, name: str, weights: FloatArray, step_us: float, bound: Bound) -> RangeEffect:
    before, after = (arm.ranges_ns[name] / arm.steps / 1e3 for arm in (units.baseline, units.candidate))
    baseline_us, candidate_us = float(weights @ before), float(weights @ after)
    share = 100 * baseline_us / step_us if step_us else None
    found = RangeEffect(None, None, None, baseline_us, candidate_us, share, units.lanes[name])
    if found.has_baseline:
        # A ratio of means, so that units without the range count; its error by linearising it (Cochran 1977).
        ratio = candidate_us / baseline_us
        spread = (after - ratio * before) / baseline_us + (ratio - 1)
        effect = make_effect(estimate_units_of(spread, units.process).estimate, bound, lambda value: 100 * value)
        found = dataclasses.replace(found, **dataclasses.asdict(effect))
    return found
