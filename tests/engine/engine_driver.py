"""Runs prompts through an engine and compares what came out, near ties told apart from errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch

from specbench.engine.build import build_engine
from specbench.engine.config import AcceptanceSpec, DrafterSpec, EngineConfig, ModelSpec
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.models.loading import LoadedModel, load_model
from specbench.engine.request import Request
from specbench.engine.sampling.params import SamplingParams

# Two float32 computations of one logit with other shapes differ by a few 1e-6 of its size; a greedy choice between
# logits closer than this may go either way without anything being wrong.
NEAR_TIE = 1e-3


def tiny_config(*, overlap: bool = False, **changes: object) -> EngineConfig:
    """A float32 engine of the ``tiny`` preset, four slots; ``overlap`` by its own argument, whatever the device."""
    config = EngineConfig(
        model=ModelSpec("tiny", weights="random", seed=1), device="cpu", dtype="float32", max_seq_len=128,
        max_batch_size=4, num_blocks=4 * 20, tokens_per_block=8, max_num_tokens=256,
    )  # fmt: skip
    return overlapping(replace(config, **changes), overlap)  # type: ignore[arg-type]


def with_variants(config: EngineConfig, **variants: str) -> EngineConfig:
    """``config`` with these variants, those of other toggles as they are."""
    return replace(config, optimizations=tuple({**dict(config.optimizations), **variants}.items()))


def overlapping(config: EngineConfig, overlap: bool = True) -> EngineConfig:
    """``config`` with overlap on, or off."""
    return with_variants(config, overlap="on" if overlap else "off")


@lru_cache(maxsize=2)
def tiny_model() -> LoadedModel:
    """The ``tiny`` preset in float32, loaded once a process."""
    return load_model(ModelSpec("tiny", weights="random", seed=1), torch.float32, torch.device("cpu"))


def ngram(draft_len: int) -> DrafterSpec:
    """The n-gram drafter with short matches, so that small vocabularies hit often."""
    return DrafterSpec("ngram", draft_len, max_ngram=2, min_ngram=1) if draft_len else DrafterSpec()


@dataclass
class Outcome:
    """Requests in submission order, and the engine's counters."""

    requests: list[Request]
    num_preemptions: int
    steps: list[object] = field(default_factory=list)

    @property
    def outputs(self) -> list[list[int]]:
        return [request.output_token_ids for request in self.requests]


def run(
    config: EngineConfig,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
    loaded: LoadedModel | None = None,
    concurrency: int | None = None,
) -> Outcome:
    """Run every prompt to its end; at most ``concurrency`` at a time (default: all at once)."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    engine = build_engine(config, loaded=loaded or tiny_model())
    try:
        return _drive(engine, prompts, each, concurrency or len(prompts))
    finally:
        engine.shutdown()


def _drive(
    engine: LLMEngine, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], concurrency: int
) -> Outcome:
    pending = list(zip(prompts, params, strict=True))
    requests: list[Request] = []
    unfinished = 0
    while pending or engine.has_work:
        while pending and unfinished < concurrency:
            prompt, param = pending.pop(0)
            requests.append(engine.add_request(prompt, param))
            unfinished += 1
        unfinished -= sum(event.finished for event in engine.step())
    engine.blocks.check()
    assert engine.blocks.num_free == engine.blocks.num_blocks, "blocks leaked"
    return Outcome(requests, engine.num_preemptions, list(engine.drain_steps()))


def margin_at(loaded: LoadedModel, token_ids: Sequence[int]) -> float:
    """Gap between the two best logits after ``token_ids``, by one prefill in an engine of its own."""
    from specbench.engine.attention.metadata import AttentionMetadata
    from specbench.engine.attention.torch_gather import GatherAttention
    from specbench.engine.kv_cache import KVCache
    from specbench.engine.recurrence import with_recurrence
    from specbench.engine.state_indices import StateIndices

    config, length = loaded.config, len(token_ids)
    cache = KVCache(
        num_layers=config.num_kv_layers, num_blocks=1, tokens_per_block=length, num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim, dtype=torch.float32, device=torch.device("cpu"),
    )  # fmt: skip
    attention = with_recurrence(GatherAttention(cache, num_heads=config.num_heads), config, num_slots=1, num_states=1)
    positions = torch.arange(length)
    with torch.inference_mode():
        attention.prepare(
            AttentionMetadata(
                num_context=1,
                context_query_lens=[length],
                context_kv_lens=[length],
                num_generation=0,
                rows_per_generation=1,
                generation_kv_lens=torch.zeros(0, dtype=torch.int64),
                block_table=torch.zeros(1, 1, dtype=torch.int32),
                positions=positions,
                state=StateIndices.of([0], torch.device("cpu")),
            )
        )
        hidden = loaded.model.forward(torch.tensor(list(token_ids)), positions, attention)
        best = loaded.model.compute_logits(hidden[-1:]).topk(2).values[0]
    return float(best[0] - best[1])


def count_near_ties(loaded: LoadedModel, expected: Outcome, found: Outcome) -> int:
    """Return how many requests diverge at a near tie; fail on any other difference, with its margin."""
    near_ties = 0
    for left, right in zip(expected.requests, found.requests, strict=True):
        if left.output_token_ids == right.output_token_ids and left.finish_reason == right.finish_reason:
            continue
        pairs = enumerate(zip(left.output_token_ids, right.output_token_ids, strict=False))
        position = next((i for i, (a, b) in pairs if a != b), None)
        assert position is not None, "one output is a part of the other"
        margin = margin_at(loaded, [*left.prompt_token_ids, *left.output_token_ids[:position]])
        print(f"{left.request_id}: token {position} differs, margin {margin:.3g}")
        assert margin < NEAR_TIE, f"token {position} of {left.request_id} differs with a margin of {margin:.3g}"
        near_ties += 1
    return near_ties


def forced(length: float) -> AcceptanceSpec:
    """Forced acceptance with a mean length, bonus included."""
    return AcceptanceSpec("forced", length=length)
