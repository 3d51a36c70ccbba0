"""Points, comparisons and cells of a break-even map, one row each: stable columns, units in their names, an empty cell
for what is not known.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from specbench.records import INVALID, Analysis, BreakEvenCell, BreakEvenLine, Comparison, Distribution, Point

DISTRIBUTIONS = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
LISTS = ("conditional_acceptance", "joint_acceptance", "trial_tokens_per_s")
OBJECTS = ("axes", "runtime_draft_len", "tree")
LEFT_OUT = ("ranges", "acceptance_counts", "counters")
"""Maps of any size: they are in the JSON alone."""
MIRRORED = "mirrored"
"""A design whose passes serve their requests by both arms in turn."""
SHARED_BY_ARMS = ("requests", "failed_requests", "prompt_tokens")
PARTS = ("tokens_per_step", "device", "host_exposed", "other_idle", "step")
SECOND_LINE = (
    *("hodges_lehmann_pct", "ratio_of_sums_pct", "sign_positive", "sign_negative", "sign_p", "num_outliers", "lag1"),
    "std_dev_pct",
)
COMPARISON_COLUMNS = (
    *(
        "comparison",
        "role",
        "baseline",
        "candidate",
        "differences",
        "design",
        "exactness",
        "metric",
        "scope",
        "n_units",
    ),
    *("planned_units", "n_processes", "measured_s", "baseline_tokens_per_s", "candidate_tokens_per_s", "speedup_pct"),
    *(
        "ci_low_pct",
        "ci_high_pct",
        "confidence",
        "bound",
        "alpha",
        "verdict",
        "output_changed",
        "reasons",
        "margin_pct",
    ),
    *("mde_pct", "units_needed", "p_value", "p_holm", "tokens_identical"),
    *(f"{name}_log_points" for name in PARTS),
    *("baseline_acceptance_length", "candidate_acceptance_length"),
    *SECOND_LINE,
)
"""Columns that comparisons alone fill, after those of points."""
Row = dict[str, Any]


def columns() -> list[str]:
    """Names of the columns, in order; the same for every result, so that files can be joined."""
    names = ["row", "kind", "label", "validity"]
    for item in fields(Point):
        if item.name in DISTRIBUTIONS:
            names.extend(f"{item.name}_{part.name}" for part in fields(Distribution))
        elif item.name not in LEFT_OUT:
            names.append(item.name)
    return [*names, *COMPARISON_COLUMNS]


def flatten_point(point: Point) -> Row:
    """A point as one flat row; lists are joined with semicolons, position 1 first; a map is one JSON object."""
    row: Row = {}
    for item in fields(Point):
        value = getattr(point, item.name)
        if item.name in DISTRIBUTIONS:
            for part in fields(Distribution):
                row[f"{item.name}_{part.name}"] = None if value is None else getattr(value, part.name)
        elif item.name in LISTS:
            row[item.name] = ";".join("" if rate is None else repr(rate) for rate in value)
        elif item.name in OBJECTS:
            row[item.name] = _object(value)
        elif item.name not in LEFT_OUT:
            row[item.name] = value
    return row


def flatten_points(analysis: Analysis) -> list[Row]:
    """Every point as one flat row. Arms that took turns in the same passes share requests: theirs are not counted."""
    invalid = _invalid_points(analysis)
    designs: dict[int, set[str]] = {}
    for item in analysis.comparisons:
        for point in (item.baseline_index, item.candidate_index):
            designs.setdefault(point, set()).add(item.design)
    shared = {point for point, found in designs.items() if found == {MIRRORED}}
    return [
        flatten_point(point)
        | (dict.fromkeys(SHARED_BY_ARMS) if point.point in shared else {})
        | {"validity": _validity(point.point in invalid)}
        for point in analysis.points
    ]


def _invalid_points(analysis: Analysis) -> set[int]:
    """Points whose figures may not be used: all where a gate of the whole failed, else arms of INVALID comparisons."""
    own = {gate.name for item in analysis.comparisons for gate in item.gates}
    if any(gate.status == "fail" and gate.name not in own for gate in analysis.gates):
        return {point.point for point in analysis.points}
    condemned = [item for item in analysis.comparisons if item.verdict == INVALID]
    return {point for item in condemned for point in (item.baseline_index, item.candidate_index)}


def flatten_comparison(comparison: Comparison) -> Row:
    """A comparison as one flat row: its point's coordinates under ``axes``, the parts of the effect in log points."""
    own = set(COMPARISON_COLUMNS) & {item.name for item in fields(Comparison)}
    row: Row = {name: getattr(comparison, name) for name in COMPARISON_COLUMNS if name in own}
    row |= {f"{name}_log_points": comparison.decomposition.get(name) for name in PARTS}
    row |= {f"{arm}_acceptance_length": comparison.acceptance_length.get(arm) for arm in ("baseline", "candidate")}
    row |= {name: comparison.second_line.get(name) for name in SECOND_LINE}
    differences = {item.key: [item.baseline, item.candidate] for item in comparison.differences}
    row |= {"differences": _object(differences), "reasons": "; ".join(comparison.reasons)}
    validity = _validity(comparison.verdict == INVALID)
    return {"axes": _object(comparison.point), "comparison": comparison.index, "validity": validity, **row}


