"""Ranges as an outside profiler sees them: text, payload, thread and window."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from call_counts import count_calls

from specbench.device.cpu import CpuDevice
from specbench.device.tracing import NullTracer, RangeRecorder, Tracer
from specbench.errors import InputError
from specbench.profiling import ranges
from specbench.profiling.ranges import NvtxTracer, attach_device, build_tracer, finish_tracer
from specbench.profiling.window import ProfileWindow

SHAPE = "ctx=0/0 gen=4 K=2"
PURE = "pure decode, 0 context and 4 generation requests in each"


class Event(NamedTuple):
    kind: str
    text: str
    payload: int | None
    thread: int


class FakeNvtx(types.ModuleType):
    """The parts of the ``nvtx`` package that are used, keeping what reaches a tool."""

    def __init__(self, *, has_attributes: bool = True) -> None:
        super().__init__("nvtx")
        self.events: list[Event] = []
        self.domains: set[str] = set()
        self.on = True
        module = self

        class Annotate:
            def __init__(self, message: str, domain: str, color: str = "") -> None:  # noqa: ARG002
                module.domains.add(domain)
                self.text = message
                if has_attributes:
                    self.attributes = types.SimpleNamespace(payload=None)

            def __enter__(self) -> Any:
                payload = self.attributes.payload if has_attributes else None
                module.record("push", self.text, payload)
                return self

            def __exit__(self, *_: object) -> bool:
                module.record("pop", self.text, None)
                return False

        self.annotate = Annotate

    def enabled(self) -> bool:
        return self.on

    def start_range(self, message: str, color: str, domain: str, payload: int) -> str:  # noqa: ARG002
        self.domains.add(domain)
        self.record("start", message, payload)
        return message

    def end_range(self, handle: str) -> None:
        self.record("end", handle, None)

    def record(self, kind: str, text: str, payload: int | None) -> None:
        self.events.append(Event(kind, text, payload, threading.get_ident()))

    def of(self, kind: str) -> list[tuple[str, int | None]]:
        return [(event.text, event.payload) for event in self.events if event.kind == kind]


@pytest.fixture
def fake_nvtx(monkeypatch: pytest.MonkeyPatch) -> FakeNvtx:
    module = FakeNvtx()
    monkeypatch.setitem(sys.modules, "nvtx", module)
    return module


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    device = CpuDevice(num_threads=1)
    yield device
    device.close()


class Hooks:
    """Profiler hooks that keep the order in which they were called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def profiler_start(self) -> None:
        self.calls.append("start")

    def profiler_stop(self) -> None:
        self.calls.append("stop")


def drive(tracer: Tracer, device: CpuDevice, num_steps: int, *, overlap: bool) -> None:
    """Run the stages of an engine: the device lane on the device's worker, the host lane here."""
    waiting: list[tuple[int, Any]] = []

    def program() -> None:
        with tracer.range("device_step", "device"):
            with tracer.range("target_forward", "device", SHAPE):
                torch.ones(8, 8) @ torch.ones(8, 8)
            with tracer.range("draft", "device"):
                pass

    def finish() -> None:
        step, completion = waiting.pop(0)
        with tracer.range("wait_output"):
            completion.wait()
        with tracer.range("update"):
            pass
        tracer.step_ended(step)

    for step in range(1, num_steps + 1):
        with tracer.range("schedule"):
            pass
        tracer.step_started(step, SHAPE)
        with tracer.range("launch", detail=SHAPE):
            waiting.append((step, device.launch(program, "item")))
        if len(waiting) > int(overlap):
            finish()
    while waiting:
        finish()


def test_off_is_the_recorder_itself_or_nothing() -> None:
    recorder = RangeRecorder()
    assert build_tracer("off", recorder) is recorder
    assert isinstance(build_tracer("off"), NullTracer)
    assert finish_tracer(recorder) is None


def test_off_costs_three_calls_a_range_and_keeps_nothing() -> None:
    tracer = build_tracer("off")
    kept = tracer.range("target_forward", "device", SHAPE)

    def mark() -> None:
        for _ in range(1000):
            with tracer.range("target_forward", "device", SHAPE):
                pass

    assert tracer.range("draft") is kept
    assert count_calls(mark) <= 3 * 1000 + 10  # asked for, entered, left
    recorder = build_tracer("off", RangeRecorder())
    assert recorder.range("draft") is not recorder.range("draft")  # or the first could not fail


def test_an_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="off, nvtx, torch"):
        build_tracer("nsight")


