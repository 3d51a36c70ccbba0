"""One process's part of an ``ab`` plan: arms opened, the plan sized if it is not yet, block after block on disk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from specbench import encoding
from specbench.measure.arm_loads import ArmLoads
from specbench.measure.arms import Arms, OpenArm
from specbench.measure.blocks import Block, complete_attempt, group_by_trial, list_blocks, next_attempt
from specbench.measure.calibration import calibrate
from specbench.measure.clock import SystemClock
from specbench.measure.divergence import find_divergence
from specbench.measure.environment import describe_environment, describe_torch
from specbench.measure.interruption import StopSignal
from specbench.measure.looks import BUDGET, due_look, take_look
from specbench.measure.looks_file import append_look, read_looks
from specbench.measure.observers import SessionObserver, SessionProgress
from specbench.measure.recording import Kept
from specbench.measure.results_folder import ENVIRONMENT, PLAN, ResultsFolder, read_json
from specbench.measure.session import join, read_question
from specbench.measure.so_far import describe_so_far, measured_units
from specbench.measure.subject import BuiltinSubject
from specbench.measure.trials import MeasuredTrial
from specbench.records import SCHEMA_VERSION, Divergence, LookRecord
from specbench.scenario.enumeration import planned_units
from specbench.scenario.plan import MIRRORED, RunPlan
from specbench.scenario.plan_io import plan_from_json
from specbench.scenario.questions import plan_question, resolved_points

OVERRUN = 1.15
"""A session that takes this many times its share of the budget ends early, with a last look."""


def run_session(path: Path, process: int, observer: SessionObserver, stop: StopSignal, kept: Kept | None = None) -> str:
    """Measure the blocks of process number ``process`` that the folder lacks; ``complete`` or ``interrupted``.

    The first session of a folder sizes the plan and writes it before the first unit.

    :param kept: what of the content is written, beside counts and hashes.
    :raises EngineError: an arm failed; blocks before that are on disk.
    :raises StorageError: a trial could not be written; trials before that are on disk.
    """
    from specbench.device.tracing import RangeRecorder

    started_s = time.monotonic()
    question, _ = read_question(path)
    recorder = RangeRecorder()
    points = list(zip(question.points, resolved_points(question), strict=True))
    arms = Arms(points, observer.announce, recorder, recorder)
    loads = ArmLoads(arms, SystemClock(), stop, kept or Kept())
    try:
        with ResultsFolder(path) as folder:
            plan_path = path / PLAN
            calibrated = not plan_path.exists()
            if not calibrated:
                plan = read_plan_file(plan_path)
            else:
                join_arm(folder, arms.open(question.comparisons[0].baseline))
                calibration = calibrate(question, loads, observer.announce, started_s)
                if calibration is None:
                    return "interrupted"
                plan = plan_question(question, calibration)
                write_plan_file(folder, plan)
                if "warning" in plan.calibration:
                    observer.announce(str(plan.calibration["warning"]))
            return _Session(plan, folder, loads, process, observer, stop, started_s, calibrated).run()
    finally:
        loads.release()
        arms.close()


def read_plan_file(path: Path) -> RunPlan:
    """The plan of a folder.

    :raises ResultsError: it is damaged.
    """
    return plan_from_json(read_json(path), str(path))


def write_plan_file(folder: ResultsFolder, plan: RunPlan) -> None:
    """Write ``plan.json``, with its hash, before anything is measured to it."""
    described = {"schema_version": SCHEMA_VERSION, "plan_hash": plan.sha256, **encoding.to_json(plan)}
    folder.write(PLAN, encoding.dumps(described) + "\n")


def join_arm(folder: ResultsFolder, arm: OpenArm) -> None:
    """Write down threads and builds, and refuse to go on with others than the folder began with."""
    if isinstance(arm.subject, BuiltinSubject):
        # Nothing was measured yet: what the folder says of the machine was seen by this very command.
        begun = folder.contents.trials
        here = describe_environment() if begun else read_json(folder.path / ENVIRONMENT)
        environment = {**here, "torch": describe_torch(arm.subject.num_threads)}
        join(folder, environment, arm.fingerprint, arm.point.index)


class _Session:
    """The blocks of one process, and the looks between them."""

    def __init__(
        self,
        plan: RunPlan,
        folder: ResultsFolder,
        loads: ArmLoads,
        process: int,
        observer: SessionObserver,
        stop: StopSignal,
        started_s: float,
        calibrated: bool,
    ) -> None:
        assert plan.settings is not None
        self._plan, self._settings = plan, plan.settings
        self._folder, self._loads, self._observer, self._stop = folder, loads, observer, stop
        self._blocks = list_blocks(plan, process)
        self._looks: list[LookRecord] = read_looks(folder.path)
        self._started_s = started_s
        # Several processes are looked at by whoever starts them, when one is complete.
        self._looks_here = self._settings.processes == 1
        self._budget_s = self._settings.budget_s / self._settings.processes
        self._calibrated = calibrated
        self._started: set[int] = set()
        self._has_margin = False

    def run(self) -> str:
        """Measure what is missing, until the plan, the budget or every question is through."""
        todo = self._missing_blocks()
        if todo:
            join_arm(self._folder, self._loads.open(todo[0].trials[0].point))
        skipped_s = self._expected_s(len(self._blocks)) - self._expected_s(len(todo))
        for block in todo:
            if self._is_settled(block.comparison):
                continue
            if self._stop.requested:
                return "interrupted"
            if self._is_over_budget(skipped_s):
                self._look_last()
                break
            if not self._measure(block):
                return "interrupted"
            self._look(block.comparison)
            self._show(skipped_s)
        return "complete"

    def _missing_blocks(self) -> list[Block]:
        by_trial = group_by_trial(self._folder.contents.trials)
        return [block for block in self._blocks if complete_attempt(block, by_trial) is None]

    def _measure(self, block: Block) -> bool:
        """Measure every trial of a block again; False when the user stopped it."""
        attempt = next_attempt(block, self._folder.contents.trials)
        comparison = self._plan.comparisons[block.comparison]
        self._loads.prepare(comparison, self._plan.warmup_requests)
        if block.comparison not in self._started:
            self._start(block)
        done: list[MeasuredTrial] = []
        for trial in block.trials:
            measured = self._loads.measure(self._plan, comparison, trial, attempt)
            done.append(measured)
            if len(done) == len(block.trials) and measured.record.status == "complete":
                found = self._find_divergence(block, done)
                measured = replace(measured, record=replace(measured.record, divergence=found))
            self._folder.append(measured.record, measured.requests)
            self._observer.trial_done(self._plan.points[trial.point], measured.record)
            if measured.record.status == "interrupted":
                return False
        return True

    def _start(self, block: Block) -> None:
        """Before a comparison's first block in a process: run a pass that nobody measures, unless calibration did."""
        self._started.add(block.comparison)
        comparison = self._plan.comparisons[block.comparison]
        if comparison.design == MIRRORED and not self._calibrated:
            self._loads.measure(self._plan, replace(comparison, injected=None), block.trials[0], 0)

    def _find_divergence(self, block: Block, done: Sequence[MeasuredTrial]) -> Divergence | None:
        """Where the arms' outputs of a block first differ, with the margin by which the baseline's token won."""
        comparison = self._plan.comparisons[block.comparison]
        if comparison.design == MIRRORED:
            first, second = done
        else:
            runs = {trial.arm: measured for trial, measured in zip(block.trials, done, strict=True)}
            first, second = runs["A"], runs["B"]
        # One margin is enough: each takes a float32 forward of the prefix.
        weights = None if self._has_margin else self._loads.loaded_weights(comparison)
        found = find_divergence(first, second, weights)
        self._has_margin = self._has_margin or found is not None
        return found

    def _look(self, comparison: int) -> None:
        if not self._looks_here:
            return
        trials, previous = self._folder.contents.trials, self._looks_at(comparison)
        if due_look(self._plan, comparison, measured_units(self._plan, comparison, trials), previous):
            self._record(take_look(self._plan, comparison, trials, previous))

    def _look_last(self) -> None:
        """Time is over: every comparison that is still open is looked at for the last time."""
        self._observer.announce("the budget is spent before the plan is: last look")
        if not self._looks_here:
            return
        for comparison in self._plan.comparisons:
            previous = self._looks_at(comparison.index)
            if not self._is_settled(comparison.index):
                trials = self._folder.contents.trials
                self._record(take_look(self._plan, comparison.index, trials, previous, is_last=True, reason=BUDGET))

    def _record(self, look: LookRecord) -> None:
        append_look(self._folder.path, look)
        self._looks.append(look)

    def _looks_at(self, comparison: int) -> list[LookRecord]:
        return [look for look in self._looks if look.comparison == comparison]

    def _is_settled(self, comparison: int) -> bool:
        over = any(look.settled or look.is_last for look in self._looks_at(comparison))
        return over and self._settings.stop_early

    def _is_over_budget(self, skipped_s: float) -> bool:
        # A plan that says itself that it takes longer was accepted as it is.
        allowed = max(self._budget_s, self._expected_s(len(self._blocks)))
        return self._elapsed_s() + skipped_s > OVERRUN * allowed

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _expected_s(self, num_blocks: int) -> float:
        """What so many blocks should take, by the plan's calibration."""
        seconds = self._plan.calibration.get("seconds_per_block") or [0.0]
        return float(num_blocks * sum(seconds) / len(seconds))

    def _show(self, skipped_s: float) -> None:
        found = tuple(
            describe_so_far(self._plan, c.index, self._folder.contents.trials, self._looks_at(c.index))
            for c in self._plan.comparisons
        )
        planned = sum(planned_units(self._plan, c.index) for c in self._plan.comparisons)
        self._observer.show(
            SessionProgress(
                units_done=sum(progress.units for progress in found),
                units_planned=planned,
                elapsed_s=self._elapsed_s() + skipped_s,
                budget_s=self._settings.budget_s,
                comparisons=found,
            )
        )
