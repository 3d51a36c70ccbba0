"""Which drawings a result gets: from an analysis to SVG, filed under the sections of its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.records import FAILED, Analysis, Comparison, Point, Pooled
from specbench.report.break_even import draw_lines
from specbench.report.comparison import arms_words, by_arm
from specbench.report.plots import ForestRow, UnitMark, distribution_plot, forest_plot, units_plot
from specbench.report.sweep import point_coordinates
from specbench.report.sweep_plots import Bar, series_plot, speedup_plot, stacked_bars
from specbench.report.words import effect_decimals, percent, point_words, short_keys, tone_of, value_words

NARROW_WIDTH, WIDE_WIDTH, BROAD_WIDTH = 360, 560, 960
"""Every figure is drawn twice, for a telephone and for a screen; the style sheet shows one of them."""
MOST_ROWS = 60
CONCURRENCY = "workload.concurrency"


@dataclass(frozen=True)
class Figure:
    """``drawings`` are SVG of the same content, narrow first; ``is_broad`` takes the page's whole width."""

    caption: str
    drawings: tuple[str, ...]
    is_broad: bool = False


def draw_figures(analysis: Analysis) -> dict[str, list[Figure]]:
    """Figures by the anchor of their section."""
    figures: dict[str, list[Figure]] = {}
    if analysis.comparisons:
        several = len(analysis.comparisons) > 1
        figures["overview"] = _forest(analysis) if several else []
        for item in analysis.comparisons:
            figures[f"comparison-{item.index}"] = ([] if several else _forest(analysis)) + comparison_figures(item)
    else:
        several = len(analysis.points) > 1
        measured = [point for point in analysis.points if point.status != FAILED]
        figures["overview" if several else f"point-{analysis.points[0].point}" if analysis.points else ""] = [
            *_break_even(analysis),
            *(_throughput(measured) if several else []),
            *_step_shares(measured, analysis.points),
        ]
    return figures


def _figure(caption: str, draw: Callable[[int], str], *, is_broad: bool = False) -> Figure:
    widths = (NARROW_WIDTH, BROAD_WIDTH if is_broad else WIDE_WIDTH)
    return Figure(caption, tuple(draw(width) for width in widths), is_broad)


def _forest(analysis: Analysis) -> list[Figure]:
    rows = [_forest_row(item) for item in analysis.comparisons if item.speedup_pct is not None][:MOST_ROWS]
    margin = analysis.comparisons[0].margin_pct
    rows += [row for pooled in analysis.pooled for row in _pooled_rows(pooled, margin)]
    if not rows:
        return []
    caption = f"Effects with their intervals; the band is the margin of {margin:g}%"
    return [_figure(caption, lambda width: forest_plot(rows, width), is_broad=True)]


def _forest_row(comparison: Comparison) -> ForestRow:
    low, high = comparison.ci_low_pct, comparison.ci_high_pct
    assert comparison.speedup_pct is not None
    words = _effect_words(comparison.speedup_pct, low, high)
    tone = tone_of(comparison.verdict)
    return ForestRow(arms_words(comparison), comparison.speedup_pct, low, high, comparison.margin_pct, words, tone)


def _effect_words(value: float, low: float | None, high: float | None) -> str:
    decimals = effect_decimals(low, high)
    interval = "no interval" if low is None or high is None else f"{low:+.{decimals}f} to {high:+.{decimals}f}"
    return f"{percent(value, decimals)} ({interval})"


def _pooled_rows(pooled: Pooled, margin: float) -> list[ForestRow]:
    named = (("pooled, these points", pooled.these_points), ("pooled, points like them", pooled.in_general))
    rows = []
    for name, effect in named:
        if effect.delta_pct is not None:
            low, high = effect.ci_low_pct, effect.ci_high_pct
            words = _effect_words(effect.delta_pct, low, high)
            label = f"{pooled.candidate}: {name}"
            rows.append(ForestRow(label, effect.delta_pct, low, high, margin, words, is_pooled=True))
    return rows


def comparison_figures(comparison: Comparison) -> list[Figure]:
    """Units over time, and how step times are distributed in both arms."""
    figures = []
    if comparison.units:
        marks = [UnitMark(u.unit, u.elapsed_s, u.d_pct, u.first_arm, u.process) for u in comparison.units]
        effect = (comparison.speedup_pct, comparison.ci_low_pct, comparison.ci_high_pct)
        caption = "Every unit in the order it was measured (A: baseline); the band is the interval of the effect"
        figures.append(_figure(caption, lambda width: units_plot(marks, *effect, width)))
    names = (f"baseline: {comparison.baseline}", f"candidate: {comparison.candidate}")
    found = zip(names, by_arm(comparison.step_ms_quantiles), strict=True)
    arms = [(name, values) for name, values in found if values]
    if arms:
        caption = "Step times of both arms up to their 99th percentile; dots mark the medians"
        figures.append(_figure(caption, lambda width: distribution_plot(arms, width)))
    return figures


def _break_even(analysis: Analysis) -> list[Figure]:
    """Speedup over no speculation against concurrency, a line for each drafter and K."""
    lines = [] if analysis.break_even is None else draw_lines(analysis.break_even)
    if not lines:
        return []
    caption = "Speedup over no speculation, with intervals; below the dashed line it does not pay, hollow: not clear"
    return [_figure(caption, lambda width: speedup_plot(lines, width), is_broad=True)]


def _throughput(points: Sequence[Point]) -> list[Figure]:
    """Throughput against concurrency, else the first coordinate that varies; a line a combination of the others."""
    found = [(point_coordinates(p, points), p.output_tokens_per_s) for p in points if p.output_tokens_per_s]
    keys = list(dict.fromkeys(key for row, _ in found for key in row))
    varying = [key for key in keys if key != "variant" and len({str(row.get(key)) for row, _ in found}) > 1]
    if not varying:
        return []
    axis, short = (CONCURRENCY if CONCURRENCY in varying else varying[0]), short_keys(keys)
    values = list({str(row.get(axis)): row.get(axis) for row, _ in found}.values())
    are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    lines: dict[str, dict[float, float]] = {}
    for row, speed in found:
        rest = {key: value for key, value in row.items() if key != axis and key in ("variant", *varying)}
        place = float(row[axis]) if are_numbers else float([str(v) for v in values].index(str(row.get(axis))))
        lines.setdefault(point_words(rest), {})[place] = speed or 0.0
    series = [(name, sorted(line.items())) for name, line in lines.items()]
    names = [] if are_numbers else [value_words(value) for value in values]
    caption = f"Output throughput against {short[axis]}"
    return [_figure(caption, lambda width: series_plot(series, short[axis], "output tok/s", width, names))]


def _step_shares(points: Sequence[Point], all_points: Sequence[Point]) -> list[Figure]:
    """Where the time of a step goes, a bar a point."""
    bars: list[Bar] = []
    for point in points[:MOST_ROWS]:
        if point.step_ms is None or point.device_ms is None:
            continue
        label = point_words(point_coordinates(point, all_points)) if len(all_points) > 1 else "step"
        parts: list[tuple[str, str, Any]] = [
            ("fill-device", "device", point.device_ms),
            ("fill-host", "host exposed", point.host_exposed_ms or 0.0),
            ("fill-idle", "other idle", point.other_idle_ms or 0.0),
        ]
        bars.append((label, parts))
    if not bars:
        return []
    return [_figure("Where the time of a step goes", lambda width: stacked_bars(bars, "ms a step", width))]
