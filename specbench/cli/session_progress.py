"""Progress of ``ab`` and ``selftest`` on stderr: how far, and what is known of each comparison so far.

It is drawn between measured windows, never inside one, by the thread that measures.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

from specbench.cli.progress import BAR_WIDTH, PLAIN_INTERVAL_S, TERMINAL_INTERVAL_S, format_clock
from specbench.measure.observers import ComparisonProgress, SessionObserver, SessionProgress
from specbench.records import TrialRecord
from specbench.scenario.plan import PlanPoint

MAX_ROWS = 8
"""Comparisons shown one by one."""
UNSETTLED = (None, "INCONCLUSIVE")
_UP_AND_CLEAR = "\x1b[1A\x1b[2K"

Now = Callable[[], float]


def make_observer(stream: TextIO | None = None) -> SessionObserver:
    """The display that fits ``stream`` (stderr)."""
    stream = stream or sys.stderr
    return TerminalSession(stream) if stream.isatty() else PlainSession(stream)


def describe_session(progress: SessionProgress) -> str:
    """``12/40 units  0:42 of 2:00``: units so far of those planned at most, time of the budget."""
    clock = f"{format_clock(progress.elapsed_s)} of {format_clock(progress.budget_s)}"
    return f"{progress.units_done}/{progress.units_planned} units  {clock}"


def describe_comparison(comparison: ComparisonProgress) -> str:
    """``+0.12% [-0.31%, +0.55%]  EQUIVALENT``: what is known so far; empty before anything is."""
    parts = []
    if comparison.mean_pct is not None:
        parts.append(_percent(comparison.mean_pct))
        if comparison.low_pct is not None and comparison.high_pct is not None:
            parts[-1] += f" [{_percent(comparison.low_pct)}, {_percent(comparison.high_pct)}]"
    if comparison.verdict is not None:
        parts.append(comparison.verdict)
    return "  ".join(parts)


def _percent(value: float) -> str:
    return f"{value:+.2f}%" if math.isfinite(value) else "?"


class _Session:
    """What both displays share: the latest progress, and when the next drawing is due."""

    def __init__(self, stream: TextIO, interval_s: float, now: Now = time.monotonic) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._now = now
        self._latest: SessionProgress | None = None
        self._next_s = -math.inf

    def _is_due(self) -> bool:
        if self._now() < self._next_s:
            return False
        self._next_s = self._now() + self._interval_s
        return True

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def trial_done(self, point: PlanPoint, trial: TrialRecord) -> None:
        """See :class:`~specbench.measure.observers.SessionObserver`; blocks say more than trials here."""


class TerminalSession(_Session):
    """A bar and a row a comparison, redrawn in place."""

    def __init__(self, stream: TextIO, now: Now = time.monotonic) -> None:
        super().__init__(stream, TERMINAL_INTERVAL_S, now)
        self._num_drawn = 0

    def announce(self, line: str) -> None:
        """See :class:`~specbench.measure.observers.SessionObserver`."""
        self._erase()
        self._write(f"{line}\n")

    def show(self, progress: SessionProgress) -> None:
        """See :class:`~specbench.measure.observers.SessionObserver`."""
        self._latest = progress
        if self._is_due():
            self._draw(progress)

    def finish(self) -> None:
        """Leave the last state on the screen."""
        if self._latest is not None:
            self._draw(self._latest)
        self._latest, self._num_drawn = None, 0

    def _draw(self, progress: SessionProgress) -> None:
        width = shutil.get_terminal_size().columns - 1
        lines = [line[:width] for line in (_bar(progress), *_rows(progress.comparisons))]
        self._erase()
        self._write("".join(f"{line}\n" for line in lines))
        self._num_drawn = len(lines)

    def _erase(self) -> None:
        self._stream.write(_UP_AND_CLEAR * self._num_drawn)
        self._num_drawn = 0


def _bar(progress: SessionProgress) -> str:
    filled = int(BAR_WIDTH * _fraction(progress))
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}]  {describe_session(progress)}"


def _fraction(progress: SessionProgress) -> float:
    """Whichever ends first: the plan or the budget."""
    units = progress.units_done / progress.units_planned if progress.units_planned else 0.0
    spent = progress.elapsed_s / progress.budget_s if progress.budget_s > 0 else 0.0
    return min(max(units, spent), 1.0)


def _rows(comparisons: tuple[ComparisonProgress, ...]) -> list[str]:
    shown = comparisons[:MAX_ROWS]
    labels = max((len(comparison.label) for comparison in shown), default=0)
    rows = [
        f"  {comparison.label.ljust(labels)}  {comparison.units:>4} units  {describe_comparison(comparison)}".rstrip()
        for comparison in shown
    ]
    return [*rows, f"  and {len(comparisons) - MAX_ROWS} more"] if len(comparisons) > MAX_ROWS else rows


class PlainSession(_Session):
    """A line every ten seconds, and one when a comparison has its verdict."""

    def __init__(self, stream: TextIO, now: Now = time.monotonic) -> None:
        super().__init__(stream, PLAIN_INTERVAL_S, now)
        self._next_s = now() + self._interval_s
        self._settled: set[int] = set()

    def announce(self, line: str) -> None:
        """See :class:`~specbench.measure.observers.SessionObserver`."""
        self._write(f"{line}\n")

    def show(self, progress: SessionProgress) -> None:
        """See :class:`~specbench.measure.observers.SessionObserver`."""
        self._latest = progress
        for index, comparison in enumerate(progress.comparisons):
            if comparison.verdict not in UNSETTLED and index not in self._settled:
                self._settled.add(index)
                self._write(f"{comparison.label}: {describe_comparison(comparison)}\n")
        if self._is_due():
            self._write(_plain_line(progress))

    def finish(self) -> None:
        """One last line."""
        if self._latest is not None:
            self._write(_plain_line(self._latest))
        self._latest = None


def _plain_line(progress: SessionProgress) -> str:
    known = [c for c in progress.comparisons if c.mean_pct is not None]
    if len(progress.comparisons) > 1:
        settled = sum(c.verdict not in UNSETTLED for c in progress.comparisons)
        return f"{describe_session(progress)}  {settled} of {len(progress.comparisons)} comparisons settled\n"
    return "  ".join([describe_session(progress), *(describe_comparison(c) for c in known)]) + "\n"
