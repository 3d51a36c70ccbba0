"""Drawings of comparisons: pure functions from numbers to SVG, each for a given width in pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from specbench.report.svg import (
    FONT_WIDTH,
    Frame,
    Scale,
    drawing,
    legend,
    line,
    polyline,
    round_ticks,
    tag,
    text,
    tooltip,
    x_axis,
    y_axis,
)

NARROW = 480
"""Below this width, labels stand above what they name and not beside it."""
CLIP = 6.0
"""An interval this many times as long as the middle one is cut off with an arrow, so that the others can be read."""
TUKEY_FENCE = 1.5


@dataclass(frozen=True)
class ForestRow:
    """One effect with its interval in percent; ``low`` and ``high`` None: not computed.

    :param words: the figures, as text.
    :param tone: colour, as that of a verdict.
    :param is_pooled: drawn as a diamond.
    """

    label: str
    value: float
    low: float | None
    high: float | None
    margin: float | None
    words: str
    tone: str = ""
    is_pooled: bool = False


def forest_plot(rows: Sequence[ForestRow], width: int) -> str:
    """Effects under each other on one axis, zero and the margin marked.

    :param rows: at least one.
    """
    narrow = width < NARROW
    row_height = 40 if narrow else 26
    longest = max(len(row.label) for row in rows)
    left = 10.0 if narrow else min(20 + FONT_WIDTH * longest, width * 0.36)
    right = width - (10.0 if narrow else 16 + FONT_WIDTH * max(len(row.words) for row in rows))
    frame = Frame(left, 8, right, 8 + row_height * len(rows))
    low, high = _forest_domain(rows)
    scale = Scale(low, high, frame.left, frame.right)
    ticks = round_ticks(low, high, max(2, int((right - left) / 60)))
    parts = [_margin_bands(rows, scale, frame, row_height), x_axis(frame, scale, ticks, "speedup, % (right: faster)")]
    parts.append(line(scale.inside(0), frame.top, scale.inside(0), frame.bottom, "zero"))
    for index, row in enumerate(rows):
        top = frame.top + index * row_height
        if narrow:
            room = right - left - FONT_WIDTH * (len(row.words) + 1)
            parts.append(text(left, top + 14, cut(row.label, room), "label"))
            parts.append(text(right, top + 14, row.words, "label", "end"))
        else:
            parts.append(text(left - 8, top + 17, cut(row.label, left - 12), "label", "end"))
            parts.append(text(right + 8, top + 17, row.words, "label"))
        parts.append(_forest_mark(row, scale, top + (26 if narrow else 13)))
    return drawing(width, frame.bottom + 42, "Effects with intervals", parts, size_class(narrow))


def size_class(narrow: bool) -> str:
    """What the style sheet shows on a telephone, and what on a screen."""
    return "narrow" if narrow else "wide"


def cut(words: str, width: float) -> str:
    """``words``, or as much of them as fits ``width`` pixels."""
    room = max(int(width / FONT_WIDTH * 1.08), 4)
    return words if len(words) <= room else f"{words[: room - 1]}…"


def _forest_domain(rows: Sequence[ForestRow]) -> tuple[float, float]:
    """Ends of the axis: every interval, but for one that dwarfs the rest; zero and the margins are inside."""
    reaches = sorted(max(abs(row.value), abs(row.low or 0.0), abs(row.high or 0.0)) for row in rows)
    limit = max(CLIP * reaches[len(reaches) // 2], *(1.2 * (row.margin or 0.0) for row in rows), 1e-3)
    values = [0.0]
    for row in rows:
        values += [row.value, row.low if row.low is not None else 0.0, row.high if row.high is not None else 0.0]
        values += [1.2 * row.margin, -1.2 * row.margin] if row.margin else []
    low, high = max(min(values), -limit), min(max(values), limit)
    pad = 0.04 * (high - low or 1.0)
    return low - pad, high + pad


def _margin_bands(rows: Sequence[ForestRow], scale: Scale, frame: Frame, row_height: int) -> str:
    parts = []
    for index, row in enumerate(rows):
        if row.margin:
            # The margin is one in log points: +0.5% up and -0.4975% down.
            start, end = scale.inside(-row.margin / (1 + row.margin / 100)), scale.inside(row.margin)
            content = tooltip(f"margin {row.margin:g}%")
            place = {"x": start, "y": frame.top + index * row_height, "width": end - start}
            parts.append(tag("rect", content, **place, height=float(row_height), class_="band"))
    return "".join(parts)


def _forest_mark(row: ForestRow, scale: Scale, y: float) -> str:
    tone, x = row.tone or "plain", scale.inside(row.value)
    parts = [tooltip(f"{row.label}: {row.words}")]
    if row.low is not None and row.high is not None:
        start, end = scale.inside(row.low), scale.inside(row.high)
        if row.is_pooled:
            corners = f"M{start:.1f},{y:.1f}L{x:.1f},{y - 7:.1f}L{end:.1f},{y:.1f}L{x:.1f},{y + 7:.1f}Z"
            return tag("g", "".join([*parts, tag("path", d=corners, class_=f"fill-{tone}")]))
        parts.append(line(start, y, end, y, f"bar line-{tone}"))
        parts += [_end(start, y, row.low < scale.low, -1, tone), _end(end, y, row.high > scale.high, 1, tone)]
    parts.append(tag("circle", cx=x, cy=y, r=4.5, class_=f"fill-{tone}"))
    return tag("g", "".join(parts))


def _end(x: float, y: float, is_cut: bool, way: int, tone: str) -> str:
    if is_cut:
        return tag("path", d=f"M{x:.1f},{y - 5:.1f}l{6 * way},5l{-6 * way},5Z", class_=f"fill-{tone}")
    return line(x, y - 5, x, y + 5, f"bar line-{tone}")


@dataclass(frozen=True)
class UnitMark:
    """One unit: when it began, its effect in percent, the arm it began with, its process."""

    unit: int
    elapsed_s: float
    d_pct: float
    first_arm: str
    process: int


def units_plot(units: Sequence[UnitMark], mean: float | None, low: float | None, high: float | None, width: int) -> str:
    """Every unit in the order of measurement: drift, outliers and order effects are to be seen, not taken on trust.

    :param units: at least one.
    :param mean: the effect in percent, with its interval where there is one.
    """
    frame = Frame(52, 44, width - 10, 250)
    fences = tukey_fences([unit.d_pct for unit in units])
    x, x_ticks, x_name = _time_axis(units, frame)
    values = [unit.d_pct for unit in units] + [value for value in (mean, low, high, 0.0) if value is not None]
    y = Scale(*padded(min(values), max(values)), frame.bottom, frame.top)
    parts = [x_axis(frame, x, x_ticks, x_name), y_axis(frame, y, round_ticks(y.low, y.high, 6), "effect of a unit, %")]
    if low is not None and high is not None:
        height = y(low) - y(high)
        content = tooltip(f"interval {low:+.3f}% to {high:+.3f}%")
        span = frame.right - frame.left
        parts.append(tag("rect", content, x=frame.left, y=y(high), width=span, height=height, class_="interval"))
    parts.append(line(frame.left, y(0), frame.right, y(0), "zero"))
    if mean is not None:
        parts.append(line(frame.left, y(mean), frame.right, y(mean), "mean"))
    factor = _time_factor(units)
    parts += _process_borders(units, lambda unit: x(unit.elapsed_s / factor), frame)
    parts += [_unit_mark(unit, x(unit.elapsed_s / factor), y(unit.d_pct), fences) for unit in units]
    outside = sum(_is_outside(unit.d_pct, fences) for unit in units)
    entries = [("fill-a", "A first"), ("hollow-b", "B first"), *([("ring", "outlier")] if outside else [])]
    parts.append(legend(frame.left, 14, entries))
    return drawing(width, frame.bottom + 42, "Effect of every unit over time", parts, size_class(width < NARROW))


def tukey_fences(values: Sequence[float]) -> tuple[float, float]:
    """1.5 interquartile ranges beyond the quartiles, as the analysis counts outliers."""
    first, third = (_quantile(sorted(values), share) for share in (0.25, 0.75))
    reach = TUKEY_FENCE * (third - first)
    return first - reach, third + reach


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _is_outside(value: float, fences: tuple[float, float]) -> bool:
    return not fences[0] <= value <= fences[1]


def _time_factor(units: Sequence[UnitMark]) -> float:
    return 60.0 if max(unit.elapsed_s for unit in units) > 180 else 1.0


def _time_axis(units: Sequence[UnitMark], frame: Frame) -> tuple[Scale, list[float], str]:
    factor = _time_factor(units)
    last = max(max(unit.elapsed_s for unit in units) / factor, 1e-3)
    scale = Scale(-0.02 * last, 1.02 * last, frame.left, frame.right)
    ticks = round_ticks(0, last, max(3, int((frame.right - frame.left) / 60)))
    return scale, ticks, "minutes since the first unit" if factor > 1 else "seconds since the first unit"


def padded(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis that keeps marks off its edges."""
    pad = 0.06 * (high - low) or abs(high) * 0.1 or 0.1
    return low - pad, high + pad


