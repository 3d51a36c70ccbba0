"""Paired benchmarking of speculative decoding engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from specbench.report.frames import Results

__version__ = "0.1.0"


def load_results(path: str | Path) -> Results:
    """Read a results folder as pandas frames: points, comparisons, trials and requests.

    :raises specbench.errors.ResultsError: not a results folder, damaged, or written by a newer specbench.
    """
    from specbench.report import frames

    return frames.load_results(path)
