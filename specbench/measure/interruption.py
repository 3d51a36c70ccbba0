"""Ctrl-C as a request to stop after the step in flight, so that what was measured is kept."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopSignal:
    """Catches SIGINT and SIGTERM while entered: the first sets :attr:`requested`, the second interrupts.

    Outside the main thread, where Python allows no handlers, it only holds the flag.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def request(self) -> None:
        """Ask for a stop, as the first signal does."""
        self.requested = True

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in self.SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
