"""The part of ``ab`` and ``selftest`` that measures: in this process, or in fresh ones one after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specbench.cli.session_folder import Opened, Options, measuring
from specbench.cli.session_progress import make_observer
from specbench.errors import InterruptedRunError
from specbench.measure.interruption import StopSignal
from specbench.measure.recording import Kept

PROCESS_TARGET = "specbench.cli.ab_process:main"
SAVE_OUTPUTS, SAVE_PROMPTS = "--save-outputs", "--save-prompts"


def measure_question(options: Options, opened: Opened) -> str:
    """Measure what the folder lacks; return ``complete`` or ``interrupted``.

    :raises SpecbenchError: whatever went wrong; what was measured before is on disk.
    """
    with measuring(options, opened):
        return _measure(options, opened)


def _measure(options: Options, opened: Opened) -> str:
    from specbench.measure.orchestration import measure_ab

    observer = make_observer()
    for note in opened.question.notes:
        observer.announce(note)
    with StopSignal() as stop:
        try:
            return measure_ab(
                opened.path,
                observer,
                stop,
                fresh_processes(options, opened.path, stop),
                Kept(options.save_outputs, options.save_prompts),
            )
        finally:
            observer.finish()


def fresh_processes(options: Options, path: Path, stop: StopSignal) -> Callable[[int], str]:
    """What starts the fresh process of a given number and waits for it."""
    flags = [SAVE_OUTPUTS] * options.save_outputs + [SAVE_PROMPTS] * options.save_prompts

    def run_process(index: int) -> str:
        from specbench.measure.fresh_process import run_fresh

        try:
            return run_fresh(PROCESS_TARGET, [str(path), str(index), *flags], stop=stop)
        except InterruptedRunError:  # while it was still importing: it has measured nothing yet
            return "interrupted"

    return run_process
