"""An ``ab`` from its folder: in this process, or in fresh ones one after the other, looked at when one is complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specbench.measure.ab_session import run_session
from specbench.measure.interruption import StopSignal
from specbench.measure.looks import due_look, has_ended, take_look
from specbench.measure.looks_file import append_look, read_looks
from specbench.measure.observers import SessionObserver
from specbench.measure.plan_file import read_plan_file
from specbench.measure.recording import Kept
from specbench.measure.results_folder import PLAN, ResultsFolder
from specbench.measure.session import read_question
from specbench.measure.so_far import measured_units
from specbench.records import BUDGET, PLANNED
from specbench.scenario.enumeration import planned_units
from specbench.scenario.plan import RunPlan, settings_of


def measure_ab(
    path: Path,
    observer: SessionObserver,
    stop: StopSignal,
    run_process: Callable[[int], str],
    kept: Kept | None = None,
) -> str:
    """Measure what the folder's question lacks; return ``complete`` or ``interrupted``.

    :param run_process: runs :func:`~specbench.measure.ab_session.run_session` in a fresh process of that number and
        returns what it returned; not asked where the question wants one process.
    :raises EngineError: an arm failed; blocks before that are on disk.
    """
    question, _ = read_question(path)
    assert question.settings is not None
    if question.settings.processes == 1:
        return run_session(path, 0, observer, stop, kept)
    for process in range(question.settings.processes):
        if stop.requested:
            return "interrupted"
        if process and look_at_processes(path, read_plan_file(path / PLAN), process):
            return "complete"
        observer.announce(f"process {process + 1} of {question.settings.processes}")
        if run_process(process) == "interrupted":
            return "interrupted"
    look_at_processes(path, read_plan_file(path / PLAN), question.settings.processes)
    return "complete"


def look_at_processes(path: Path, plan: RunPlan, complete: int) -> bool:
    """Take the looks that ``complete`` processes have made due; True when every comparison is settled."""
    with ResultsFolder(path) as folder:
        trials = folder.contents.trials
    looks = read_looks(path)
    for comparison in plan.comparisons:
        if due_look(plan, comparison.index, complete, looks):
            ends = complete == settings_of(plan).processes
            short = ends and measured_units(plan, comparison.index, trials) < planned_units(plan, comparison.index)
            reason = BUDGET if short else PLANNED
            look = take_look(plan, comparison.index, trials, looks, is_last=ends, reason=reason)
            append_look(path, look)
            looks.append(look)
    return all(has_ended(plan, comparison.index, looks) for comparison in plan.comparisons)
