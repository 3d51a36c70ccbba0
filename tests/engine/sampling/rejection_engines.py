"""Whole engines that judge by rejection: over the tiny model, and over one whose few tokens can all be counted."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from engine_driver import tiny_config, tiny_model, with_variants
from numpy.typing import NDArray
from sampling_reference import kept_probabilities

from specbench.engine.config import AcceptanceSpec, DrafterSpec, EngineConfig
from specbench.engine.drafters.head_weights import LoadedHead
from specbench.engine.models.base import HiddenTaps
from specbench.engine.models.loading import LoadedModel, build_model, fill_model
from specbench.engine.models.random_weights import RandomSource
from specbench.engine.sampling.params import SamplingParams
from tests.engine.drafters.head_cases import DenseAttention, eagle3_head

REJECTION = AcceptanceSpec("rejection")
VOCABULARY = 8
DRAFT_VOCABULARY = torch.tensor([0, 2, 3, 5, 6])
PROMPT = [1, 5, 2]


def rejection_config(draft_len: int = 3, name: str = "eagle3", **changes: object) -> EngineConfig:
    """The ``tiny`` engine with a drafter, judged by rejection."""
    drafter = DrafterSpec(name, draft_len, max_ngram=2)
    values: dict[str, object] = {"drafter": drafter, "acceptance": REJECTION}
    return with_variants(tiny_config(**{**values, **changes}), graphs="off")


@lru_cache(maxsize=1)
def model_of_few_tokens() -> LoadedModel:
    """The ``tiny`` model's shape with eight tokens, none of which ends a text."""
    loaded = tiny_model()
    config = replace(loaded.config, vocab_size=VOCABULARY, eos_token_ids=())
    model = build_model(config, dtype=torch.float32, device=torch.device("cpu"))
    shapes = model.expected_tensors()
    fill_model(
        model, RandomSource(config, shapes, seed=7, dtype=torch.float32, device=torch.device("cpu")), Path("few")
    )
    return replace(loaded, model=model, config=config)


def head_of_few_tokens() -> LoadedHead:
    """A head for that model; three of the eight tokens are none of its own."""
    head = eagle3_head(seed=3)
    tensors = dict(head.tensors)
    tensors["embed_tokens.weight"] = tensors["embed_tokens.weight"][:VOCABULARY]
    tensors["lm_head.weight"] = tensors["lm_head.weight"][: len(DRAFT_VOCABULARY)]
    config = replace(head.config, vocab_size=VOCABULARY, draft_vocab_size=len(DRAFT_VOCABULARY))
    return LoadedHead(config, tensors, DRAFT_VOCABULARY)


def next_probabilities(token_ids: list[int], params: SamplingParams) -> NDArray[np.float64]:
    """What the model of few tokens chooses after ``token_ids`` with which probability, [V]."""
    model = model_of_few_tokens().model
    dense = DenseAttention(model.config.num_heads, model.config.num_kv_heads, model.config.head_dim)
    with torch.inference_mode():
        hidden = model.forward(torch.tensor(token_ids), torch.arange(len(token_ids)), dense, HiddenTaps(()))
        logits = model.compute_logits(hidden[-1:])[0]
    return kept_probabilities(logits.numpy(), params)[0]


def exact_pairs_of_engine(params: SamplingParams) -> NDArray[np.float64]:
    """The distribution [V, V] of the second and the third token after the prompt, which come from steps with drafts."""
    pairs = np.zeros((VOCABULARY, VOCABULARY))
    for first, p_first in enumerate(next_probabilities(PROMPT, params)):
        for second, p_second in enumerate(next_probabilities([*PROMPT, first], params)):
            if p_first * p_second:
                pairs[second] += p_first * p_second * next_probabilities([*PROMPT, first, second], params)
    return pairs
