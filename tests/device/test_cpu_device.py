"""The CPU device keeps the promises of a CUDA stream: order, late reads of staging, errors at the wait."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from specbench.device.cpu import CpuDevice
from specbench.device.recording import runtime_operator
from specbench.device.tracing import RangeRecorder
from specbench.errors import EngineError


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    made = CpuDevice()
    yield made
    made.close()


def test_items_run_in_order_on_one_other_thread(device: CpuDevice) -> None:
    ran: list[tuple[int, int]] = []
    for number in range(50):
        device.launch(lambda number=number: ran.append((number, threading.get_ident())), "item")
    device.synchronize()
    assert [number for number, _ in ran] == list(range(50))
    assert {thread for _, thread in ran} != {threading.get_ident()}
    assert len({thread for _, thread in ran}) == 1


def test_a_copy_reads_its_source_when_it_executes(device: CpuDevice) -> None:
    """The race that fresh staging avoids: a buffer written again before a stalled stream got to it."""
    go = threading.Event()
    device.launch(lambda: go.wait(30), "stall")
    source, destination = torch.tensor([1, 2, 3]), torch.zeros(3, dtype=torch.int64)
    device.copy_async(destination, source)
    source.fill_(9)
    assert destination.tolist() == [0, 0, 0]
    go.set()
    device.synchronize()
    assert destination.tolist() == [9, 9, 9]


def test_launching_does_not_wait(device: CpuDevice) -> None:
    go = threading.Event()
    completion = device.launch(lambda: go.wait(30), "stall")
    assert not completion.wait(0.01)
    go.set()
    assert completion.wait(30)
    start, end = completion.times_ns
    assert end - start >= 1_000_000


def test_an_error_reaches_whoever_waits_and_nothing_runs_after_it(device: CpuDevice) -> None:
    ran: list[int] = []

    def fail() -> None:
        raise ValueError("broken step")

    first = device.launch(fail, "bad")
    second = device.launch(lambda: ran.append(1), "after")
    for completion in (first, second):
        with pytest.raises(ValueError, match="broken step"):
            completion.wait(30)
    assert ran == []


def test_busy_spans_are_what_was_executed() -> None:
    recorder = RangeRecorder()
    device = CpuDevice(recorder)
    device.copy_async(torch.zeros(2), torch.ones(2))
    device.launch(lambda: None, "device_step")
    device.synchronize()
    spans = device.drain_busy()
    assert [span.name for span in spans] == ["copy_to_device", "device_step"]
    assert all(span.lane == "device" and span.start_ns <= span.end_ns for span in spans)
    assert spans[0].end_ns <= spans[1].start_ns
    assert device.drain_busy() == []
    assert {span.name for span in recorder.drain()} >= {"copy_to_device", "device_step"}
    device.close()


def test_device_programs_run_without_autograd(device: CpuDevice) -> None:
    seen: list[bool] = []
    device.launch(lambda: seen.append(torch.is_inference_mode_enabled()), "item").wait(30)
    assert seen == [True]
    assert not torch.is_inference_mode_enabled()


def test_a_closed_device_refuses_work() -> None:
    device = CpuDevice()
    device.close()
    device.close()
    with pytest.raises(EngineError, match="closed"):
        device.launch(lambda: None, "late")


def test_the_worker_keeps_its_threads_whatever_others_set() -> None:
    before = torch.get_num_threads()
    try:
        device = CpuDevice(num_threads=3)
        torch.set_num_threads(1)
        seen: list[int] = []
        device.launch(lambda: seen.append(torch.get_num_threads()), "item").wait(30)
        other = CpuDevice(num_threads=2)
        device.launch(lambda: seen.append(torch.get_num_threads()), "item").wait(30)
        other.launch(lambda: seen.append(torch.get_num_threads()), "item").wait(30)
        assert seen == [3, 3, 2]
        assert torch.get_num_threads() == 1
        device.close()
        other.close()
    finally:
        torch.set_num_threads(before)


def test_a_captured_program_runs_where_steps_run_and_when_it_is_launched(device: CpuDevice) -> None:
    seen: list[int] = []

    @runtime_operator("note_thread")
    def note_thread(x: torch.Tensor) -> None:  # noqa: ARG001
        seen.append(threading.get_ident())

    x, y = torch.zeros(2), torch.zeros(2)

    def program() -> None:
        note_thread(x)
        y.copy_(x + 1)

    captured = device.capture(program, "capture_step")
    assert captured.operators == ("note_thread", "add", "copy_")
    assert y.tolist() == [1, 1]  # it ran
    go = threading.Event()
    device.launch(lambda: go.wait(30), "stall")
    device.copy_async(x, torch.full((2,), 5.0))
    replayed = device.launch(captured.replay, "device_step")
    assert len(seen) == 1
    go.set()
    assert replayed.wait(30)
    assert y.tolist() == [6, 6]
    assert len(set(seen)) == 1 != len(seen)
    assert seen[0] != threading.get_ident()
    assert [span.name for span in device.drain_busy()] == ["capture_step", "stall", "copy_to_device", "device_step"]


def test_a_replay_returns_what_its_program_did(device: CpuDevice) -> None:
    x = torch.zeros(2)
    captured = device.capture(lambda: (x + 1, "sampled"), "capture_step")
    x.fill_(3)
    made, kind = captured.replay()
    assert made.tolist() == [4, 4]
    assert kind == "sampled"


def test_what_cannot_be_captured_leaves_the_device_as_it_was(device: CpuDevice) -> None:
    x = torch.zeros(2)
    with pytest.raises(EngineError, match="item needs the value"):
        device.capture(lambda: x.sum().item(), "capture_step")
    assert device.launch(lambda: x.add_(1), "device_step").wait(30)
    assert x.tolist() == [1, 1]


def test_a_captured_program_goes_with_its_last_reference(device: CpuDevice) -> None:
    x = torch.zeros(2)
    buffer = weakref.ref(x)
    captured = device.capture(partial(torch.Tensor.add_, x, 1), "capture_step")
    device.launch(captured.replay, "device_step").wait(30)
    del x
    device.synchronize()
    assert buffer() is not None
    del captured
    assert buffer() is None


def test_what_fails_at_replay_reaches_whoever_waits(device: CpuDevice) -> None:
    x = torch.tensor([1, 2])
    captured = device.capture(lambda: torch.zeros(3)[x], "capture_step")
    x.fill_(7)
    with pytest.raises(IndexError):
        device.launch(captured.replay, "device_step").wait(30)
