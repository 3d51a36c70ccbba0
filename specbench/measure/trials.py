"""Measures one trial: a whole run, or one pass of a mirrored segment. Nothing is written here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.errors import InputError
from specbench.measure.clock import Clock, iso_utc
from specbench.measure.driver import ClosedLoop, LoopResult, NoProgress, ProgressObserver, RequestSource, in_order
from specbench.measure.injection import InjectedSubject
from specbench.measure.interruption import StopSignal
from specbench.measure.mirrored import MirroredPass
from specbench.measure.observation import CollectionLog, make_evidence, sample_machine, without_collection
from specbench.measure.recording import Kept, Window, record_pass, record_requests, record_window
from specbench.measure.slices import EndlessSource
from specbench.measure.subject import Subject
from specbench.records import Evidence, RequestRecord, TrialRecord, WarmUp
from specbench.scenario.masking import mask_all
from specbench.scenario.plan import AbSettings, PlanPoint, Trial

Choices = Mapping[str, Mapping[str, str]]
"""Arm -> toggle -> variant."""
Defects = Mapping[str, Mapping[str, Any]]
"""Arm -> a known defect put into it: see :mod:`specbench.measure.defects`."""


@dataclass(frozen=True)
class TrialContext:
    """What trials of one subject have in common.

    :param subject: an :class:`InjectedSubject` keeps its defects' state (a drift goes on) from trial to trial; a plain
        one is wrapped anew for each trial that names ``injected``.
    :param plan_hash: of the plan that the trials belong to.
    :param label: of the content; ``note`` is what else must be said of it.
    :param profile: names the profiler that looks on, for the record.
    :param axes: what the point is called by, beyond the plan's own axes.
    :param progress: told how far a trial is, in a mirrored pass only between periods.
    """

    subject: Subject
    clock: Clock
    stop: StopSignal
    plan_hash: str | None
    label: str
    note: str | None = None
    kept: Kept = field(default_factory=Kept)
    profile: str = "off"
    axes: Mapping[str, Any] = field(default_factory=dict)
    progress: ProgressObserver = field(default_factory=NoProgress)


@dataclass(frozen=True)
class MeasuredTrial:
    """One trial's lines, not yet written, and what its requests committed.

    :param outputs: output ids by request id, in workload order, whether they are kept in the lines or not; a request
        that was refused has none.
    :param prompts: prompt ids of the same requests.
    """

    record: TrialRecord
    requests: list[RequestRecord]
    outputs: dict[str, list[int]]
    prompts: dict[str, Sequence[int]]


def warm_up(context: TrialContext, source: RequestSource, concurrency: int) -> WarmUp:
    """Send the requests of ``source``; what they did is in no figure.

    :raises EngineError: the subject failed.
    """
    return observe_warm_up(context, _closed_loop(context, context.subject, source, concurrency, None, NoProgress()).run)


def observe_warm_up(context: TrialContext, run: Callable[[], LoopResult]) -> WarmUp:
    """Run a loop whose steps are in no figure, and say what it did; its telemetry is dropped."""
    start_ns = context.clock.now_ns()
    loop = run()
    steps = len(context.subject.drain().steps)
    seconds = (context.clock.now_ns() - start_ns) / 1e9
    return WarmUp(len(loop.flights), sum(flight.num_tokens for flight in loop.flights), steps, seconds)


def measure_run(
    context: TrialContext,
    point: PlanPoint,
    trial: Trial,
    attempt: int,
    source: RequestSource,
    concurrency: int,
    *,
    timeout_s: float | None = None,
    warmup: WarmUp | None = None,
    injected: Defects | None = None,
) -> MeasuredTrial:
    """Send every request of ``source`` in a closed loop, first admission to last commit.

    :param warmup: what ran before it, for the record.
    :param injected: known defects by arm; that of ``trial.arm`` acts.
    :raises InputError: a first turn can never be served.
    :raises EngineError: the subject failed.
    """
    with injecting(context.subject, injected) as subject:
        if isinstance(subject, InjectedSubject):
            subject.arm_started(trial.arm)
        loop_of = _closed_loop(context, subject, source, concurrency, timeout_s, context.progress)
        counted = subject.read_counters()
        with observing(context, subject) as seen:
            loop = loop_of.run()
        evidence = seen.evidence(loop.client_ns)
        counters = (counted, subject.read_counters())
        window = record_window(loop, subject.drain(), subject.capabilities.token_ids, counters)
    measured = Measurement(seen.started_utc, loop, window, evidence, warmup, injected)
    return finish_trial(context, point, trial, attempt, measured)


def measure_pass(
    context: TrialContext,
    point: PlanPoint,
    trial: Trial,
    attempt: int,
    source: EndlessSource,
    concurrency: int,
    choices: Choices,
    settings: AbSettings,
    injected: Defects | None = None,
    *,
    from_cache: bool = False,
) -> MeasuredTrial:
    """Run the periods of ``trial.mask``, each in its arm, and cut what is in flight then.

    Figures are those of the timed steps alone: ``wall_ns`` sums the periods. The step table has every step of the pass.

    :param choices: of both arms.
    :param injected: known defects by arm, each in its arm's periods alone.
    :param from_cache: begin with the prompts in the cache, put there and not computed.
    :raises InputError: the trial has no mask, the subject cannot switch, or a first turn can never be served.
    :raises EngineError: the subject failed.
    """
    mask = _require_mask(context.subject, trial)
    with injecting(context.subject, injected) as subject:
        one_pass = MirroredPass(
            subject=subject,
            source=source,
            concurrency=concurrency,
            clock=context.clock,
            stop=context.stop,
            mask=mask,
            choices=choices,
            period_steps=settings.period_steps,
            guard_steps=settings.guard_steps,
            arm_started=subject.arm_started if isinstance(subject, InjectedSubject) else None,
            from_cache=from_cache,
            progress=context.progress,
        )
        # A segment is replayed at once: old objects are looked through before its first pass alone.
        with observing(context, subject, young_only=trial.pass_ > 0) as seen:
            result = one_pass.run()
        evidence = seen.evidence(result.loop.client_ns)
        window = record_pass(result, subject.drain(), subject.capabilities.token_ids)
    measured = Measurement(seen.started_utc, result.loop, window, evidence, None, injected)
    return finish_trial(context, point, trial, attempt, measured)


def _require_mask(subject: Subject, trial: Trial) -> str:
    where = f"trial {trial.trial}"
    if not trial.mask:
        raise InputError("a mirrored pass needs a mask", where=where)
    if not subject.capabilities.switchable:
        raise InputError(
            "what is measured cannot switch variants between steps", where=where, hint="measure.design=runs"
        )
    return trial.mask


@contextlib.contextmanager
def injecting(subject: Subject, injected: Defects | None) -> Iterator[Subject]:
    """``subject`` with the defects in it, none of them left at work afterwards."""
    wrapped = InjectedSubject(subject, injected) if injected and not isinstance(subject, InjectedSubject) else subject
    try:
        yield wrapped
    finally:
        if isinstance(wrapped, InjectedSubject):
            wrapped.arm_started(None)
            if wrapped is not subject:
                wrapped.release()


def _closed_loop(
    context: TrialContext,
    subject: Subject,
    source: RequestSource,
    concurrency: int,
    timeout_s: float | None,
    progress: ProgressObserver,
) -> ClosedLoop:
    return ClosedLoop(
        subject=subject,
        source=source,
        concurrency=concurrency,
        clock=context.clock,
        stop=context.stop,
        timeout_s=timeout_s,
        progress=progress,
    )


class _Observation:
    """What is seen of the machine around one window."""

    def __init__(self, context: TrialContext, subject: Subject) -> None:
        self._with_gpu = str(subject.describe().get("engine", {}).get("device", "")).startswith("cuda")
        # Of a subject in a process of its own.
        self._process: int | None = getattr(context.subject, "pid", None)
        self.started_utc = iso_utc(context.clock.utc())
        subject.drain()  # leaves the device idle and the records empty
        self._before = sample_machine(self._with_gpu, self._process)
        self.collections = CollectionLog()

    def evidence(self, client_ns: int) -> Evidence:
        """Ends the observation; at once after the window."""
        after = sample_machine(self._with_gpu, self._process)
        return make_evidence(self._before, after, self.collections, client_ns)


@contextlib.contextmanager
def observing(context: TrialContext, subject: Subject, *, young_only: bool = False) -> Iterator[_Observation]:
    """Look at the machine around a window, with the garbage collector off in it."""
    seen = _Observation(context, subject)
    with without_collection(young_only=young_only) as seen.collections:
        yield seen


@dataclass(frozen=True)
class Measurement:
    """What a trial came to, before it is put into lines."""

    started_utc: str
    loop: LoopResult
    window: Window
    evidence: Evidence
    warmup: WarmUp | None
    injected: Defects | None


def finish_trial(
    context: TrialContext, point: PlanPoint, trial: Trial, attempt: int, measured: Measurement
) -> MeasuredTrial:
    """The lines of a trial, and what its requests committed."""
    flights = [flight for flight in in_order(measured.loop.flights) if flight.state]
    return MeasuredTrial(
        record=_record_trial(context, point, trial, attempt, measured),
        requests=record_requests(measured.loop, trial.trial, attempt, context.kept),
        outputs={f.planned.request_id: list(f.state.output_token_ids) for f in flights if f.state},
        prompts={flight.planned.request_id: flight.planned.prompt_token_ids for flight in flights},
    )


def _record_trial(
    context: TrialContext, point: PlanPoint, trial: Trial, attempt: int, measured: Measurement
) -> TrialRecord:
    window = measured.window
    seen = {"profile": context.profile, **({"content_note": context.note} if context.note else {})}
    return TrialRecord(
        trial=trial.trial,
        point=trial.point,
        segment=trial.segment,
        pass_=trial.pass_,
        mask=trial.mask,
        seed=trial.seed,
        attempt=attempt,
        status=measured.loop.status,
        started_utc=measured.started_utc,
        variant=point.variant,
        axes=mask_all({**context.axes, **point.axes}),
        label=context.label,
        subject=mask_all({**context.subject.describe(), **seen}),
        wall_ns=window.wall_ns,
        planned_requests=measured.loop.planned_requests,
        committed_tokens=window.committed_tokens,
        tokens_sha256=window.tokens_sha256,
        output_tokens_per_s=window.output_tokens_per_s,
        acceptance_length=window.acceptance_length,
        steps=window.steps,
        device_busy=window.device_busy,
        ranges=window.ranges,
        evidence=measured.evidence,
        warmup=measured.warmup,
        plan_hash=context.plan_hash,
        comparison=trial.comparison,
        arm=trial.arm,
        process=trial.process,
        periods=window.periods,
        injected={arm: dict(defect) for arm, defect in measured.injected.items()} if measured.injected else None,
        counters=window.counters,
        sampling_audit=window.audit,
    )
