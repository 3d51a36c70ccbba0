"""Attention on the CPU, straight out of the paged cache.

The blocks of a batch usually lie on a grid (slot ``s``, logical block ``j`` at ``s * stride + j``). Keys and values of
many requests are then one strided view of the cache, and a step makes one call of PyTorch's flash kernel a layer,
with no copy. Requests whose blocks lie elsewhere are gathered, only as many blocks as they have.

A view is as wide as its longest request: cells past the end of a shorter one, and requests between those of the
batch, are computed on and masked or dropped. :class:`KVCache` keeps every cell finite, which makes that safe.

Shapes: N requests of a call, Hkv KV heads, D head_dim, W cells a request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from specbench.engine.attention.base import AttentionOperator
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.attention.placement import Cells, Ints, Placement, place_requests, place_sequence
from specbench.engine.attention.visibility import visible_cells
from specbench.engine.kv_cache import KVCache

_CALL_ELEMENTS = 65536
"""One more call of the kernel costs as much as this many key elements read (30 us; measured on 2 cores)."""

_MERGED_CELLS = 4096
"""From this many cells (N * W) on KV heads are merged; below, that costs more than it saves (measured on 2 cores)."""

_MERGED_ELEMENTS = 512
"""Widest merged head (Hkv * D): the products that merging wastes grow with the square of Hkv."""

_PART_CELLS = 1024
"""Shortest part of a request that is worth a thread of its own."""

_flash: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@dataclass(frozen=True)
class _Chunk:
    """One context chunk: rows ``start`` to ``end - 1`` of the step, after ``num_cached`` tokens in the cache."""

    start: int
    end: int
    num_cached: int
    cells: Cells


@dataclass(frozen=True)
class _Group:
    """Generation requests that share one call.

    :param requests: which generation requests, in the order of their places.
    :param members: [N] which generation request is at each place of ``cells``: any one where there is none.
    :param places: the place of each of ``requests``.
    :param mask: float32, added to the scores [N, 1, rows * num_groups, W]; None: all is visible.
    :param merged: how to read all KV heads as one; None: each apart.
    """

    requests: Tensor
    members: Tensor
    places: Tensor
    cells: Cells
    mask: Tensor | None
    merged: _Merged | None = None


@dataclass(frozen=True)
class _Merged:
    """All KV heads as one of ``Hkv * D`` elements, a cell's whole memory, in ``num_parts`` parts of its width.

    The kernel then reads memory in order and does fewer, larger products, most of them with zeros: queries are zero
    but at their own KV head, and of the output only that head's elements are kept.

    :param queries: [N, 1, Hq, Hkv * D].
    :param own_queries: [N, Hkv, num_groups, D], the part of ``queries`` that each layer writes.
    :param cells: as those of the group, a multiple of ``num_parts`` wide.
    :param mask: [N, num_parts, Hq, W / num_parts] float32, or None.
    """

    queries: Tensor
    own_queries: Tensor
    cells: Cells
    num_parts: int
    mask: Tensor | None


class CpuPagedAttention(AttentionOperator):
    """See the module and :class:`AttentionOperator`."""

    def __init__(self, cache: KVCache, num_heads: int) -> None:
        super().__init__(cache, num_heads)
        self._cell_elements = cache.num_kv_heads * cache.head_dim
        self._can_merge = cache.dtype.itemsize == 2 and cache.num_kv_heads > 1
        self._can_merge &= self._cell_elements <= _MERGED_ELEMENTS

    def prepare(self, metadata: AttentionMetadata) -> None:
        """See :class:`AttentionOperator`."""
        self._new_cells = metadata.cells(self.cache.tokens_per_block)
        self._num_rows = metadata.rows_per_generation
        self._visible = metadata.visible
        self._num_context_rows = metadata.num_context_rows
        self._num_generation = metadata.num_generation
        table = self._used_blocks(metadata)
        self._chunks = self._plan_chunks(metadata, table)
        self._groups: list[_Group] = []
        if metadata.num_generation:
            self._plan_generation(table[metadata.num_context :], metadata.generation_kv_lens.numpy())

    def _used_blocks(self, metadata: AttentionMetadata) -> Ints:
        """[requests, columns] as wide as the longest request: the table may be much wider, and stale beyond it."""
        lens = metadata.generation_kv_lens.numpy()
        longest = max([*metadata.context_kv_lens, int(lens.max(initial=0))])
        return metadata.block_table[:, : -(-longest // self.cache.tokens_per_block)].numpy().astype(np.int64)

    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See :class:`AttentionOperator`."""
        self.cache.write(layer, self._new_cells, k, v)
        outputs = [self._attend_chunk(chunk, layer, q[chunk.start : chunk.end]) for chunk in self._chunks]
        if self._num_generation:
            outputs.append(self._attend_generation(layer, q[self._num_context_rows :] if self._chunks else q))
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        # A NaN in any layer's keys or values reaches the last layer's output of its own row.
        if layer == self.cache.num_layers - 1 and not math.isfinite(output.sum(dtype=torch.float32).item()):
            self.cache.repair(self._new_cells)
        return output

    # Context chunks: one request at a time, they are large.

    def _plan_chunks(self, metadata: AttentionMetadata, table: Ints) -> list[_Chunk]:
        chunks, start = [], 0
        for row, (num_rows, kv_len) in enumerate(
            zip(metadata.context_query_lens, metadata.context_kv_lens, strict=True)
        ):
            blocks = table[row, : -(-kv_len // self.cache.tokens_per_block)]
            cells = place_sequence(blocks, kv_len, self.cache.tokens_per_block)
            chunks.append(_Chunk(start, start + num_rows, kv_len - num_rows, cells))
            start += num_rows
        return chunks

    def _attend_chunk(self, chunk: _Chunk, layer: int, q: Tensor) -> Tensor:
        """Causal over the chunk's own tokens; over the cached ones before it everything is visible."""
        q = q.view(-1, self.cache.num_kv_heads, self.num_groups, self.cache.head_dim).permute(1, 2, 0, 3)
        k, v = (self._share(chunk.cells.view(blocks[layer])) for blocks in (self.cache.keys, self.cache.values))
        cached, new = slice(None, chunk.num_cached), slice(chunk.num_cached, None)
        output, weight = self._flash(q, k[:, :, new], v[:, :, new], is_causal=True)
        if chunk.num_cached:
            before, weight_before = self._flash(q, k[:, :, cached], v[:, :, cached])
            share = torch.sigmoid(weight_before - weight).unsqueeze(3)
            output = output.float().lerp_(before.float(), share).to(q.dtype)
        return output.permute(2, 0, 1, 3).reshape(q.shape[2], -1)

    def _share(self, cells: Tensor) -> Tensor:
        """[1, Hkv, W, D] -> [Hkv, num_groups, W, D] without a copy: KV heads as the batch, query heads share them."""
        return cells[0].unsqueeze(1).expand(-1, self.num_groups, -1, -1)

    def _flash(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the output [N, heads, rows, D] and the log of each row's sum of weights [N, heads, rows]."""
        return cast(tuple[Tensor, Tensor], _flash(q, k, v, 0.0, is_causal, attn_mask=mask, scale=self.scale))

    # Generation: equally many rows a request, batched.

    def _plan_generation(self, table: Ints, kv_lens: Ints) -> None:
        # Padding requests come last. Nobody asks for their output, and their blocks lie off the grid.
        num_requests = int((table[:, 0] < self.cache.first_padding_block).sum())
        placements = place_requests(
            table[:num_requests],
            kv_lens[:num_requests],
            self.cache.tokens_per_block,
            self.cache.first_padding_block,  # what padding left there was not looked at
            _CALL_ELEMENTS // self._cell_elements,
        )
        self._groups = [self._plan_group(placement, kv_lens) for placement in placements]
        self._is_in_order = bool(self._groups) and torch.equal(
            self._groups[0].members, torch.arange(self._num_generation)
        )

    def _plan_group(self, placement: Placement, kv_lens: Ints) -> _Group:
        cells = placement.cells
        members = np.full(cells.num_requests, placement.requests[0])
        members[placement.places] = placement.requests
        # A place without a request sees everything: a row that sees nothing would be NaN, and slow.
        seen = np.full(cells.num_requests, cells.width + self._num_rows)
        seen[placement.places] = kv_lens[placement.requests]
        if self._visible is None:
            mask = self._mask(torch.from_numpy(seen), cells.width)
        else:
            mask = self._tree_mask(placement, kv_lens, self._visible)
        return _Group(
            requests=torch.from_numpy(placement.requests),
            members=torch.from_numpy(members),
            places=torch.from_numpy(placement.places),
            cells=cells,
            mask=mask,
            merged=self._plan_merged(cells, seen) if self._is_worth_merging(cells) else None,
        )

    def _mask(self, seen: Tensor, width: int) -> Tensor | None:
        """Mask of requests whose last row sees ``seen`` [N] cells, each row up to itself."""
        rows = torch.arange(1 - self._num_rows, 1)
        return self._mask_out(torch.arange(width) >= (seen[:, None] + rows)[:, :, None])

    def _tree_mask(self, placement: Placement, kv_lens: Ints, visible: Tensor) -> Tensor | None:
        """Mask of requests whose rows see what ``visible`` says; as in :meth:`_plan_group`, other places see all."""
        cells, requests = placement.cells, torch.from_numpy(placement.requests)
        is_hidden = torch.zeros((cells.num_requests, self._num_rows, cells.width), dtype=torch.bool)
        lens = torch.from_numpy(kv_lens[placement.requests])
        seen = visible_cells(lens, self._num_rows, cells.width, visible[requests])
        is_hidden[torch.from_numpy(placement.places)] = ~seen
        return self._mask_out(is_hidden)

    def _mask_out(self, is_hidden: Tensor) -> Tensor | None:
        """As :attr:`_Group.mask`, of ``is_hidden`` [N, rows, W]."""
        if not is_hidden.any():
            return None
        mask = torch.zeros(is_hidden.shape).masked_fill_(is_hidden, -math.inf)
        return mask.unsqueeze(2).expand(-1, -1, self.num_groups, -1).flatten(1, 2).unsqueeze(1)

    def _is_worth_merging(self, cells: Cells) -> bool:
        is_plain = self._num_rows == 1 and self._visible is None
        return self._can_merge and is_plain and cells.num_requests * cells.width >= _MERGED_CELLS

    def _plan_merged(self, cells: Cells, seen: Ints) -> _Merged:
        num_parts = max(1, min(torch.get_num_threads() // cells.num_requests, cells.width // _PART_CELLS))
        width = -(-cells.width // num_parts) * num_parts
        end = cells.first + (cells.num_requests - 1) * cells.stride + width
        # Every part needs a cell to look at, and the rounded width must stay within the cache.
        if seen.min() <= width - width // num_parts or cells.blocks is not None or end > self.cache.num_cells:
            num_parts, width = 1, cells.width
        mask = self._mask(torch.from_numpy(seen), width)
        if mask is not None:
            mask = mask[:, 0, 0].reshape(-1, num_parts, 1, width // num_parts).expand(-1, -1, self.num_heads, -1)
        shape = (
            cells.num_requests,
            self.cache.num_kv_heads,
            self.num_groups,
            self.cache.num_kv_heads,
            self.cache.head_dim,
        )
        queries = torch.zeros(shape, dtype=self.cache.dtype)
        return _Merged(
            queries=queries.view(cells.num_requests, 1, self.num_heads, -1),
            own_queries=_diagonal(queries),
            cells=replace(cells, width=width),
            num_parts=num_parts,
            mask=mask,
        )

    def _attend_generation(self, layer: int, q: Tensor) -> Tensor:
        q = q.view(-1, self._num_rows, self.cache.num_kv_heads, self.num_groups, self.cache.head_dim)
        if len(self._groups) == 1 and self._is_in_order:
            return self._attend_group(self._groups[0], layer, q).flatten(0, 1)
        output = q.new_zeros((self._num_generation, self._num_rows, self.num_heads * self.cache.head_dim))
        for group in self._groups:
            attended = self._attend_group(group, layer, q.index_select(0, group.members))
            output.index_copy_(0, group.requests, attended.index_select(0, group.places))
        return output.flatten(0, 1)

    def _attend_group(self, group: _Group, layer: int, q: Tensor) -> Tensor:
        """[N, rows, Hkv, num_groups, D] -> [N, rows, Hq * D]. Query heads of a group are more rows of their KV head."""
        if group.merged is not None:
            return self._attend_merged(group.merged, layer, q)
        k, v = (group.cells.view(blocks[layer]) for blocks in (self.cache.keys, self.cache.values))
        output, _ = self._flash(q.transpose(1, 2).flatten(2, 3), k, v, group.mask)
        heads = (output.shape[0], self.cache.num_kv_heads, self._num_rows, self.num_groups, self.cache.head_dim)
        return output.view(heads).transpose(1, 2).flatten(2)

    def _attend_merged(self, merged: _Merged, layer: int, q: Tensor) -> Tensor:
        """As :meth:`_attend_group`, for one row a request."""
        merged.own_queries.copy_(q[:, 0])
        k, v = (self._merge(merged, blocks[layer]) for blocks in (self.cache.keys, self.cache.values))
        output, weight = self._flash(merged.queries.expand(-1, merged.num_parts, -1, -1), k, v, merged.mask)
        if merged.num_parts > 1:
            output = (output * weight.softmax(1).unsqueeze(3)).sum(1)
        shape = (-1, self.cache.num_kv_heads, self.num_groups, self.cache.num_kv_heads, self.cache.head_dim)
        return _diagonal(output.reshape(shape)).reshape(-1, 1, self.num_heads * self.cache.head_dim).to(q.dtype)

    def _merge(self, merged: _Merged, blocks: Tensor) -> Tensor:
        """[N, num_parts, W / num_parts, Hkv * D]: parts take the place of heads."""
        cells = merged.cells.view(blocks).transpose(1, 2)
        return cells.view(cells.shape[0], merged.num_parts, -1, self._cell_elements)


def _diagonal(heads: Tensor) -> Tensor:
    """[N, Hkv, num_groups, Hkv, D] -> the elements of each head's own KV head, [N, Hkv, num_groups, D]."""
    return heads.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
