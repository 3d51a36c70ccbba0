"""A hybrid model in the engine: tokens do not depend on K, batch, chunks, slots, preemption or overlap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from engine_driver import NEAR_TIE, Outcome, count_near_ties, forced, margin_at, ngram, overlapping, run, tiny_config
from test_engine_tokens import GREEDY, SAMPLED, differing, prompts
from torch import Tensor

from specbench.engine.build import build_engine
from specbench.engine.config import DrafterSpec, EngineConfig, ModelSpec
from specbench.engine.models.loading import LoadedModel, build_model, fill_model, load_model
from specbench.engine.models.presets import TINY_HYBRID
from specbench.engine.models.random_weights import RandomSource
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.scoring import score_next_token
from specbench.engine.state_cache import StateCache
from specbench.errors import CapacityError, UnknownNameError
from specbench.records import StepRecord

CPU = torch.device("cpu")
HYBRID = ModelSpec("tiny-hybrid", weights="random", seed=2)
VOCAB_SIZE = 8
"""So few tokens that drafts by lookup are often accepted, from none of them to all."""


@lru_cache(maxsize=1)
def hybrid_model() -> LoadedModel:
    """The preset with another vocabulary, in float32."""
    config = replace(TINY_HYBRID.config, vocab_size=VOCAB_SIZE)
    model = build_model(config, dtype=torch.float32, device=CPU)
    shapes = model.expected_tensors()
    fill_model(model, RandomSource(config, shapes, seed=2, dtype=torch.float32, device=CPU), Path("random"))
    return LoadedModel(model, config, "random", "", config.num_parameters, None)


def texts(count: int) -> list[list[int]]:
    """Prompts of ids in the vocabulary."""
    return [[token_id % VOCAB_SIZE for token_id in prompt] for prompt in prompts(count)]


def hybrid_config(**changes: object) -> EngineConfig:
    return tiny_config(model=HYBRID, **changes)


def run_hybrid(
    config: EngineConfig, texts: list[list[int]], params: SamplingParams | list[SamplingParams], **options: int
) -> Outcome:
    return run(config, texts, params, loaded=hybrid_model(), **options)


def assert_same(expected: Outcome, found: Outcome, allowed: int = 1) -> None:
    near_ties = count_near_ties(hybrid_model(), expected, found)
    assert near_ties <= allowed, f"{near_ties} near ties in {len(expected.requests)} requests"


def check_speculation(draft_len: int, batch: int) -> None:
    base = hybrid_config(max_batch_size=batch, num_blocks=20 * batch)
    plain = run_hybrid(base, texts(8), GREEDY)
    # Prompts in pieces, and a pool that holds a few of the sequences at once.
    tight = replace(base, drafter=ngram(draft_len), max_num_tokens=batch * (draft_len + 1) + 7, num_blocks=21 + batch)
    speculative = run_hybrid(tight, texts(8), GREEDY)
    assert speculative.num_preemptions > 0 or batch == 1
    assert_same(plain, speculative)
    lengths = {length for request in speculative.requests for length in request.accepted_lengths}
    assert lengths >= set(range(1, min(draft_len, 3) + 2)), "an acceptance length that never came was not tested"


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("draft_len", [1, 3, 7])
def test_speculative_greedy_equals_plain_greedy(draft_len: int, batch: int) -> None:
    check_speculation(draft_len, batch)


@pytest.mark.parametrize("kept", ["first", "last"])
def test_a_state_that_is_not_the_accepted_one_changes_tokens(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mechanism broken: always the state after the first row of a step, or always the one after the last."""
    choose = StateCache.choose
    offset = 0 if kept == "first" else 3

    def ignore_accepted(cache: StateCache, slots: Tensor, num_read: Tensor) -> object:  # noqa: ARG001
        return choose(cache, slots, cache.num_read[slots] + offset)

    monkeypatch.setattr(StateCache, "choose", ignore_accepted)
    with pytest.raises(AssertionError, match="differs with a margin"):
        check_speculation(3, 4)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("draft_len", [0, 3])
