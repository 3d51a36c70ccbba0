"""How many units fit into the budget, and the plan that holds them: Question and calibration -> RunPlan. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from specbench.errors import InputError
from specbench.scenario.enumeration import enumerate_sweep, enumerate_trials, units_per_visit
from specbench.scenario.plan import MIRRORED, RUNS, AbSettings, ComparisonPlan, Question, RunPlan

MIN_UNITS = {MIRRORED: 10, RUNS: 5}
"""Fewer units give an interval that says nothing: the budget is overdrawn instead, and the plan warns."""
MAX_UNITS = 6000
"""More gain nothing: at this number a unit's noise is divided by 77."""
BUDGET_SHARE = 0.95
"""Part of the budget that is planned for, so that a slow moment does not cut the last look's units."""


@dataclass(frozen=True)
class Calibration:
    """What was seen before the plan: the first process's warm-up and one trial run of each comparison.

    :param seconds_per_block: by comparison: wall time of one visit (:mod:`specbench.scenario.enumeration`).
    :param warm_s: seconds a process spends before its first unit: loading, warm-up, capture, this calibration.
    :param segment_requests: by comparison: requests of one run of a ``runs`` unit, None for ``mirrored``.
    :param step_us: by comparison: microseconds a step, for injected delays given in percent of it.
    """

    seconds_per_block: tuple[float, ...]
    warm_s: float = 0.0
    segment_requests: tuple[int | None, ...] = ()
    step_us: tuple[float, ...] = ()


def least_units(comparison: ComparisonPlan, settings: AbSettings) -> int:
    """The fewest units of a comparison, whatever the budget. Where many are judged together, each needs fewer."""
    return MIN_UNITS[comparison.design] if settings.stop_early else MIN_UNITS[RUNS]


def plan_question(question: Question, calibration: Calibration) -> RunPlan:
    """Size ``question`` and enumerate every trial. Equal arguments give equal plans.

    ``settings.max_units`` wins over the budget. ``calibration["warning"]`` of the plan says in words that the least
    number of units worth measuring takes longer than the budget.

    :raises InputError: ``calibration`` has not one entry for each comparison.
    """
    settings = question.settings
    if settings is None:
        return plan_sweep(question)
    if len(calibration.seconds_per_block) != len(question.comparisons):
        raise InputError("one time is needed for each comparison", where="calibration.seconds_per_block")
    visits = _visits_per_process(question.comparisons, settings, calibration)
    comparisons = tuple(_calibrated(comparison, settings, calibration) for comparison in question.comparisons)
    units = [
        count * settings.processes * units_per_visit(comparison, settings)
        for count, comparison in zip(visits, comparisons, strict=True)
    ]
    seeds = [_sampling_seed(question, comparison.baseline) for comparison in comparisons]
    return RunPlan(
        points=question.points,
        trials=enumerate_trials(comparisons, settings, visits, seeds),
        warmup_requests=question.warmup_requests,
        scenario=question.scenario,
        kind=question.kind,
        comparisons=comparisons,
        settings=replace(settings, max_units=max(units)),
        calibration=_written(calibration, settings, visits, units),
    )


def plan_sweep(question: Question) -> RunPlan:
    """The plan of a sweep: ``question.repeats`` rounds over its points. There is nothing to calibrate."""
    seeds = [_sampling_seed(question, point.index) for point in question.points]
    order_seed = int((question.scenario.get("measure") or {}).get("seed") or 0)
    return RunPlan(
        points=question.points,
        trials=enumerate_sweep(len(question.points), question.repeats, order_seed, seeds),
        warmup_requests=question.warmup_requests,
        scenario=question.scenario,
        kind=question.kind,
    )


def _visits_per_process(
    comparisons: tuple[ComparisonPlan, ...], settings: AbSettings, calibration: Calibration
) -> list[int]:
    """By comparison: visits in each process. What is sized by the budget has as many of each comparison."""
    per_visit = [units_per_visit(comparison, settings) for comparison in comparisons]
    if settings.max_units is not None:
        return [math.ceil(settings.max_units / (units * settings.processes)) for units in per_visit]
    least = max(
        math.ceil(least_units(comparison, settings) / (units * settings.processes))
        for comparison, units in zip(comparisons, per_visit, strict=True)
    )
    most = max(MAX_UNITS // (max(per_visit) * settings.processes), 1)
    seconds = BUDGET_SHARE * settings.budget_s / settings.processes - calibration.warm_s
    fitting = int(max(seconds, 0.0) / max(sum(calibration.seconds_per_block), 1e-9))
    return [max(min(fitting, most), least)] * len(comparisons)


def _calibrated(comparison: ComparisonPlan, settings: AbSettings, calibration: Calibration) -> ComparisonPlan:
    """The comparison with the length of its runs, and its injected delays in microseconds."""
    requests = None
    if comparison.design == RUNS:
        chosen = calibration.segment_requests[comparison.index] if calibration.segment_requests else None
        requests = settings.segment_requests or chosen
    injected = {
        arm: _in_microseconds(defect, comparison.index, calibration)
        for arm, defect in (comparison.injected or {}).items()
    }
    return replace(comparison, segment_requests=requests, injected=injected or None)


def _in_microseconds(defect: dict[str, Any], comparison: int, calibration: Calibration) -> dict[str, Any]:
    if "step_percent" not in defect:
        return defect
    if not calibration.step_us:
        raise InputError("the time of a step is needed for an injected delay", where="calibration.step_us")
    microseconds = round(defect["step_percent"] / 100 * calibration.step_us[comparison], 3)
    return {**{key: value for key, value in defect.items() if key != "step_percent"}, "us": microseconds}


def _written(calibration: Calibration, settings: AbSettings, visits: list[int], units: list[int]) -> dict[str, Any]:
    expected = settings.processes * (
        calibration.warm_s
        + sum(count * time for count, time in zip(visits, calibration.seconds_per_block, strict=True))
    )
    written = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(calibration).items()}
    written |= {"units": units, "expected_s": round(expected, 3)}
    if settings.max_units is None and expected > settings.budget_s:
        written["warning"] = (
            f"the fewest units worth measuring ({', '.join(str(count) for count in sorted(set(units)))} a comparison) "
            f"take about {expected:.0f} s, over the budget of {settings.budget_s:.0f} s"
        )
    return written


def _sampling_seed(question: Question, point: int) -> int:
    scenario = question.points[point].scenario or question.scenario
    return int((scenario.get("sampling") or {}).get("seed") or 0)
