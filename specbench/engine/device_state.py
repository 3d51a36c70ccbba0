"""Per-slot state that lives on the device and that the host never reads.

The host may be a step behind; what it does not know of a sequence (its length, its last token, its drafts) is here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.engine.config import EngineConfig
from specbench.engine.forward_batch import ContextRows
from specbench.engine.kv_cache import lazy_zeros


class DeviceState:
    """Tensors with a row a slot; row ``max_batch_size`` is padding's own.

    :param draft_vocabulary_size: Vd of a drafter that draws; 0: none does.
    :ivar token_ids: int64 [slots + 1, max positions]; committed ids, prompt included. Beyond ``num_tokens``: stale.
    :ivar num_tokens: int64 [slots + 1]; committed tokens. The last of them is not in the KV cache yet.
    :ivar draft_token_ids: int64 [slots + 1, max K, or nodes of a tree]; always valid ids, whether proposed or not.
    :ivar num_draft_tokens: int64 [slots + 1]; how many of them were proposed; of a tree, how many levels.
    :ivar draft_parents: int64 [slots + 1, nodes], with draft trees, else no columns: the row of each node's parent, see
        :class:`specbench.engine.draft_tree.DraftTree`. Always a tree.
    :ivar accepted_rows: int64 [slots + 1, max K + 1], with draft trees, else no columns: of the rows of the last step,
        the one of the token committed before it, then those of the draft tokens accepted; then the last one again.
    :ivar seeds: int64 [slots + 1]; the request seed.
    :ivar tokens_to_boundary: int64 [slots + 1, max positions] under replay acceptance, else no columns; by the position
        of a step's first new token, how many tokens it takes to the next recorded boundary. At least 1.
    :ivar drafts_are_drawn: bool [slots + 1]; a slot's draft tokens were drawn from the drafter's distribution. Where
        they were not, each counts as certain to the drafter. Whoever proposes without drawing, where others draw,
        clears it.
    :ivar draft_probabilities: float32 [slots + 1, max K, Vd] of all tokens at each place of the draft, by the drafter's
        own vocabulary; of slots that were drawn. No columns where no drafter draws.
    :ivar draft_token_probabilities: float64 [slots + 1, max K], of the proposed ones among them.
    """

    def __init__(self, config: EngineConfig, device: torch.device, draft_vocabulary_size: int = 0) -> None:
        rows = config.max_batch_size + 1
        max_draft_len = config.drafter.max_draft_len

        def zeros(*shape: int) -> Tensor:
            # Positions that no request reaches take no memory.
            return lazy_zeros(shape, torch.int64, device)

        self.token_ids = zeros(rows, config.max_positions)
        self.num_tokens = zeros(rows)
        num_nodes = config.drafter.num_nodes_for(max_draft_len)
        self.draft_token_ids = zeros(rows, num_nodes or max_draft_len)
        self.draft_parents = zeros(rows, num_nodes)
        self.accepted_rows = zeros(rows, max_draft_len + 1 if num_nodes else 0)
        self.num_draft_tokens = zeros(rows)
        self.seeds = zeros(rows)
        num_recorded = config.max_positions if config.acceptance.mode == "replay" else 0
        self.tokens_to_boundary = zeros(rows, num_recorded).fill_(1)
        self.drafts_are_drawn = torch.zeros(rows, dtype=torch.bool, device=device)
        shape = (rows, max_draft_len, draft_vocabulary_size)
        self.draft_probabilities = lazy_zeros(shape, torch.float32, device)
        self.draft_token_probabilities = torch.ones(shape[:2], dtype=torch.float64, device=device)

    def write_context(self, chunk: ContextRows, token_ids: Tensor) -> None:
        """Record a chunk's ids, int64 [chunk rows], and the token behind it where it is known.

        After the last chunk: the length before any sampling, too.
        """
        self.token_ids[chunk.slot, chunk.start : chunk.end] = token_ids
        if chunk.next_token_id is not None:
            self.token_ids[chunk.slot, chunk.end] = chunk.next_token_id
        if chunk.is_last:
            self.seeds[chunk.slot] = chunk.seed
            self.num_draft_tokens[chunk.slot] = 0
            self.num_tokens[chunk.slot] = chunk.end + (chunk.next_token_id is not None)

    def reset_padding(self) -> None:
        """Make padding's slot a sequence of one token: each step commits to it as to any other."""
        self.num_tokens[-1:].fill_(1)

    def commit(self, slots: Tensor, token_ids: Tensor, num_committed: Tensor) -> None:
        """Append ``num_committed`` [B] of ``token_ids`` [B, W] to ``slots`` [B]; the rest of a row is left stale."""
        num_tokens = self.num_tokens[slots]
        columns = num_tokens.unsqueeze(1) + torch.arange(token_ids.shape[1], device=token_ids.device)
        self.token_ids[slots.unsqueeze(1), columns] = token_ids
        self.num_tokens[slots] = num_tokens + num_committed
