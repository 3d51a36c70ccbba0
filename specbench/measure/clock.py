"""Time, behind an interface that tests replace. The engine and the driver must read the same clock."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock and the calendar."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds, comparable with :class:`~specbench.records.StepRecord` times."""
        ...

    def utc(self) -> datetime:
        """The time of day, timezone aware."""
        ...


class SystemClock:
    """``perf_counter_ns``, which is what the engine stamps its steps with."""

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def utc(self) -> datetime:
        return datetime.now(timezone.utc)


def iso_utc(moment: datetime) -> str:
    """``2026-01-31T12:00:00Z``: seconds are enough to order results."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
