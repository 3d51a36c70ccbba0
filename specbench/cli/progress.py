"""Progress of a measured window on stderr: one line that is redrawn on a terminal, plain lines elsewhere.

It is drawn by the thread that drives the engine, between two steps, so it has to be cheap: formatting one line takes
some ten microseconds, where a redraw by a progress library takes milliseconds, or a second thread that competes for
the cores that are being measured.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from specbench.measure.driver import Progress, ProgressObserver

TERMINAL_INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 10.0
BAR_WIDTH = 20
MIN_BAR_WIDTH = 6
_CLEAR_LINE = "\r\x1b[2K"


def make_progress(title: str, stream: TextIO | None = None) -> ProgressObserver:
    """The display that fits ``stream`` (stderr)."""
    stream = stream or sys.stderr
    return TerminalProgress(title, stream) if stream.isatty() else PlainProgress(title, stream)


def describe_progress(progress: Progress) -> str:
    """``12/160 requests  1,234 tok  41.3 tok/s  2.31 tok/step  ETA 0:42``: what is known so far."""
    parts = [f"{progress.requests_done}/{progress.requests_planned} requests", f"{progress.tokens:,} tok"]
    if progress.elapsed_s > 0:
        parts.append(f"{progress.tokens / progress.elapsed_s:.1f} tok/s")
    if progress.acceptance_length is not None:
        parts.append(f"{progress.acceptance_length:.2f} tok/step")
    if 0 < progress.fraction < 1:
        parts.append(f"ETA {format_clock(progress.elapsed_s * (1 - progress.fraction) / progress.fraction)}")
    return "  ".join(parts)


def format_clock(seconds: float) -> str:
    """``0:42``, ``12:05``, ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class _Timed:
    """Due at once, then every ``interval_s``."""

    def __init__(self, title: str, stream: TextIO, interval_s: float) -> None:
        self._title = title
        self._stream = stream
        self._interval_ns = int(interval_s * 1e9)
        self._next_ns = 0

    def is_due(self, now_ns: int) -> bool:
        """See :class:`~specbench.measure.driver.ProgressObserver`."""
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + self._interval_ns
        return True


class TerminalProgress(_Timed):
    """One line, redrawn in place, with a bar; gone when the loop is over."""

    def __init__(self, title: str, stream: TextIO) -> None:
        super().__init__(title, stream, TERMINAL_INTERVAL_S)
        self._width = shutil.get_terminal_size().columns

    def show(self, progress: Progress) -> None:
        """See :class:`~specbench.measure.driver.ProgressObserver`."""
        text = f"{progress.fraction:4.0%}  {describe_progress(progress)}"
        if len(self._title) + MIN_BAR_WIDTH + len(text) + 5 < self._width:
            text = f"{text}  {self._title}"
        room = min(self._width - len(text) - 4, BAR_WIDTH)
        if room >= MIN_BAR_WIDTH:
            filled = int(progress.fraction * room)
            text = f"[{'#' * filled}{'.' * (room - filled)}] {text}"
        self._stream.write(_CLEAR_LINE + text[: self._width - 1])
        self._stream.flush()

    def finish(self, progress: Progress) -> None:
        """See :class:`~specbench.measure.driver.ProgressObserver`."""
        self._stream.write(f"{_CLEAR_LINE}{self._title}: {describe_progress(progress)}"[: self._width + 4] + "\n")
        self._stream.flush()


class PlainProgress(_Timed):
    """A line every ten seconds, and one at the end."""

    def __init__(self, title: str, stream: TextIO) -> None:
        super().__init__(title, stream, PLAIN_INTERVAL_S)
        self._next_ns = time.perf_counter_ns() + self._interval_ns

    def show(self, progress: Progress) -> None:
        """See :class:`~specbench.measure.driver.ProgressObserver`."""
        self._stream.write(f"{self._title}: {progress.fraction:.0%}  {describe_progress(progress)}\n")
        self._stream.flush()

    def finish(self, progress: Progress) -> None:
        """See :class:`~specbench.measure.driver.ProgressObserver`."""
        self.show(progress)
