"""A sweep: every point's trials in the plan's interleaved order; a point that fails is recorded, the rest is done."""

from __future__ import annotations

from pathlib import Path

from specbench.errors import EngineError, InputError, ResultsError
from specbench.measure.analysis import DRAFTER_SETTINGS
from specbench.measure.arm_loads import warm_up_arm
from specbench.measure.arms import Arms, OpenArm
from specbench.measure.clock import Clock, SystemClock, iso_utc
from specbench.measure.interruption import StopSignal
from specbench.measure.observers import SessionObserver
from specbench.measure.plan_file import join_arm, read_plan_file, write_plan_file
from specbench.measure.recording import Kept
from specbench.measure.replay import replay_recorded
from specbench.measure.results_folder import PLAN, ResultsFolder
from specbench.measure.session import read_question
from specbench.measure.trials import TrialContext, measure_run
from specbench.measure.window_trials import measure_window
from specbench.records import FAILED, Evidence, RequestRecord, StepTable, TrialRecord, WarmUp
from specbench.scenario.masking import mask
from specbench.scenario.plan import PlanPoint, RunPlan, Trial
from specbench.scenario.questions import plan_sweep


def run_sweep(path: Path, observer: SessionObserver, stop: StopSignal, kept: Kept | None = None) -> str:
    """Measure the trials of a sweep that the folder lacks; return ``complete`` or ``interrupted``.

    :raises StorageError: a trial could not be written; trials before that are on disk.
    """
    question, _ = read_question(path)
    arms = Arms.of(question, observer.announce)
    try:
        with ResultsFolder(path) as folder:
            if (path / PLAN).exists():
                plan = read_plan_file(path / PLAN)
            else:
                plan = plan_sweep(question)
                write_plan_file(folder, plan)
            return _Sweep(plan, folder, arms, observer, stop, kept or Kept()).run()
    finally:
        arms.close()


class _Sweep:
    def __init__(
        self,
        plan: RunPlan,
        folder: ResultsFolder,
        arms: Arms,
        observer: SessionObserver,
        stop: StopSignal,
        kept: Kept,
    ) -> None:
        self._plan, self._folder, self._arms = plan, folder, arms
        self._observer, self._stop, self._kept = observer, stop, kept
        self._clock: Clock = SystemClock()
        self._failed: set[int] = set()
        self._joined = False

    def run(self) -> str:
        """Trial after trial; the rest of a point that failed is left out."""
        for trial in self._plan.trials:
            if self._folder.is_done(trial.trial) or trial.point in self._failed:
                continue
            if self._stop.requested:
                return "interrupted"
            if self._measure(trial) == "interrupted":
                return "interrupted"
        return "complete"

    def _measure(self, trial: Trial) -> str:
        point = self._plan.points[trial.point]
        attempt = self._folder.next_attempt(trial.trial)
        started_utc = iso_utc(self._clock.utc())
        try:
            record, requests = self._measure_open(point, trial, attempt)
        except ResultsError:
            raise
        except (InputError, EngineError) as error:
            # The others may well run: a point too big for memory says nothing of them.
            self._failed.add(trial.point)
            self._arms.discard(trial.point)
            self._observer.announce(f"point {trial.point + 1} failed: {error}")
            record, requests = fail_trial(self._plan, point, trial, attempt, started_utc, error), []
        self._folder.append(record, requests)
        self._observer.trial_done(point, record)
        return record.status

    def _measure_open(self, point: PlanPoint, trial: Trial, attempt: int) -> tuple[TrialRecord, list[RequestRecord]]:
        arm = self._arms.open(trial.point)
        if not self._joined:
            join_arm(self._folder, arm)
            self._joined = True
        context = arm.context(self._clock, self._stop, self._plan.sha256, self._kept)
        warmup = self._warm_up(context, arm, trial)
        if arm.window_steps is not None:
            source = arm.source(trial.seed)
            window = measure_window(
                context, point, trial, attempt, source, arm.concurrency, arm.window_steps, warmup=warmup
            )
            return window.record, window.requests
        measured = measure_run(
            context,
            point,
            trial,
            attempt,
            replay_recorded(arm.acceptance, arm.source(trial.seed)),
            arm.concurrency,
            timeout_s=arm.timeout_s,
            warmup=warmup,
        )
        return measured.record, measured.requests

    def _warm_up(self, context: TrialContext, arm: OpenArm, trial: Trial) -> WarmUp | None:
        """Before a point's first trial on its engine."""
        count = arm.resolved.scenario.measure.warmup_requests
        if not count or not self._arms.is_new(trial.point):
            return None
        return warm_up_arm(context, arm, trial.seed, count)


def fail_trial(
    plan: RunPlan, point: PlanPoint, trial: Trial, attempt: int, started_utc: str, error: Exception
) -> TrialRecord:
    """The line of a trial that could not be measured."""
    scenario = point.scenario or plan.scenario
    named = {key: (scenario.get(section) or {}).get(name) for key, (section, name) in _NAMES.items()}
    return TrialRecord(
        trial=trial.trial,
        point=trial.point,
        segment=trial.segment,
        pass_=trial.pass_,
        mask=None,
        seed=trial.seed,
        attempt=attempt,
        status=FAILED,
        started_utc=started_utc,
        variant=point.variant,
        axes={**named, DRAFTER_SETTINGS: scenario.get("drafter"), **point.axes, **point.coordinates},
        label="natural",
        subject={},
        wall_ns=0,
        planned_requests=0,
        committed_tokens=0,
        tokens_sha256=None,
        output_tokens_per_s=None,
        acceptance_length=None,
        steps=StepTable({}),
        device_busy=None,
        ranges={},
        evidence=Evidence(),
        plan_hash=plan.sha256,
        error=mask(f"{type(error).__name__}: {error}"),
    )


_NAMES = {
    "model": ("model", "source"),
    "drafter": ("drafter", "name"),
    "acceptance": ("acceptance", "mode"),
    "workload": ("workload", "kind"),
}
