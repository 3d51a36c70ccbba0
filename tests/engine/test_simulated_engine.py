"""The engine on a device that computes nothing: the counts of an engine that computes, and the declared times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psutil
import pytest
import torch
from engine_driver import Outcome, forced, ngram, run, tiny_config, tiny_model

from specbench.device.times import DeviceTimes, StepWork
from specbench.engine import simulated_step
from specbench.engine.build import build_engine
from specbench.engine.config import AcceptanceSpec, EngineConfig, ModelSpec
from specbench.engine.models.loading import load_shape
from specbench.engine.sampling.params import SamplingParams
from specbench.errors import InputError
from specbench.records import StepRecord

SHORT = DeviceTimes(base_us=1, us_per_row=0, us_per_kv_token=0, us_per_copy=0, bytes_per_us=1e6)
"""Nothing is waited for: these tests look at counts."""
LONG = DeviceTimes(base_us=20_000, us_per_row=200, us_per_kv_token=10, us_per_copy=1, bytes_per_us=1e6)
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7, 9], [3, 2, 3], [8, 4, 6, 2, 6], [4, 3]]
PARAMS = [
    SamplingParams(temperature=0.9, seed=seed, max_tokens=20 + 7 * seed, ignore_eos=True)
    for seed in range(len(PROMPTS))
]


def simulated(config: EngineConfig, times: DeviceTimes = SHORT) -> EngineConfig:
    return replace(config, device="sim", device_times=times)


def run_simulated(config: EngineConfig, **options: Any) -> Outcome:
    return run(config, PROMPTS, PARAMS, load_shape(config.model, torch.float32), **options)


def lengths(outcome: Outcome) -> list[list[int]]:
    return [request.accepted_lengths for request in outcome.requests]


CASES = {
    "plain": (0, forced(1.0)),
    "whole": (3, forced(3.0)),
    "fraction": (3, forced(2.4)),
    "rates": (4, AcceptanceSpec("forced", rates=(0.8, 0.6, 0.4, 0.9))),
}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_counts_are_those_of_the_engine_that_computes(case: str, overlap: bool) -> None:
    draft_len, acceptance = CASES[case]
    config = tiny_config(drafter=ngram(draft_len), acceptance=acceptance, overlap=overlap)
    computed = run(config, PROMPTS, PARAMS, concurrency=4)
    found = run_simulated(simulated(config), concurrency=4)
    assert lengths(found) == lengths(computed)
    assert [len(output) for output in found.outputs] == [len(output) for output in computed.outputs]
    assert [request.finish_reason for request in found.requests] == ["length"] * len(PROMPTS)


def test_counts_survive_preemption_and_chunked_prompts() -> None:
    config = tiny_config(
        drafter=ngram(3), acceptance=forced(2.4), num_blocks=20, max_num_tokens=16, tokens_per_block=4, max_seq_len=60
    )
    prompts = [[1 + i] * (5 + 4 * i) for i in range(6)]
    computed = run(config, prompts, PARAMS)
    found = run(simulated(config), prompts, PARAMS, load_shape(config.model, torch.float32))
    assert found.num_preemptions == computed.num_preemptions > 0
    assert lengths(found) == lengths(computed)


def test_counts_by_batch_size_are_those_of_the_engine_that_computes() -> None:
    drafter = replace(ngram(4), draft_len=4, runtime_draft_len=((1, 4), (3, 2)))
    config = tiny_config(drafter=drafter, acceptance=forced(2.7))
    assert lengths(run_simulated(simulated(config))) == lengths(run(config, PROMPTS, PARAMS))


def test_counts_drawn_for_other_positions_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above can fail: plans that are taken one position too late are not the same."""
    plan = simulated_step._PlannedCounts._plan

    def shifted(self: Any, slots: Any, positions: Any) -> None:
        plan(self, slots, positions + 1)
        self._first[slots] = positions

    config = tiny_config(drafter=ngram(3), acceptance=forced(2.4))
    computed = lengths(run(config, PROMPTS, PARAMS))
    monkeypatch.setattr(simulated_step._PlannedCounts, "_plan", shifted)
    assert lengths(run_simulated(simulated(config))) != computed


