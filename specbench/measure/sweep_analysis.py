"""From the lines of a ``sweep`` to an :class:`~specbench.records.Analysis`. Pure: nothing here measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

import specbench
from specbench.errors import ResultsError
from specbench.measure.analysis import (
    RunContext,
    compute_point,
    coordinates_of,
    joint_subject,
    select_trials,
    strongest_label,
    total_warmup,
)
from specbench.measure.break_even import map_break_even
from specbench.measure.gates import FAIL, NOT_APPLICABLE, PASS, WARN, Measured, judge_run
from specbench.records import COMPLETE, FAILED, Analysis, Gate, Point, RequestRecord, TrialRecord
from specbench.scenario.plan import PlanPoint, RunPlan

DRIFT_LIMIT = 0.05
"""Change of all points together from the first round to the last above which a trend is no longer small."""


def analyze_sweep(
    plan: RunPlan, trials: Sequence[TrialRecord], requests: Sequence[RequestRecord], context: RunContext
) -> Analysis:
    """Figures of every point in plan order, those that failed included, and gates of ``specbench sweep``.

    :raises ResultsError: there is no trial to analyse.
    """
    chosen = select_trials(trials)
    if not chosen:
        raise ResultsError("no trial was measured, so there are no figures", hint="run it again with --resume")
    measured = [trial for trial in chosen if trial.status != FAILED]
    used: dict[int, list[RequestRecord]] = {}
    point_of = {(trial.trial, trial.attempt): trial.point for trial in measured}
    for request in requests:
        point = point_of.get((request.trial, request.attempt))
        if point is not None:
            used.setdefault(point, []).append(request)
    points = _list_points(plan, chosen, used)
    return Analysis(
        kind="sweep",
        label=strongest_label(measured or chosen),
        status=_status(plan, chosen),
        scenario=context.scenario,
        environment=context.environment,
        points=points,
        gates=_judge(plan, chosen, measured, [request for found in used.values() for request in found]),
        subject=joint_subject(measured or chosen),
        warmup=total_warmup(chosen),
        command=context.command,
        plan_hash=context.plan_hash,
        started_utc=chosen[0].started_utc,
        specbench_version=specbench.__version__,
        break_even=map_break_even(plan, measured, points),
    )


def _status(plan: RunPlan, chosen: Sequence[TrialRecord]) -> str:
    """A point that failed is done with; a trial that is missing, or was cut by the user, is not."""
    done = {trial.trial for trial in chosen if trial.status in (*COMPLETE, FAILED)}
    failed = {trial.point for trial in chosen if trial.status == FAILED}
    missing = [t for t in plan.trials if t.trial not in done and t.point not in failed]
    return "interrupted" if missing else "complete"


def _list_points(plan: RunPlan, chosen: Sequence[TrialRecord], requests: dict[int, list[RequestRecord]]) -> list[Point]:
    by_point: dict[int, list[TrialRecord]] = {}
    for trial in chosen:
        by_point.setdefault(trial.point, []).append(trial)
    points = []
    for point in plan.points:
        found = by_point.get(point.index, [])
        measured = [trial for trial in found if trial.status != FAILED]
        failed = next((trial for trial in found if trial.status == FAILED), None)
        if measured:
            computed = compute_point(measured, requests.get(point.index, []), point)
            points.append(replace(computed, error=failed.error, status=FAILED) if failed else computed)
        elif failed:
            points.append(_failed_point(point, failed))
    return points


def _failed_point(point: PlanPoint, trial: TrialRecord) -> Point:
    return Point(
        **coordinates_of(trial),
        status=FAILED,
        trials=0,
        requests=0,
        failed_requests=0,
        steps=0,
        committed_tokens=0,
        prompt_tokens=0,
        wall_s=0.0,
        axes=dict(point.coordinates),
        error=trial.error,
    )


def _judge(
    plan: RunPlan,
    chosen: Sequence[TrialRecord],
    measured: Sequence[TrialRecord],
    requests: Sequence[RequestRecord],
) -> list[Gate]:
    own = [_gate_points(plan, chosen), _gate_interleaving(plan, measured)]
    if not measured:
        return own
    # Every round of a point replays its requests, so that equal seeds must give equal tokens in all of them.
    as_one_round = [replace(trial, segment=0) for trial in measured]
    return [*own, *judge_run(Measured(as_one_round, requests))]


def _gate_points(plan: RunPlan, chosen: Sequence[TrialRecord]) -> Gate:
    """Was every point measured?"""
    failed = [trial for trial in chosen if trial.status == FAILED]
    points = {trial.point for trial in failed}
    if not failed:
        return Gate("points", PASS, f"{len({t.point for t in chosen})} of {len(plan.points)} points were measured")
    whole = len(points) == len({trial.point for trial in chosen})
    first = failed[0]
    detail = f"{len(points)} of {len(plan.points)} points failed; point {first.point}: {first.error}"
    return Gate("points", FAIL if whole else WARN, detail)


def _gate_interleaving(plan: RunPlan, measured: Sequence[TrialRecord]) -> Gate:
    """Could a drift of the machine be read as a trend over points?"""
    name = "interleaving"
    rounds = sorted({trial.segment for trial in plan.trials})
    orders = {tuple(t.point for t in plan.trials if t.segment == number) for number in rounds}
    planned = f"{len(rounds)} rounds of {len(plan.points)} points, in {len(orders)} orders"
    if len(rounds) < 2 or len(plan.points) < 2:
        return Gate(name, NOT_APPLICABLE, f"{planned}: a drift cannot be told from points (measure.repeats)")
    speeds = {
        (trial.point, trial.segment): trial.output_tokens_per_s for trial in measured if trial.output_tokens_per_s
    }
    changes = [
        math.log(last / first)
        for point in plan.points
        if (first := speeds.get((point.index, rounds[0]))) and (last := speeds.get((point.index, rounds[-1])))
    ]
    if not changes:
        return Gate(name, NOT_APPLICABLE, f"{planned}: no point has its first and last round")
    drift = math.expm1(float(np.mean(changes)))
    detail = f"{planned}; throughput changed by {drift * 100:+.2f}% from the first round to the last"
    return Gate(name, WARN if abs(drift) > DRIFT_LIMIT else PASS, detail)
