"""A results folder as pandas frames."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from specbench import encoding
from specbench.errors import ResultsError
from specbench.records import Analysis
from specbench.report.formats.csv import flatten_point

NESTED = ("steps", "ranges", "device_busy")
"""Raw columns of a trial line that are no scalar: they stay in ``trials.jsonl``."""


@dataclass(frozen=True)
class Results:
    """One row a point, a comparison, a trial, a request. Column names are those of the files."""

    points: pd.DataFrame
    comparisons: pd.DataFrame
    trials: pd.DataFrame
    requests: pd.DataFrame
    analysis: Analysis


def load_results(path: str | Path) -> Results:
    """Read a results folder, or the ``analysis.json`` in one (then trials and requests come from beside it).

    :raises ResultsError: not a results folder, damaged, or written by a newer specbench.
    """
    folder = Path(path)
    file = folder if folder.is_file() else folder / "analysis.json"
    folder = file.parent
    analysis = encoding.from_json(Analysis, _read_object(file), str(file))
    return Results(
        points=pd.DataFrame([flatten_point(point) for point in analysis.points]),
        comparisons=pd.json_normalize([encoding.to_json(item) for item in analysis.comparisons]),
        trials=_frame(folder / "trials.jsonl", NESTED),
        requests=_frame(folder / "requests.jsonl", ()),
        analysis=analysis,
    )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultsError("there is no such file", where=str(path), hint="a folder that `run` wrote") from None
    except (OSError, ValueError) as error:
        raise ResultsError(f"cannot be read: {error}", where=str(path)) from error
    if not isinstance(data, dict):
        raise ResultsError("holds no JSON object", where=str(path))
    return data


def _frame(path: Path, left_out: tuple[str, ...]) -> pd.DataFrame:
    """Whole lines of a JSONL file as a frame, nested objects as dotted columns; a torn last line does not count."""
    rows: list[dict[str, Any]] = []
    if path.is_file():
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ResultsError(f"the line is damaged: {error}", where=f"{path}:{number}") from error
            encoding.check_schema_version(row, f"{path}:{number}")
            rows.append({key: value for key, value in row.items() if key not in left_out})
    return pd.json_normalize(rows)
