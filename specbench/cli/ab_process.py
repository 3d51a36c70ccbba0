"""What a fresh process of ``ab --processes`` runs: its part of the plan in the folder that the command opened."""

from __future__ import annotations

from pathlib import Path

from specbench.cli.session_execution import SAVE_OUTPUTS, SAVE_PROMPTS
from specbench.cli.session_progress import make_observer
from specbench.measure.interruption import StopSignal
from specbench.measure.recording import Kept


def main(folder: str, index: str, *flags: str) -> str:
    """Measure the blocks of process ``index``; return ``complete`` or ``interrupted``.

    :param flags: what of the content to keep, as the command was asked.
    :raises SpecbenchError: whatever went wrong; the calling process raises it again.
    """
    from specbench.measure.ab_session import run_session

    observer = make_observer()
    with StopSignal() as stop:
        try:
            kept = Kept(SAVE_OUTPUTS in flags, SAVE_PROMPTS in flags)
            return run_session(Path(folder), int(index), observer, stop, kept)
        finally:
            observer.finish()
