"""From the lines on disk to an :class:`~specbench.records.Analysis`. Pure: nothing here measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import specbench
from specbench.engine.config import drafter_parts
from specbench.engine.drafters.declaration import Role, role_of
from specbench.engine.optimizations.defects import known_defects
from specbench.errors import ResultsError
from specbench.measure import telemetry
from specbench.measure.counters import add_counts, choose_counts
from specbench.measure.gates import Measured, judge_run
from specbench.measure.labels import strongest
from specbench.measure.telemetry import Acceptance, FullBatch, StepTimes
from specbench.records import COMPLETE, WINDOW, Analysis, Point, RequestRecord, TrialRecord, WarmUp
from specbench.scenario.plan import PlanPoint
from specbench.scenario.windows import KV_LEN_KEY

STEP_FIGURES = {
    "step_ms": "wall",
    "device_ms": "device",
    "host_total_ms": "host_total",
    "host_exposed_ms": "host_exposed",
    "other_idle_ms": "other_idle",
}
"""Figures of a step -> the field of :class:`~specbench.measure.telemetry.StepTimes` that each is of."""


DRAFTER_SETTINGS = "drafter_settings"
"""Axis of a trial that no engine was built for: ``drafter`` of its scenario."""


@dataclass(frozen=True)
class RunContext:
    """What an analysis says beyond its trials: read from the other files of the folder."""

    scenario: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    command: str | None = None
    plan_hash: str | None = None
    planned_trials: int | None = None


def analyze_run(trials: Sequence[TrialRecord], requests: Sequence[RequestRecord], context: RunContext) -> Analysis:
    """Figures and gates of ``specbench run``.

    :raises ResultsError: there is no trial to analyse.
    """
    counted = select_trials(trials)
    if not counted:
        raise ResultsError("no trial was measured, so there are no figures", hint="run it again with --resume")
    known = {(trial.trial, trial.attempt) for trial in counted}
    used = [request for request in requests if (request.trial, request.attempt) in known]
    by_point: dict[tuple[int, str], list[TrialRecord]] = {}
    for trial in counted:
        by_point.setdefault((trial.point, trial.variant), []).append(trial)
    gates = judge_run(Measured(counted, used))
    return Analysis(
        kind="run",
        label=strongest_label(counted),
        status=_status(counted, context.planned_trials),
        scenario=context.scenario,
        environment=context.environment,
        points=[compute_point(group, used) for group in by_point.values()],
        gates=gates,
        subject=joint_subject(counted),
        warmup=total_warmup(counted),
        command=context.command,
        plan_hash=context.plan_hash,
        started_utc=counted[0].started_utc,
        specbench_version=specbench.__version__,
    )


def select_trials(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """One attempt a trial, in plan order: the one that got to its end, else the last that was cut."""
    chosen: dict[int, TrialRecord] = {}
    for trial in trials:
        held = chosen.get(trial.trial)
        if held is None or held.status not in COMPLETE:
            chosen[trial.trial] = trial
    return [chosen[number] for number in sorted(chosen)]


def joint_subject(trials: Sequence[TrialRecord]) -> dict[str, Any]:
    """What a report says of the engine: the first trial's, and where points have engines of their own that captured
    other batch sizes, those of each point under ``captured_batch_sizes`` (index of the point -> sizes).
    """
    by_point: dict[int, set[int]] = {}
    for trial in trials:
        sets = (trial.subject.get("captured_steps") or {}).get("sets") or {}
        by_point.setdefault(trial.point, set()).update(size for found in sets.values() for size in found["batch_sizes"])
    sizes = {str(point): sorted(found) for point, found in sorted(by_point.items()) if found}
    if len({tuple(found) for found in sizes.values()}) < 2:
        return trials[0].subject
    return {**trials[0].subject, "captured_batch_sizes": sizes}


def strongest_label(trials: Sequence[TrialRecord]) -> str:
    """One label for all trials: see :func:`specbench.measure.labels.strongest`."""
    settings = (setting for trial in trials for setting in _settings_of(trial))
    known_defect = any(known_defects(variants) for variants in settings)
    return strongest((trial.label for trial in trials), known_defect=known_defect)


def _settings_of(trial: TrialRecord) -> list[dict[str, str]]:
    """What stood, toggle -> variant: at the trial's end, and whenever a row was served."""
    at_end = {name: found["variant"] for name, found in (trial.subject.get("toggles") or {}).items()}
    return [at_end, *(entry.variants for entry in trial.sampling_audit or ())]


