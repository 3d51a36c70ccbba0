"""The simulated device: order and late reads as on the others, and times that are those declared."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from specbench.device.sim import SLACK_NS, SimCompletion, SimDevice
from specbench.device.sim_presets import H100_8B, H100_SMALL, H200_32B
from specbench.device.times import NUMBERS, DeviceTimes, StepWork
from specbench.device.tracing import RangeRecorder
from specbench.errors import EngineError, InputError
from specbench.registry import SIM_PRESETS

MS = 1_000_000
TIMES = DeviceTimes(base_us=20_000, us_per_row=100, us_per_kv_token=10, us_per_copy=50, bytes_per_us=1000)
"""20 ms a launch: far more than keeping nothing takes, whatever else the machine does."""
NO_WORK = StepWork(0, 0)


@pytest.fixture
def device() -> Iterator[SimDevice]:
    made = SimDevice(times=TIMES)
    yield made
    made.close()


def test_items_run_in_order_on_one_other_thread(device: SimDevice) -> None:
    ran: list[tuple[int, int]] = []
    for number in range(50):
        device.launch(lambda number=number: ran.append((number, threading.get_ident())), "item")
    device.synchronize()
    assert [number for number, _ in ran] == list(range(50))
    assert {thread for _, thread in ran} != {threading.get_ident()}
    assert len({thread for _, thread in ran}) == 1


def hold(device: SimDevice) -> threading.Event:
    """Launch a step that does not end before the event is set: longer than any machine keeps the host waiting."""
    go = threading.Event()

    def program() -> StepWork:
        go.wait(30)
        return NO_WORK

    device.launch(program, "device_step")
    return go


def lasts(device: SimDevice, completion: SimCompletion) -> tuple[int, float]:
    """How long the only launch of ``device`` took, and by how much its books held it up, microseconds."""
    start_ns, end_ns = completion.times_ns
    return end_ns - start_ns, device.read_counters()["overrun_us"]


def read_late(device: SimDevice) -> list[int]:
    """What arrives of a source that is written again while a step before its copy still takes its time."""
    source, destination = torch.tensor([1, 2, 3]), torch.zeros(3, dtype=torch.int64)
    go = hold(device)
    device.copy_async(destination, source)
    source.fill_(9)
    go.set()
    device.synchronize()
    return list(destination.tolist())


def test_row_2_4_a_copy_reads_its_source_when_it_executes(device: SimDevice) -> None:
    assert read_late(device) == [9, 9, 9]


def test_row_2_4_a_copy_that_read_at_once_would_be_seen() -> None:
    class Eager(SimDevice):
        def copy_async(self, destination: torch.Tensor, source: torch.Tensor) -> None:
            super().copy_async(destination, source.clone())

    device = Eager(times=TIMES)
    assert read_late(device) == [1, 2, 3]
    device.close()


def test_a_copy_waits_for_the_declared_end_of_the_step_before_it(device: SimDevice) -> None:
    """The step's program is over at once; what it declares is not."""
    read_ns: list[int] = []

    class Source(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if function is torch.Tensor.copy_:
                read_ns.append(time.perf_counter_ns())
            return super().__torch_function__(function, types, args, kwargs or {})

    destination = torch.zeros(1)
    step = device.launch(lambda: NO_WORK, "device_step")
    device.copy_async(destination, torch.ones(1).as_subclass(Source))
    device.synchronize()
    assert destination.item() == 1
    assert step.times_ns[1] - step.times_ns[0] >= TIMES.step_ns(NO_WORK)
    assert read_ns[0] >= step.times_ns[1] - SLACK_NS


def test_an_error_reaches_whoever_waits_and_nothing_runs_after_it(device: SimDevice) -> None:
    ran: list[int] = []

    def fail() -> None:
        raise ValueError("broken step")

    first = device.launch(fail, "bad")
    second = device.launch(lambda: ran.append(1), "after")
    for completion in (first, second):
        with pytest.raises(ValueError, match="broken step"):
            completion.wait(30)
    assert ran == []


def test_a_launch_takes_what_its_work_declares(device: SimDevice) -> None:
    work = StepWork(rows=30, kv_tokens=200)  # 20 + 3 + 2 ms
    before_ns = time.perf_counter_ns()
    completion = device.launch(lambda: work, "device_step")
    assert completion.wait(30)
    after_ns = time.perf_counter_ns()
    start_ns, end_ns = completion.times_ns
    took_ns, overrun_us = lasts(device, completion)
    assert TIMES.step_ns(work) == 25 * MS
    assert took_ns == 25 * MS + round(overrun_us * 1e3)
    assert before_ns <= start_ns
    assert end_ns <= after_ns


def test_an_idle_device_begins_at_once_and_a_busy_one_without_a_gap(device: SimDevice) -> None:
    time.sleep(0.005)
    before_ns = time.perf_counter_ns()
    go = hold(device)
    after_ns = time.perf_counter_ns()
    second = device.launch(lambda: NO_WORK, "device_step")
    go.set()
    assert second.wait(30)
    first, _ = device.drain_busy()
    assert before_ns <= first.start_ns <= after_ns
    assert second.times_ns[0] == first.end_ns


def test_a_copy_takes_its_share_of_the_timeline(device: SimDevice) -> None:
    source = torch.zeros(1000, dtype=torch.int64)
    device.copy_async(torch.ones(1000, dtype=torch.int64), source)
    device.launch(lambda: NO_WORK, "device_step")
    device.synchronize()
    copy, step = device.drain_busy()
    assert (copy.name, step.name) == ("copy_to_device", "device_step")
    assert copy.end_ns - copy.start_ns == TIMES.copy_ns(8000) == 58_000
    assert step.start_ns >= copy.end_ns  # launched after the copy's end
    assert device.drain_busy() == []


def test_what_is_traced_lasts_as_long_as_what_is_declared() -> None:
    recorder = RangeRecorder()
    device = SimDevice(recorder, times=TIMES)
    step = device.launch(lambda: NO_WORK, "device_step")
    assert step.wait(30)
    device.synchronize()
    (span,) = [span for span in recorder.drain() if span.name == "device_step"]
    assert span.lane == "device"
    assert span.start_ns >= step.times_ns[0]
    assert span.end_ns >= step.times_ns[1] - SLACK_NS
    device.close()


def test_books_that_take_longer_than_declared_end_late_and_are_counted() -> None:
    device = SimDevice(times=replace(TIMES, base_us=1000, us_per_row=0))

    def slow() -> StepWork:
        time.sleep(0.01)
        return NO_WORK

    assert device.read_counters()["launches"] == 0
    late = device.launch(slow, "device_step")
    assert late.wait(30)
    assert late.times_ns[1] - late.times_ns[0] >= 10 * MS
    counted = device.read_counters()
    assert (counted["launches"], counted["overruns"]) == (1, 1)
    assert counted["declared_us"] == 1000
    assert counted["overrun_us"] >= 9000
    device.close()


@pytest.mark.parametrize(("kept_ms", "took_ms", "overrun_us"), [(0, 20, 0.0), (20, 20, 0.0), (21, 21, 1000.0)])
def test_books_that_keep_to_their_time_are_no_overrun(
    device: SimDevice, kept_ms: int, took_ms: int, overrun_us: float
) -> None:
    assert device._duration_ns(NO_WORK, MS, (1 + kept_ms) * MS, kept_ms * MS) == took_ms * MS
    counted = device.read_counters()
    assert (counted["launches"], counted["declared_us"]) == (1, 20_000)
    assert (counted["overruns"], counted["overrun_us"]) == (int(overrun_us > 0), overrun_us)


def test_what_declares_no_work_takes_the_time_it_takes(device: SimDevice) -> None:
    completion = device.launch(lambda: time.sleep(0.01), "delay")
    assert completion.wait(30)
    assert completion.times_ns[1] - completion.times_ns[0] >= 10 * MS
    assert device.read_counters()["launches"] == 0


def test_waiting_ends_with_its_time_out(device: SimDevice) -> None:
    go = threading.Event()
    stalled = device.launch(lambda: go.wait(30), "stall")
    assert not stalled.wait(0.005)
    go.set()
    step = device.launch(lambda: NO_WORK, "device_step")
    assert step.wait(30)
    assert step.wait(30)  # again
    now_ns = time.perf_counter_ns()
    executed = SimCompletion()
    executed.finish(now_ns, now_ns + 3600 * 1000 * MS, None)
    assert not executed.wait(0.005)  # executed, but its time is not over


def test_device_programs_run_without_autograd(device: SimDevice) -> None:
    seen: list[bool] = []
    device.launch(lambda: seen.append(torch.is_inference_mode_enabled()), "item").wait(30)
    assert seen == [True]


def test_a_captured_program_runs_again_and_takes_the_time_it_declares(device: SimDevice) -> None:
    ran: list[int] = []

    def program() -> StepWork:
        ran.append(threading.get_ident())
        return StepWork(rows=len(ran), kv_tokens=0)

    captured = device.capture(program, "capture_step")
    assert len(ran) == 1
    assert captured.operators == ()
    completion = device.launch(captured.replay, "device_step")
    assert completion.wait(30)
    assert len(ran) == 2
    assert set(ran) != {threading.get_ident()}
    took_ns, overrun_us = lasts(device, completion)
    assert took_ns == TIMES.step_ns(StepWork(rows=2, kv_tokens=0)) + round(overrun_us * 1e3)


def test_a_program_that_fails_at_capture_leaves_the_device_as_it_was(device: SimDevice) -> None:
    def fail() -> None:
        raise ValueError("broken step")

    with pytest.raises(ValueError, match="broken step"):
        device.capture(fail, "capture_step")
    assert device.launch(lambda: NO_WORK, "device_step").wait(30)


def test_a_closed_device_refuses_work_and_gives_the_interpreter_back() -> None:
    before_s = sys.getswitchinterval()
    one, other = SimDevice(times=TIMES), SimDevice(times=TIMES)
    assert sys.getswitchinterval() < before_s
    one.close()
    one.close()
    assert sys.getswitchinterval() < before_s
    other.close()
    assert sys.getswitchinterval() == pytest.approx(before_s)
    with pytest.raises(EngineError, match="the device was closed") as caught:
        one.launch(lambda: None, "late")
    assert caught.value.where == "device sim"


def test_it_needs_times() -> None:
    with pytest.raises(InputError, match="needs times"):
        SimDevice()


@pytest.mark.parametrize(
    ("name", "value"), [("base_us", -1.0), ("us_per_row", float("nan")), ("bytes_per_us", 0.0), ("base_us", 1e400)]
)
def test_times_that_cannot_be_are_refused(name: str, value: float) -> None:
    with pytest.raises(InputError, match="allowed") as caught:
        replace(TIMES, **{name: value})
    assert caught.value.where == f"engine.sim.{name}"


@pytest.mark.parametrize("name", SIM_PRESETS)
def test_every_preset_says_where_its_five_numbers_are_from(name: str) -> None:
    preset = SIM_PRESETS.load(name)
    assert all(getattr(preset.times, number) > 0 for number in NUMBERS)
    assert "computed, not measured" in preset.source
    assert "assumed" in preset.source


def test_presets_follow_from_their_published_figures() -> None:
    """8.03e9 parameters of 2 bytes at 3.35 TB/s, 2 operations each at 989 TFLOP/s, 128 KiB of cache a token."""
    assert H100_8B.times.base_us == pytest.approx(8.03e9 * 2 / 3.35e6, rel=1e-3)
    assert H100_8B.times.us_per_row == pytest.approx(2 * 8.03e9 / 989e6, rel=1e-3)
    assert H100_8B.times.us_per_kv_token == pytest.approx(131072 / 3.35e6, rel=1e-3)
    assert H100_8B.times.bytes_per_us == 64e3
    assert H100_SMALL.times.base_us < H100_8B.times.base_us < H200_32B.times.base_us


@pytest.mark.slow
def test_waiting_meets_the_declared_end_closely() -> None:
    """On a machine at rest. What was measured is in docs/simulation.md."""
    device = SimDevice(times=replace(TIMES, base_us=2000))
    late_us = []
    for _ in range(200):
        completion = device.launch(lambda: NO_WORK, "device_step")
        completion.wait()
        late_us.append((time.perf_counter_ns() - completion.times_ns[1]) / 1e3)
    device.close()
    print(f"late by median {statistics.median(late_us):.1f} us, p99 {sorted(late_us)[197]:.1f} us")
    assert statistics.median(late_us) < 1000


@pytest.mark.slow
def test_a_sleeping_device_leaves_the_host_its_speed() -> None:
    def count(seconds: float) -> int:
        end = time.perf_counter() + seconds
        turns = 0
        while time.perf_counter() < end:
            turns += 1
        return turns

    def beside(work: Callable[[], Any]) -> float:
        alone = count(0.2)
        work()
        return count(0.2) / alone

    device = SimDevice(times=replace(TIMES, base_us=300_000))
    shares = [beside(lambda: device.launch(lambda: NO_WORK, "device_step")) for _ in range(3)]
    device.close()
    assert max(shares) > 0.5