def test_a_slot_that_kept_the_plan_of_another_request_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(drafter=ngram(3), acceptance=forced(2.4), max_batch_size=1)
    computed = lengths(run(config, PROMPTS, PARAMS, concurrency=1))
    monkeypatch.setattr(simulated_step._PlannedCounts, "forget", lambda *_: None)
    assert lengths(run_simulated(simulated(config), concurrency=1)) != computed


def test_tokens_are_valid_and_a_function_of_request_seed_and_position() -> None:
    vocab_size, ends = tiny_model().config.vocab_size, tiny_model().config.eos_token_ids
    plain = run_simulated(simulated(tiny_config(acceptance=forced(1.0))))
    config = tiny_config(drafter=ngram(3), acceptance=forced(2.4), overlap=True)
    drafted = run_simulated(simulated(config), concurrency=2)
    assert plain.outputs == drafted.outputs
    assert len({tuple(output[:20]) for output in plain.outputs}) == len(PROMPTS)
    for output in plain.outputs:
        assert all(0 <= token < vocab_size and token not in ends for token in output)
        assert len(set(output)) > len(output) / 2  # not one token again and again


def test_made_up_tokens_end_nothing() -> None:
    params = SamplingParams(max_tokens=100, ignore_eos=False)
    config = simulated(tiny_config(acceptance=forced(1.0)))
    found = run(config, PROMPTS, params, load_shape(config.model, torch.float32))
    assert [len(output) for output in found.outputs] == [100] * len(PROMPTS)


def test_a_step_takes_what_is_declared_for_its_rows_and_cached_tokens() -> None:
    """Two prompts in one step, then their generation: rows and cached tokens by hand."""
    config = simulated(tiny_config(drafter=ngram(3), acceptance=forced(2.0)), LONG)
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    found = run(config, [[1] * 6, [2] * 10], params, load_shape(config.model, torch.float32))
    steps = [step for step in found.steps if isinstance(step, StepRecord)]
    # The context step commits one token each; every generation step two, of K + 1 = 4 rows each.
    expected = [StepWork(16, 16), StepWork(8, (7 + 3) + (11 + 3)), StepWork(8, (9 + 3) + (13 + 3))]
    assert [step.device_end_ns - step.device_start_ns for step in steps] == [LONG.step_ns(work) for work in expected]


def test_acceptance_that_looks_at_tokens_is_refused() -> None:
    config = simulated(tiny_config())
    with pytest.raises(InputError, match="accepted by number") as caught:
        build_engine(config)
    assert caught.value.where == "acceptance.mode"


@pytest.mark.parametrize("changes", [{"device": "sim"}, {"device_times": SHORT}])
def test_the_device_and_its_times_go_together(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="go together"):
        tiny_config(**changes)


def test_no_weights_are_read_and_no_cache_is_allocated() -> None:
    """A model of 8 billion parameters that has not been pulled, and a cache of 137 GB."""
    config = EngineConfig(
        ModelSpec("llama-3.1-8b"), "sim", 4096, 256, 256 * 129, acceptance=forced(1.0), device_times=SHORT
    )
    engine = build_engine(config)
    try:
        tensors = [value for value in vars(engine.loaded.model).values() if isinstance(value, torch.Tensor)]
        assert all(tensor.device.type == "meta" for tensor in tensors)
        assert engine.loaded.num_parameters == 8_030_261_248
        assert "weights not loaded" in engine.loaded.source
        engine.add_request([1, 2, 3], SamplingParams(max_tokens=3))
        while engine.has_work:
            engine.step()
    finally:
        engine.shutdown()


@pytest.mark.slow
def test_256_requests_of_262144_positions_fit() -> None:
    before = psutil.Process().memory_info().rss
    blocks = -(-262_146 // 32)
    config = EngineConfig(
        ModelSpec("tiny", "random"), "sim", 262_144, 256, 256 * blocks, max_num_tokens=512, acceptance=forced(1.0),
        device_times=SHORT,
    )  # fmt: skip
    engine = build_engine(config)
    try:
        for seed in range(256):
            engine.add_request([1, 2, 3], SamplingParams(max_tokens=8, seed=seed))
        while engine.has_work:
            engine.step()
        assert psutil.Process().memory_info().rss - before < 2 << 30
    finally:
        engine.shutdown()