def _status(trials: Sequence[TrialRecord], planned: int | None) -> str:
    cut = [trial.status for trial in trials if trial.status != "complete"]
    if cut:
        return "interrupted" if "interrupted" in cut else cut[0]
    return "interrupted" if planned is not None and len(trials) < planned else "complete"


def total_warmup(trials: Sequence[TrialRecord]) -> WarmUp | None:
    """Every warm-up that was run, together."""
    done = [trial.warmup for trial in trials if trial.warmup]
    if not done:
        return None
    return WarmUp(
        requests=sum(item.requests for item in done),
        tokens=sum(item.tokens for item in done),
        steps=sum(item.steps for item in done),
        seconds=sum(item.seconds for item in done),
    )


def compute_point(
    trials: Sequence[TrialRecord], requests: Sequence[RequestRecord], planned: PlanPoint | None = None
) -> Point:
    """The figures of one point and variant, its trials pooled.

    :param planned: as the plan knows it, for its coordinates in a sweep.
    """
    known = {(trial.trial, trial.attempt) for trial in trials}
    mine = [request for request in requests if (request.trial, request.attempt) in known]
    tokens, wall_s = sum(t.committed_tokens for t in trials), sum(t.wall_ns for t in trials) / 1e9
    served = [request for request in mine if request.finish_reason in ("stop", "length")]
    return Point(
        **coordinates_of(trials[0]),
        status=_status(trials, None),
        trials=len(trials),
        **request_figures(mine),
        committed_tokens=tokens,
        wall_s=wall_s,
        mean_isl=_mean([request.prompt_tokens for request in mine]),
        mean_osl=_mean([request.output_tokens for request in served]),
        output_tokens_per_s=tokens / wall_s if wall_s else None,
        requests_per_s=len(served) / wall_s if wall_s and not all(r.finish_reason == WINDOW for r in mine) else None,
        tokens_sha256=common_hash(trials),
        **_step_figures(trials),
        **_latency_figures(mine),
        ranges=telemetry.range_stats(trials),
        axes=dict(planned.coordinates) if planned else _window_of(trials[0]),
        trial_tokens_per_s=[t.committed_tokens / t.wall_ns * 1e9 for t in trials if t.wall_ns],
        counters=choose_counts(add_counts(trial.counters for trial in trials), {}),
    )


def _window_of(trial: TrialRecord) -> dict[str, Any]:
    """Where a run has several points: the context length of each."""
    return {KV_LEN_KEY: trial.axes[KV_LEN_KEY]} if KV_LEN_KEY in trial.axes else {}


def coordinates_of(trial: TrialRecord) -> dict[str, Any]:
    """What a :class:`Point` says of its place, from the axes of a trial."""
    axes: Mapping[str, Any] = trial.axes
    names = ("model", "drafter", "acceptance", "workload", "concurrency", "draft_len", "isl", "osl")
    found = {name: axes.get(name) for name in names}
    return {"point": trial.point, "variant": trial.variant, **found, **by_batch_size(axes), **drafting_of(trial)}


def drafting_of(trial: TrialRecord) -> dict[str, Any]:
    """What a :class:`Point` says of how drafts are made: as the engine was told; where none was built, as was asked."""
    told = (trial.subject.get("engine") or {}).get("drafter") or trial.axes.get(DRAFTER_SETTINGS) or {}
    looks_up = any(role_of(part) is Role.LOOKUP for part in drafter_parts(str(told.get("name") or "none")))
    return {
        "draft_model": trial.subject.get("draft_model") or told.get("model"),
        "tree": dict(told.get("tree") or {}),
        **{name: told.get(name) if looks_up else None for name in ("min_ngram", "max_ngram")},
    }


