"""Input preparation: a steady step made from the one before is, buffer by buffer, what a full pass would have made."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from engine_driver import ngram, tiny_config, with_variants
from steady_cases import compare, shuffle_now_and_then, tight
from step_recorder import Change, decoding_requests, record

from specbench.engine.device_state import DeviceState
from specbench.engine.forward_batch import ForwardBatch, InputSource
from specbench.engine.input_preparation import InputPreparation
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.steady_state import SteadyStateInputs
from specbench.engine.step_inputs import StepInputs, StepRows


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("staging", ["full", "bounded"])
def test_row_2_5_equals_the_full_pass_in_every_buffer_at_every_step(seed: int, staging: str, overlap: bool) -> None:
    config, requests = tiny_config(overlap=overlap), decoding_requests(seed)
    steady, full = (
        record(with_variants(config, input_prep=each, block_staging=staging), requests)
        for each in ("steady_state", "rebuild")
    )
    assert steady.differences(full) == []
    assert {int(step["slots"].shape[0]) for step in steady.steps} >= {1, 2, 3, 4}
    counters = steady.counters["input_prep"]["steady_state"]
    assert counters["hits"] > counters["full_passes"] > 0
    assert counters["hits"] + counters["full_passes"] == len(steady.steps)
    assert full.counters["input_prep"]["rebuild"] == {"full_passes": len(full.steps)}
    assert min(counters["invalidated_by_context"], counters["invalidated_by_batch_changed"]) > 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_row_2_5_holds_through_preemption_and_other_orders(seed: int, overlap: bool) -> None:
    steady, differences = compare(tight(tiny_config(overlap=overlap)), seed, prepare=shuffle_now_and_then(seed))
    assert differences == []
    assert steady.num_preemptions > 0
    assert steady.counters["input_prep"]["steady_state"]["hits"] > 0


def test_row_2_5_a_steady_step_sends_only_what_changed() -> None:
    batches: list[ForwardBatch] = []

    def keep(engine: LLMEngine) -> None:
        original = engine._model_runner.launch
        engine._model_runner.launch = lambda batch: (batches.append(batch), original(batch))[1]  # type: ignore[method-assign]

    params = SamplingParams(max_tokens=40, ignore_eos=True)
    record(with_variants(tiny_config(), input_prep="steady_state"), [([1, 2, 3], params)], prepare=keep)
    assert [batch.source for batch in batches[:3]] == [InputSource.HOST, InputSource.HOST, InputSource.LAST_STEP]
    steady = batches[2:]
    assert {batch.source for batch in steady} == {InputSource.LAST_STEP}
    assert all(batch.places is None for batch in steady)
    # In the cache are 5 tokens in the first steady step. Blocks of 8: one more is used from the 9th, the 17th, ... on.
    sent = [5 + index for index, batch in enumerate(steady) if batch.block_offsets is not None]
    assert len(sent) <= 2 * (len(steady) // 8 + 1)
    assert {9, 17, 25, 33, 41} <= set(sent)


def compares_lengths_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes any batch of equal size for the last one."""
    monkeypatch.setattr(
        SteadyStateInputs,
        "_is_same_batch",
        staticmethod(lambda last, schedule: len(last.requests) == len(schedule.generation)),
    )


def never_sends_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the blocks of the recorded step for those of all that follow."""
    monkeypatch.setattr(InputPreparation, "num_block_columns", lambda _self, _max_kv_len: 0)


def sends_a_column_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the first column of those that changed."""
    original = InputPreparation.first_changed_column
    monkeypatch.setattr(InputPreparation, "first_changed_column", lambda self, since: original(self, since) + 1)


def never_advances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the samples of the last step, at its positions."""

    def advance(self: StepInputs, batch: ForwardBatch, state: DeviceState) -> StepRows:
        num_rows = batch.num_generation
        self.token_ids[:num_rows].copy_(self.samples[:num_rows])
        return self._rows_in_buffers(batch, state)

    monkeypatch.setattr(StepInputs, "_advance", advance)


def keeps_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepInputs, "keep_samples", lambda _self, _batch, _token_ids: None)


def keeps_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tells the device that sequences are no longer than they were when the step was recorded."""
    original = SteadyStateInputs._advance

    def advance(last: Any, *arguments: Any) -> ForwardBatch:
        bound = last.batch.max_num_tokens
        last.batch = replace(original(last, *arguments), max_num_tokens=bound)
        return last.batch

    monkeypatch.setattr(SteadyStateInputs, "_advance", staticmethod(advance))


def keeps_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the sampling parameters of the recorded step, which other steps have overwritten."""
    original = InputPreparation.fill_sampling_params

    def fill(self: InputPreparation, params: Any, row_counts: Any, slots: Any) -> Any:
        return original(self, [SamplingParams()] * len(params), row_counts, slots)

    monkeypatch.setattr(InputPreparation, "fill_sampling_params", fill)


@pytest.mark.parametrize(
    ("break_it", "found"),
    [
        (compares_lengths_only, "slots"),
        (never_sends_blocks, "block_offsets"),
        (sends_a_column_too_few, "block_offsets"),
        (never_advances, "positions"),
        (keeps_no_samples, "token_ids"),
        (keeps_the_bound, "max_num_tokens"),
        (keeps_the_parameters, "facts"),
    ],
)
def test_row_2_5_a_broken_fast_path_is_found(break_it: Any, found: str) -> None:
    config, requests = tiny_config(), decoding_requests(0)
    options = {"prepare": shuffle_now_and_then(0)}
    full = record(with_variants(config, input_prep="rebuild"), requests, **options)
    with pytest.MonkeyPatch.context() as monkeypatch:
        break_it(monkeypatch)
        broken = record(with_variants(config, input_prep="steady_state"), requests, **options)
    assert found in {difference.split(": ")[-1] for difference in broken.differences(full)}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("draft_len", [5, 1])
def test_row_2_5_is_never_used_with_a_drafter(draft_len: int, overlap: bool) -> None:
    config = tiny_config(drafter=ngram(draft_len), overlap=overlap)
    steady, differences = compare(config, seed=0)
    assert differences == []
    counters = steady.counters["input_prep"]["steady_state"]
    assert counters["hits"] == 0
    assert counters["full_passes"] == len(steady.steps)
    assert steady.counters["block_staging"]["bounded"]["gated_steps"] == len(steady.steps)


def at_random(seed: int, action: Change) -> Change:
    """Do ``action`` before a third of the steps."""
    rng = random.Random(seed)
    return lambda engine: action(engine) if rng.random() < 0.3 else ()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_switching_at_random_steps_changes_nothing(seed: int, overlap: bool) -> None:
    config, requests = tiny_config(overlap=overlap), decoding_requests(seed)
    choices = cycle(
        [
            {"input_prep": "steady_state"},
            {"block_staging": "full"},
            {"block_staging": "bounded"},
            {"input_prep": "rebuild"},
            {"input_prep": "steady_state", "block_staging": "full"},
            {"block_staging": "bounded"},
        ]
    )
    switched = record(config, requests, change=at_random(seed, lambda engine: engine.switch(next(choices))))
    # A switch finishes the step in flight, which changes the batches that follow; so the other run does that too.
    flushed = record(with_variants(config, input_prep="rebuild"), requests, change=at_random(seed, LLMEngine.flush))
    assert switched.differences(flushed) == []
    assert switched.counters["input_prep"]["steady_state"]["hits"] > 10
