"""Many points in one table: their coordinates, what each reached, and why some were not measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specbench.records import FAILED, Analysis, Point
from specbench.report.layout import NUM_SHOWN_SECTIONS, Block, Cell, Quantity, Section, Span, Table
from specbench.report.point_tables import point_tables
from specbench.report.words import by_batch_words, plural, point_words, short_keys, tree_size_words, value_words

_COLUMNS = ("tok/s", "per user", "accept.", "TTFT p50", "TPOT p50", "step", "device", "exposed")


def sweep_headline(analysis: Analysis) -> str:
    """How many points, how many failed, and the fastest."""
    counts = plural(len(analysis.points), "point")
    failed = sum(point.status == FAILED for point in analysis.points)
    counts += f", {failed} failed" if failed else ""
    speeds = {point.point: point.output_tokens_per_s for point in analysis.points if point.output_tokens_per_s}
    if not speeds:
        return f"{counts}; nothing was measured; {analysis.label}"
    best = max((point for point in analysis.points if point.point in speeds), key=lambda point: speeds[point.point])
    at = point_words(point_coordinates(best, analysis.points))
    found = f"{speeds[best.point]:,.1f} tok/s{_trials_words(best)} at {at}"
    rivals = [
        point for point in analysis.points if point.point in speeds and point is not best and _overlap(best, point)
    ]
    if rivals:
        found += f", not told from {plural(len(rivals), 'point')} more by its trials"
    return f"{counts}; {'among the ' if rivals else ''}highest: {found}; {analysis.label}"


def _spread(point: Point) -> tuple[float, float] | None:
    """The slowest and the fastest of several trials."""
    speeds = point.trial_tokens_per_s
    return (min(speeds), max(speeds)) if len(speeds) > 1 else None


def _trials_words(point: Point) -> str:
    spread = _spread(point)
    return "" if spread is None else f" (trials {spread[0]:,.1f} to {spread[1]:,.1f})"


def _overlap(best: Point, other: Point) -> bool:
    """Do trials of ``other`` reach those of ``best``?"""
    mine, theirs = _spread(best), _spread(other)
    return mine is not None and theirs is not None and theirs[1] >= mine[0]


def point_coordinates(point: Point, points: Sequence[Point]) -> dict[str, Any]:
    """What tells this point from the others: its axes, and the variant where that differs."""
    draft_len = by_batch_words(point.runtime_draft_len) or point.draft_len
    axes = dict(point.axes) or {"concurrency": point.concurrency, "draft_len": draft_len, **_drafts(point, points)}
    if "variant" not in axes and len({other.variant for other in points}) > 1:
        return {"variant": point.variant, **axes}
    return axes


def _drafts(point: Point, points: Sequence[Point]) -> dict[str, Any]:
    """Its head and its tree, where those of the points differ."""
    found: dict[str, Any] = {}
    if len({other.draft_model for other in points if other.draft_model}) > 1:
        found["draft_model"] = point.draft_model
    if len({repr(other.tree) for other in points}) > 1:
        found["tree"] = tree_size_words(point.tree) if point.tree else None
    return found


def wide_table(points: Sequence[Point], title: str = "Points") -> Table:
    """One row a point: coordinates first, then throughput, acceptance, latency and the step. Times in ms."""
    coordinates = [point_coordinates(point, points) for point in points]
    keys = list(dict.fromkeys(key for row in coordinates for key in row))
    short = short_keys(keys)
    has_spread = any(_spread(point) for point in points)
    header = (*(short[key] for key in keys), _COLUMNS[0], *(["trials"] if has_spread else []), *_COLUMNS[1:])
    rows = tuple(
        (*(_coordinate(row.get(key)) for key in keys), *_figures(point, has_spread=has_spread))
        for row, point in zip(coordinates, points, strict=True)
    )
    return Table(title, header, rows, unit="times in ms", num_keys=len(keys))


def _coordinate(value: Any) -> Cell:
    if isinstance(value, int) and not isinstance(value, bool):
        return Quantity(value, decimals=0)
    return "" if value is None else value_words(value)


def _figures(point: Point, *, has_spread: bool) -> tuple[Cell, ...]:
    low, high = _spread(point) or (None, None)
    spread = [Span(low, high, 1, signed=False)] if has_spread else []
    return (
        Quantity(point.output_tokens_per_s, decimals=1),
        *spread,
        Quantity(point.tokens_per_s_per_user, decimals=1),
        Quantity(point.acceptance_length, decimals=3),
        Quantity(point.ttft_ms.p50 if point.ttft_ms else None),
        Quantity(point.tpot_ms.p50 if point.tpot_ms else None),
        Quantity(point.step_ms, decimals=3),
        Quantity(point.device_ms, decimals=3),
        Quantity(point.host_exposed_ms, decimals=3),
    )


def failure_table(points: Sequence[Point]) -> Table | None:
    """The points that could not be measured, with the reason."""
    failed = [point for point in points if point.status == FAILED or point.error]
    if not failed:
        return None
    rows = tuple(
        (point_words(point_coordinates(point, points)), point.error or "no reason was recorded") for point in failed
    )
    return Table("Not measured", ("point", "reason"), rows)


def sweep_blocks(points: Sequence[Point]) -> tuple[Block, ...]:
    """The table of all points and the list of those that failed."""
    failures = failure_table(points)
    return (wide_table(points), *([failures] if failures else []))


def point_sections(points: Sequence[Point], *, is_detail: bool | None = None) -> tuple[Section, ...]:
    """A section for every point that was measured; titled where there are several."""
    several = len(points) > 1
    detail = len(points) > NUM_SHOWN_SECTIONS if is_detail is None else is_detail
    return tuple(
        Section(
            point_words(point_coordinates(point, points)) if several else "",
            point_tables(point),
            anchor=f"point-{point.point}",
            is_detail=detail,
        )
        for point in points
        if point.status != FAILED
    )
