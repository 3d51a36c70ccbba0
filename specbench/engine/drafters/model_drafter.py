"""Drafting with a model: a head that is run over the target's rows, then once a draft token.

The first pass takes all rows of the step with the tokens that follow them, so that the drafter's cache holds every
committed token; of each request that goes on it keeps the row before the last committed token, whose output gives the
first draft token. Each further pass has one row a request: the draft token, and what the pass before put out.

Shapes: T rows of the step, B requests that go on, H hidden size, Vd draft vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from specbench.device.recording import runtime_operator
from specbench.engine.attention.base import AttentionOperator
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.config import DrafterSpec
from specbench.engine.drafters.base import Drafter, DrafterHost, DraftState, DraftStep, DraftVocabulary, TargetRows
from specbench.engine.drafters.draft_choice import build_draft_choice


class DraftHead(ABC):
    """What is run to draft. Attention is over a cache of its own, in which the pair that is read at position p, a
    hidden state of p and the token at p + 1, has position p.

    :ivar vocabulary: int64 [Vd], target ids of the draft vocabulary; None: the target's own.
    """

    vocabulary: Tensor | None = None

    @abstractmethod
    def first(self, rows: TargetRows, next_token_ids: Tensor, attention: AttentionOperator) -> Tensor:
        """Run over the target's rows with the tokens [T] that follow them; return [T, H]."""

    @abstractmethod
    def next(self, token_ids: Tensor, positions: Tensor, hidden: Tensor, attention: AttentionOperator) -> Tensor:
        """Run over one row a request: a draft token [B], its position less one [B], the last output [B, H]."""

    @abstractmethod
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [B, Vd] of an output [B, H]; Vd is the target's where ``vocabulary`` is None."""


class ModelDrafter(Drafter):
    """Drafts K tokens a request by running a :class:`DraftHead` K times; proposes all of them."""

    head: DraftHead
    attention: AttentionOperator

    def __init__(self, spec: DrafterSpec, host: DrafterHost | None = None) -> None:
        super().__init__(spec, host)
        if host is None:
            raise TypeError("a drafter with weights is built for an engine")
        self._target_vocabulary_size = host.target.config.vocab_size
        self._choice = build_draft_choice(host.config.acceptance)

    @property
    def vocabulary(self) -> DraftVocabulary:
        """See :class:`Drafter`: that of the head."""
        token_ids = self.head.vocabulary
        return DraftVocabulary(self._target_vocabulary_size if token_ids is None else token_ids.shape[0], token_ids)

    def draft(self, state: DraftState, step: DraftStep) -> None:
        """See :class:`Drafter`."""
        rows = step.target_rows
        hidden = self._first_pass(state, rows)
        if not step.slots.shape[0]:
            return
        if step.draft_len:
            draft_token_ids = self._unroll(state, step, rows, hidden[rows.ends])
            state.draft_token_ids[:, : step.draft_len].index_copy_(0, step.slots, draft_token_ids)
        state.num_draft_tokens.index_fill_(0, step.slots, step.draft_len)

    def _first_pass(self, state: DraftState, rows: TargetRows) -> Tensor:
        """Run the head over all rows of the step with the tokens that follow them; return [T, H]."""
        self._prepare(rows.metadata)
        return self.head.first(rows, state.token_ids[rows.slots, rows.positions + 1], self.attention)

    def _unroll(self, state: DraftState, step: DraftStep, rows: TargetRows, hidden: Tensor) -> Tensor:
        """Draft token ids [B, K], the first from ``hidden`` [B, H]."""
        positions, block_table = rows.positions[rows.ends], rows.block_table
        drafts = [self._choose(state, step, 0, hidden)]
        for place in range(1, step.draft_len):
            positions = positions + 1
            self._prepare(decode_metadata(positions, block_table, step))
            hidden = self.head.next(drafts[-1], positions, hidden, self.attention)
            drafts.append(self._choose(state, step, place, hidden))
        return torch.stack(drafts, dim=1)

    def _choose(
        self, state: DraftState, step: DraftStep, place: int, hidden: Tensor, head: DraftHead | None = None
    ) -> Tensor:
        """Target ids [B] of the draft tokens at ``place`` of the draft, from an output [B, H] of ``head``.

        :param head: None: the drafter's only one. All heads of a drafter have its vocabulary.
        """
        columns = self._choice.choose(state, step, place, (head or self.head).compute_logits(hidden))
        return columns if self.head.vocabulary is None else self.head.vocabulary[columns]

    @runtime_operator("prepare_draft_attention")
    def _prepare(self, metadata: AttentionMetadata) -> None:
        self.attention.prepare(metadata)

    def fill_cache(self, blocks: Tensor, slot: int) -> None:  # noqa: ARG002 - nothing else is kept
        """See :class:`Drafter`."""
        self.attention.cache.fill(blocks)


def decode_metadata(positions: Tensor, block_table: Tensor, step: DraftStep) -> AttentionMetadata:
    """Attention of one row a request, at ``positions`` [B]."""
    longest = None if step.max_num_tokens is None else step.max_num_tokens + step.draft_len
    return AttentionMetadata(
        num_context=0,
        context_query_lens=[],
        context_kv_lens=[],
        num_generation=positions.shape[0],
        rows_per_generation=1,
        generation_kv_lens=positions + 1,
        block_table=block_table,
        positions=positions,
        max_generation_kv_len=longest,
    )