def _validity(is_invalid: bool) -> str:
    return INVALID if is_invalid else "valid"


def flatten_cells(analysis: Analysis) -> list[Row]:
    """The break-even map, a row a cell: the drafter against none, under the columns of points and comparisons."""
    if analysis.break_even is None:
        return []
    confidence, invalid = analysis.break_even.confidence, _invalid_points(analysis)
    return [
        _flatten_cell(line, cell, confidence) | {"validity": _validity(cell.point in invalid)}
        for line in analysis.break_even.lines
        for cell in line.cells
    ]


def flatten_line(line: BreakEvenLine) -> Row:
    """What drafts at the cells of a line, under the columns of points."""
    return {
        "drafter": line.drafter,
        "draft_len": line.draft_len,
        "draft_model": line.draft_model,
        "tree": _object(line.tree),
    }


def _flatten_cell(line: BreakEvenLine, cell: BreakEvenCell, confidence: float) -> Row:
    own = set(COMPARISON_COLUMNS) & {item.name for item in fields(BreakEvenCell)}
    return {
        "point": cell.point,
        **flatten_line(line),
        "concurrency": cell.concurrency,
        "axes": _object(line.axes),
        "baseline": "none",
        "candidate": line.drafter,
        "n_units": cell.rounds,
        "confidence": confidence,
        "acceptance_length": cell.acceptance_length,
        "candidate_tokens_per_s": cell.tokens_per_s,
        **{name: getattr(cell, name) for name in COMPARISON_COLUMNS if name in own},
    }


def _object(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, default=str) if values else ""


def rows(analysis: Analysis) -> list[Row]:
    """Points first, then comparisons, then the cells of a break-even map; ``row`` says which."""
    points = [
        {"row": "point", "kind": analysis.kind, "label": analysis.label, **row} for row in flatten_points(analysis)
    ]
    compared = [
        {"row": "comparison", "kind": analysis.kind, "label": item.label, **flatten_comparison(item)}
        for item in analysis.comparisons
    ]
    cells = [
        {"row": "break-even", "kind": analysis.kind, "label": analysis.label, **row} for row in flatten_cells(analysis)
    ]
    return [*points, *compared, *cells]


def render(analysis: Analysis) -> str:
    """The points, comparisons and break-even cells of the analysis as CSV text, a row each, under a header line.

    Gates, ranges, units and the environment are in the JSON alone.
    """
    return _write(columns(), rows(analysis))


def render_several(runs: Sequence[tuple[str, Analysis]]) -> str:
    """The rows of several results under one header, the name of the run in a first column ``run``."""
    named = [{"run": name, **row} for name, analysis in runs for row in rows(analysis)]
    return _write(["run", *columns()], named)


def _write(names: Sequence[str], found: Iterable[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()
