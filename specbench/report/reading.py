"""Reading a result back from where a command left it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from specbench import encoding
from specbench.errors import ResultsError
from specbench.records import Analysis

ANALYSIS = "analysis.json"


def analysis_path(path: Path) -> Path:
    """The ``analysis.json`` of a results folder, or the file itself."""
    return path if path.is_file() else path / ANALYSIS


def read_analysis(path: Path) -> Analysis:
    """Read a results folder, or the ``analysis.json`` in one.

    :raises ResultsError: not a results folder, damaged, or written by a newer specbench.
    """
    file = analysis_path(path)
    return encoding.from_json(Analysis, _read_object(file), str(file))


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON, so the file is damaged")


def _parse_finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse, parse_float=_parse_finite)
    except FileNotFoundError:
        raise ResultsError(
            "there is no such file",
            where=str(path),
            hint="a folder that run, sweep or ab wrote; one that was cut short has it once it was resumed",
        ) from None
    except (OSError, ValueError) as error:
        raise ResultsError(f"cannot be read: {error}", where=str(path)) from error
    if not isinstance(data, dict):
        raise ResultsError("holds no JSON object", where=str(path))
    return data
