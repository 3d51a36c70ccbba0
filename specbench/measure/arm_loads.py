"""What an arm is sent in each trial of an ``ab``, and the measuring of it: passes, runs, replayed lengths, defects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from specbench.measure.arms import Arms, OpenArm
from specbench.measure.clock import Clock
from specbench.measure.divergence import Margin
from specbench.measure.driver import RequestSource
from specbench.measure.injection import InjectedSubject
from specbench.measure.interruption import StopSignal
from specbench.measure.load import WarmUpSource
from specbench.measure.recording import Kept
from specbench.measure.remote import RemoteSubject
from specbench.measure.replay import ReplaySource, replay_recorded
from specbench.measure.slices import EndlessSource, SliceSource
from specbench.measure.subject import BuiltinSubject, Subject
from specbench.measure.trials import MeasuredTrial, TrialContext, measure_pass, measure_run, warm_up
from specbench.measure.window_trials import measure_window, warm_up_window
from specbench.records import WarmUp
from specbench.scenario.plan import MIRRORED, AbSettings, ComparisonPlan, RunPlan, Trial, settings_of

Lengths = Mapping[str, tuple[int, ...]]


def warm_up_arm(context: TrialContext, arm: OpenArm, seed: int, num_requests: int) -> WarmUp:
    """Warm an arm's engine up with what it is measured with: its first requests, or a few steps of its window.

    :param seed: of the requests.
    :raises EngineError: the arm failed.
    """
    source = arm.source(seed)
    if arm.window_steps is not None:
        return warm_up_window(context, source, arm.concurrency)
    first = replay_recorded(arm.acceptance, WarmUpSource(source, num_requests), warm_up=True)
    return warm_up(context, first, arm.concurrency)


class ArmLoads:
    """Measures trials of an ``ab`` plan on the arms they name.

    :param kept: what of the content is written; the decoder is the arm's own.
    """

    def __init__(self, arms: Arms, clock: Clock, stop: StopSignal, kept: Kept) -> None:
        self._arms = arms
        self._clock = clock
        self._stop = stop
        self._kept = kept
        self._injected: dict[tuple[int, int], InjectedSubject] = {}
        self._recorded: dict[tuple[int, int, int, int | None], Lengths] = {}

    def open(self, point: int) -> OpenArm:
        """The arm of a point; :meth:`prepare` warms it up."""
        return self._arms.open(point)

    def margin_of(self, comparison: ComparisonPlan) -> Margin | None:
        """Differences of logits by the baseline's weights, wherever they are."""
        arm = self.open(comparison.baseline)
        subject = arm.subject
        if arm.resolved.engine.device_times is not None:
            return None  # it computes no logits
        if isinstance(subject, RemoteSubject):
            return subject.logit_margin
        if not isinstance(subject, BuiltinSubject):
            return None
        from specbench.engine.scoring import logit_margin

        return partial(logit_margin, subject.engine.loaded)

    def release(self) -> None:
        """Take every known defect out of its arm."""
        while self._injected:
            self._injected.popitem()[1].release()

    def prepare(self, comparison: ComparisonPlan, warmup_requests: int, trial: Trial | None = None) -> None:
        """Open both arms of a comparison and send their warm-up requests, unless that was done before.

        :param trial: the first one of the block that follows: what it replays is recorded now, in no unit's time.
        """
        if trial is not None and comparison.design != MIRRORED and self._records(self.open(comparison.baseline)):
            self._record_lengths(comparison, trial)
        for point in dict.fromkeys(arm_points(comparison).values()):
            arm = self.open(point)
            if not warmup_requests or not self._arms.is_new(point):
                continue
            warm_up_arm(
                self._context(arm, arm.subject, None), arm, arm.resolved.scenario.sampling.seed, warmup_requests
            )

    def measure(self, plan: RunPlan, comparison: ComparisonPlan, trial: Trial, attempt: int) -> MeasuredTrial:
        """Measure one trial; nothing is written.

        :raises EngineError: the arm failed.
        """
        if comparison.design == MIRRORED:
            return self.measure_pass(settings_of(plan), comparison, trial, attempt, plan.sha256)
        return self.measure_run(comparison, trial, attempt, plan.sha256)

    def measure_pass(
        self, settings: AbSettings, comparison: ComparisonPlan, trial: Trial, attempt: int, plan_hash: str | None
    ) -> MeasuredTrial:
        """One pass of a mirrored segment, on the baseline's engine, which switches."""
        arm = self._open_as_planned(comparison.baseline)
        first = trial.segment * arm.concurrency
        return measure_pass(
            self._context(arm, self._subject_of(arm, comparison), plan_hash),
            arm.point,
            trial,
            attempt,
            EndlessSource(replay_recorded(arm.acceptance, arm.source(trial.seed)), first),
            arm.concurrency,
            self._choices(comparison),
            settings,
            comparison.injected,
            from_cache=arm.window_steps is not None,
        )

    def measure_run(
        self, comparison: ComparisonPlan, trial: Trial, attempt: int, plan_hash: str | None
    ) -> MeasuredTrial:
        """One run of a unit: a slice of the workload, from an empty engine to its last token."""
        arm = self._open_as_planned(arm_points(comparison)[trial.arm or "A"])
        context = self._context(arm, self._subject_of(arm, comparison), plan_hash)
        source = self._slice(arm, comparison, trial)
        if arm.window_steps is not None:
            return measure_window(
                context,
                arm.point,
                trial,
                attempt,
                source,
                arm.concurrency,
                arm.window_steps,
                injected=comparison.injected,
            )
        return measure_run(context, arm.point, trial, attempt, source, arm.concurrency, injected=comparison.injected)

    def _open_as_planned(self, point: int) -> OpenArm:
        """The arm of a point, at its own variants: another comparison that has it may have left others standing."""
        arm = self.open(point)
        if arm.subject.capabilities.switchable:
            arm.subject.switch(self._arms.toggles(point))
        return arm

    def _slice(self, arm: OpenArm, comparison: ComparisonPlan, trial: Trial) -> RequestSource:
        source = arm.source(trial.seed)
        count = conversations_of(source, comparison.segment_requests)
        first = trial.segment * count
        if self._records(arm):
            return ReplaySource(SliceSource(source, first, count), self._record_lengths(comparison, trial))
        return SliceSource(replay_recorded(arm.acceptance, source), first, count)

    @staticmethod
    def _records(arm: OpenArm) -> bool:
        """The arm replays what the baseline accepts in this very command."""
        return arm.replays and arm.acceptance.source is None

    def _record_lengths(self, comparison: ComparisonPlan, trial: Trial) -> Lengths:
        """What the baseline accepts of this segment when it judges content; measured in no trial."""
        # Calibration sends other requests of the same segment.
        key = (comparison.index, trial.segment, trial.seed, comparison.segment_requests)
        if key not in self._recorded:
            arm = self._arms.open_strict(comparison.baseline)
            source = self._slice(arm, comparison, trial)
            context = self._context(arm, arm.subject, None)
            found = measure_run(context, arm.point, replace(trial, arm=None), 0, source, arm.concurrency)
            self._recorded = {key: {r.request_id: tuple(r.accepted_lengths) for r in found.requests}}
        return self._recorded[key]

    def _choices(self, comparison: ComparisonPlan) -> dict[str, dict[str, str]]:
        """Every toggle in which the arms differ, by arm; with no difference every toggle, so that A/A switches, too."""
        arms = {arm: self._arms.toggles(point) for arm, point in arm_points(comparison).items()}
        differing = {name for name in arms["A"] if arms["A"][name] != arms["B"].get(name)} or set(arms["A"])
        return {arm: {name: toggles[name] for name in sorted(differing)} for arm, toggles in arms.items()}

    def _subject_of(self, arm: OpenArm, comparison: ComparisonPlan) -> Subject:
        if not comparison.injected:
            return arm.subject
        # By the subject itself: one that was closed to make room is another one when it is opened again.
        key = (comparison.index, id(arm.subject))
        if key not in self._injected:
            self._injected[key] = InjectedSubject(arm.subject, comparison.injected)
        return self._injected[key]

    def _context(self, arm: OpenArm, subject: Subject, plan_hash: str | None) -> TrialContext:
        return arm.context(self._clock, self._stop, plan_hash, self._kept, subject)


def arm_points(comparison: ComparisonPlan) -> dict[str, int]:
    """Arm -> point."""
    return {"A": comparison.baseline, "B": comparison.candidate}


def conversations_of(source: RequestSource, requests: int | None) -> int:
    """Conversations of a run that are to make about so many requests; all of the workload's without a number."""
    turns = source.num_turns
    if requests is None:
        return len(turns)
    return max(1, min(math.ceil(requests * len(turns) / sum(turns)), len(turns)))
