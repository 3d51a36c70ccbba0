"""Captured programs on CUDA. Most of it needs a GPU (``pytest -m gpu``) and is skipped without one.

What a capture asks of PyTorch is tested without one, on stand-ins for its CUDA objects.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.device.cuda import CudaDevice
from specbench.device.recording import runtime_operator
from specbench.errors import EngineError


class Driver:
    """Stand-ins that note what is asked of them. A graph is what ran in its context."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.captures: list[dict[str, Any]] = []
        self.replays = 0
        event = SimpleNamespace(record=lambda _: None, synchronize=lambda: None)
        stream = SimpleNamespace(synchronize=lambda: None)
        stand_ins = {
            "is_available": lambda: True,
            "current_device": lambda: 0,
            "Stream": lambda _: stream,
            "Event": lambda **_: event,
            "stream": lambda _: nullcontext(),
            "synchronize": lambda _: None,
            "graph_pool_handle": object,
            "CUDAGraph": lambda: SimpleNamespace(replay=self._replay),
            "graph": self._capture,
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(f"torch.cuda.{name}", stand_in)
        self.stream = stream

    def _replay(self) -> None:
        self.replays += 1

    @contextmanager
    def _capture(self, graph: Any, pool: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
        self.captures.append({"graph": graph, "pool": pool, "stream": stream, "mode": capture_error_mode})
        self.captures[-1]["collects"] = gc.isenabled()
        self.captures[-1]["inference"] = torch.is_inference_mode_enabled()
        yield


def test_a_capture_is_one_graph_on_the_device_stream_and_all_share_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    device = CudaDevice()
    x = torch.zeros(2)
    captured = [device.capture(lambda x=x: x.add_(1) * 2, "capture_step") for _ in range(2)]
    first, second = driver.captures
    assert first["graph"] is not second["graph"]
    assert first["pool"] is second["pool"]
    assert first["stream"] is driver.stream
    assert (first["mode"], first["collects"], first["inference"]) == ("thread_local", False, True)
    assert gc.isenabled()
    assert captured[0].operators == ("add_", "mul")
    assert driver.replays == 0
    device.launch(captured[0].replay, "device_step")
    assert driver.replays == 1
    assert captured[0].replay() is captured[0].replay()  # the memory of its result is the graph's
    buffer = weakref.ref(x)
    del x
    assert buffer() is not None  # a graph knows its address alone
    del captured, first, second
    driver.captures.clear()
    assert buffer() is None


def test_a_capture_that_fails_turns_garbage_collection_on_again(monkeypatch: pytest.MonkeyPatch) -> None:
    Driver(monkeypatch)
    with pytest.raises(EngineError, match="item needs the value"):
        CudaDevice().capture(lambda: torch.zeros(1).item(), "capture_step")
    assert gc.isenabled()


def needs_cuda(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")(test))


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    made = CudaDevice()
    yield made
    made.close()


def zeros(device: CudaDevice, *shape: int) -> Tensor:
    made = torch.zeros(shape, device=device.torch_device)
    device.synchronize()
    return made


@needs_cuda
def test_a_graph_reads_its_buffers_anew_and_in_the_order_of_the_stream(device: CudaDevice) -> None:
    x, y = zeros(device, 4), zeros(device, 4)
    captured = device.capture(lambda: y.copy_(x * 2 + 1), "capture_step")
    assert captured.operators == ("mul", "add", "copy_")
    device.synchronize()
    assert y.tolist() == [0] * 4  # the device's part does not run at capture
    for value in (3.0, 5.0):
        device.copy_async(x, device.stage(torch.full((4,), value)))
        assert device.launch(captured.replay, "device_step").wait(5)
        assert y.tolist() == [2 * value + 1] * 4


@needs_cuda
def test_a_graph_equals_the_eager_program_to_the_bit(device: CudaDevice) -> None:
    source = torch.Generator(device.torch_device).manual_seed(0)
    weight = torch.randn(64, 64, device=device.torch_device, generator=source)
    x, y = torch.randn(8, 64, device=device.torch_device, generator=source), zeros(device, 8, 64)

    def program() -> None:
        y.copy_(torch.nn.functional.silu(x @ weight).softmax(dim=-1).cumsum(dim=1))

    device.launch(program, "device_step").wait()
    captured = device.capture(program, "capture_step")
    x.mul_(0.5)
    device.synchronize()
    device.launch(program, "device_step").wait()
    expected = y.clone()
    y.zero_()
    device.synchronize()
    device.launch(captured.replay, "device_step").wait()
    assert torch.equal(y, expected)


@needs_cuda
def test_graphs_of_falling_size_share_their_memory(device: CudaDevice) -> None:
    size = 1 << 22
    x = zeros(device, size)

    def program(count: int) -> None:
        x[:count].add_((x[:count] + 1).mul_(2))

    device.launch(lambda: program(size), "device_step").wait()
    captured = {}
    used = []
    for count in (size, size // 2, size // 4):
        captured[count] = device.capture(lambda count=count: program(count), "capture_step")
        used.append(torch.cuda.memory_reserved(device.torch_device))
    assert used[0] == used[1] == used[2]
    x.zero_()
    device.synchronize()
    for count in (size // 4, size, size // 2):
        device.launch(captured[count].replay, "device_step").wait()
    assert x[[0, size // 2 - 1, size // 2, size - 1]].tolist() == [26, 8, 2, 2]


@needs_cuda
def test_runtime_operators_are_part_of_the_graph(device: CudaDevice) -> None:
    @runtime_operator("double")
    def double(x: Tensor) -> Tensor:
        return x * 2

    x = zeros(device, 2)
    captured = device.capture(lambda: x.copy_(double(x) + 1), "capture_step")
    assert captured.operators == ("mul", "add", "copy_")
    for _ in range(3):
        device.launch(captured.replay, "device_step").wait()
    assert x.tolist() == [7, 7]


@needs_cuda
def test_reading_a_value_on_the_host_is_refused(device: CudaDevice) -> None:
    x = zeros(device, 2)
    with pytest.raises(EngineError, match="item needs the value"):
        device.capture(lambda: x.sum().item(), "capture_step")
    device.launch(lambda: x.add_(1), "device_step").wait()
    assert x.tolist() == [1, 1]


@needs_cuda
def test_garbage_is_collected_again_after_a_capture(device: CudaDevice) -> None:
    x = zeros(device, 2)
    enabled: list[bool] = []

    def program() -> None:
        enabled.append(gc.isenabled())
        x.add_(1)

    device.capture(program, "capture_step")
    assert enabled == [False]
    assert gc.isenabled()
