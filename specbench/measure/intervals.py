"""Arithmetic of time intervals, vectorised: when was the device busy, and what did the host do meanwhile.

An interval set is an int64 array [n, 2] of (start, end) rows, in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]
NOTHING: Intervals = np.empty((0, 2), dtype=np.int64)


def merge(intervals: Intervals) -> Intervals:
    """Sorted, disjoint intervals that cover the same points; empty ones vanish."""
    kept = intervals[intervals[:, 1] > intervals[:, 0]]
    if len(kept) == 0:
        return np.empty((0, 2), dtype=np.int64)
    kept = kept[np.argsort(kept[:, 0], kind="stable")]
    reach = np.maximum.accumulate(kept[:, 1])
    opens = np.flatnonzero(np.concatenate(([True], kept[1:, 0] > reach[:-1])))
    closes = np.concatenate((opens[1:] - 1, [len(kept) - 1]))
    return np.stack((kept[opens, 0], reach[closes]), axis=1)


def pair(start_ns: Sequence[int], end_ns: Sequence[int]) -> Intervals:
    """Intervals from their starts and ends."""
    return np.stack((np.asarray(start_ns, dtype=np.int64), np.asarray(end_ns, dtype=np.int64)), axis=1)


def clip(intervals: Intervals, start: int, end: int) -> Intervals:
    """The parts of ``intervals`` that lie in [start, end]."""
    clipped = np.clip(intervals, start, end)
    return clipped[clipped[:, 1] > clipped[:, 0]]


def total(merged: Intervals) -> int:
    """Length covered by disjoint intervals."""
    return int((merged[:, 1] - merged[:, 0]).sum())


def covered_before(merged: Intervals, points: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each point, the length of ``merged`` that lies before it."""
    if len(merged) == 0:
        return np.zeros(len(points), dtype=np.int64)
    lengths = merged[:, 1] - merged[:, 0]
    before = np.concatenate(([0], np.cumsum(lengths)))
    index = np.searchsorted(merged[:, 0], points, side="right")
    last = np.maximum(index - 1, 0)
    inside = np.minimum(points - merged[last, 0], lengths[last])
    return np.where(index == 0, 0, before[last] + inside)


def covered_within(
    merged: Intervals, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """For each window (``starts[i]``, ``ends[i]``), the length of ``merged`` that lies in it."""
    return covered_before(merged, ends) - covered_before(merged, starts)


def overlap(first: Intervals, second: Intervals) -> int:
    """Length that lies in both of two disjoint interval sets."""
    if len(first) == 0 or len(second) == 0:
        return 0
    return int(covered_within(second, first[:, 0], first[:, 1]).sum())
