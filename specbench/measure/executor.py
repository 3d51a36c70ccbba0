"""Runs a plan: warm-up, then trial after trial, each on disk before the next one starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from specbench.measure.clock import Clock, iso_utc
from specbench.measure.driver import ClosedLoop, LoopResult, NoProgress, ProgressObserver, RequestSource
from specbench.measure.interruption import StopSignal
from specbench.measure.masking import mask_all
from specbench.measure.observation import make_evidence, sample_machine, without_collection
from specbench.measure.recording import Kept, Window, record_requests, record_window
from specbench.measure.results_folder import ResultsFolder
from specbench.measure.subject import Subject
from specbench.measure.telemetry import count_acceptance
from specbench.records import Evidence, RequestRecord, TrialRecord, WarmUp
from specbench.scenario.plan import PlanPoint, RunPlan, Trial


@dataclass(frozen=True)
class Load:
    """What is sent in every trial of a point.

    :param source: builds the requests of a trial from its seed.
    :param warmup: builds the warm-up requests from a trial's seed; None goes without.
    :param label: of the content; ``note`` is what else must be said of it.
    """

    source: Callable[[int], RequestSource]
    warmup: Callable[[int], RequestSource] | None
    concurrency: int
    label: str
    note: str | None = None
    timeout_s: float | None = None


@dataclass(frozen=True)
class Observers:
    """Who looks on while trials run; none of them changes what is measured.

    :param announce: told in one line what begins.
    :param progress: makes the progress display of a trial (title, requests planned).
    """

    announce: Callable[[str], None] = field(default=lambda _line: None)
    progress: Callable[[str], ProgressObserver] = field(default=lambda _title: NoProgress())


@dataclass(frozen=True)
class Run:
    """One execution of a plan on one subject. ``profile`` names the profiler that looks on, for the record."""

    plan: RunPlan
    subject: Subject
    load: Load
    folder: ResultsFolder
    clock: Clock
    stop: StopSignal
    axes: dict[str, Any]
    kept: Kept = field(default_factory=Kept)
    profile: str = "off"
    observers: Observers = field(default_factory=Observers)


def execute(run: Run) -> str:
    """Measure the trials of the plan that the folder lacks; return ``complete`` or ``interrupted``.

    :raises EngineError: the subject failed; trials before that are on disk.
    :raises StorageError: a trial could not be written; trials before that are on disk.
    """
    todo = [trial for trial in run.plan.trials if not run.folder.is_done(trial.trial)]
    warmup = warm_up(run, todo[0]) if todo else None
    for trial in todo:
        if run.stop.requested:
            return "interrupted"
        record, requests = measure_trial(run, trial, warmup)
        run.folder.append(record, requests)
        warmup = None
        if record.status == "interrupted":
            return "interrupted"
    return "complete"


def warm_up(run: Run, trial: Trial) -> WarmUp | None:
    """Send the warm-up requests; what they did is in no figure."""
    if run.load.warmup is None:
        return None
    source = run.load.warmup(trial.seed)
    run.observers.announce(f"warm-up: {len(source.num_turns)} requests, not measured")
    start_ns = run.clock.now_ns()
    loop = _drive(run, source, NoProgress())
    steps = len(run.subject.drain().steps)
    seconds = (run.clock.now_ns() - start_ns) / 1e9
    return WarmUp(len(loop.flights), sum(flight.num_tokens for flight in loop.flights), steps, seconds)


def measure_trial(run: Run, trial: Trial, warmup: WarmUp | None) -> tuple[TrialRecord, list[RequestRecord]]:
    """Measure one trial and return its lines, not yet written."""
    attempt = run.folder.next_attempt(trial.trial)
    title = f"trial {trial.trial + 1} of {len(run.plan.trials)}"
    progress = run.observers.progress(title)
    with_gpu = str(run.subject.describe().get("engine", {}).get("device", "")).startswith("cuda")
    source = run.load.source(trial.seed)
    started_utc = iso_utc(run.clock.utc())
    run.subject.drain()  # leaves the device idle and the records empty
    before = sample_machine(with_gpu)
    with without_collection() as collections:
        loop = _drive(run, source, progress, run.load.timeout_s)
    evidence = make_evidence(before, sample_machine(with_gpu), collections, loop.client_ns)
    window = record_window(loop, run.subject.drain(), run.subject.capabilities.token_ids)
    point = run.plan.points[trial.point]
    record = _record_trial(run, point, trial, attempt, started_utc, loop, window, evidence, warmup)
    return record, record_requests(loop, trial.trial, attempt, run.kept)


def _drive(run: Run, source: RequestSource, progress: ProgressObserver, timeout_s: float | None = None) -> LoopResult:
    return ClosedLoop(
        subject=run.subject,
        source=source,
        concurrency=run.load.concurrency,
        clock=run.clock,
        stop=run.stop,
        timeout_s=timeout_s,
        progress=progress,
    ).run()


def _record_trial(
    run: Run,
    point: PlanPoint,
    trial: Trial,
    attempt: int,
    started_utc: str,
    loop: LoopResult,
    window: Window,
    evidence: Evidence,
    warmup: WarmUp | None,
) -> TrialRecord:
    seen = {"profile": run.profile, **({"content_note": run.load.note} if run.load.note else {})}
    return TrialRecord(
        trial=trial.trial,
        point=trial.point,
        segment=trial.segment,
        pass_=trial.pass_,
        mask=trial.mask,
        seed=trial.seed,
        attempt=attempt,
        status=loop.status,
        started_utc=started_utc,
        variant=point.variant,
        axes=mask_all({**run.axes, **point.axes}),
        label=run.load.label,
        subject=mask_all({**run.subject.describe(), **seen}),
        wall_ns=window.wall_ns,
        planned_requests=loop.planned_requests,
        committed_tokens=window.committed_tokens,
        tokens_sha256=window.tokens_sha256,
        output_tokens_per_s=window.output_tokens_per_s,
        acceptance_length=count_acceptance([window.steps]).length,
        steps=window.steps,
        device_busy=window.device_busy,
        ranges=window.ranges,
        evidence=evidence,
        warmup=warmup,
        plan_hash=run.plan.sha256,
    )
