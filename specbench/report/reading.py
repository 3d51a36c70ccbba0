"""Reading a result back from where a command left it."""

from __future__ import annotations

import os
from pathlib import Path

from specbench import encoding
from specbench.records import Analysis

ANALYSIS = "analysis.json"


def analysis_path(path: Path) -> Path:
    """The ``analysis.json`` of a results folder, or the file itself."""
    return path if os.path.isfile(path) else path / ANALYSIS


def read_analysis(path: Path) -> Analysis:
    """Read a results folder, or the ``analysis.json`` in one.

    :raises ResultsError: not a results folder, damaged, or written by a newer specbench.
    """
    file = analysis_path(path)
    hint = "a folder that run, sweep or ab wrote; one that was cut short has it once it was resumed"
    found = encoding.read_object(file, missing="there is no such file", hint=hint)
    return encoding.from_json(Analysis, found, str(file))
