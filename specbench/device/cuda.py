"""A CUDA device behind the same interface: a side stream, timing events, pinned staging."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from specbench.device.recording import CallNames
from specbench.device.tracing import NullTracer, Span, Tracer
from specbench.errors import DeviceUnavailableError


class CudaCompletion:
    """Two timing events around one launch. Without a time-out a wait blocks in the driver until the step has ended."""

    __slots__ = ("_clock", "_end", "_start", "_times_ns", "name")

    def __init__(self, clock: _EventClock, start: torch.cuda.Event, end: torch.cuda.Event, name: str) -> None:
        self._clock = clock
        self._start = start
        self._end = end
        self.name = name
        self._times_ns: tuple[int, int] | None = None

    def wait(self, timeout_s: float | None = None) -> bool:
        """See :class:`specbench.device.base.Completion`."""
        if timeout_s is None:
            self._end.synchronize()
            return True
        deadline = time.monotonic() + timeout_s
        while not self._end.query():  # type: ignore[no-untyped-call]
            if time.monotonic() > deadline:
                return False
            time.sleep(20e-6)
        return True

    @property
    def times_ns(self) -> tuple[int, int]:
        """See :class:`specbench.device.base.Completion`."""
        if self._times_ns is None:
            self._times_ns = self._clock.read(self._start, self._end)
        return self._times_ns


class _EventClock:
    """Puts event times on the host's clock, starting from an event whose host time is known.

    CUDA gives distances as float32 milliseconds, whose steps grow with the distance (4 us at a minute). Each event is
    therefore placed from the one read before it. The two clocks drift apart; :meth:`anchor` takes them together again.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self.anchor()

    def anchor(self) -> None:
        """Read both clocks at once. Waits for the stream."""
        self._stream.synchronize()
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record(self._stream)
        self._event.synchronize()
        self._event_ns = time.perf_counter_ns()

    def read(self, start: torch.cuda.Event, end: torch.cuda.Event) -> tuple[int, int]:
        """Host times of two events that have passed, in nanoseconds; calls come in the order of the launches."""
        start_ns = self._event_ns + int(self._event.elapsed_time(start) * 1e6)
        end_ns = start_ns + int(start.elapsed_time(end) * 1e6)
        self._event, self._event_ns = end, end_ns
        return start_ns, end_ns


class CudaGraph:
    """See :class:`specbench.device.base.CapturedProgram`.

    :param program: what was captured, with the buffers it refers to: a graph knows their addresses alone.
    :param result: what the program returned; its tensors hold their memory in the pool.
    """

    def __init__(
        self, graph: torch.cuda.CUDAGraph, program: Callable[[], Any], result: Any, operators: tuple[str, ...]
    ) -> None:
        self._graph = graph
        self._program = program
        self._result = result
        self.operators = operators

    def replay(self) -> Any:
        """See :class:`specbench.device.base.CapturedProgram`. Enqueues the graph on the current stream."""
        self._graph.replay()
        return self._result


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A collection during a capture may free memory of the device, which is an error there."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class CudaDevice:
    """See :class:`specbench.device.base.Device`.

    :raises DeviceUnavailableError: no CUDA device, or a PyTorch built without CUDA.
    """

    name = "cuda"
    computes = True

    def __init__(self, tracer: Tracer | None = None, num_threads: int | None = None) -> None:
        if not torch.cuda.is_available():
            raise DeviceUnavailableError(
                "no CUDA device is visible to PyTorch",
                where="engine.device",
                hint="use engine.device=cpu, or run `specbench doctor` to see what is missing",
            )
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self._tracer: Tracer = tracer or NullTracer()
        self._stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        self._clock = _EventClock(self._stream)
        self._launches: list[CudaCompletion] = []
        # One for all: graphs are replayed one after another, so that what one leaves free the next may use.
        self._pool = torch.cuda.graph_pool_handle()

    def empty_staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See :class:`specbench.device.base.Device`."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def stage(self, source: Tensor) -> Tensor:
        """See :class:`specbench.device.base.Device`."""
        return source.pin_memory()

    def copy_async(self, destination: Tensor, source: Tensor) -> None:
        """See :class:`specbench.device.base.Device`."""
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            destination.copy_(source, non_blocking=True)

    def launch(self, program: Callable[[], Any], name: str) -> CudaCompletion:
        """See :class:`specbench.device.base.Device`. The program runs on the host now and enqueues kernels."""
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        with torch.inference_mode(), torch.cuda.stream(self._stream), self._tracer.range(name, "device"):
            start.record(self._stream)
            program()
            end.record(self._stream)
        completion = CudaCompletion(self._clock, start, end, name)
        self._launches.append(completion)
        return completion

    def capture(self, program: Callable[[], Any], name: str) -> CudaGraph:
        """See :class:`specbench.device.base.Device`: a CUDA graph of what the program enqueues on the device's stream.

        :raises RuntimeError: an operation that CUDA cannot capture.
        """
        graph = torch.cuda.CUDAGraph()
        calls = CallNames()
        self.synchronize()
        with torch.inference_mode(), self._tracer.range(name, "device"), _without_garbage_collection():
            # Other threads may go on allocating: what they do is not part of the graph.
            capturing = torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local")
            with capturing, calls:
                result = program()
        self.synchronize()
        return CudaGraph(graph, program, result, tuple(calls.operators))

    def synchronize(self) -> None:
        """See :class:`specbench.device.base.Device`. Waits for every stream: weights load on the default one."""
        torch.cuda.synchronize(self.torch_device)

    def drain_busy(self) -> list[Span]:
        """See :class:`specbench.device.base.Device`. Synchronises: call it outside measured periods."""
        self._stream.synchronize()
        launches, self._launches = self._launches, []
        spans = [Span(launch.name, "device", *launch.times_ns) for launch in launches]
        self._clock.anchor()
        return spans

    def read_counters(self) -> dict[str, float]:
        """Nothing is counted."""
        return {}

    def memory_bytes(self) -> int:
        """See :class:`specbench.device.base.Device`."""
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        return int(free)

    def profiler_start(self) -> None:
        """Call cudaProfilerStart, which ``nsys --capture-range=cudaProfilerApi`` waits for."""
        torch.cuda.cudart().cudaProfilerStart()  # type: ignore[no-untyped-call]

    def profiler_stop(self) -> None:
        """Call cudaProfilerStop."""
        torch.cuda.cudart().cudaProfilerStop()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """See :class:`specbench.device.base.Device`."""
        self._stream.synchronize()