def by_batch_size(axes: Mapping[str, Any]) -> dict[str, Any]:
    """What a :class:`Point` says of a K that follows the batch."""
    return {"runtime_draft_len": axes.get("runtime_draft_len") or {}}


def _step_figures(trials: Sequence[TrialRecord]) -> dict[str, Any]:
    concurrency = trials[0].axes["concurrency"]
    slots = min(concurrency, trials[0].axes.get("max_batch_size") or concurrency)
    full = sum((telemetry.full_batch(trial.steps, slots) for trial in trials), FullBatch(0, 0, 0, 0))
    accepted = telemetry.count_acceptance(trial.steps for trial in trials)
    times = sum_times([telemetry.split_step_time(trial) for trial in trials])
    steps = sum(len(trial.steps) for trial in trials)
    return {
        "steps": steps,
        "full_batch_tokens_per_s": full.tokens_per_s,
        "full_batch_steps": full.steps,
        "mean_active_requests": full.mean_active,
        "tokens_per_s_per_user": None if full.tokens_per_s is None else full.tokens_per_s / concurrency,
        **acceptance_figures(accepted),
        **step_time_figures(times, sum(trial.wall_ns for trial in trials), steps),
    }


def request_figures(requests: Sequence[RequestRecord]) -> dict[str, Any]:
    """What a :class:`Point` says of how many requests were sent."""
    return {
        "requests": len(requests),
        "failed_requests": sum(request.finish_reason == "error" for request in requests),
        "prompt_tokens": sum(request.prompt_tokens for request in requests),
    }


def acceptance_figures(accepted: Acceptance) -> dict[str, Any]:
    """What a :class:`Point` says of acceptance: rates, and the counts behind them."""
    counts = {name: list(getattr(accepted, name)) for name in ("drafted", "eligible", "opened", "accepted")}
    counts |= {"committed": [accepted.committed], "target_steps": [accepted.target_steps]}
    return {
        "acceptance_length": accepted.length,
        "conditional_acceptance": accepted.conditional,
        "joint_acceptance": accepted.joint,
        "acceptance_counts": counts,
    }


def step_time_figures(times: StepTimes | None, wall_ns: int, steps: int) -> dict[str, Any]:
    """Milliseconds a step: step_ms, and where it went.

    :param times: None: not known, which leaves ``wall_ns`` over ``steps``.
    """
    if times is None:
        return {**dict.fromkeys(STEP_FIGURES), "step_ms": wall_ns / steps / 1e6 if steps else None}
    return {key: times.per_step_ms(name) for key, name in STEP_FIGURES.items()}


def sum_times(times: Sequence[StepTimes | None]) -> StepTimes | None:
    """All of them together; None where one is not known."""
    known = [item for item in times if item is not None]
    if not known or len(known) < len(times):
        return None
    return StepTimes(**{name: sum(getattr(item, name) for item in known) for name in (*STEP_FIGURES.values(), "steps")})


def _latency_figures(requests: Sequence[RequestRecord]) -> dict[str, Any]:
    samples = telemetry.latencies(requests)
    return {
        "ttft_ms": telemetry.describe(samples.ttft),
        "tpot_ms": telemetry.describe(samples.tpot),
        "itl_ms": telemetry.describe(samples.itl),
        "e2e_ms": telemetry.describe(samples.e2e),
    }


def _mean(values: Sequence[int]) -> float | None:
    return sum(values) / len(values) if values else None


def common_hash(trials: Sequence[TrialRecord]) -> str | None:
    """The hash that all trials share, or None."""
    hashes = {trial.tokens_sha256 for trial in trials}
    return hashes.pop() if len(hashes) == 1 else None
