"""One process's part of an ``ab`` plan: arms opened, the plan sized if it is not yet, block after block on disk."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from specbench.measure.arm_loads import ArmLoads
from specbench.measure.arms import Arms, OpenArm
from specbench.measure.blocks import Block, complete_attempt, group_by_trial, list_blocks, next_attempt
from specbench.measure.calibration import calibrate
from specbench.measure.clock import SystemClock
from specbench.measure.divergence import find_divergence
from specbench.measure.interruption import StopSignal
from specbench.measure.looks import due_look, has_ended, take_look
from specbench.measure.looks_file import append_look, read_looks
from specbench.measure.observers import SessionObserver, SessionProgress
from specbench.measure.plan_file import join_arm, read_plan_file, require_whole, write_plan_file
from specbench.measure.recording import Kept
from specbench.measure.remote import RemoteSubject
from specbench.measure.results_folder import PLAN, ResultsFolder
from specbench.measure.session import read_question
from specbench.measure.so_far import describe_so_far, measured_units
from specbench.measure.trials import MeasuredTrial
from specbench.records import BUDGET, Divergence, LookRecord, TrialRecord
from specbench.scenario.enumeration import planned_units
from specbench.scenario.plan import MIRRORED, ComparisonPlan, RunPlan, settings_of
from specbench.scenario.questions import plan_question
from specbench.scenario.sizing import least_units

SHOWING_SHARE = 50
"""Progress is reckoned at most once in so many times what reckoning it takes."""
OVERRUN = 1.15
"""A session that takes this many times its share of the budget ends early, with a last look."""


def run_session(path: Path, process: int, observer: SessionObserver, stop: StopSignal, kept: Kept | None = None) -> str:
    """Measure the blocks of process number ``process`` that the folder lacks; ``complete`` or ``interrupted``.

    The first session of a folder sizes the plan and writes it before the first unit.

    :param kept: what of the content is written, beside counts and hashes.
    :raises EngineError: an arm failed; blocks before that are on disk.
    :raises StorageError: a trial could not be written; trials before that are on disk.
    """
    started_s = time.monotonic()
    question, _ = read_question(path)
    arms = Arms.of(question, observer.announce)
    loads = ArmLoads(arms, SystemClock(), stop, kept or Kept())
    try:
        with ResultsFolder(path) as folder:
            plan_path = path / PLAN
            require_whole(folder)
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
        self._plan, self._settings = plan, settings_of(plan)
        self._folder, self._loads, self._observer, self._stop = folder, loads, observer, stop
        self._process = process
        self._blocks = list_blocks(plan, process)
        self._looks: list[LookRecord] = read_looks(folder.path)
        self._started_s = started_s
        # Several processes are looked at by whoever starts them, when one is complete.
        self._looks_here = self._settings.processes == 1
        self._budget_s = self._settings.budget_s / self._settings.processes
        self._calibrated = calibrated
        self._started: set[tuple[int, int]] = set()
        self._joined: dict[int, OpenArm] = {}
        self._start_number = count_starts(folder.contents.trials, process)
        self._shown_s, self._showing_s = -math.inf, 0.0
        self._has_margin = False

    def run(self) -> str:
        """Measure what is missing, until the plan, the budget or every question is through."""
        todo = self._missing_blocks()
        if todo and not self._calibrated:
            self._join(self._loads.open(self._plan.comparisons[0].baseline))
        skipped_s = self._expected_s(len(self._blocks)) - self._expected_s(len(todo))
        for comparison in self._plan.comparisons:
            # A session that was killed may have measured what a look was due at, and not have looked.
            self._look(comparison.index)
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
        self._loads.prepare(comparison, self._plan.warmup_requests, block.trials[0])
        for point in dict.fromkeys(trial.point for trial in block.trials):
            arm = self._loads.open(point)
            if isinstance(arm.subject, RemoteSubject):  # each is a build of its own; the others are this process
                self._join(arm)
        self._start(block)
        done: list[MeasuredTrial] = []
        for trial in block.trials:
            measured = self._loads.measure(self._plan, comparison, trial, attempt)
            done.append(measured)
            if len(done) == len(block.trials) and measured.record.status == "complete":
                found = self._find_divergence(block, done)
                measured = replace(measured, record=replace(measured.record, divergence=found))
            record = replace(measured.record, start=self._start_number)
            self._folder.append(record, measured.requests)
            self._observer.trial_done(self._plan.points[trial.point], record)
            if measured.record.status == "interrupted":
                return False
        return True

    def _join(self, arm: OpenArm) -> None:
        """Once for each start of its process: an arm that was closed for lack of memory comes back as another one."""
        if self._joined.get(arm.point.index) is not arm:
            join_arm(self._folder, arm)
            self._joined[arm.point.index] = arm

    def _start(self, block: Block) -> None:
        """Before a pair's first block in a process: run a pass that nobody measures, unless calibration did."""
        comparison = self._plan.comparisons[block.comparison]
        pair = (comparison.baseline, comparison.candidate)
        if comparison.design == MIRRORED and not self._calibrated and pair not in self._started:
            self._started.add(pair)
            self._loads.measure(self._plan, replace(comparison, injected=None), block.trials[0], 0)

    def _find_divergence(self, block: Block, done: Sequence[MeasuredTrial]) -> Divergence | None:
        """Where the arms' outputs of a block first differ, with the margin by which the baseline's token won."""
        comparison = self._plan.comparisons[block.comparison]
        pairs = [(done[0], done[1])]
        if comparison.design != MIRRORED:
            arms = {arm: [m for m in done if m.record.arm == arm] for arm in ("A", "B")}
            pairs = list(product(arms["A"], arms["B"]))
        # One margin is enough: each takes a float32 forward of the prefix.
        margin = None if self._has_margin else self._loads.margin_of(comparison)
        found = next(filter(None, (find_divergence(first, second, margin) for first, second in pairs)), None)
        self._has_margin = self._has_margin or found is not None
        return found

    def _look(self, comparison: int) -> None:
        if not self._looks_here:
            return
        trials = self._folder.contents.trials
        if due_look(self._plan, comparison, measured_units(self._plan, comparison, trials), self._looks):
            self._record(take_look(self._plan, comparison, trials, self._looks))

    def _look_last(self) -> None:
        """Time is over: every comparison that is still open is looked at for the last time."""
        self._observer.announce("the budget is spent before the plan is")
        if not self._looks_here:
            return
        trials = self._folder.contents.trials
        for comparison in self._plan.comparisons:
            if not self._is_settled(comparison.index):
                self._record(take_look(self._plan, comparison.index, trials, self._looks, is_last=True, reason=BUDGET))

    def _record(self, look: LookRecord) -> None:
        append_look(self._folder.path, look)
        self._looks.append(look)

    def _looks_at(self, comparison: int) -> list[LookRecord]:
        return [look for look in self._looks if look.comparison == comparison]

    def _is_settled(self, comparison: int) -> bool:
        return has_ended(self._plan, comparison, self._looks)

    def _is_over_budget(self, skipped_s: float) -> bool:
        """Time is up, and every comparison that is open has the fewest units that are worth a look."""
        expected_s = float(self._plan.calibration.get("expected_s") or 0.0) / self._settings.processes
        # A plan that says itself that it takes longer was accepted as it is.
        if self._elapsed_s() + skipped_s <= OVERRUN * max(self._budget_s, expected_s):
            return False
        return all(self._has_least_units(c) for c in self._plan.comparisons if not self._is_settled(c.index))

    def _has_least_units(self, comparison: ComparisonPlan) -> bool:
        wanted = min(least_units(comparison, self._settings), planned_units(self._plan, comparison.index))
        done = measured_units(self._plan, comparison.index, self._folder.contents.trials, self._process)
        return done >= math.ceil(wanted / self._settings.processes)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _expected_s(self, num_blocks: int) -> float:
        """What so many blocks should take, by the plan's calibration."""
        seconds = self._plan.calibration.get("seconds_per_block") or [0.0]
        return float(num_blocks * sum(seconds) / len(seconds))

    def _show(self, skipped_s: float) -> None:
        """Tell how far it is, as often as that costs little beside what is measured."""
        now_s = time.monotonic()
        if now_s - self._shown_s < max(1.0, SHOWING_SHARE * self._showing_s):
            return
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
                budget_s=self._budget_s,
                comparisons=found,
            )
        )
        self._shown_s = time.monotonic()
        self._showing_s = self._shown_s - now_s


def count_starts(measured: Iterable[TrialRecord], process: int) -> int:
    """Number of this start of the process: how many starts before it left a trial."""
    return 1 + max((trial.start for trial in measured if trial.process == process), default=-1)
