"""Runs a plan: warm-up, then trial after trial, each on disk before the next one starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from specbench.measure import trials, window_trials
from specbench.measure.clock import Clock
from specbench.measure.driver import NoProgress, ProgressObserver, RequestSource
from specbench.measure.interruption import StopSignal
from specbench.measure.recording import Kept
from specbench.measure.results_folder import ResultsFolder
from specbench.measure.subject import Subject
from specbench.measure.trials import TrialContext
from specbench.records import RequestRecord, TrialRecord, WarmUp
from specbench.scenario.plan import RunPlan, Trial


@dataclass(frozen=True)
class Window:
    """What fills the cache before a window's ``steps``, from a trial's seed."""

    source: Callable[[int], RequestSource]
    steps: int


@dataclass(frozen=True)
class Load:
    """What is sent in every trial of a point.

    :param source: builds the requests of a trial from its seed.
    :param warmup: builds the warm-up requests from a trial's seed; None goes without.
    :param label: of the content; ``note`` is what else must be said of it.
    :param windows: by point, what is measured in place of whole requests; empty: whole requests are.
    """

    source: Callable[[int], RequestSource]
    warmup: Callable[[int], RequestSource] | None
    concurrency: int
    label: str
    note: str | None = None
    timeout_s: float | None = None
    windows: tuple[Window, ...] = ()


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
    if run.load.windows:
        window = run.load.windows[trial.point]
        run.observers.announce("warm-up: a few steps from a synthetic cache, not measured")
        context = _context(run, NoProgress())
        return window_trials.warm_up_window(context, window.source(trial.seed), run.load.concurrency)
    source = run.load.warmup(trial.seed)
    run.observers.announce(f"warm-up: {len(source.num_turns)} requests, not measured")
    return trials.warm_up(_context(run, NoProgress()), source, run.load.concurrency)


def measure_trial(run: Run, trial: Trial, warmup: WarmUp | None) -> tuple[TrialRecord, list[RequestRecord]]:
    """Measure one trial and return its lines, not yet written."""
    title = f"trial {trial.trial + 1} of {len(run.plan.trials)}"
    if run.load.windows:
        return _measure_window(run, trial, warmup, title)
    measured = trials.measure_run(
        _context(run, run.observers.progress(title)),
        run.plan.points[trial.point],
        trial,
        run.folder.next_attempt(trial.trial),
        run.load.source(trial.seed),
        run.load.concurrency,
        timeout_s=run.load.timeout_s,
        warmup=warmup,
    )
    return measured.record, measured.requests


def _measure_window(
    run: Run, trial: Trial, warmup: WarmUp | None, title: str
) -> tuple[TrialRecord, list[RequestRecord]]:
    point, window = run.plan.points[trial.point], run.load.windows[trial.point]
    context = _context(run, run.observers.progress(title))
    measured = window_trials.measure_window(
        replace(context, axes={**context.axes, **point.coordinates}),
        point,
        trial,
        run.folder.next_attempt(trial.trial),
        window.source(trial.seed),
        run.load.concurrency,
        window.steps,
        warmup=warmup,
    )
    return measured.record, measured.requests


def _context(run: Run, progress: ProgressObserver) -> TrialContext:
    return TrialContext(
        subject=run.subject,
        clock=run.clock,
        stop=run.stop,
        plan_hash=run.plan.sha256,
        label=run.load.label,
        note=run.load.note,
        kept=run.kept,
        profile=run.profile,
        axes=run.axes,
        progress=progress,
    )
