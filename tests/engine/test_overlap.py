"""The toggle ``overlap``: tokens do not depend on it, it can be switched while a batch runs, and it is what it says."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, pairwise

import pytest
import torch
from engine_driver import Outcome, count_near_ties, forced, ngram, overlapping, run, tiny_config, tiny_model
from test_engine_tokens import GREEDY, SAMPLED, differing, prompts

from specbench.device.times import DeviceTimes
from specbench.engine.build import build_engine
from specbench.engine.config import EngineConfig
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.models.loading import load_shape
from specbench.engine.optimizations.base import Exactness, load_toggle
from specbench.engine.overlap import OverlappedOrder
from specbench.engine.request import Request
from specbench.engine.sampling.params import SamplingParams
from specbench.records import StepRecord

MOST_STEPS = 400
"""Many more than any run here takes: one that loses a step would wait for it forever."""
BATCHES: dict[str, list[SamplingParams]] = {"greedy": [GREEDY] * 10, "sampled": [SAMPLED] * 10, "mixed": differing(10)}


def steps_of(outcome: Outcome) -> list[StepRecord]:
    return [step for step in outcome.steps if isinstance(step, StepRecord)]


def launches_ahead(outcome: Outcome) -> list[bool]:
    """For each step but the last, whether the next one was launched before its tokens were read."""
    return [later.launch_ns < step.output_ns for step, later in pairwise(steps_of(outcome))]


def both(config: EngineConfig, params: list[SamplingParams], concurrency: int = 4) -> tuple[Outcome, Outcome]:
    """The same requests with overlap off and on."""
    texts = prompts(len(params))
    off, on = (run(overlapping(config, overlap), texts, params, concurrency=concurrency) for overlap in (False, True))
    assert not any(launches_ahead(off))
    assert any(launches_ahead(on))
    return off, on


@pytest.mark.parametrize("draft_len", [0, 4])
@pytest.mark.parametrize("batch", BATCHES)
def test_tokens_are_equal_off_and_on(batch: str, draft_len: int) -> None:
    off, on = both(tiny_config(drafter=ngram(draft_len)), BATCHES[batch])
    assert draft_len == 0 or any(sum(step.accepted) for step in steps_of(on))
    assert count_near_ties(tiny_model(), off, on) <= 1


@pytest.mark.parametrize("draft_len", [0, 4])
def test_tokens_are_equal_where_requests_are_preempted(draft_len: int) -> None:
    off, on = both(tiny_config(drafter=ngram(draft_len), num_blocks=22), differing(10))
    assert min(off.num_preemptions, on.num_preemptions) > 0
    assert count_near_ties(tiny_model(), off, on) <= 1


def test_where_every_end_is_foreseen_every_step_is_the_same() -> None:
    params = [replace(each, max_tokens=6 + 5 * index) for index, each in enumerate(differing(6))]
    off, on = both(tiny_config(max_batch_size=6, num_blocks=120), params, concurrency=6)
    assert on.outputs == off.outputs
    shapes = [[(s.num_context_tokens, s.num_generation, s.num_committed) for s in steps_of(each)] for each in (off, on)]
    assert shapes[0] == shapes[1]


def test_an_end_that_is_not_foreseen_costs_one_more_step() -> None:
    """What keeps the toggle from being step-preserving."""
    (plain,) = run(tiny_config(), prompts(1), [GREEDY]).outputs
    stopping = replace(GREEDY, stop_token_ids=(plain[9],))
    off, on = both(tiny_config(), [stopping])
    assert on.outputs == off.outputs
    assert on.requests[0].finish_reason == "stop"
    assert len(steps_of(on)) == len(steps_of(off)) + 1
    assert steps_of(on)[-1].num_committed == 0
    toggle = load_toggle("overlap")
    assert (toggle.exactness, toggle.step_preserving) == (Exactness.NUMERICALLY_EQUIVALENT, False)


def counts(config: EngineConfig) -> tuple[int, dict[str, dict[str, int]]]:
    """Steps of a batch that runs to its end, and what was counted."""
    engine = build_engine(config, loaded=tiny_model())
    try:
        for prompt in prompts(3):
            engine.add_request(prompt, GREEDY)
        while engine.has_work:
            engine.step()
        return len(engine.drain_steps()), engine.read_counters()["overlap"]
    finally:
        engine.shutdown()


def test_steps_that_were_launched_ahead_are_counted() -> None:
    num_steps, counted = counts(tiny_config(overlap=True))
    assert counted == {"on": {"launched_ahead": num_steps - 1}}
    assert counts(tiny_config())[1] == {"on": {"launched_ahead": 0}}


def test_an_order_that_reads_what_it_has_just_launched_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OverlappedOrder, "choose", lambda _self, _in_flight, launched: (launched, None))
    with pytest.raises(AssertionError):
        both(tiny_config(), BATCHES["mixed"])


def drive(config: EngineConfig, change: Callable[[LLMEngine, int], object], seed: int = 0) -> Outcome:
    """Ten requests, four at a time; ``change`` comes before each step. Every token that is committed is told, once."""
    engine = build_engine(config, loaded=tiny_model())
    waiting = list(zip(prompts(10, seed), differing(10), strict=True))
    requests: list[Request] = []
    told: dict[str, list[int]] = {}
    unfinished = 0
    try:
        for step in range(MOST_STEPS):
            while waiting and unfinished < 4:
                requests.append(engine.add_request(*waiting.pop(0)))
                unfinished += 1
            for event in [*(change(engine, step) or ()), *engine.step()]:  # type: ignore[misc]
                told.setdefault(event.request.request_id, []).extend(event.token_ids)
                unfinished -= event.finished
            if not engine.has_work and not waiting:
                break
        assert told == {request.request_id: request.output_token_ids for request in requests}
        return Outcome(requests, engine.num_preemptions)
    finally:
        engine.shutdown()


def switching(seed: int) -> Callable[[LLMEngine, int], object]:
    """The other variant, or the same one again, before a third of the steps."""
    rng = random.Random(seed)
    return lambda engine, _step: engine.switch({"overlap": rng.choice(["off", "on"])}) if rng.random() < 0.3 else ()


@pytest.mark.parametrize("draft_len", [0, 4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_switching_between_the_steps_of_a_running_batch_changes_no_token(draft_len: int, seed: int) -> None:
    config = tiny_config(drafter=ngram(draft_len))
    alone = run(config, prompts(10, seed), differing(10), concurrency=4)
    assert count_near_ties(tiny_model(), alone, drive(config, switching(seed), seed)) <= 1


@pytest.mark.parametrize("order", [("on", "off"), ("off", "on")])
def test_a_switch_finishes_what_is_in_flight_and_its_tokens_are_told(order: tuple[str, str]) -> None:
    config = tiny_config(overlap=order[0] == "on", max_batch_size=10, num_blocks=200)
    expected = run(tiny_config(max_batch_size=10, num_blocks=200), prompts(10), differing(10), concurrency=4).outputs
    variants = cycle(order)
    assert drive(config, lambda engine, _step: engine.switch({"overlap": next(variants)})).outputs == expected


def test_a_switch_that_left_a_step_in_flight_would_lose_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(overlap=True)
    expected = drive(config, lambda _engine, _step: ())

    def switch_off(engine: LLMEngine, step: int) -> object:
        return engine.switch({"overlap": "off"}) if step == 5 else ()

    assert count_near_ties(tiny_model(), expected, drive(config, switch_off)) <= 1
    monkeypatch.setattr(LLMEngine, "flush", lambda _self: [])
    assert drive(config, switch_off).outputs != expected.outputs


@pytest.fixture
def simulated() -> EngineConfig:
    times = DeviceTimes(base_us=50, us_per_row=1, us_per_kv_token=0.01, us_per_copy=1, bytes_per_us=64_000)
    config = tiny_config(drafter=ngram(2), acceptance=forced(2.0))
    return replace(config, device="sim", device_times=times, optimizations=())


def test_an_engine_that_is_told_nothing_has_the_production_variant_of_its_device(simulated: EngineConfig) -> None:
    silent = replace(tiny_config(), optimizations=())
    for config, loaded, expected in (
        (silent, tiny_model(), "off"),
        (simulated, load_shape(simulated.model, torch.float32), "on"),
    ):
        engine = build_engine(config, loaded=loaded)
        try:
            assert engine.variants["overlap"] == expected
        finally:
            engine.shutdown()
    assert load_toggle("overlap").production_on("cuda") == "on"
