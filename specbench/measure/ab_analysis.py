"""From the lines of ``ab`` or ``selftest`` to an :class:`~specbench.records.Analysis`. Pure: nothing here measures."""

from __future__ import annotations

from collections.abc import Sequence

import specbench
from specbench.errors import ResultsError
from specbench.measure.ab_gates import worst_gates
from specbench.measure.ab_points import compute_points
from specbench.measure.analysis import RunContext, joint_subject, strongest_label, total_warmup
from specbench.measure.comparing import INTERRUPTED, compare_studies, make_studies
from specbench.measure.findings import Study
from specbench.measure.gates import FAIL, PASS, WARN
from specbench.records import Analysis, Gate, LookRecord, RequestRecord, TrialRecord
from specbench.scenario.plan import RunPlan


def analyze_ab(
    plan: RunPlan,
    trials: Sequence[TrialRecord],
    requests: Sequence[RequestRecord],
    looks: Sequence[LookRecord],
    context: RunContext,
    status: str = "complete",
) -> Analysis:
    """Comparisons, figures of every configuration, and gates of ``specbench ab``.

    :param status: how measuring ended: ``complete`` or ``interrupted``.
    :raises ResultsError: there is no trial to analyse, or a line of one was changed.
    :raises InputError: the plan compares nothing.
    """
    if not trials:
        raise ResultsError("no trial was measured, so there are no figures", hint="run it again with --resume")
    studies = make_studies(plan, trials, requests, looks)
    comparisons, pooled = compare_studies(plan, studies, status)
    counted = [trial for study in studies for trial in study.trials]
    return Analysis(
        kind="ab",
        label=strongest_label(counted or trials),
        status=status,
        scenario=context.scenario,
        environment=context.environment,
        points=compute_points(plan, studies),
        gates=[_gate_completeness(trials, studies, status), *worst_gates(comparisons)],
        comparisons=comparisons,
        pooled=pooled,
        subject=joint_subject(counted or trials),
        warmup=total_warmup(trials),
        command=context.command,
        plan_hash=context.plan_hash,
        started_utc=trials[0].started_utc,
        specbench_version=specbench.__version__,
    )


def _gate_completeness(trials: Sequence[TrialRecord], studies: Sequence[Study], status: str) -> Gate:
    """How much of what was measured counts?"""
    counted = sum(len(study.trials) for study in studies)
    detail = f"{counted} trials count"
    if len(trials) > counted:
        detail += f", {len(trials) - counted} of blocks that were cut are kept and do not"
    failed = next((trial for trial in trials if trial.status == "failed"), None)
    if failed is not None:
        return Gate("complete", WARN if counted else FAIL, f"{detail}; trial {failed.trial} failed: {failed.error}")
    if status == INTERRUPTED:
        return Gate("complete", WARN, f"interrupted: {detail}")
    if not counted:
        return Gate("complete", FAIL, detail)
    return Gate("complete", PASS, detail)
