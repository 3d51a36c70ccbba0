"""Points, one row each: stable columns, units in their names, an empty cell for what was not measured."""

from __future__ import annotations

import csv
import io
from dataclasses import fields
from typing import Any

from specbench.records import Analysis, Distribution, Point

DISTRIBUTIONS = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
LISTS = ("conditional_acceptance", "joint_acceptance")
LEFT_OUT = ("ranges", "acceptance_counts")
"""Maps of any size: they are in the JSON alone."""


def columns() -> list[str]:
    """Names of the columns, in order."""
    names = ["row", "kind", "label"]
    for item in fields(Point):
        if item.name in DISTRIBUTIONS:
            names.extend(f"{item.name}_{part.name}" for part in fields(Distribution))
        elif item.name not in LEFT_OUT:
            names.append(item.name)
    return names


def flatten_point(point: Point) -> dict[str, Any]:
    """A point as one flat row; lists are joined with semicolons, position 1 first."""
    row: dict[str, Any] = {}
    for item in fields(Point):
        value = getattr(point, item.name)
        if item.name in DISTRIBUTIONS:
            for part in fields(Distribution):
                row[f"{item.name}_{part.name}"] = None if value is None else getattr(value, part.name)
        elif item.name in LISTS:
            row[item.name] = ";".join("" if rate is None else repr(rate) for rate in value)
        elif item.name not in LEFT_OUT:
            row[item.name] = value
    return row


def render(analysis: Analysis) -> str:
    """The points of the analysis as CSV text, a row each, under a header line.

    Comparisons, gates, ranges and the environment are in the JSON alone.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(), lineterminator="\n")
    writer.writeheader()
    for point in analysis.points:
        writer.writerow({"row": "point", "kind": analysis.kind, "label": analysis.label, **flatten_point(point)})
    return text.getvalue()
