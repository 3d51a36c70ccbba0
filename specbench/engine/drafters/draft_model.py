"""Drafting with a small model of the target's tokenizer, which runs in the target's step with a KV cache of its own.

The idea is that of speculative decoding with a draft model (Leviathan, Kalman and Matias, 2023). In each step the model
first reads the tokens that the step has committed, each once, then one draft token a pass. It reads tokens where the
target will read them in the next step: one position behind the target's rows, and the first token of a sequence with
the second.

Shapes: T rows of the target's step, U rows of the draft model's first pass, B requests that go on, H hidden size.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specbench.engine.attention.base import AttentionOperator
from specbench.engine.config import DrafterSpec
from specbench.engine.drafters.base import DrafterHost, DrafterNeeds, DraftState, DraftStep, TargetRows
from specbench.engine.drafters.head_location import check_draft_model, find_draft_model, in_drafter_model
from specbench.engine.drafters.model_drafter import DraftHead, ModelDrafter
from specbench.engine.models.base import CausalLM
from specbench.engine.models.checkpoint import resolve_model_config
from specbench.engine.models.loading import load_model


class DraftModelHead(DraftHead):
    """A whole model as a head: it reads tokens alone, and keeps what it knows of them in its cache.

    :param vocab_size: of the target; ids that it does not have are not drafted.
    """

    def __init__(self, model: CausalLM, vocab_size: int) -> None:
        self._model = model
        self._vocab_size = vocab_size

    def first(self, rows: TargetRows, next_token_ids: Tensor, attention: AttentionOperator) -> Tensor:  # noqa: ARG002
        """See :class:`DraftHead`. ``rows`` are those of :func:`shift_rows`, which hold the tokens to read."""
        return self._model.forward(rows.token_ids, rows.positions, attention)

    def next(self, token_ids: Tensor, positions: Tensor, hidden: Tensor, attention: AttentionOperator) -> Tensor:  # noqa: ARG002
        """See :class:`DraftHead`; ``positions`` are those of the tokens."""
        return self._model.forward(token_ids, positions, attention)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See :class:`DraftHead`: those of the target's ids."""
        return self._model.compute_logits(hidden)[:, : self._vocab_size]


class DraftModelDrafter(ModelDrafter):
    """Drafts with a model of its own, ``drafter.model``.

    :raises InputError: none is named, or it cannot draft for the target: see :func:`check_draft_model`.
    :raises ModelNotFoundError: no such model.
    :raises CheckpointError: its files are unreadable or unlike its configuration, or a weight is not finite.
    """

    def __init__(self, spec: DrafterSpec, host: DrafterHost | None = None) -> None:
        super().__init__(spec, host)
        assert host is not None
        source, target = find_draft_model(spec.model), host.target.config
        with in_drafter_model():
            check_draft_model(resolve_model_config(source), target, host.config.max_seq_len)
            loaded = load_model(source, host.dtype, host.device, require_finite=True)
        config = loaded.config
        self.head = DraftModelHead(loaded.model, target.vocab_size)
        self.attention = host.build_attention(
            config.num_kv_layers, config.num_heads, config.num_kv_heads, config.head_dim
        )
        self.needs = DrafterNeeds(num_kv_layers=config.num_kv_layers)

    def draft(self, state: DraftState, step: DraftStep) -> None:
        """See :class:`Drafter`."""
        super().draft(state, replace(step, rows=shift_rows(state, step.target_rows)))


def shift_rows(state: DraftState, rows: TargetRows) -> TargetRows:
    """The rows [U] of the tokens that follow the target's rows, and of the first token of each sequence that begins.

    Void rows stay void: their tokens lie behind the last committed one.
    """
    metadata = rows.metadata
    lens, kv_lens = metadata.context_query_lens, metadata.context_kv_lens
    begins = [num_rows == kv_len for num_rows, kv_len in zip(lens, kv_lens, strict=True)]
    slots, positions, ends = rows.slots, rows.positions + 1, rows.ends
    if any(begins):
        picked, ahead, moved = _list_rows(lens, begins, positions.shape[0])
        index, by, further = (torch.tensor(values, device=positions.device) for values in (picked, ahead, moved))
        slots, positions, ends = slots[index], rows.positions[index] + by, ends + further[ends]
    shifted = replace(
        metadata,
        context_query_lens=[num_rows + is_beginning for num_rows, is_beginning in zip(lens, begins, strict=True)],
        context_kv_lens=[kv_len + 1 for kv_len in kv_lens],
        generation_kv_lens=metadata.generation_kv_lens + 1,
        positions=positions,
    )
    token_ids = state.token_ids[slots, positions]
    return replace(rows, token_ids=token_ids, positions=positions, slots=slots, ends=ends, metadata=shifted)


def _list_rows(lens: list[int], begins: list[bool], num_rows: int) -> tuple[list[int], list[int], list[int]]:
    """Of each row [U]: the target's row that it is made of, and how many positions it lies behind it; then of each of
    the target's rows [T], by how many rows it has moved.

    :param lens: rows of each chunk; ``begins``: whether it begins a sequence, and its first row stands for two.
    """
    picked: list[int] = []
    ahead: list[int] = []
    moved: list[int] = []
    for count, is_beginning in zip([*lens, num_rows - sum(lens)], [*begins, False], strict=True):
        start = len(moved)
        picked += [start] * is_beginning + list(range(start, start + count))
        ahead += [0] * is_beginning + [1] * count
        moved += [len(picked) - start - count] * count
    return picked, ahead, moved
