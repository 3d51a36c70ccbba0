"""A CUDA device behind the same interface: a side stream, timing events, pinned staging."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specbench.device.tracing import NullTracer, Span, Tracer
from specbench.errors import DeviceUnavailableError


class CudaCompletion:
    """Two timing events around one launch. Waiting polls, so that an interrupt or a time-out is seen."""

    __slots__ = ("_clock", "_end", "_start", "name")

    def __init__(self, clock: _EventClock, start: torch.cuda.Event, end: torch.cuda.Event, name: str) -> None:
        self._clock = clock
        self._start = start
        self._end = end
        self.name = name

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
        return self._clock.host_ns(self._start), self._clock.host_ns(self._end)


class _EventClock:
    """Puts event times on the host's clock: one reference event whose host time is known.

    An event's resolution is about half a microsecond; the offset is that of the synchronisation at construction.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        stream.synchronize()
        self._reference = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._reference.record(stream)
        self._reference.synchronize()
        self._reference_ns = time.perf_counter_ns()

    def host_ns(self, event: torch.cuda.Event) -> int:
        return self._reference_ns + int(self._reference.elapsed_time(event) * 1e6)


class CudaDevice:
    """See :class:`specbench.device.base.Device`.

    :raises DeviceUnavailableError: no CUDA device, or a PyTorch built without CUDA.
    """

    name = "cuda"

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

    def synchronize(self) -> None:
        """See :class:`specbench.device.base.Device`. Waits for every stream: weights load on the default one."""
        torch.cuda.synchronize(self.torch_device)

    def drain_busy(self) -> list[Span]:
        """See :class:`specbench.device.base.Device`. Synchronises: call it outside measured periods."""
        self._stream.synchronize()
        launches, self._launches = self._launches, []
        return [Span(launch.name, "device", *launch.times_ns) for launch in launches]

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
