"""Drawings: marks lie where the numbers say, ticks are round, words are escaped."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.report.plots import ForestRow, UnitMark, distribution_plot, forest_plot, tukey_fences, units_plot
from specbench.report.svg import Scale, legend, round_ticks, tag, text, tick_words
from specbench.report.sweep_plots import SpeedupLine, SpeedupMark, series_plot, speedup_plot, stacked_bars
from specbench.stats.robust import find_outliers

FASTER = ForestRow("a", 1.0, 0.5, 1.5, 0.5, "+1.0%", "good")


def parse(drawing: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawing)


def found(drawing: str, name: str, class_: str) -> list[dict[str, str]]:
    return [e.attrib for e in parse(drawing).iter(name) if e.attrib.get("class", "").startswith(class_)]


def place(element: dict[str, str], key: str) -> float:
    return float(element[key])


@given(low=st.floats(-1e5, 1e5), span=st.floats(1e-4, 1e6), count=st.integers(1, 12))
def test_ticks_are_round_inside_and_no_more_than_asked_for(low: float, span: float, count: int) -> None:
    ticks = round_ticks(low, low + span, count)
    assert len(ticks) <= count + 1
    assert all(low - 1e-6 * span <= tick <= low + span + 1e-6 * span for tick in ticks)
    if len(ticks) > 1:
        step = ticks[1] - ticks[0]
        mantissa = step / 10 ** np.floor(np.log10(step) + 1e-9)
        assert min(abs(mantissa - nice) for nice in (1, 2, 5, 10)) < 1e-3
        assert len(set(tick_words(ticks))) == len(ticks)


def test_tick_words_have_the_decimals_they_need() -> None:
    assert tick_words([-0.5, -0.0, 0.5]) == ["-0.5", "0.0", "0.5"]
    assert tick_words([0, 1000, 2000]) == ["0", "1,000", "2,000"]
    assert tick_words([0.0, 0.02]) == ["0.00", "0.02"]


def test_words_are_escaped() -> None:
    assert text(0, 0, '<a b="c">&') == '<text x="0.0" y="0.0" text-anchor="start">&lt;a b=&quot;c&quot;&gt;&amp;</text>'
    assert tag("rect", class_='"><script>') == '<rect class="&quot;&gt;&lt;script&gt;"/>'
    assert "<b>" not in legend(0, 0, [("fill-a", "<b>")])


def test_a_scale_keeps_to_its_ends() -> None:
    scale = Scale(0, 10, 100, 200)
    assert (scale(5), scale.inside(50), scale.inside(-1)) == (150, 200, 100)
    assert Scale(1, 1, 0, 10)(1) == 5


@pytest.mark.parametrize("width", [360, 960])
def test_a_forest_lies_where_the_numbers_say(width: int) -> None:
    rows = [FASTER, ForestRow("b", -1.0, -1.5, -0.5, 0.5, "-1.0%", "bad"), ForestRow("c", 0.0, None, None, 0.5, "none")]
    drawing = forest_plot(rows, width)
    zero = place(found(drawing, "line", "zero")[0], "x1")
    dots = [place(dot, "cx") for dot in found(drawing, "circle", "fill-")]
    assert dots[0] - zero == pytest.approx(zero - dots[1], abs=0.2)
    assert dots[2] == pytest.approx(zero, abs=0.1)
    (whisker, *_) = found(drawing, "line", "bar line-good")
    assert place(whisker, "x1") - zero == pytest.approx((dots[0] - zero) / 2, abs=0.2)
    bands = found(drawing, "rect", "band")
    assert len(bands) == 3
    left, size = place(bands[0], "x"), place(bands[0], "width")
    assert left < zero < left + size
    assert zero - left < left + size - zero  # -0.4975% against +0.5%: the margin is one of log points
    assert all(0 <= dot <= width for dot in dots)


def test_one_interval_that_dwarfs_the_rest_is_cut_with_an_arrow() -> None:
    wild = ForestRow("wild", 3.0, -400.0, 900.0, 0.5, "+3.0%", "warn")
    drawing = forest_plot([FASTER, FASTER, FASTER, wild], 960)
    assert len(found(drawing, "path", "fill-warn")) == 2
    (whisker,) = (bar for bar in found(drawing, "line", "bar line-good")[:1])
    assert place(whisker, "x2") - place(whisker, "x1") > 20  # the others stay readable


def test_a_pooled_effect_is_a_diamond() -> None:
    drawing = forest_plot([FASTER, ForestRow("all", 1.0, 0.8, 1.2, 0.5, "+1.0%", is_pooled=True)], 960)
    assert found(drawing, "path", "fill-plain")[0]["d"].count("L") == 3


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=40))
def test_marked_outliers_are_those_that_are_counted(values: list[float]) -> None:
    low, high = tukey_fences(values)
    # Values on a fence to within rounding may fall to either side.
    if all(min(abs(value - low), abs(value - high)) > 1e-9 for value in values):
        assert tuple(i for i, value in enumerate(values) if not low <= value <= high) == find_outliers(values)


def test_units_show_arms_outliers_and_processes() -> None:
    units = [UnitMark(i, float(i), 0.1 * (i % 3), "AB"[i % 2], i // 10) for i in range(20)]
    units.append(UnitMark(20, 20.0, 9.0, "A", 2))
    drawing = units_plot(units, 0.4, -0.1, 0.9, 560)
    assert (len(found(drawing, "circle", "fill-a")), len(found(drawing, "circle", "hollow-b"))) == (11, 10)
    assert len(found(drawing, "circle", "ring")) == 1
    assert len(found(drawing, "line", "border")) == 2
    heights = [place(dot, "cy") for dot in found(drawing, "circle", "fill-a")]
    assert heights[-1] == min(heights)  # up is faster
    assert "unit 20: +9.000%, A first, process 2, outlier" in drawing
    assert "minutes" in units_plot([UnitMark(i, 100.0 * i, 0.1, "A", 0) for i in range(9)], None, None, None, 360)


def test_one_unit_alone_has_a_plot() -> None:
    drawing = units_plot([UnitMark(0, 0.0, 0.0, "A", 0)], 0.0, None, None, 360)
    assert "nan" not in drawing
    assert len(found(drawing, "circle", "fill-a")) == 1


def test_step_times_are_drawn_to_their_99th_percentile() -> None:
    fast = [1.0 + 0.01 * i for i in range(100)] + [50.0]
    slow = [value + 0.2 for value in fast]
    drawing = distribution_plot([("baseline", slow), ("candidate", fast)], 560)
    curves = [curve["points"].split() for curve in found(drawing, "polyline", "curve")]
    assert [len(curve) for curve in curves] == [100, 100]
    medians = [place(dot, "cx") for dot in found(drawing, "circle", "fill-")]
    assert medians[0] > medians[1]
    assert "slowest 50.000 ms" in drawing
    assert distribution_plot([("one", [2.0] * 101)], 360)


def test_powers_of_two_are_spread_evenly() -> None:
    drawing = series_plot([("on", [(1, 10.0), (2, 20.0), (4, 40.0), (8, 80.0)])], "concurrency", "tok/s", 560)
    across = [place(dot, "cx") for dot in found(drawing, "circle", "fill-s0")]
    assert np.diff(across) == pytest.approx([across[1] - across[0]] * 3, abs=0.2)
    assert re.findall(r'class="tick">([\d.]+)</text>', drawing)[:4] == ["1", "2", "4", "8"]
    up = [place(dot, "cy") for dot in found(drawing, "circle", "fill-s0")]
    assert up == sorted(up, reverse=True)


def test_words_on_an_axis_keep_their_order() -> None:
    drawing = series_plot([("", [(0, 1.0), (1, 2.0)])], "drafter", "tok/s", 360, ["none", "ngram"])
    assert re.findall(r'class="tick">(n\w+)</text>', drawing) == ["none", "ngram"]


def test_parts_of_a_bar_follow_each_other() -> None:
    drawing = stacked_bars([("step", [("fill-device", "device", 9.0), ("fill-host", "host", 1.0)])], "ms", 560)
    device, host = (found(drawing, "rect", class_)[0] for class_ in ("fill-device", "fill-host"))
    assert place(host, "x") == pytest.approx(place(device, "x") + place(device, "width"), abs=0.2)
    assert place(device, "width") == pytest.approx(9 * place(host, "width"), rel=0.02)
    assert stacked_bars([("idle", [("fill-device", "device", 0.0)])], "ms", 360)


def mark(
    concurrency: int, ratio: float, low: float | None, high: float | None, *, is_clear: bool = True
) -> SpeedupMark:
    return SpeedupMark(concurrency, ratio, low, high, f"{ratio:.2f}", is_clear)


@pytest.mark.parametrize("width", [360, 960])
def test_speedups_lie_on_their_side_of_the_break_even(width: int) -> None:
    pays = SpeedupLine("ngram, K = 2", [mark(1, 1.5, 1.4, 1.6), mark(4, 1.0, 0.9, 1.1, is_clear=False)])
    fails = SpeedupLine("ngram, K = 4", [mark(1, 2 / 3, 0.6, 0.7), mark(4, 0.5, None, None)])
    drawing = speedup_plot([pays, fails], width)
    one = place(found(drawing, "line", "zero")[0], "y1")
    (above,) = (place(dot, "cy") for dot in found(drawing, "circle", "fill-s0"))
    below = [place(dot, "cy") for dot in found(drawing, "circle", "fill-s1")]
    assert one - above == pytest.approx(below[0] - one, abs=0.2)  # 1.5 times and 1.5 times as slow are as far from 1
    assert below[1] > below[0]
    (hollow,) = found(drawing, "circle", "open line-s0")
    assert place(hollow, "cy") == pytest.approx(one, abs=0.2)
    bars = [bar for class_ in ("s0", "s1") for bar in found(drawing, "line", f"bar line-{class_}")]
    assert len(bars) == 3  # one has no interval
    assert place(bars[0], "y1") > above > place(bars[0], "y2")
    assert {place(dot, "cx") for dot in found(drawing, "circle", "fill-s0")}.isdisjoint(
        place(dot, "cx") for dot in found(drawing, "circle", "fill-s1")
    )
    assert all(0 <= place(dot, "cx") <= width for dot in found(drawing, "circle", ""))


def test_an_interval_that_dwarfs_the_speedups_ends_at_the_frame() -> None:
    wild = SpeedupLine("wild", [mark(1, 1.2, 0.01, 90.0, is_clear=False), mark(16, 0.9, 0.8, 1.0)])
    drawing = speedup_plot([wild], 960)
    frame = [place(bar, "y1") for bar in found(drawing, "line", "axis")]
    bar = found(drawing, "line", "bar line-s0")[0]
    assert min(frame) <= place(bar, "y2") < place(bar, "y1") <= max(frame)
    dots = sorted(place(dot, "cy") for dot in found(drawing, "circle", ""))
    assert dots[1] - dots[0] > 40  # the speedups stay readable


def test_one_speedup_alone_has_a_plot() -> None:
    drawing = speedup_plot([SpeedupLine("ngram, K = 2", [mark(4, 1.0, None, None, is_clear=False)])], 360)
    assert "nan" not in drawing
    assert len(found(drawing, "circle", "open")) == 1


@pytest.mark.parametrize("width", [360, 560])
def test_bars_of_points_that_differ_in_their_last_axis_can_be_told_apart(width: int) -> None:
    labels = [f"concurrency 16, drafter ngram+eagle3, draft_len {draft_len}" for draft_len in (2, 4)]
    drawing = stacked_bars([(label, [("fill-device", "device", 9.0)]) for label in labels], "ms", width)
    assert [drawing.count(f">{label}<") for label in labels] == [1, 1]


def test_short_labels_stand_beside_their_bars() -> None:
    drawing = stacked_bars(
        [("off", [("fill-device", "device", 9.0)]), ("on", [("fill-device", "device", 9.0)])], "ms", 560
    )
    assert drawing.count('text-anchor="end"') >= 2
