"""What the built-in engine can tell depends on its device."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from fake_subject import FakeClock, FakeSubject, make_run, open_folder

from specbench.device.tracing import RangeRecorder, Span
from specbench.engine.config import EngineConfig, ModelSpec
from specbench.measure.analysis import RunContext, analyze_run
from specbench.measure.executor import execute
from specbench.measure.subject import BuiltinSubject
from specbench.report.formats import markdown


@dataclass
class FakeEngine:
    """As much of an engine as :meth:`BuiltinSubject.drain` needs, on a device of the given type."""

    device_type: str
    busy: list[Span] = field(default_factory=lambda: [Span("device_step", "device", 10, 20)])

    @property
    def device(self) -> SimpleNamespace:
        return SimpleNamespace(torch_device=torch.device(self.device_type))

    def synchronize(self) -> None:
        pass

    def drain_steps(self) -> list[object]:
        return []

    def drain_busy(self) -> list[Span]:
        busy, self.busy = self.busy, []
        return busy


@pytest.mark.parametrize(("device", "tells"), [("cpu", True), ("cuda", False)])
def test_eager_launches_on_a_gpu_tell_no_device_time(device: str, tells: bool) -> None:
    engine = FakeEngine(device)
    subject = BuiltinSubject(engine, RangeRecorder())  # type: ignore[arg-type]
    assert subject.capabilities.device_time is tells
    assert subject.capabilities.switchable is False
    busy = subject.drain().busy
    assert busy == ([Span("device_step", "device", 10, 20)] if tells else None)
    assert engine.busy == []  # taken either way, or it would grow


@pytest.mark.parametrize("tells", [True, False])
def test_a_step_that_cannot_be_split_says_what_it_needs(tmp_path, tells: bool) -> None:  # type: ignore[no-untyped-def]
    subject = FakeSubject(FakeClock())
    subject.capabilities = BuiltinSubject(FakeEngine("cpu" if tells else "cuda"), None).capabilities  # type: ignore[arg-type]
    with open_folder(tmp_path) as folder:
        execute(make_run(folder, subject=subject))
        analysis = analyze_run(folder.contents.trials, folder.contents.requests, RunContext())
    point = analysis.points[0]
    split = (point.device_ms, point.host_exposed_ms, point.other_idle_ms)
    assert (None in split) is not tells
    assert point.step_ms is not None
    assert ("needs captured steps or a profiler" in markdown.render(analysis)) is not tells


def test_the_engine_loads_its_model_after_its_own_checks() -> None:
    config = EngineConfig(ModelSpec("tiny", "random"), "cpu", 64, 1, 4, dtype="float32", num_threads=1)
    subject, loaded = BuiltinSubject.build(config, RangeRecorder(), None)
    try:
        assert loaded is subject.engine.loaded
        assert subject.describe()["fingerprint"] == loaded.fingerprint
        assert subject.num_threads == 1
    finally:
        subject.close()


def test_weights_are_not_read_when_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    from specbench.device.cpu import CpuDevice
    from specbench.engine import build
    from specbench.errors import CapacityError

    reads: list[object] = []
    monkeypatch.setattr(CpuDevice, "memory_bytes", lambda _device: 1000)
    monkeypatch.setattr(build, "load_model", lambda *arguments: reads.append(arguments))
    config = EngineConfig(ModelSpec("tiny", "random"), "cpu", 64, 1, 4, dtype="float32", num_threads=1)
    with pytest.raises(CapacityError):
        BuiltinSubject.build(config, RangeRecorder(), None)
    assert reads == []