def _process_borders(units: Sequence[UnitMark], place: Callable[[UnitMark], float], frame: Frame) -> list[str]:
    parts = []
    for before, unit in pairwise(units):
        if before.process != unit.process:
            x = (place(before) + place(unit)) / 2
            border = line(x, frame.top, x, frame.bottom, "border")
            parts.append(tag("g", tooltip(f"process {unit.process}") + border))
    return parts


def _unit_mark(unit: UnitMark, x: float, y: float, fences: tuple[float, float]) -> str:
    outside = _is_outside(unit.d_pct, fences)
    place = f'cx="{x:.1f}" cy="{y:.1f}"'
    ring = f'<circle {place} r="7" class="ring"/>' if outside else ""
    class_ = "fill-a" if unit.first_arm == "A" else "hollow-b"
    words = f"unit {unit.unit}: {unit.d_pct:+.3f}%, {unit.first_arm} first, process {unit.process}"
    words += ", outlier" if outside else ""
    return f'<g>{tooltip(words)}{ring}<circle {place} r="3.5" class="{class_}"/></g>'


def distribution_plot(arms: Sequence[tuple[str, Sequence[float]]], width: int) -> str:
    """Cumulative distributions of step times, one line an arm: the share of steps that took at most so long.

    :param arms: name and percentiles 0 to 100 in ms of one or two arms.
    """
    frame = Frame(46, 44, width - 12, 250)
    low = min(values[0] for _, values in arms)
    # The slowest per cent would squeeze all else; it is in the tooltip.
    high = max(_quantile(values, 0.99) for _, values in arms)
    x = Scale(*padded(low, high), frame.left, frame.right)
    y = Scale(0, 100, frame.bottom, frame.top)
    ticks = round_ticks(x.low, x.high, max(3, int((frame.right - frame.left) / 60)))
    parts = [
        x_axis(frame, x, ticks, "step time, ms"),
        y_axis(frame, y, [0, 25, 50, 75, 100], "steps at most so long, %"),
    ]
    for class_, (name, values) in zip(("a", "b"), arms, strict=False):
        last = len(values) - 1
        points = [(x(value), y(100 * i / last)) for i, value in enumerate(values) if value <= x.high]
        middle, tail, most = _quantile(values, 0.5), _quantile(values, 0.99), values[-1]
        words = f"{name}: p50 {middle:.3f} ms, p99 {tail:.3f} ms, slowest {most:.3f} ms"
        parts.append(tag("g", tooltip(words) + polyline(points, f"curve line-{class_}")))
        parts.append(tag("circle", tooltip(words), cx=x(middle), cy=y(50), r=4.0, class_=f"fill-{class_}"))
    entries = [(f"fill-{class_}", cut(name, width / 3)) for class_, (name, _) in zip(("a", "b"), arms, strict=False)]
    parts.append(legend(frame.left, 14, entries))
    return drawing(width, frame.bottom + 42, "Distribution of step times", parts, size_class(width < NARROW))
