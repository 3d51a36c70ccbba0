"""The few pieces of SVG that plots are made of: elements, scales, round ticks, axes.

Colours and fonts are classes that the page's style sheet fills, so that one drawing is read in dark and in light.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

FONT_WIDTH = 7.2
"""Rough width of a character in the plots' 12 px font, for margins."""


def tag(name: str, content: str = "", **attributes: str | float) -> str:
    """One element; ``content`` is markup already, and ``class_`` becomes ``class``."""
    texts = "".join(f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items())
    return f"<{name}{texts}>{content}</{name}>" if content else f"<{name}{texts}/>"


def _value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, words: str, class_: str = "", anchor: str = "start") -> str:
    """Words at a place; ``anchor`` says which end of them is there."""
    style = f' class="{class_}"' if class_ else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(words)}</text>'


def tooltip(words: str) -> str:
    """What is shown when the pointer rests on the element that this is put into."""
    return f"<title>{escape(words)}</title>"


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{class_}"/>'


def polyline(points: Iterable[tuple[float, float]], class_: str) -> str:
    """A line through ``points``."""
    return tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=class_)


def drawing(width: float, height: float, name: str, parts: Iterable[str], class_: str) -> str:
    """A whole drawing that scales with its page; ``name`` is what a screen reader says."""
    label = escape(name, quote=True)
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{label}" class="{class_}">'
        f"{''.join(parts)}</svg>"
    )


@dataclass(frozen=True)
class Scale:
    """Values between ``low`` and ``high`` to places between ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        return self.start + (value - self.low) / span * (self.end - self.start) if span else (self.start + self.end) / 2

    def inside(self, value: float) -> float:
        """The place of ``value``, or of the nearer end."""
        return self(min(max(value, self.low), self.high))


def round_ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round numbers (1, 2 or 5 times a power of ten apart) between ``low`` and ``high``."""
    if not high > low or count < 1:
        return [low]
    step = round_step((high - low) / count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def round_step(size: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is not below ``size``."""
    power = 10.0 ** math.floor(math.log10(size))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= size * (1 - 1e-9))


def tick_words(ticks: Sequence[float]) -> list[str]:
    """Ticks with as many decimals as their distance needs."""
    step = min((b - a for a, b in pairwise(ticks)), default=1.0)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    return [f"{tick + 0.0:,.{decimals}f}" for tick in ticks]


@dataclass(frozen=True)
class Frame:
    """Where a plot's axes lie in its drawing."""

    left: float
    top: float
    right: float
    bottom: float


def x_axis(
    frame: Frame, scale: Callable[[float], float], ticks: Sequence[float], title: str, words: Sequence[str] = ()
) -> str:
    """Grid lines, numbers below the frame, and the axis' name with its unit."""
    names = words or tick_words(ticks)
    parts = [line(scale(tick), frame.top, scale(tick), frame.bottom, "grid") for tick in ticks]
    parts += [text(scale(t), frame.bottom + 16, name, "tick", "middle") for t, name in zip(ticks, names, strict=True)]
    parts.append(line(frame.left, frame.bottom, frame.right, frame.bottom, "axis"))
    parts.append(text((frame.left + frame.right) / 2, frame.bottom + 34, title, "name", "middle"))
    return "".join(parts)


def y_axis(frame: Frame, scale: Callable[[float], float], ticks: Sequence[float], title: str) -> str:
    """Grid lines, numbers left of the frame, and the axis' name above it."""
    parts = [line(frame.left, scale(tick), frame.right, scale(tick), "grid") for tick in ticks]
    words = zip(ticks, tick_words(ticks), strict=True)
    parts += [text(frame.left - 6, scale(tick) + 4, name, "tick", "end") for tick, name in words]
    parts.append(line(frame.left, frame.top, frame.left, frame.bottom, "axis"))
    parts.append(text(2, frame.top - 10, title, "name"))
    return "".join(parts)


def legend(x: float, y: float, entries: Sequence[tuple[str, str]]) -> str:
    """Coloured squares with names, side by side from ``x`` on; entries are ``(class, name)``."""
    parts = []
    for class_, name in entries:
        parts.append(tag("rect", x=x, y=y - 9, width=10.0, height=10.0, class_=class_))
        parts.append(text(x + 14, y, name, "tick"))
        x += 14 + FONT_WIDTH * len(name) + 14
    return "".join(parts)
