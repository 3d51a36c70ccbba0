"""The device interface: one in-order stream, pinned staging, asynchronous copies, launches with a completion.

The engine is written against :class:`Device` alone. What holds on every device:

- items run in the order they were enqueued,
- ``copy_async`` reads its source when it *executes*, not when it is called, so a staging buffer may not be written
  again before that,
- a launch returns at once; :meth:`Completion.wait` blocks the host and re-raises what the device program raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from specbench.device.tracing import Span


class Completion(Protocol):
    """Handle of one launch."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the launch has executed; False when ``timeout_s`` seconds passed first.

        :raises Exception: whatever the device program raised.
        """
        ...

    @property
    def times_ns(self) -> tuple[int, int]:
        """Start and end of the launch on the device, on the host's ``perf_counter_ns`` axis; valid after a wait."""
        ...


class CapturedProgram(Protocol):
    """A device program that was captured: what it computes is fixed, what it reads is not.

    :ivar operators: short names of the tensor operations that were seen at capture, in order; empty where none are.
    """

    @property
    def operators(self) -> tuple[str, ...]: ...

    def replay(self) -> Any:
        """Do what the program did, over the same buffers; inside a launch, on the device that captured it.

        Returns what the program returned. Tensors that it made are those of this replay, and on an accelerator valid
        until the next replay of any program captured on the device.
        """
        ...


class Device(Protocol):
    """One execution device.

    :ivar computes: False where launches take a declared time and nothing is computed in it: their programs keep the
        books of a step, and need no weights.
    """

    name: str
    torch_device: torch.device
    computes: bool

    def empty_staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return an uninitialised host tensor that :meth:`copy_async` may read (pinned where that means something)."""
        ...

    def stage(self, source: Tensor) -> Tensor:
        """Return ``source`` in host memory that :meth:`copy_async` may read: itself, or a pinned copy."""
        ...

    def copy_async(self, destination: Tensor, source: Tensor) -> None:
        """Enqueue ``destination.copy_(source)``; the source is read when the copy executes."""
        ...

    def launch(self, program: Callable[[], Any], name: str) -> Completion:
        """Enqueue ``program``; ``name`` is its range on the device lane.

        What it returns is for devices that do not compute: see :class:`specbench.device.times.StepWork`.
        """
        ...

    def capture(self, program: Callable[[], Any], name: str) -> CapturedProgram:
        """Fix ``program`` as it runs now, and return what replays it. Blocks the host until that is done.

        1. Launch the program eagerly once or more, so that what is made on first use exists: workspaces, constants.
        2. Capture it. Its host code runs now and never again: branches, shapes, numbers and lists stay as they are
           taken, ranges of a tracer are not marked again. Its operations run too on the CPU; on an accelerator they
           do not.
        3. ``device.launch(captured.replay, "device_step")``, as often as wanted. Each replay reads its buffers anew;
           copies from the host are enqueued before it, as for an eager step.
        4. Drop every reference to release it.

        Buffers keep their place: fill them, never replace them. What a step leaves for the next one or for the host
        must be written into buffers that were there before the capture.

        :param name: range of the capture on the device lane.
        :raises EngineError: the program reads a tensor's value on the host, outside a runtime operator
            (:func:`specbench.device.recording.runtime_operator`). The device can be used afterwards.
        """
        ...

    def synchronize(self) -> None:
        """Block the host until everything enqueued has executed."""
        ...

    def drain_busy(self) -> list[Span]:
        """Return device-lane spans since the last call: what the device executed, and when."""
        ...

    def read_counters(self) -> dict[str, float]:
        """What the device has counted of itself since it was opened, by name; empty when it counts nothing."""
        ...

    def memory_bytes(self) -> int:
        """Memory that weights and cache may use, in bytes, right now."""
        ...

    def profiler_start(self) -> None:
        """Open the window of an external profiler, where the device has one."""
        ...

    def profiler_stop(self) -> None:
        """Close what :meth:`profiler_start` opened."""
        ...

    def close(self) -> None:
        """Finish what is enqueued and release the device; further calls are errors."""
        ...
