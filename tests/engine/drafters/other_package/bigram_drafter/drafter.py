"""The drafters themselves: a table of tokens over one attention layer, and the last token once more."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from bigram_drafter.declaration import FILE_NAME, HEAD_DIM
from specbench.engine.attention.base import AttentionOperator
from specbench.engine.config import DrafterSpec
from specbench.engine.drafters.base import DrafterHost, DrafterNeeds, DraftState, LookupDrafter, TargetRows
from specbench.engine.drafters.model_drafter import DraftHead, ModelDrafter


class BigramHead(DraftHead):
    """Logits of the next token from the tokens alone."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._embedding, self._output = tensors["embedding"], tensors["output"]

    def first(self, rows: TargetRows, next_token_ids: Tensor, attention: AttentionOperator) -> Tensor:
        """See :class:`DraftHead`."""
        return self.next(next_token_ids, rows.positions, rows.hidden, attention)

    def next(self, token_ids: Tensor, positions: Tensor, hidden: Tensor, attention: AttentionOperator) -> Tensor:  # noqa: ARG002
        """See :class:`DraftHead`."""
        embedded = self._embedding[token_ids]
        vectors = embedded.unsqueeze(1)
        return embedded + attention.forward(0, vectors, vectors, vectors)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See :class:`DraftHead`."""
        return (hidden @ self._output.T).float()


class BigramDrafter(ModelDrafter):
    """Drafts with the table in ``drafter.model``."""

    def __init__(self, spec: DrafterSpec, host: DrafterHost | None = None) -> None:
        super().__init__(spec, host)
        assert host is not None
        stored = load_file(Path(spec.model or ".") / FILE_NAME)
        self.head = BigramHead({name: tensor.to(host.device, host.dtype) for name, tensor in stored.items()})
        self.attention = host.build_attention(1, 1, 1, HEAD_DIM)
        self.needs = DrafterNeeds(num_kv_layers=1)


class RecentDrafter(LookupDrafter):
    """Finds that the last token repeats the one before, and proposes it again."""

    def propose(self, state: DraftState, slots: Tensor, draft_len: int, max_num_tokens: int | None) -> None:  # noqa: ARG002
        """See :class:`LookupDrafter`."""
        last = (state.num_tokens[slots] - 1).clamp(min=0)
        token_ids, before = state.token_ids[slots, last], state.token_ids[slots, (last - 1).clamp(min=0)]
        state.draft_token_ids[:, :draft_len].index_copy_(0, slots, token_ids.unsqueeze(1).repeat(1, draft_len))
        state.num_draft_tokens.index_copy_(0, slots, ((token_ids == before) & (last > 0)) * draft_len)
