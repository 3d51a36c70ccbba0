"""Interval arithmetic against counting points one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specbench.measure import intervals

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted), max_size=12)


def as_array(pairs: list[list[int]]) -> intervals.Intervals:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def points(pairs: list[list[int]]) -> set[int]:
    return {point for start, end in pairs for point in range(start, end)}


@given(PAIRS)
def test_merge_covers_the_same_points_once(pairs: list[list[int]]) -> None:
    merged = intervals.merge(as_array(pairs))
    assert points(merged.tolist()) == points(pairs)
    assert intervals.total(merged) == len(points(pairs))
    gaps = merged[1:, 0] - merged[:-1, 1]
    assert (gaps > 0).all()  # what touches is one interval


@given(PAIRS, PAIRS)
def test_overlap_counts_common_points(first: list[list[int]], second: list[list[int]]) -> None:
    common = intervals.overlap(intervals.merge(as_array(first)), intervals.merge(as_array(second)))
    assert common == len(points(first) & points(second))


@given(PAIRS, st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted))
def test_clip_keeps_what_lies_inside(pairs: list[list[int]], window: list[int]) -> None:
    clipped = intervals.clip(as_array(pairs), *window)
    assert points(clipped.tolist()) == points(pairs) & set(range(*window))


def test_cover_of_windows() -> None:
    merged = intervals.pair([0, 20, 50], [10, 30, 60])
    starts, ends = np.array([5, 12, 0, 55]), np.array([25, 18, 100, 58])
    assert intervals.covered_within(merged, starts, ends).tolist() == [5 + 5, 0, 30, 3]
    assert intervals.covered_within(intervals.NOTHING, starts, ends).tolist() == [0] * 4
