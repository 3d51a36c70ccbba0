"""Attention for any torch device: gathers the blocks of the batch, then calls PyTorch's attention.

Simple before fast: it costs a copy of the batch's keys and values in every layer. The faster backends are tested
against it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.engine.attention.base import AttentionOperator
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.attention.visibility import visible_cells


@dataclass(frozen=True)
class _Part:
    """Requests with equally many rows.

    :param rows: token rows, ``[start, start + len(blocks) * num_rows)`` of the step.
    :param blocks: [N, columns] int64.
    :param width: cells of the gathered blocks that are used.
    :param is_owned: [N, width] bool; False where no row of the request may look.
    :param is_visible: [N, 1, num_groups * num_rows, width] bool.
    """

    rows: slice
    num_rows: int
    blocks: Tensor
    width: int
    is_owned: Tensor
    is_visible: Tensor


class GatherAttention(AttentionOperator):
    """See the module and :class:`AttentionOperator`."""

    def prepare(self, metadata: AttentionMetadata) -> None:
        """See :class:`AttentionOperator`."""
        self._cells = metadata.cells(self.cache.tokens_per_block)
        self._parts: list[_Part] = []
        device, start = self._cells.device, 0
        for request, (num_rows, kv_len) in enumerate(
            zip(metadata.context_query_lens, metadata.context_kv_lens, strict=True)
        ):
            table = metadata.block_table[request : request + 1]
            self._parts.append(self._part(start, num_rows, table, torch.tensor([kv_len], device=device), kv_len))
            start += num_rows
        if metadata.num_generation:
            table = metadata.block_table[metadata.num_context :]
            kv_lens = metadata.generation_kv_lens
            width = self._generation_width(metadata)
            num_rows, visible = metadata.rows_per_generation, metadata.visible
            self._parts.append(self._part(start, num_rows, table, kv_lens, width, visible))

    def _generation_width(self, metadata: AttentionMetadata) -> int:
        capacity = metadata.block_table.shape[1] * self.cache.tokens_per_block
        if metadata.max_generation_kv_len is not None:
            return min(metadata.max_generation_kv_len, capacity)
        # Reading a length from an accelerator would make the host wait for it; the table's width is always enough.
        return int(metadata.generation_kv_lens.max()) if self._cells.device.type == "cpu" else capacity

    def _part(
        self, start: int, num_rows: int, table: Tensor, kv_lens: Tensor, width: int, visible: Tensor | None = None
    ) -> _Part:
        columns = torch.arange(width, device=table.device)
        num_columns = -(-width // self.cache.tokens_per_block)
        blocks = table[:, :num_columns].to(torch.int64)
        is_owned = columns < kv_lens.unsqueeze(1)
        # Columns past a request's own blocks may hold anything, also ids that do not exist.
        first_cells = is_owned[:, :: self.cache.tokens_per_block]
        is_visible = visible_cells(kv_lens, num_rows, width, visible)
        return _Part(
            rows=slice(start, start + num_rows * table.shape[0]),
            num_rows=num_rows,
            blocks=torch.where(first_cells, blocks, 0),
            width=width,
            is_owned=is_owned,
            is_visible=is_visible.repeat(1, self.num_groups, 1).unsqueeze(1),
        )

    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See :class:`AttentionOperator`."""
        self.cache.write(layer, self._cells, k, v)
        outputs = [self._attend(part, layer, q[part.rows]) for part in self._parts]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend(self, part: _Part, layer: int, q: Tensor) -> Tensor:
        # The query heads of a group become more rows of their KV head: keys and values are not repeated.
        shape = (part.blocks.shape[0], part.num_rows, self.cache.num_kv_heads, self.num_groups, self.cache.head_dim)
        folded = q.view(shape).permute(0, 2, 3, 1, 4).flatten(2, 3)
        k = self._gather(self.cache.keys[layer], part)
        v = self._gather(self.cache.values[layer], part)
        output = F.scaled_dot_product_attention(folded, k, v, attn_mask=part.is_visible, scale=self.scale)
        num_requests, num_rows, num_kv_heads, num_groups, head_dim = shape
        unfolded = output.reshape(num_requests, num_kv_heads, num_groups, num_rows, head_dim).permute(0, 3, 1, 2, 4)
        return unfolded.reshape(-1, self.num_heads * head_dim)

    def _gather(self, blocks: Tensor, part: _Part) -> Tensor:
        """Return [N, num_kv_heads, width, head_dim]; cells no row may look at are zero, whatever they held."""
        cells = blocks[part.blocks].flatten(1, 2)[:, : part.width]
        return torch.where(part.is_owned[:, :, None, None], cells, 0).transpose(1, 2)