def test_preemption_and_chunked_prefill_keep_the_tokens(draft_len: int, overlap: bool) -> None:
    base = hybrid_config(drafter=ngram(draft_len), overlap=overlap)
    tight = replace(base, num_blocks=-(-base.max_positions // 8) + 3, max_num_tokens=24)
    roomy_run, tight_run = run_hybrid(base, texts(8), differing(8)), run_hybrid(tight, texts(8), differing(8))
    assert tight_run.num_preemptions > 0
    assert roomy_run.num_preemptions == 0
    assert_same(roomy_run, tight_run)


@pytest.mark.parametrize("draft_len", [0, 4])
def test_overlap_changes_no_token(draft_len: int) -> None:
    base = hybrid_config(drafter=ngram(draft_len))
    assert_same(
        run_hybrid(base, texts(8), differing(8), concurrency=4),
        run_hybrid(overlapping(base), texts(8), differing(8), concurrency=4),
    )


def check_reused_slots() -> None:
    """Two slots serve eight requests; each request alone is the first in its engine."""
    together = run_hybrid(hybrid_config(max_batch_size=2), texts(8), differing(8))
    each = zip(texts(8), differing(8), strict=True)
    alone = [run_hybrid(hybrid_config(max_batch_size=1), [text], [params]) for text, params in each]
    assert_same(Outcome([one.requests[0] for one in alone], 0), together)


def test_a_reused_slot_starts_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    check_reused_slots()
    # The mechanism broken: what the slot of the request before left is not cleared.
    calls: list[int] = []

    def leftover(cache: StateCache, num_requests: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001
        calls.append(1)
        return cache._recurrent[0, :1, 0].clone(), cache._conv[0, :1, : cache.history].clone()

    monkeypatch.setattr(StateCache, "empty", leftover)
    with pytest.raises(AssertionError, match="differs with a margin"):
        check_reused_slots()
    assert calls


def test_sampled_speculation_equals_sampled_decoding() -> None:
    plain = run_hybrid(hybrid_config(), texts(8), SAMPLED)
    assert_same(plain, run_hybrid(hybrid_config(drafter=ngram(3)), texts(8), SAMPLED))


def test_forced_acceptance_keeps_its_tokens_through_preemption() -> None:
    base = hybrid_config(drafter=ngram(3), acceptance=forced(2.4))
    tight = replace(base, num_blocks=-(-base.max_positions // 8) + 3)
    roomy, preempted = run_hybrid(base, texts(8), GREEDY), run_hybrid(tight, texts(8), GREEDY)
    assert preempted.num_preemptions > 0
    assert_same(roomy, preempted)


def test_runtime_draft_len_keeps_the_tokens() -> None:
    spec = DrafterSpec("ngram", 4, runtime_draft_len=((1, 4), (2, 2)), max_ngram=2, min_ngram=1)
    params = [replace(GREEDY, max_tokens=20 + 6 * i) for i in range(8)]
    outcome = run_hybrid(hybrid_config(drafter=spec), texts(8), params)
    lens = {step.draft_len for step in outcome.steps if isinstance(step, StepRecord)}
    assert {0, 2, 4} <= lens
    assert_same(run_hybrid(hybrid_config(), texts(8), params), outcome)


def test_both_attention_backends_serve_it() -> None:
    first = run_hybrid(hybrid_config(drafter=ngram(2)), texts(6), GREEDY)
    assert_same(first, run_hybrid(hybrid_config(drafter=ngram(2), attention="torch-gather"), texts(6), GREEDY))


def test_its_scores_are_those_of_the_engine() -> None:
    outcome = run_hybrid(hybrid_config(), texts(3), GREEDY)
    for request in outcome.requests:
        prefix = [*request.prompt_token_ids, *request.output_token_ids[:9]]
        logits = score_next_token(hybrid_model(), prefix)
        assert margin_at(hybrid_model(), prefix) > NEAR_TIE
        assert int(logits.argmax()) == request.output_token_ids[9]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_random_weights_make_text_that_varies(dtype: torch.dtype) -> None:
    loaded = load_model(HYBRID, dtype, CPU)
    config = hybrid_config(dtype=str(dtype).removeprefix("torch."))
    outcome = run(config, prompts(4), GREEDY, loaded=loaded)
    assert all(len(set(output)) > 4 for output in outcome.outputs)


@pytest.mark.parametrize("source", ["tiny", "tiny-hybrid"])
def test_only_a_model_with_state_has_the_toggle(source: str) -> None:
    config = tiny_config(model=ModelSpec(source, weights="random", seed=1))
    engine = build_engine(config)
    try:
        if source == "tiny-hybrid":
            assert engine.variants["state_indices"] == "bulk"
            engine.switch({"state_indices": "per_request"})
            assert engine.variants["state_indices"] == "per_request"
        else:
            assert "state_indices" not in engine.variants
            with pytest.raises(UnknownNameError, match="state_indices"):
                engine.switch({"state_indices": "bulk"})
    finally:
        engine.shutdown()


def test_state_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from specbench.engine.models.config import ModelConfig

    monkeypatch.setattr(ModelConfig, "state_bytes", lambda *_: 1 << 60)
    with pytest.raises(CapacityError, match="1 recurrent states for each of 4 slots take"):
        build_engine(hybrid_config(), loaded=hybrid_model())


def test_the_state_cache_takes_what_the_configuration_says() -> None:
    config = hybrid_model().config
    assert config.linear_attention is not None
    cache = StateCache(config.linear_attention, 4, 3, torch.bfloat16, CPU)
    assert cache.bytes == config.state_bytes(5, 3, 2)


def test_switching_variants_at_each_step_changes_no_token() -> None:
    """On a batch that joins, finishes, preempts and mixes greedy and sampled requests."""
    base = hybrid_config(drafter=ngram(3), num_blocks=26, max_num_tokens=40)
    outputs = []
    for choose in (lambda _: "bulk", lambda _: "per_request", lambda step: ("bulk", "per_request")[step % 2]):
        outputs.append(drive(base, choose))
    assert outputs[0] == outputs[1] == outputs[2]


def drive(config: EngineConfig, choose: Callable[[int], str]) -> list[list[int]]:
    engine = build_engine(config, loaded=hybrid_model())
    try:
        requests = [engine.add_request(*each) for each in zip(texts(8), differing(8), strict=True)]
        for step in range(10**6):
            if not engine.has_work:
                break
            engine.switch({"state_indices": choose(step)})
            engine.step()
        assert engine.num_preemptions > 0
        counters = engine.read_counters()["state_indices"]
        assert counters["bulk"]["conversions"] == counters["bulk"]["copies"] == counters["bulk"]["fills"]
        assert counters["per_request"]["element_writes"] >= counters["per_request"]["fills"]
        return [request.output_token_ids for request in requests]
    finally:
        engine.shutdown()
