"""Drawings of many points: throughput over a swept axis, and what a step's time is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specbench.report.plots import NARROW, cut, padded, size_class
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

Series = tuple[str, Sequence[tuple[float, float]]]
"""Name and ``(x, y)`` points."""


def series_plot(series: Sequence[Series], x_name: str, y_name: str, width: int, names: Sequence[str] = ()) -> str:
    """Lines over one axis, from 0 up. Values a power of two apart are spread evenly.

    :param series: at least one with at least one point.
    :param names: of the x values 0, 1, 2, ... where they are words and not numbers.
    """
    frame = Frame(58, 26 + 18 * len(series), width - 16, 236 + 18 * len(series))
    xs = sorted({x for _, points in series for x, _ in points})
    is_log = not names and xs[0] > 0 and xs[-1] / xs[0] >= 8
    spread = math.log2 if is_log else float
    x_scale = Scale(*padded(spread(xs[0]), spread(xs[-1])), frame.left, frame.right)
    top = max(y for _, points in series for _, y in points)
    y_scale = Scale(0, top * 1.06 if top > 0 else 1, frame.bottom, frame.top)
    ticks = xs if len(xs) <= 8 or names else round_ticks(xs[0], xs[-1], 5)
    words = [names[int(tick)] for tick in ticks] if names else [f"{tick:g}" for tick in ticks]
    parts = [x_axis(frame, lambda value: x_scale(spread(value)), ticks, x_name, words)]
    parts.append(y_axis(frame, y_scale, round_ticks(0, y_scale.high, 5), y_name))
    for index, (name, points) in enumerate(series):
        class_, placed = f"s{index % 6}", [(x_scale(spread(x)), y_scale(y)) for x, y in points]
        parts.append(polyline(placed, f"curve line-{class_}"))
        for (x, y), (value, reached) in zip(placed, points, strict=True):
            shown = names[int(value)] if names else f"{value:g}"
            content = tooltip(f"{name or y_name}: {reached:,.1f} at {x_name} {shown}")
            parts.append(tag("circle", content, cx=x, cy=y, r=4.0, class_=f"fill-{class_}"))
        if name:
            parts.append(legend(frame.left, 14 + 18 * index, [(f"fill-{class_}", cut(name, width - frame.left - 40))]))
    return drawing(width, frame.bottom + 42, f"{y_name} against {x_name}", parts, size_class(width < NARROW))


@dataclass(frozen=True)
class SpeedupMark:
    """A speedup at one concurrency, as a multiple; ``low`` and ``high`` None: no interval.

    :param words: the figures, as text.
    :param is_clear: the interval leaves out 1.
    """

    concurrency: int
    ratio: float
    low: float | None
    high: float | None
    words: str
    is_clear: bool


@dataclass(frozen=True)
class SpeedupLine:
    """The marks of one drafter and K, in the order of concurrency."""

    name: str
    marks: Sequence[SpeedupMark]


DODGE = 7.0
"""Pixels between lines' marks at one concurrency, so that their intervals do not cover each other."""

RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0, 50.0, 100.0)


def speedup_plot(lines: Sequence[SpeedupLine], width: int) -> str:
    """Speedups against concurrency with their intervals, the break-even marked; both axes are logarithmic.

    :param lines: at least one, each with at least one mark.
    """
    frame = Frame(46, 26 + 18 * len(lines), width - 16, 266 + 18 * len(lines))
    marks = [mark for item in lines for mark in item.marks]
    xs = sorted({mark.concurrency for mark in marks})
    x_scale = Scale(*padded(math.log2(xs[0]), math.log2(xs[-1])), frame.left, frame.right)
    y_scale = Scale(*_ratio_domain(marks), frame.bottom, frame.top)
    parts = [x_axis(frame, lambda x: x_scale(math.log2(x)), xs, "concurrency", [f"{x:g}" for x in xs])]
    ticks = _ratio_ticks(y_scale)
    parts.append(y_axis(frame, lambda y: y_scale(math.log2(y)), ticks, "times as fast as without speculation"))
    parts.append(line(frame.left, y_scale(0.0), frame.right, y_scale(0.0), "zero"))
    room = (x_scale(math.log2(xs[-1])) - x_scale(math.log2(xs[0]))) / max(len(xs) - 1, 1)
    step = min(DODGE, room / (2 * len(lines)) or DODGE)
    for index, item in enumerate(lines):
        class_, aside = f"s{index % 6}", (index - (len(lines) - 1) / 2) * step
        placed = [(x_scale(math.log2(mark.concurrency)) + aside, y_scale(math.log2(mark.ratio))) for mark in item.marks]
        parts.append(polyline(placed, f"curve line-{class_}"))
        parts += [
            _speedup_mark(mark, item.name, place, y_scale, class_)
            for place, mark in zip(placed, item.marks, strict=True)
        ]
        parts.append(legend(frame.left, 14 + 18 * index, [(f"fill-{class_}", cut(item.name, width - frame.left - 40))]))
    return drawing(width, frame.bottom + 42, "Speedup against concurrency", parts, size_class(width < NARROW))


