"""Measures one window of ``measure.windows``: decoding from a cache that was filled and not computed."""

from __future__ import annotations

from dataclasses import replace

from specbench.measure.driver import NoProgress, ProgressObserver, RequestSource
from specbench.measure.injection import InjectedSubject
from specbench.measure.mirrored import MirroredPass
from specbench.measure.recording import cut_to_period, record_timed, timed_period
from specbench.measure.slices import EndlessSource
from specbench.measure.subject import Subject
from specbench.measure.trials import (
    Defects,
    MeasuredTrial,
    Measurement,
    TrialContext,
    finish_trial,
    injecting,
    observe_warm_up,
    observing,
)
from specbench.records import WarmUp
from specbench.scenario.plan import PlanPoint, Trial
from specbench.scenario.windows import LEAD_STEPS, WARM_UP_STEPS


def measure_window(
    context: TrialContext,
    point: PlanPoint,
    trial: Trial,
    attempt: int,
    source: RequestSource,
    concurrency: int,
    steps: int,
    *,
    warmup: WarmUp | None = None,
    injected: Defects | None = None,
) -> MeasuredTrial:
    """Fill the cache with the prompts of ``source`` and time ``steps`` decode steps, every slot busy.

    :param warmup: what ran before it, for the record.
    :param injected: known defects by arm; that of ``trial.arm`` acts.
    :raises InputError: the subject's cache cannot be filled, or does not hold the prompts.
    :raises EngineError: the subject failed.
    """
    with injecting(context.subject, injected) as subject:
        if isinstance(subject, InjectedSubject):
            subject.arm_started(trial.arm)
        with observing(context, subject) as seen:
            result = _window_pass(context, subject, source, concurrency, steps, context.progress).run()
        evidence = seen.evidence(result.loop.client_ns)
        window = record_timed(result, subject.drain(), subject.capabilities.token_ids)
    measured = Measurement(seen.started_utc, result.loop, window, evidence, warmup, injected)
    found = finish_trial(context, point, trial, attempt, measured)
    if result.loop.status != "complete":
        return found
    edge, origin_ns = timed_period(result), result.loop.origin_ns
    return replace(found, requests=[cut_to_period(request, origin_ns, edge) for request in found.requests])


def warm_up_window(context: TrialContext, source: RequestSource, concurrency: int) -> WarmUp:
    """Run a few steps of a window; they are in no figure.

    :raises InputError: as :func:`measure_window`.
    :raises EngineError: the subject failed.
    """
    one_pass = _window_pass(context, context.subject, source, concurrency, WARM_UP_STEPS, NoProgress())
    return observe_warm_up(context, lambda: one_pass.run().loop)


def _window_pass(
    context: TrialContext,
    subject: Subject,
    source: RequestSource,
    concurrency: int,
    steps: int,
    progress: ProgressObserver,
) -> MirroredPass:
    """One period, all of it in the arm that stands."""
    return MirroredPass(
        subject=subject,
        source=EndlessSource(source, 0),
        concurrency=concurrency,
        clock=context.clock,
        stop=context.stop,
        mask="A",
        choices={"A": {}},
        period_steps=steps,
        guard_steps=LEAD_STEPS,
        from_cache=True,
        progress=progress,
    )
