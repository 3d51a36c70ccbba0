"""The CPU as a device: one worker thread that executes enqueued items in order.

It promises the order of a CUDA stream, not its concurrency: host and worker share cores and the interpreter. The
lifecycle bugs of asynchronous code (a staging buffer written too early, an output read too soon) are the same here.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import psutil
import torch
from torch import Tensor

from specbench.device.base import CapturedProgram
from specbench.device.recording import record
from specbench.device.staging import StagingPool
from specbench.device.tracing import NullTracer, Span, Tracer
from specbench.errors import EngineError


def _settle_num_threads() -> None:
    """Make the calling thread keep its count: its first question takes over what any thread set last."""
    torch.get_num_threads()


@cache
def _default_num_threads() -> int:
    """PyTorch's own choice, remembered from before the first device took the host thread's away."""
    return torch.get_num_threads()


class CpuCompletion:
    """Set by the worker when its item has run."""

    __slots__ = ("_done", "_end_ns", "_error", "_start_ns")

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._start_ns = 0
        self._end_ns = 0

    def finish(self, start_ns: int, end_ns: int, error: BaseException | None) -> None:
        """Called by the worker alone."""
        self._start_ns, self._end_ns, self._error = start_ns, end_ns, error
        self._done.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """See :class:`specbench.device.base.Completion`."""
        if not self._done.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    @property
    def times_ns(self) -> tuple[int, int]:
        """See :class:`specbench.device.base.Completion`."""
        return self._start_ns, self._end_ns


_Result = TypeVar("_Result")
_Item = tuple[str, Callable[[], Any], CpuCompletion | None]


class CpuDevice:
    """See :class:`specbench.device.base.Device`.

    :param tracer: receives one device-lane range an item, opened on the worker thread.
    :param num_threads: intra-operator threads; None keeps PyTorch's choice.
    """

    name = "cpu"
    computes = True

    def __init__(self, tracer: Tracer | None = None, num_threads: int | None = None) -> None:
        self.torch_device = torch.device("cpu")
        self._tracer: Tracer = tracer or NullTracer()
        self._num_threads = num_threads or _default_num_threads()
        self._items: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._staging = StagingPool()
        self._busy: list[Span] = []
        self._failure: BaseException | None = None
        self._closed = False
        # A thread that is inside PyTorch when the interpreter goes away takes the process down with it.
        atexit.register(self.close)
        self._worker = threading.Thread(target=self._run, name="specbench-device", daemon=True)
        self._worker.start()
        self.launch(_settle_num_threads, "synchronize").wait()
        # Each thread that computes has a pool of its own in OpenMP, and two pools on the same cores cost a third of a
        # step: the worker gets the threads, the host thread computes alone.
        torch.set_num_threads(1)

    def _run(self) -> None:
        # Thread counts and inference mode are thread-local in PyTorch: both are set where the work happens.
        torch.set_num_threads(self._num_threads)
        with torch.inference_mode():
            while (item := self._items.get()) is not None:
                self._execute(item)
                # A finished item's closure holds tensors; waiting for the next one must not keep them alive.
                del item

    def _execute(self, item: _Item) -> None:
        name, program, completion = item
        start_ns = time.perf_counter_ns()
        if self._failure is None:
            try:
                with self._tracer.range(name, "device"):
                    program()
            except BaseException as error:
                self._failure = error
        end_ns = time.perf_counter_ns()
        self._busy.append(Span(name, "device", start_ns, end_ns))
        if completion is not None:
            completion.finish(start_ns, end_ns, self._failure)

    def _put(self, item: _Item) -> None:
        if self._closed:
            raise EngineError("the device was closed and takes no more work", where=f"device {self.name}")
        self._items.put(item)

    def empty_staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See :class:`specbench.device.base.Device`."""
        return self._staging.empty(shape, dtype)

    def stage(self, source: Tensor) -> Tensor:
        """See :class:`specbench.device.base.Device`."""
        return source

    def copy_async(self, destination: Tensor, source: Tensor) -> None:
        """See :class:`specbench.device.base.Device`."""
        self._put(("copy_to_device", lambda: destination.copy_(source), None))

    def launch(self, program: Callable[[], Any], name: str) -> CpuCompletion:
        """See :class:`specbench.device.base.Device`."""
        completion = CpuCompletion()
        self._put((name, program, completion))
        return completion

    def capture(self, program: Callable[[], Any], name: str) -> CapturedProgram:
        """See :class:`specbench.device.base.Device` and :mod:`specbench.device.recording`; recorded on the worker."""
        return self._compute(lambda: record(program), name)

    def _compute(self, function: Callable[[], _Result], name: str) -> _Result:
        """Run ``function`` on the worker and return its result.

        What it raises is raised here and leaves the device usable, unlike what a launch raises.
        """
        results: list[_Result] = []
        errors: list[BaseException] = []

        def program() -> None:
            try:
                results.append(function())
            except BaseException as error:
                errors.append(error)

        self.launch(program, name).wait()
        if errors:
            raise errors.pop()  # not held here: its traceback holds this frame
        return results[0]

    def synchronize(self) -> None:
        """See :class:`specbench.device.base.Device`. The wait itself is not device work and leaves no span."""
        completion = self.launch(lambda: None, "synchronize")
        completion.wait()

    def drain_busy(self) -> list[Span]:
        """See :class:`specbench.device.base.Device`."""
        count = len(self._busy)
        spans = self._busy[:count]
        del self._busy[:count]
        return [span for span in spans if span.name != "synchronize"]

    def read_counters(self) -> dict[str, float]:
        """Nothing is counted."""
        return {}

    def memory_bytes(self) -> int:
        """See :class:`specbench.device.base.Device`."""
        return int(psutil.virtual_memory().available)

    def profiler_start(self) -> None:
        """Nothing to open on a CPU."""

    def profiler_stop(self) -> None:
        """Nothing to close on a CPU."""

    def close(self) -> None:
        """See :class:`specbench.device.base.Device`."""
        if not self._closed:
            self._closed = True
            atexit.unregister(self.close)
            self._items.put(None)
            self._worker.join()
