"""Engines with captured steps, requests that are served by them, and what is looked at while they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import pytest
import torch
from engine_driver import Outcome, forced, ngram, tiny_config, tiny_model, with_variants
from test_engine_tokens import GREEDY, SAMPLED, differing, prompts

from specbench.device.times import DeviceTimes
from specbench.engine.build import build_engine
from specbench.engine.capture import CapturedStep, CaptureKey, CaptureSet, StepCapture
from specbench.engine.captured_steps import CapturedSteps
from specbench.engine.config import EngineConfig
from specbench.engine.forward_batch import ForwardBatch
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.models.loading import LoadedModel, load_shape
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.step_sampling import StepSampling
from specbench.engine.scheduler import Schedule
from specbench.records import SamplingAudit, SamplingValues, StepRecord

Requests = Sequence[tuple[list[int], SamplingParams]]
SHORT = DeviceTimes(base_us=1, us_per_row=0, us_per_kv_token=0, us_per_copy=0, bytes_per_us=1e6)
"""Nothing is waited for."""
DEFECTS = ("leak", "clear_at_copy", "clear_after_warmup")
RIGHT = ("real_params", "clear_after_capture")


def captured_config(draft_len: int = 3, capture_params: str = "real_params", **changes: object) -> EngineConfig:
    """The ``tiny`` engine with captured steps."""
    config = tiny_config(drafter=ngram(draft_len), **changes)
    return with_variants(config, graphs="captured", capture_params=capture_params)


def eager(config: EngineConfig) -> EngineConfig:
    """``config`` without captured steps."""
    return with_variants(config, graphs="off", capture_params="real_params")


def simulated(config: EngineConfig) -> EngineConfig:
    """``config`` on the device that computes nothing, where every acceptance is forced."""
    acceptance = forced(1.0 + 0.4 * config.drafter.max_draft_len)
    return replace(config, device="sim", device_times=SHORT, acceptance=acceptance)


@lru_cache(maxsize=1)
def shape_of_tiny() -> LoadedModel:
    return load_shape(tiny_config().model, torch.float32)


@contextmanager
def opened(config: EngineConfig, loaded: LoadedModel | None = None) -> Iterator[LLMEngine]:
    """An engine of ``config``, shut down at the end."""
    if loaded is None:
        loaded = tiny_model() if config.device == "cpu" else shape_of_tiny()
    engine = build_engine(config, loaded=loaded)
    try:
        yield engine
    finally:
        engine.shutdown()


def batch_of(kind: str, count: int = 8) -> list[tuple[list[int], SamplingParams]]:
    """Requests of several lengths: ``greedy``, ``sampled`` or ``mixed``."""
    params = {"greedy": [GREEDY] * count, "mixed": differing(count)}
    sampled = [replace(SAMPLED, seed=seed, temperature=0.8 + 0.1 * (seed % 3)) for seed in range(count)]
    each = params.get(kind, sampled)
    lengths = [6 + 4 * (index % 5) for index in range(count)]
    return [(text, replace(one, max_tokens=n)) for text, one, n in zip(prompts(count), each, lengths, strict=True)]


def serve(
    engine: LLMEngine,
    requests: Requests,
    concurrency: int = 4,
    before_step: Callable[[LLMEngine, int], object] = lambda _engine, _step: None,
) -> Outcome:
    """Run all requests, so many at a time; ``before_step`` is called with the number of the step."""
    waiting, handles, unfinished, step = list(requests), [], 0, 0
    while waiting or engine.has_work:
        while waiting and unfinished < concurrency:
            text, params = waiting.pop(0)
            handles.append(engine.add_request(text, params))
            unfinished += 1
        events = before_step(engine, step) or []
        assert isinstance(events, list)
        unfinished -= sum(event.finished for event in [*events, *engine.step()])
        step += 1
    engine.blocks.check()
    assert engine.blocks.num_free == engine.blocks.num_blocks, "blocks leaked"
    return Outcome(handles, engine.num_preemptions, list(engine.drain_steps()))


def serve_once(config: EngineConfig, requests: Requests, loaded: LoadedModel | None = None) -> Outcome:
    """Run all requests in an engine of their own."""
    with opened(config, loaded) as engine:
        return serve(engine, requests)


def steps_of(outcome: Outcome) -> list[StepRecord]:
    return [step for step in outcome.steps if isinstance(step, StepRecord)]


def captured_of(engine: LLMEngine) -> CapturedSteps:
    """The variant ``captured`` of the engine."""
    choice = engine._graphs.variants["captured"]
    assert isinstance(choice, CapturedSteps)
    return choice


def capture_set(engine: LLMEngine) -> CaptureSet:
    """What is replayed now."""
    return captured_of(engine)._current


def counts_of(engine: LLMEngine) -> dict[str, int]:
    return engine.read_counters()["graphs"]["captured"]


def live_of(engine: LLMEngine) -> StepSampling:
    """The metadata that serves steps which are not captured."""
    return captured_of(engine)._live


def wrong_rows(audit: Sequence[SamplingAudit]) -> dict[tuple[SamplingValues, SamplingValues], int]:
    """Rows that were served otherwise than they asked for: (asked, served) -> rows."""
    found: Counter[tuple[SamplingValues, SamplingValues]] = Counter()
    for entry in audit:
        if entry.asked != entry.effective:
            found[entry.asked, entry.effective] += entry.rows
    return dict(found)


def rows_by_values(audit: Sequence[SamplingAudit]) -> Counter[SamplingValues]:
    """Rows by what they asked for."""
    found: Counter[SamplingValues] = Counter()
    for entry in audit:
        found[entry.asked] += entry.rows
    return found


def watch_batches(engine: LLMEngine) -> list[ForwardBatch]:
    """Every batch that is launched from now on by ``captured``."""
    batches: list[ForwardBatch] = []
    choice = captured_of(engine)
    original = choice.program_for

    def program_for(batch: ForwardBatch, output: torch.Tensor) -> Any:
        batches.append(batch)
        return original(batch, output)

    choice.program_for = program_for  # type: ignore[method-assign]
    return batches


class Launched(NamedTuple):
    """A schedule before padding, and by request that selects tokens in it, its parameters and how many rows."""

    schedule: Schedule
    rows: list[tuple[SamplingParams, int]]


def watch_schedules(engine: LLMEngine) -> list[Launched]:
    """Every schedule that is launched from now on."""
    launched: list[Launched] = []
    original = engine._scheduler.schedule

    def schedule() -> Schedule:
        made = original()
        if not made.is_empty:
            # Now: whether a chunk selects a token depends on what its request has, which changes.
            rows = [(chunk.request.params, 1) for chunk in made.context if chunk.samples]
            rows += [(request.params, made.draft_len + 1) for request in made.generation]
            launched.append(Launched(made, rows))
        return made

    engine._scheduler.schedule = schedule  # type: ignore[method-assign]
    return launched


Event = tuple[str, Any, Any]
"""("set", metadata, override), or ("record", the step's copy of the metadata, whether it draws)."""


def watch_overrides(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """What is done to overrides, and which steps are recorded, from now on, in order."""
    events: list[Event] = []

    def put(sampling: StepSampling, value: SamplingParams | None) -> None:
        events.append(("set", sampling, value))
        sampling.__dict__["kept"] = value

    # A shallow copy takes over what is kept, and sets nothing.
    monkeypatch.setattr(StepSampling, "override", property(lambda each: each.__dict__["kept"], put), raising=False)
    original = StepCapture._record

    def record(capture: StepCapture, batch: ForwardBatch) -> CapturedStep:
        step = original(capture, batch)
        events.append(("record", capture.copy_in_use, step.draws))
        return step

    monkeypatch.setattr(StepCapture, "_record", record)
    return events


def misread_keys(monkeypatch: pytest.MonkeyPatch, change: Callable[[CaptureKey], CaptureKey]) -> None:
    """Break the lookup of captured steps: ``change`` is done to the key of every batch that has one."""
    original = CapturedSteps._find

    def find(choice: CapturedSteps, batch: ForwardBatch) -> CapturedStep | None:
        step = original(choice, batch)
        key = next((key for key, each in choice._current.steps.items() if each is step), None)
        return step if key is None else choice._current.steps[change(key)]

    monkeypatch.setattr(CapturedSteps, "_find", find)
