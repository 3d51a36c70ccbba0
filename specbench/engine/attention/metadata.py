"""What an attention backend is told about a step, and what every backend derives from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.state_indices import StateIndices


@dataclass(frozen=True)
class AttentionMetadata:
    """One step's token rows: context chunks first, then generation requests of equally many rows.

    :param num_context: context chunks; one request has at most one.
    :param context_query_lens: rows of each chunk.
    :param context_kv_lens: tokens each chunk's last row attends to: cached before, plus the chunk.
    :param num_generation: generation requests, G.
    :param rows_per_generation: rows each of them takes; each row sees those before it, but see ``visible``.
    :param generation_kv_lens: [G] int64 on the device: tokens the last of a request's rows attends to, the new rows
        included.
    :param block_table: [num_context + G, columns] int32 on the device: the blocks of each request in logical order.
        Columns past a request's last block are ignored.
    :param positions: [T] int64 on the device: where each row stands among its request's cells, which is its token's
        position unless ``visible`` says otherwise.
    :param max_generation_kv_len: an upper bound of ``generation_kv_lens`` that the host knows, so that a backend need
        not wait for the device; None: unknown.
    :param state: where the recurrent state of each request is, for models that have some.
    :param visible: [G, rows_per_generation, W] bool on the device: which of the last W cells of ``generation_kv_lens``
        each row sees, itself at least; all see those before. W is the same for all and at most any of the lengths.
        None: each row sees up to itself.
    """

    num_context: int
    context_query_lens: list[int]
    context_kv_lens: list[int]
    num_generation: int
    rows_per_generation: int
    generation_kv_lens: Tensor
    block_table: Tensor
    positions: Tensor
    max_generation_kv_len: int | None = None
    state: StateIndices | None = None
    visible: Tensor | None = None

    @property
    def num_context_rows(self) -> int:
        """Rows of all chunks; generation rows follow them."""
        return sum(self.context_query_lens)

    def cells(self, tokens_per_block: int) -> Tensor:
        """Return where each row's key and value go: [T] int64, block * tokens_per_block + offset."""
        logical = self.positions // tokens_per_block
        blocks = self.block_table[self._requests(), logical].to(torch.int64)
        return blocks * tokens_per_block + self.positions % tokens_per_block

    def _requests(self) -> Tensor:
        """Row of the block table that each token row belongs to, [T]."""
        device = self.positions.device
        generation = torch.arange(self.num_context, self.num_context + self.num_generation, device=device)
        generation = generation.repeat_interleave(self.rows_per_generation)
        if not self.num_context:
            return generation
        lens = torch.tensor(self.context_query_lens, device=device)
        context = torch.arange(self.num_context, device=device)
        return torch.cat([context.repeat_interleave(lens, output_size=self.num_context_rows), generation])
