"""A CPU device that runs everything as late as the host lets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specbench.device.cpu import CpuCompletion, CpuDevice


class StalledCompletion:
    """Lets the device run up to its launch once somebody waits for it."""

    def __init__(self, device: StalledDevice, completion: CpuCompletion) -> None:
        self._device = device
        self._completion = completion

    def wait(self, timeout_s: float | None = None) -> bool:
        self._device.run_through(self._completion)
        return self._completion.wait(timeout_s)

    @property
    def times_ns(self) -> tuple[int, int]:
        return self._completion.times_ns


class StalledDevice(CpuDevice):
    """Copies and launches wait until the host waits for a launch; then all up to that one run, and none after it.

    Under overlap the copies of a step so read their sources after the next step has been prepared, every time.
    """

    def __init__(self) -> None:
        self._held: list[Any] | None = None
        super().__init__(num_threads=1)
        self._held = []

    def _put(self, item: Any) -> None:
        if self._held is None:
            super()._put(item)
        else:
            self._held.append(item)

    def launch(self, program: Callable[[], Any], name: str) -> Any:
        return StalledCompletion(self, super().launch(program, name))

    def run_through(self, completion: CpuCompletion) -> None:
        """Run what was enqueued up to ``completion``, unless that has been allowed already."""
        held = self._held or []
        last = next((index for index, item in enumerate(held) if item[2] is completion), -1)
        for item in held[: last + 1]:
            super()._put(item)
        del held[: last + 1]
