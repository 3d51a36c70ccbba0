"""What the built-in engine can tell depends on its device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_subject import FakeClock, FakeSubject, make_run, open_folder

from specbench.device.tracing import RangeRecorder, Span
from specbench.engine.config import DrafterSpec, EngineConfig, ModelSpec
from specbench.engine.sampling.params import SamplingParams
from specbench.errors import EngineError, InputError
from specbench.measure.analysis import RunContext, analyze_run
from specbench.measure.executor import execute
from specbench.measure.subject import BuiltinSubject
from specbench.report.formats import markdown


@dataclass
class FakeEngine:
    """As much of an engine as :meth:`BuiltinSubject.drain` needs, on a device of the given type."""

    device_type: str
    graphs: str = "off"
    busy: list[Span] = field(default_factory=lambda: [Span("device_step", "device", 10, 20)])

    @property
    def device(self) -> SimpleNamespace:
        return SimpleNamespace(torch_device=torch.device(self.device_type))

    @property
    def variants(self) -> dict[str, str]:
        return {"graphs": self.graphs}

    num_eager_steps: int = 0

    def read_counters(self) -> dict[str, dict[str, dict[str, int]]]:
        return {"graphs": {"captured": {"replays": 9, "eager_context": self.num_eager_steps}}}

    def synchronize(self) -> None:
        pass

    def drain_audit(self) -> list[object]:
        return []

    def drain_steps(self) -> list[object]:
        return []

    def drain_busy(self) -> list[Span]:
        busy, self.busy = self.busy, []
        return busy


@pytest.mark.parametrize(
    ("device", "graphs", "tells"), [("cpu", "off", True), ("cuda", "off", False), ("cuda", "captured", True)]
)
def test_eager_launches_on_a_gpu_tell_no_device_time(device: str, graphs: str, tells: bool) -> None:
    engine = FakeEngine(device, graphs)
    subject = BuiltinSubject(engine, RangeRecorder())  # type: ignore[arg-type]
    assert subject.capabilities.device_time is tells
    assert subject.capabilities.switchable is True
    busy = subject.drain().busy
    assert busy == ([Span("device_step", "device", 10, 20)] if tells else None)
    assert engine.busy == []  # taken either way, or it would grow


def test_a_window_with_eager_steps_beside_captured_ones_tells_no_device_time() -> None:
    engine = FakeEngine("cuda", "captured")
    subject = BuiltinSubject(engine, None)  # type: ignore[arg-type]
    assert subject.drain().busy is not None
    engine.num_eager_steps, engine.busy = 2, [Span("device_step", "device", 30, 40)]
    assert subject.drain().busy is None
    engine.busy = [Span("device_step", "device", 50, 60)]
    assert subject.drain().busy == [Span("device_step", "device", 50, 60)]


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


def test_the_fingerprint_is_of_target_and_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    from specbench.engine.drafters import draft_identity
    from specbench.engine.drafters.draft_identity import DraftIdentity

    def describe(identity: DraftIdentity | None) -> tuple[dict[str, Any], str]:
        monkeypatch.setattr(draft_identity, "find_draft_identity", lambda _: identity)
        subject, loaded = BuiltinSubject.build(config, RangeRecorder(), None)
        subject.close()
        assert subject.describe()["fingerprint"] == loaded.fingerprint
        return subject.describe(), loaded.fingerprint

    config = EngineConfig(ModelSpec("tiny", "random"), "cpu", 64, 1, 4, dtype="float32", num_threads=1)
    plain, one, same, other = (
        describe(None if name is None else DraftIdentity("a head", name, 3)) for name in (None, "1", "1", "2")
    )
    assert "draft_model" not in plain[0]
    assert (one[0]["draft_model"], one[0]["draft_parameters"]) == ("a head", 3)
    assert one[1] == same[1]
    assert len({plain[1], one[1], other[1]}) == 3


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


OVERLAPPED = (("overlap", "on"),)
TINY = EngineConfig(
    ModelSpec("tiny", "random"), "cpu", 64, 2, 16, dtype="float32", num_threads=1, optimizations=OVERLAPPED
)
SAMPLED = SamplingParams(temperature=0.8, max_tokens=12, ignore_eos=True)


@contextmanager
def opened(*configs: EngineConfig) -> Iterator[list[BuiltinSubject]]:
    """A subject a configuration, each sharing with the first what it can."""
    recorder = RangeRecorder()
    subjects: list[BuiltinSubject] = []
    try:
        for config in configs:
            share = subjects[0] if subjects else None
            subjects.append(BuiltinSubject.build(config, recorder, recorder, share=share)[0])
        yield subjects
    finally:
        for subject in subjects:
            subject.close()


def finish(subject: BuiltinSubject, name: str) -> list[int]:
    request = subject.submit([1, 2, 3], SAMPLED, name)
    while subject.has_work:
        subject.advance()
    return request.output_token_ids


def test_the_engine_switches_and_describes_what_stands_and_what_each_did() -> None:
    with opened(TINY) as (subject,):
        subject.submit([1, 2, 3], SAMPLED, "a")
        for variant in ("signature", "refill"):
            subject.switch({"sampling_params": variant})
            for _ in range(4):
                subject.advance()
        toggle = subject.describe()["toggles"]["sampling_params"]
        assert toggle["variant"] == "refill"
        assert toggle["counters"]["refill"]["copies"] == 6 * 4
        assert toggle["counters"]["signature"]["copies"] == 6
        with pytest.raises(InputError, match="did you mean 'refill'"):
            subject.switch({"sampling_params": "refil"})


def test_settle_finishes_what_is_in_flight_and_drains_nothing() -> None:
    with opened(TINY) as (subject,):
        request = subject.submit([1, 2, 3], SAMPLED, "a")
        subject.advance()
        assert request.output_token_ids == []  # under overlap the first call only launches
        subject.settle()
        assert len(request.output_token_ids) == 1
        subject.settle()
        assert len(request.output_token_ids) == 1
        telemetry = subject.drain()
        assert len(telemetry.steps) == 1
        assert telemetry.busy
        assert {"device_step", "update"} <= {span.name for span in telemetry.spans}


def test_equal_subjects_share_weights_and_device_and_either_may_go_first() -> None:
    with opened(TINY, replace(TINY, drafter=DrafterSpec("ngram", 2))) as (first, second):
        assert first.engine.loaded is second.engine.loaded
        assert first.engine.device is second.engine.device
        expected = finish(first, "a")
        first.drain()
        first.submit([1, 2, 3], SAMPLED, "cut")
        first.advance()
        first.close()
        assert finish(second, "b") == expected
        assert "device_step" in {span.name for span in second.drain().spans}
        second.close()
        with pytest.raises(EngineError, match="closed"):
            second.engine.synchronize()
        second.close()  # once more is nothing


@pytest.mark.parametrize(
    ("change", "same_weights", "same_device"),
    [
        ({"num_threads": 2}, True, False),
        ({"dtype": "bfloat16"}, False, True),
        ({"model": ModelSpec("tiny", "random", seed=1)}, False, True),
        ({"optimizations": (("overlap", "off"),)}, True, True),
    ],
)
def test_only_what_is_equal_is_shared(change: dict[str, object], same_weights: bool, same_device: bool) -> None:
    with opened(TINY, replace(TINY, **change)) as (first, second):  # type: ignore[arg-type]
        assert (first.engine.loaded is second.engine.loaded) is same_weights
        assert (first.engine.device is second.engine.device) is same_device


def test_a_closed_subject_lends_no_device() -> None:
    with opened(TINY) as (first,):
        first.close()
        second, _ = BuiltinSubject.build(TINY, RangeRecorder(), None, share=first)
        assert second.engine.loaded is first.engine.loaded
        assert len(finish(second, "a")) == 12
        second.close()


def test_a_shared_device_has_one_tracer() -> None:
    with opened(TINY) as (first,), pytest.raises(ValueError, match="same tracer"):
        BuiltinSubject.build(TINY, RangeRecorder(), None, share=first)


def test_a_subject_that_cannot_be_built_leaves_the_device_to_the_others() -> None:
    with opened(TINY) as (first,):
        tracer = first._lease.tracer  # type: ignore[union-attr]
        with pytest.raises(InputError):
            BuiltinSubject.build(replace(TINY, max_seq_len=10**6), tracer, None, share=first)
        assert len(finish(first, "a")) == 12
