"""A results folder as pandas frames."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from specbench import encoding
from specbench.errors import ResultsError
from specbench.records import Analysis, Comparison
from specbench.report.formats.csv import flatten_comparison, flatten_line, flatten_points
from specbench.report.reading import analysis_path, read_analysis

NESTED = ("steps", "ranges", "device_busy")
"""Raw columns of a trial line that are no scalar: they stay in ``trials.jsonl``."""


@dataclass(frozen=True, repr=False)
class Results:
    """One row a point, a comparison, a unit of analysis, a trial, a request, a cell of a break-even map. Columns are
    named as in the files and the CSV; sweep coordinates have a column each, named by the scenario's key in full.

    :param units: of all comparisons; ``comparison`` says of which, ``d_pct`` is the unit's effect.
    :param ranges: one row a comparison and range: what it takes in both arms, and its change.
    """

    points: pd.DataFrame
    comparisons: pd.DataFrame
    trials: pd.DataFrame
    requests: pd.DataFrame
    units: pd.DataFrame
    ranges: pd.DataFrame
    break_even: pd.DataFrame
    analysis: Analysis

    def __repr__(self) -> str:
        """What there is of each, in one line."""
        names = ("points", "comparisons", "trials", "requests", "units", "ranges")
        counts = ", ".join(f"{name}: {len(getattr(self, name)):,}" for name in names)
        return f"<Results of {self.analysis.kind} {self.analysis.scenario.get('name') or 'unnamed'}: {counts}>"


def load_results(path: str | Path) -> Results:
    """Read a results folder, or the ``analysis.json`` in one (then trials and requests come from beside it).

    :raises ResultsError: not a results folder, damaged, or written by a newer specbench.
    """
    analysis = read_analysis(Path(path))
    folder = analysis_path(Path(path)).parent
    compared, axes = analysis.comparisons, [point.axes for point in analysis.points]
    return Results(
        points=pd.DataFrame([_with_axes(*found) for found in zip(flatten_points(analysis), axes, strict=True)]),
        comparisons=pd.DataFrame([_with_axes(flatten_comparison(item), item.point) for item in compared]),
        trials=_frame(folder / "trials.jsonl", NESTED),
        requests=_frame(folder / "requests.jsonl", ()),
        units=pd.DataFrame([row for item in compared for row in _unit_rows(item)]),
        ranges=pd.DataFrame([row for item in compared for row in _range_rows(item)]),
        break_even=pd.DataFrame(_cell_rows(analysis)),
        analysis=analysis,
    )


def _with_axes(row: dict[str, Any], axes: dict[str, Any]) -> dict[str, Any]:
    return {**{key: value for key, value in row.items() if key != "axes"}, **axes}


def _unit_rows(comparison: Comparison) -> list[dict[str, Any]]:
    return [{"comparison": comparison.index, **encoding.to_json(unit)} for unit in comparison.units]


def _range_rows(comparison: Comparison) -> list[dict[str, Any]]:
    ranges = comparison.ranges.items()
    return [{"comparison": comparison.index, "range": name, **encoding.to_json(effect)} for name, effect in ranges]


def _cell_rows(analysis: Analysis) -> list[dict[str, Any]]:
    """``drafter``, ``draft_len``, the head and the tree, the line's other axes, then the cell's own figures."""
    lines = [] if analysis.break_even is None else analysis.break_even.lines
    return [{**flatten_line(line), **line.axes, **encoding.to_json(cell)} for line in lines for cell in line.cells]


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
