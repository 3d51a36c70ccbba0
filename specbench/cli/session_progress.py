"""Progress of ``ab`` and ``selftest`` on stderr: how far, and what is known of each comparison so far.

It is drawn between measured windows, never inside one, by the thread that measures.
"""

from __future__ import annotations

import math
import re
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
_DIGITS = re.compile(r"\d+")
_UP_AND_CLEAR = "\x1b[1A\x1b[2K"

Now = Callable[[], float]


def make_observer(stream: TextIO | None = None) -> SessionObserver:
    """The display that fits ``stream`` (stderr)."""
    stream = stream or sys.stderr
    return TerminalSession(stream) if stream.isatty() else PlainSession(stream)


def describe_session(progress: SessionProgress) -> str:
    """``12/40 units  0:42 of 2:00``: units so far of those planned at most, time of the budget."""
    budget_s = progress.budget_s
    budget = format_clock(budget_s) if budget_s >= 1 else f"{budget_s * 1000:.3g} ms"
    clock = f"{format_clock(progress.elapsed_s)} of {budget}"
    return f"{progress.units_done:,}/{progress.units_planned:,} units  {clock}"


def describe_comparison(comparison: ComparisonProgress) -> str:
    """``+0.12% +/- 0.43 (plain)``: what is known so far; empty before anything is. ``EQUIVALENT  +0.12%`` after a look.

    The interval is plain: it makes no allowance for being looked at again and again, so it never stands by a verdict.
    """
    mean = "" if comparison.mean_pct is None else _percent(comparison.mean_pct)
    if comparison.verdict is not None:
        return f"{comparison.verdict}  {mean}".rstrip()
    low, high = comparison.low_pct, comparison.high_pct
    if not mean or low is None or high is None or not math.isfinite(high - low):
        return mean
    return f"{mean} +/- {(high - low) / 2:.2f} (plain)"


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
    """A line every ten seconds, and one when a comparison has its verdict; none twice in a row."""

    def __init__(self, stream: TextIO, now: Now = time.monotonic) -> None:
        super().__init__(stream, PLAIN_INTERVAL_S, now)
        self._next_s = now() + self._interval_s
        self._settled: set[int] = set()
        self._last_progress = ""
        self._last_announced = ("", -math.inf)

    def announce(self, line: str) -> None:
        """See :class:`~specbench.measure.observers.SessionObserver`; one that only counts on waits for its turn."""
        kind, (last_kind, last_s) = _DIGITS.sub("#", line), self._last_announced
        if kind == last_kind and _DIGITS.search(line) and self._now() < last_s + self._interval_s:
            return
        self._last_announced = (kind, self._now())
        self._write(f"{line}\n")

    def show(self, progress: SessionProgress) -> None:
        """See :class:`~specbench.measure.observers.SessionObserver`."""
        self._latest = progress
        for index, comparison in enumerate(progress.comparisons):
            if comparison.verdict not in UNSETTLED and index not in self._settled:
                self._settled.add(index)
                self._write(f"{comparison.label}: {describe_comparison(comparison)}\n")
        if self._is_due():
            self._write_progress(progress)

    def finish(self) -> None:
        """One last line."""
        if self._latest is not None:
            self._write_progress(self._latest)
        self._latest = None

    def _write_progress(self, progress: SessionProgress) -> None:
        line = _plain_line(progress)
        if line != self._last_progress:
            self._write(line)
        self._last_progress = line


def _plain_line(progress: SessionProgress) -> str:
    known = [c for c in progress.comparisons if c.mean_pct is not None]
    if len(progress.comparisons) > 1:
        settled = sum(c.verdict not in UNSETTLED for c in progress.comparisons)
        return f"{describe_session(progress)}  {settled} of {len(progress.comparisons)} comparisons settled\n"
    return "  ".join([describe_session(progress), *(describe_comparison(c) for c in known)]) + "\n"
