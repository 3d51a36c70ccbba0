"""Named ranges around what host and device do, behind one small interface.

The engine marks ranges through a :class:`Tracer` it is given. :class:`NullTracer` does nothing, :class:`RangeRecorder`
keeps (name, start, end) for the report, and ``specbench.profiling`` adds the NVTX one. The engine never asks which.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

_NOTHING: AbstractContextManager[None] = nullcontext()


class Span(NamedTuple):
    """A finished range. ``lane`` is ``host`` or ``device``; times are ``perf_counter_ns``."""

    name: str
    lane: str
    start_ns: int
    end_ns: int


class Tracer(Protocol):
    """What the engine needs of a tracer."""

    def range(self, name: str, lane: str = "host", detail: str = "") -> AbstractContextManager[None]:
        """Return a context manager that marks ``name``; ``detail`` is shown by profilers, not aggregated."""
        ...

    def step_started(self, step: int, detail: str) -> None:
        """Open the outer range of step number ``step`` on the host lane."""
        ...

    def step_ended(self, step: int) -> None:
        """Close what :meth:`step_started` opened."""
        ...


class NullTracer:
    """Marks nothing; one shared context manager, so a range costs a method call."""

    def range(self, name: str, lane: str = "host", detail: str = "") -> AbstractContextManager[None]:  # noqa: ARG002
        return _NOTHING

    def step_started(self, step: int, detail: str) -> None:
        pass

    def step_ended(self, step: int) -> None:
        pass


class _RecordedRange:
    __slots__ = ("_lane", "_name", "_spans", "_start_ns")

    def __init__(self, spans: list[Span], name: str, lane: str) -> None:
        self._spans = spans
        self._name = name
        self._lane = lane

    def __enter__(self) -> None:
        self._start_ns = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self._spans.append(Span(self._name, self._lane, self._start_ns, time.perf_counter_ns()))


class RangeRecorder:
    """Keeps every range as a :class:`Span`. Appending to a list is safe from both the host and the worker thread."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def range(self, name: str, lane: str = "host", detail: str = "") -> AbstractContextManager[None]:  # noqa: ARG002
        return _RecordedRange(self._spans, name, lane)

    def step_started(self, step: int, detail: str) -> None:
        pass

    def step_ended(self, step: int) -> None:
        pass

    def drain(self) -> list[Span]:
        """Return the spans recorded since the last call and forget them."""
        count = len(self._spans)
        spans = self._spans[:count]
        del self._spans[:count]
        return spans