@pytest.mark.parametrize("overlap", [False, True])
def test_every_stage_and_step_has_its_number_and_shape(fake_nvtx: FakeNvtx, device: CpuDevice, overlap: bool) -> None:
    drive(build_tracer("nvtx"), device, 4, overlap=overlap)
    assert fake_nvtx.domains == {"specbench"}
    assert fake_nvtx.of("start") == [(f"step {step} {SHAPE}", step) for step in range(1, 5)]
    pushed = fake_nvtx.of("push")
    for name in ("launch", "wait_output", "update", "device_step", "target_forward", "draft"):
        assert [event for event in pushed if event[0].split()[0] == name] == [
            (f"{name} {SHAPE}", step) for step in range(1, 5)
        ]
    # The batch is not known before it is scheduled, its number is.
    assert [event for event in pushed if event[0] == "schedule"] == [("schedule", step) for step in range(1, 5)]


@pytest.mark.parametrize("overlap", [False, True])
def test_pushes_and_pops_balance_on_each_thread(fake_nvtx: FakeNvtx, device: CpuDevice, overlap: bool) -> None:
    drive(build_tracer("nvtx", RangeRecorder()), device, 6, overlap=overlap)
    stacks: dict[int, list[str]] = {}
    for event in fake_nvtx.events:
        stack = stacks.setdefault(event.thread, [])
        if event.kind == "push":
            stack.append(event.text)
        elif event.kind == "pop":
            assert stack.pop() == event.text
    assert len(stacks) == 2, "host and device lanes run on two threads"
    assert not any(stacks.values())
    assert [text for text, _ in fake_nvtx.of("start")] == [text for text, _ in fake_nvtx.of("end")]


@pytest.mark.parametrize("overlap", [False, True])
def test_the_window_keeps_whole_steps_on_both_lanes(fake_nvtx: FakeNvtx, device: CpuDevice, overlap: bool) -> None:
    recorder = RangeRecorder()
    tracer = build_tracer("nvtx", recorder, ProfileWindow(3, 4))
    drive(tracer, device, 8, overlap=overlap)
    assert fake_nvtx.of("start") == [(f"step {step} {SHAPE}", step) for step in (3, 4)]
    pushed = fake_nvtx.of("push")
    assert len(pushed) == 2 * 7
    assert {payload for _, payload in pushed} == {3, 4}
    assert sum(span.name == "target_forward" for span in recorder.drain()) == 8, "the report still sees every step"


@pytest.mark.parametrize("profile", ["nvtx", "off"])
def test_the_device_hooks_are_called_at_the_edges(fake_nvtx: FakeNvtx, device: CpuDevice, profile: str) -> None:
    hooks = Hooks()
    tracer = build_tracer(profile, None, ProfileWindow(2, 3))
    attach_device(tracer, hooks)
    drive(tracer, device, 5, overlap=True)
    finish_tracer(tracer)
    assert hooks.calls == ["start", "stop"]
    assert bool(fake_nvtx.events) == (profile == "nvtx")


def test_without_a_window_the_hooks_stay_alone(fake_nvtx: FakeNvtx, device: CpuDevice) -> None:
    hooks = Hooks()
    tracer = build_tracer("nvtx")
    attach_device(tracer, hooks)
    drive(tracer, device, 2, overlap=False)
    finish_tracer(tracer)
    assert fake_nvtx.events
    assert not hooks.calls


def test_finish_closes_a_window_and_steps_left_open(fake_nvtx: FakeNvtx) -> None:
    hooks = Hooks()
    tracer = build_tracer("nvtx", None, ProfileWindow(1, 9))
    attach_device(tracer, hooks)
    tracer.step_started(1, SHAPE)
    tracer.step_started(2, SHAPE)
    assert finish_tracer(tracer) == f"profiled 2 steps (1-2): {PURE}"
    assert [text for text, _ in fake_nvtx.of("end")] == [f"step 1 {SHAPE}", f"step 2 {SHAPE}"]
    assert hooks.calls == ["start", "stop"]


@pytest.mark.usefixtures("fake_nvtx")
def test_a_window_that_no_step_reached_is_said(device: CpuDevice) -> None:
    tracer = build_tracer("nvtx", None, ProfileWindow(100, 120))
    drive(tracer, device, 3, overlap=False)
    message = finish_tracer(tracer)
    assert message is not None
    assert "100-120" in message
    assert "3 steps" in message


