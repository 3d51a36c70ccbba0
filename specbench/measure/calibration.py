"""Before the plan: how long a block of each comparison takes here. Nothing of it is kept in any figure."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from specbench.measure.arm_loads import ArmLoads, arm_points, conversations_of
from specbench.measure.trials import MeasuredTrial
from specbench.records import Period
from specbench.scenario.enumeration import TRIALS_PER_VISIT, draw_mask
from specbench.scenario.plan import MIRRORED, RUNS, AbSettings, ComparisonPlan, Question, Trial
from specbench.scenario.sizing import Calibration

CALIBRATION_STEPS = 36
TARGET_UNITS = 12
"""Units of runs that the budget should hold, where the workload can be cut so small: a few long runs say less than
more short ones."""
FEW_UNITS = 6
"""Units that it should hold rather than longer runs."""
BATCHES_PER_RUN = 3
"""Requests of a run, over those at once where these are several. Requests end apart under speculation, and towards the
end of a run fewer and fewer are left: a run of one batch is that for the most part."""


def calibrate(
    question: Question, loads: ArmLoads, announce: Callable[[str], None], started_s: float
) -> Calibration | None:
    """Warm every comparison's arms up and say how long its blocks will take; None when stopped.

    Of a mirrored comparison a part of a segment is run, once for each pair of arms; of runs, one run of each arm.

    :param started_s: monotonic second at which the process began.
    :raises EngineError: an arm failed.
    """
    assert question.settings is not None
    seconds: list[float] = []
    requests: list[int | None] = []
    step_us: list[float] = []
    count = len(question.comparisons)
    known: dict[tuple[int, int], tuple[float, float]] = {}
    for comparison in question.comparisons:
        announce(f"warm-up and calibration {comparison.index + 1} of {count}, not measured")
        loads.prepare(comparison, question.warmup_requests)
        # Known defects wait for what is measured: a delay may be given in percent of the step that is found here.
        comparison = replace(comparison, injected=None)
        if comparison.design == MIRRORED:
            # Comparisons of the same engine take equally long: 20 of A/A are calibrated by one.
            key = (comparison.baseline, comparison.candidate)
            if key not in known:
                found = _calibrate_pass(loads, question.settings, comparison)
                if found is None:
                    return None
                known[key] = found
            seconds.append(known[key][0])
            step_us.append(known[key][1])
            requests.append(None)
        else:
            run = _calibrate_runs(loads, question.settings, comparison, count)
            if run is None:
                return None
            seconds.append(run[0])
            step_us.append(run[1])
            requests.append(run[2])
    return Calibration(tuple(seconds), time.monotonic() - started_s, tuple(requests), tuple(step_us))


def _calibrate_pass(loads: ArmLoads, settings: AbSettings, comparison: ComparisonPlan) -> tuple[float, float] | None:
    """Seconds of a block (two passes) and microseconds of a step, from the second half of one pass."""
    # A part of a segment is enough to tell the time of a period, and leaves more of the budget to units.
    quads = max(CALIBRATION_STEPS // (4 * (settings.period_steps + settings.guard_steps)), 1)
    mask = draw_mask(quads, settings.seed, comparison.index, 0, 0)
    trial = Trial(0, comparison.baseline, 0, 0, mask, 0, comparison.index)
    began_s = time.monotonic()
    measured = loads.measure_pass(settings, comparison, trial, 0, None)
    if measured.record.status != "complete":
        return None
    periods = measured.record.periods
    # What is done around a pass: collecting garbage, looking at the machine, writing down what the steps were.
    around_s = time.monotonic() - began_s - periods[-1].end_ns / 1e9
    half = len(periods) // 2
    per_period_s = (periods[-1].end_ns - periods[half - 1].end_ns) / (len(periods) - half) / 1e9
    whole = 4 * settings.quads_per_segment
    return TRIALS_PER_VISIT[MIRRORED] * (per_period_s * whole + around_s), _step_us(periods[half:])


def _step_us(periods: list[Period]) -> float:
    return sum(p.end_ns - p.start_ns for p in periods) / max(sum(p.num_steps for p in periods), 1) / 1e3


def _calibrate_runs(
    loads: ArmLoads, settings: AbSettings, comparison: ComparisonPlan, num_comparisons: int
) -> tuple[float, float, int] | None:
    """Seconds of a block (four runs), microseconds of a step, and requests a run, from one run of each arm.

    A first run is as short as the batch allows; the workload is then cut so that the budget holds enough units.
    """
    arm = loads.open(comparison.baseline)
    source = arm.source(arm.resolved.scenario.sampling.seed)
    turns = source.num_turns
    least = min(arm.concurrency, len(turns))
    probe = round(least * sum(turns) / len(turns))
    runs: list[MeasuredTrial] = []
    began_s = time.monotonic()
    for name, point in arm_points(comparison).items():
        trial = Trial(0, point, 0, 0, None, arm.resolved.scenario.sampling.seed, comparison.index, arm=name)
        measured = loads.measure_run(replace(comparison, segment_requests=probe), trial, 0, None)
        if measured.record.status not in ("complete", "timeout"):
            return None
        runs.append(measured)
    wall_s = sum(run.record.wall_ns for run in runs) / 1e9
    around_s = (time.monotonic() - began_s - wall_s) / len(runs)
    steps = sum(len(run.record.steps) for run in runs)
    sent = sum(len(run.requests) for run in runs)
    per_request_s = wall_s / max(sent, 1)
    chosen = settings.segment_requests or _requests_per_run(
        settings.budget_s / settings.processes / num_comparisons,
        around_s,
        per_request_s,
        probe,
        sum(turns),
        batches=BATCHES_PER_RUN if arm.concurrency > 1 else 1,
    )
    conversations = conversations_of(source, chosen)
    expected = conversations * sum(turns) / len(turns)
    return TRIALS_PER_VISIT[RUNS] * (per_request_s * expected + around_s), wall_s / max(steps, 1) * 1e6, chosen


def _requests_per_run(
    budget_s: float, around_s: float, per_request_s: float, least: int, most: int, *, batches: int = 1
) -> int:
    """As many as let the budget hold ``TARGET_UNITS``, within what the batch and the workload allow.

    :param around_s: seconds that a run takes beside its requests.
    :param least: requests of one batch; fewer than ``batches`` times as many only where the budget would not hold
        ``FEW_UNITS`` of them.
    """

    def held(units: int) -> int:
        return math.floor((budget_s / units / TRIALS_PER_VISIT[RUNS] - around_s) / max(per_request_s, 1e-9))

    wanted = max(held(TARGET_UNITS), min(held(FEW_UNITS), batches * least))
    return max(min(wanted, most), least, 1)
