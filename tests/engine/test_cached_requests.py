"""Requests whose context was put into the cache and not computed: the engine goes on as if it had been."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from engine_driver import forced, ngram, tiny_config, tiny_model

from specbench.device.times import DeviceTimes
from specbench.engine.build import build_engine
from specbench.engine.config import EngineConfig
from specbench.engine.kv_cache import KVCache
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.models.config import LinearAttention
from specbench.engine.models.loading import load_shape
from specbench.engine.request import Request
from specbench.engine.sampling.params import SamplingParams
from specbench.errors import CapacityError, InputError

PROMPT = [5, 3, 8, 13, 2, 34, 1, 55, 21, 9, 4, 7]
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)
TIMES = DeviceTimes(base_us=1, us_per_row=0, us_per_kv_token=0, us_per_copy=0, bytes_per_us=1e6)


def simulated(config: EngineConfig) -> EngineConfig:
    return replace(config, device="sim", device_times=TIMES, acceptance=forced(1.0))


@pytest.fixture
def engine() -> Iterator[LLMEngine]:
    made = build_engine(tiny_config(), loaded=tiny_model())
    yield made
    made.shutdown()


def finish(engine: LLMEngine, request: Request) -> list[int]:
    while engine.has_work:
        engine.step()
    return request.output_token_ids


def test_a_cache_that_was_computed_gives_what_prefilling_gives(
    engine: LLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values of a prompt are left where its blocks were; only the engine's books are set up anew."""
    expected = finish(engine, engine.add_request(PROMPT, GREEDY))
    first = finish(engine, engine.add_request(PROMPT, replace(GREEDY, max_tokens=1)))
    monkeypatch.setattr(KVCache, "fill", lambda *_: None)
    going_on = engine.add_cached_request([*PROMPT, *first], replace(GREEDY, max_tokens=11))
    assert [*first, *finish(engine, going_on)] == expected


def test_it_generates_from_the_first_step_on(engine: LLMEngine) -> None:
    requests = [engine.add_cached_request([token] * 20, GREEDY) for token in (3, 4, 5, 6)]
    assert engine.blocks.num_owned(0) == 3  # 20 tokens and the step's own, 8 a block
    engine.step()
    (step,) = engine.drain_steps()
    assert (step.num_context, step.num_generation, step.num_committed, step.num_occupied) == (0, 4, 4, 4)
    assert [len(request.output_token_ids) for request in requests] == [1] * 4
    for request in requests:
        finish(engine, request)
        assert request.accepted_lengths == [1] * 12
    engine.blocks.check()
    assert engine.blocks.num_free == engine.blocks.num_blocks


def replayed(engine: LLMEngine) -> tuple[list[list[int]], list[list[int]]]:
    """The same cached requests twice, with other requests in the same blocks in between."""

    def cached() -> list[list[int]]:
        requests = [engine.add_cached_request([*PROMPT, seed], GREEDY) for seed in range(3)]
        while engine.has_work:
            engine.step()
        return [request.output_token_ids for request in requests]

    first = cached()
    for length in (30, 17, 25):
        engine.add_request([length] * length, GREEDY)
    while engine.has_work:
        engine.step()
    return first, cached()


def test_what_a_request_finds_does_not_depend_on_what_was_there(engine: LLMEngine) -> None:
    first, again = replayed(engine)
    assert first == again
    assert len({tuple(output) for output in first}) == 3


def test_a_cache_that_is_not_filled_would_be_seen(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVCache, "fill", lambda *_: None)
    first, again = replayed(engine)
    assert first != again


def test_noise_is_finite_and_a_function_of_the_position() -> None:
    cpu = torch.device("cpu")
    cache, wide = KVCache(2, 6, 4, 2, 8, torch.bfloat16, cpu), KVCache(2, 6, 8, 2, 8, torch.bfloat16, cpu)
    cache.fill(torch.tensor([1, 4]))
    wide.fill(torch.tensor([3]))
    for cells, others in zip((*cache.keys, *cache.values), (*wide.keys, *wide.values), strict=True):
        assert cells[[1, 4]].isfinite().all()
        assert (cells[[0, 2, 3, 5]] == 0).all()
        assert not torch.equal(cells[1], cells[4])
        assert torch.equal(torch.cat([cells[1], cells[4]]), others[3])
    assert not torch.equal(cache.keys[0][1], cache.values[0][1])
    assert not torch.equal(cache.keys[0][1], cache.keys[1][1])


@pytest.mark.parametrize("draft_len", [0, 3])
def test_speculation_goes_on_from_there(draft_len: int) -> None:
    config = tiny_config(drafter=ngram(draft_len), acceptance=forced(2.0 if draft_len else 1.0), overlap=True)
    engine = build_engine(config, loaded=tiny_model())
    try:
        request = engine.add_cached_request([1, 2, 3, 1, 2, 3, 1], GREEDY)
        assert len(finish(engine, request)) == 12
        # The first step has no drafts; each after it commits one draft and the target's own.
        assert request.accepted_lengths[:3] == ([1, 2, 2] if draft_len else [1, 1, 1])
    finally:
        engine.shutdown()


def test_a_simulated_device_counts_from_there_as_the_cpu_does() -> None:
    config = tiny_config(drafter=ngram(3), acceptance=forced(2.4))
    found = []
    for each in (config, replace(simulated(config), acceptance=config.acceptance)):
        loaded = tiny_model() if each.device == "cpu" else load_shape(each.model, torch.float32)
        engine = build_engine(each, loaded=loaded)
        requests = [
            engine.add_cached_request([7] * 9, SamplingParams(max_tokens=30, seed=seed, ignore_eos=True))
            for seed in range(4)
        ]
        while engine.has_work:
            engine.step()
        # Slots are used again by other requests, whose counts are their own.
        more = [engine.add_cached_request([7] * 5, SamplingParams(max_tokens=30, seed=9, ignore_eos=True))]
        while engine.has_work:
            engine.step()
        found.append([request.accepted_lengths for request in (*requests, *more)])
        engine.shutdown()
    assert found[0] == found[1]


def test_there_must_be_room(engine: LLMEngine) -> None:
    for _ in range(4):
        engine.add_cached_request(PROMPT, GREEDY)
    with pytest.raises(CapacityError, match="no slot, or too few KV blocks"):
        engine.add_cached_request(PROMPT, GREEDY)
    assert engine.blocks.num_owned(3) == 2


def test_a_recurrent_state_cannot_be_made_up(engine: LLMEngine) -> None:
    layers = LinearAttention(("linear_attention",), 1, 1, 8, 8)
    engine.model_config = replace(engine.model_config, linear_attention=layers)
    with pytest.raises(InputError, match="recurrent state"):
        engine.add_cached_request(PROMPT, GREEDY)