def test_a_range_survives_an_error_inside_it(fake_nvtx: FakeNvtx) -> None:
    tracer = build_tracer("nvtx", RangeRecorder())
    with pytest.raises(ZeroDivisionError), tracer.range("update"):
        _ = 1 // 0
    assert [event.kind for event in fake_nvtx.events] == ["push", "pop"]


def test_a_release_that_drops_attributes_without_a_tool(monkeypatch: pytest.MonkeyPatch, device: CpuDevice) -> None:
    module = FakeNvtx(has_attributes=False)
    monkeypatch.setitem(sys.modules, "nvtx", module)
    drive(build_tracer("nvtx"), device, 2, overlap=True)
    assert (f"draft {SHAPE}", None) in module.of("push")


def test_a_profiler_too_old_for_the_package_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", FakeNvtx(has_attributes=False))
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/somewhere/libToolsInjection64.so")
    with pytest.warns(RuntimeWarning, match="takes no NVTX ranges"):
        build_tracer("nvtx")
    monkeypatch.setitem(sys.modules, "nvtx", FakeNvtx())
    build_tracer("nvtx")  # warnings are errors: one that takes them is not warned about


def test_annotations_do_not_grow_with_steps(fake_nvtx: FakeNvtx, device: CpuDevice) -> None:
    tracer = NvtxTracer()
    drive(tracer, device, 3, overlap=False)
    after_three = len(tracer._annotations)
    drive(tracer, device, 20, overlap=False)
    assert fake_nvtx.events
    assert len(tracer._annotations) == after_three


def test_a_missing_or_disabled_package_is_an_input_error(fake_nvtx: FakeNvtx, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvtx.on = False
    with pytest.raises(InputError, match="NVTX_DISABLE"):
        build_tracer("nvtx")
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(InputError, match="pip install nvtx"):
        build_tracer("nvtx")


def test_the_real_package_runs_without_a_tool(device: CpuDevice) -> None:
    pytest.importorskip("nvtx")
    recorder = RangeRecorder()
    tracer = build_tracer("nvtx", recorder)
    drive(tracer, device, 3, overlap=True)
    assert finish_tracer(tracer) is None
    assert sum(span.name == "target_forward" for span in recorder.drain()) == 3


@pytest.mark.parametrize("overlap", [False, True])
def test_the_torch_trace_has_both_lanes_of_the_window(device: CpuDevice, tmp_path: Path, overlap: bool) -> None:
    tracer = build_tracer("torch", None, ProfileWindow(2, 3))
    attach_device(tracer, device)
    drive(tracer, device, 5, overlap=overlap)
    message = finish_tracer(tracer, tmp_path)
    assert message is not None
    assert message.splitlines() == [
        f"profiled 2 steps (2-3): {PURE}",
        f"trace of steps 2-3: {tmp_path / ranges.TRACE_FILE}",
    ]
    events = json.loads(gzip.decompress((tmp_path / ranges.TRACE_FILE).read_bytes()))["traceEvents"]
    threads: dict[str, list[int]] = {}
    for event in events:
        threads.setdefault(str(event.get("name")), []).append(event.get("tid"))
    assert len(threads[f"specbench: target_forward {SHAPE}"]) == 2
    assert len(threads[f"specbench: launch {SHAPE}"]) == 2
    assert set(threads["aten::mm"]) == set(threads[f"specbench: target_forward {SHAPE}"])
    assert not set(threads[f"specbench: launch {SHAPE}"]) & set(threads["aten::mm"])


def test_a_run_that_ends_inside_the_torch_window_keeps_its_trace(tmp_path: Path) -> None:
    device = CpuDevice(num_threads=1)
    tracer = build_tracer("torch", None, ProfileWindow(2, 99))
    attach_device(tracer, device)
    drive(tracer, device, 4, overlap=True)
    device.close()
    assert finish_tracer(tracer, tmp_path) is not None
    text = gzip.decompress((tmp_path / ranges.TRACE_FILE).read_bytes()).decode()
    assert text.count(f'"specbench: target_forward {SHAPE}"') == 3


def test_a_torch_trace_that_cannot_be_written_is_a_named_error(device: CpuDevice, tmp_path: Path) -> None:
    tracer = build_tracer("torch", None, ProfileWindow(1, 1))
    attach_device(tracer, device)
    drive(tracer, device, 2, overlap=False)
    with pytest.raises(ranges.StorageError, match="trace could not be written"):
        finish_tracer(tracer, tmp_path / "missing")


def test_ranges_load_no_torch_until_its_profiler_is_asked_for() -> None:
    code = "import sys, specbench.profiling.ranges as r; r.build_tracer('off'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