def _ratio_domain(marks: Sequence[SpeedupMark]) -> tuple[float, float]:
    """Ends of the axis in powers of two: every interval inside twice the range of the speedups, and 1."""
    values = [0.0, *(math.log2(mark.ratio) for mark in marks)]
    low, high = min(values), max(values)
    reach = max(high - low, 0.1)
    ends = [math.log2(end) for mark in marks for end in (mark.low, mark.high) if end is not None and end > 0]
    inside = [end for end in ends if low - reach <= end <= high + reach]
    return padded(min([low, *inside]), max([high, *inside]))


def _ratio_ticks(scale: Scale) -> list[float]:
    """Ratios to be marked inside the axis, 1 among them."""
    low, high = 2**scale.low, 2**scale.high
    ticks = RATIOS if high > 2 * low else round_ticks(low, high, 6)
    return sorted({1.0, *(tick for tick in ticks if low <= tick <= high and abs(tick - 1) > 1e-9)})


def _speedup_mark(mark: SpeedupMark, name: str, place: tuple[float, float], scale: Scale, class_: str) -> str:
    x, y = place
    parts = [tooltip(f"{name} at concurrency {mark.concurrency}: {mark.words}")]
    if mark.low is not None and mark.high is not None:
        low = math.log2(mark.low) if mark.low > 0 else scale.low
        parts.append(line(x, scale.inside(low), x, scale.inside(math.log2(mark.high)), f"bar line-{class_}"))
    look = f"fill-{class_}" if mark.is_clear else f"open line-{class_}"
    parts.append(tag("circle", cx=x, cy=y, r=4.0, class_=look))
    return tag("g", "".join(parts))


Bar = tuple[str, Sequence[tuple[str, str, float]]]
"""Label, and parts as ``(class, name, value)``."""


def stacked_bars(bars: Sequence[Bar], axis_name: str, width: int) -> str:
    """Horizontal bars that are made of parts, on one axis from 0.

    :param bars: at least one; parts of 0 or below are left out.
    """
    narrow, beside = width < NARROW, 18 + FONT_WIDTH * max(len(label) for label, _ in bars)
    # Cut at the same length, labels of points that differ in their last axis alone would all read alike.
    above = narrow or beside > width * 0.4
    row_height = 38 if above else 26
    left = 10.0 if above else beside
    frame = Frame(left, 30, width - 16, 30 + row_height * len(bars))
    top = max(sum(max(value, 0.0) for _, _, value in parts) for _, parts in bars)
    scale = Scale(0, top * 1.02 or 1.0, frame.left, frame.right)
    drawn = [x_axis(frame, scale, round_ticks(0, scale.high, max(2, int((frame.right - left) / 60))), axis_name)]
    for index, (label, parts) in enumerate(bars):
        y = frame.top + index * row_height
        if above:
            drawn.append(text(left, y + 12, cut(label, width - 20), "label"))
        else:
            drawn.append(text(left - 8, y + 17, cut(label, left - 12), "label", "end"))
        drawn.append(_bar(parts, label, scale, y + (16 if above else 4), row_height - (20 if above else 8)))
    entries = list({name: (class_, name) for _, parts in bars for class_, name, _ in parts}.values())
    drawn.append(legend(left, 16, entries))
    return drawing(width, frame.bottom + 42, axis_name, drawn, size_class(narrow))


def _bar(parts: Sequence[tuple[str, str, float]], label: str, scale: Scale, y: float, height: float) -> str:
    drawn, start = [], 0.0
    for class_, name, value in parts:
        if value > 0:
            content = tooltip(f"{label}: {name} {value:.3f}" if label else f"{name} {value:.3f}")
            size = scale(start + value) - scale(start)
            drawn.append(tag("rect", content, x=scale(start), y=y, width=size, height=float(height), class_=class_))
            start += value
    return "".join(drawn)
