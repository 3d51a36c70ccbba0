"""What the target thinks of a token: logits after a prefix, by a forward of its own beside the engine.

Two arms whose tokens differ first at some position chose between the same logits; their gap tells a near tie from an
error. It is computed in float32 with the weights the engine serves, so that neither arm's rounding is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from specbench.engine.attention.base import AttentionOperator
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.attention.torch_gather import GatherAttention
from specbench.engine.kv_cache import KVCache
from specbench.engine.models.base import CausalLM
from specbench.engine.models.loading import LoadedModel
from specbench.engine.recurrence import with_recurrence
from specbench.engine.state_indices import StateIndices
from specbench.errors import InputError, NonFiniteLogitsError

MAX_FLOAT32_BYTES = 1 << 30
"""Models whose weights take more in float32 are not copied: they are scored in their own dtype."""
_CHUNK_TOKENS = 256
"""Rows of one forward: bounds the memory of attention scores, which grow with rows times prefix."""

# A divergence is looked for after every block, and the copy of a small model takes longer than its forward.
_float32_models: WeakKeyDictionary[CausalLM, CausalLM | None] = WeakKeyDictionary()


def scoring_dtype(loaded: LoadedModel) -> torch.dtype:
    """The dtype in which :func:`score_next_token` computes with ``loaded``."""
    return _scoring_model(loaded).dtype


def score_next_token(loaded: LoadedModel, prefix: Sequence[int]) -> Tensor:
    """Return the logits of the token after ``prefix``, [V] float32, on the model's device.

    In float32 arithmetic where a copy of the weights in float32 is small, else in the model's own dtype. Runs on the
    calling thread with a KV cache of its own; no step of an engine may be in flight.

    :raises InputError: an empty prefix, one beyond the model's positions, or an id outside its vocabulary.
    """
    _check_prefix(loaded, prefix)
    model = _scoring_model(loaded)
    with torch.inference_mode():
        attention = _attention_for(model, len(prefix))
        token_ids = torch.tensor(prefix, dtype=torch.int64, device=model.device)
        for start in range(0, len(prefix), _CHUNK_TOKENS):
            end = min(start + _CHUNK_TOKENS, len(prefix))
            positions = torch.arange(start, end, device=model.device)
            attention.prepare(_chunk_metadata(start, end, positions))
            hidden = model.forward(token_ids[start:end], positions, attention)
        return model.compute_logits(hidden[-1:])[0]


def logit_margin(loaded: LoadedModel, prefix: Sequence[int], first_id: int, second_id: int) -> float:
    """Return the logit of ``first_id`` after ``prefix`` minus that of ``second_id``; see :func:`score_next_token`.

    :raises InputError: see :func:`score_next_token`.
    :raises NonFiniteLogitsError: one of them is NaN or infinite.
    """
    _check_ids(loaded, (first_id, second_id))
    logits = score_next_token(loaded, prefix)
    margin = float(logits[first_id] - logits[second_id])
    if not -float("inf") < margin < float("inf"):
        raise NonFiniteLogitsError(
            f"the target's logits of {first_id} and {second_id} are NaN or infinite",
            where=f"after {len(prefix)} tokens",
            hint="check the weights with `specbench pull --force`, or use engine.dtype=float32",
        )
    return margin


def _scoring_model(loaded: LoadedModel) -> CausalLM:
    model = loaded.model
    if model.dtype == torch.float32 or loaded.num_parameters * torch.float32.itemsize > MAX_FLOAT32_BYTES:
        return model
    if model not in _float32_models:
        _float32_models[model] = model.in_float32()
    return _float32_models[model] or model


def _attention_for(model: CausalLM, num_tokens: int) -> AttentionOperator:
    config = model.config
    cache = KVCache(
        num_layers=config.num_kv_layers,
        num_blocks=1,
        tokens_per_block=num_tokens,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=model.dtype,
        device=model.device,
    )
    return with_recurrence(GatherAttention(cache, num_heads=config.num_heads), config, num_slots=1, num_states=1)


def _chunk_metadata(start: int, end: int, positions: Tensor) -> AttentionMetadata:
    """The rows ``start`` to ``end - 1`` of the one sequence, in the one block of the cache."""
    device = positions.device
    return AttentionMetadata(
        num_context=1,
        context_query_lens=[end - start],
        context_kv_lens=[end],
        num_generation=0,
        rows_per_generation=1,
        generation_kv_lens=torch.zeros(0, dtype=torch.int64, device=device),
        block_table=torch.zeros(1, 1, dtype=torch.int32, device=device),
        positions=positions,
        state=StateIndices.of([0], device),
    )


def _check_prefix(loaded: LoadedModel, prefix: Sequence[int]) -> None:
    where, limit = "scored prefix", loaded.config.max_position_embeddings
    if not prefix:
        raise InputError("it has no tokens", where=where)
    if len(prefix) > limit:
        raise InputError(f"it has {len(prefix)} tokens, and the model {limit} positions", where=where)
    _check_ids(loaded, prefix)


def _check_ids(loaded: LoadedModel, token_ids: Sequence[int]) -> None:
    largest = loaded.config.vocab_size - 1
    if min(token_ids) < 0 or max(token_ids) > largest:
        raise InputError(f"a token id lies outside 0..{largest}", where="scored prefix")
