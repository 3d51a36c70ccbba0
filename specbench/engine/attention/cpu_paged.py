"""Attention on the CPU, straight out of the paged cache.

The blocks of a batch usually lie on a grid (slot ``s``, logical block ``j`` at ``s * stride + j``). Keys and values of
many requests are then one strided view of the cache, and a step makes one call of PyTorch's flash kernel a layer,
with no copy. Requests whose blocks lie elsewhere are gathered, only as many blocks as they have.

A view is as wide as its longest request: cells past the end of a shorter one, and requests between those of the
batch, are computed on and masked or dropped. :class:`KVCache` keeps every cell finite, which makes that safe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specbench.engine.attention.base import AttentionOperator
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.kv_cache import KVCache

_Ints = npt.NDArray[np.int64]

_CALL_ELEMENTS = 65536
"""One more call of the kernel costs as much as this many key elements read (30 us; measured on 2 cores)."""

_flash: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@dataclass(frozen=True)
class _Cells:
    """Where the keys and values of some requests are: ``width`` cells each, ``num_requests`` of them.

    :param blocks: [num_requests, columns] block ids to gather; None: the cells are a grid in the cache.
    :param first: cell of the first request, ``stride`` cells from one request to the next (grid).
    """

    num_requests: int
    width: int
    first: int = 0
    stride: int = 0
    blocks: Tensor | None = None

    def view(self, blocks: Tensor) -> Tensor:
        """Return [num_requests, num_kv_heads, width, head_dim] of a layer's ``blocks``; a view where possible."""
        _, tokens_per_block, num_heads, head_dim = blocks.shape
        if self.blocks is None:
            cell = num_heads * head_dim
            return blocks.as_strided(
                (self.num_requests, num_heads, self.width, head_dim),
                (self.stride * cell, head_dim, cell, 1),
                blocks.storage_offset() + self.first * cell,
            )
        gathered = blocks.index_select(0, self.blocks.flatten())
        cells = gathered.view(self.num_requests, -1, num_heads, head_dim)
        return cells[:, : self.width].transpose(1, 2)


@dataclass(frozen=True)
class _Chunk:
    """One context chunk: rows ``start`` to ``end - 1`` of the step, after ``num_cached`` tokens in the cache."""

    start: int
    end: int
    num_cached: int
    cells: _Cells


@dataclass(frozen=True)
class _Group:
    """Generation requests that share one call.

    :param requests: which generation requests, in the order of their places.
    :param members: which generation request is at each place of ``cells``: any one where there is none.
    :param places: the place of each of ``requests``.
    :param mask: float32, added to the scores [cells.num_requests, 1, rows * num_groups, width]; None: all visible.
    """

    requests: Tensor
    members: Tensor
    places: Tensor
    cells: _Cells
    mask: Tensor | None


class CpuPagedAttention(AttentionOperator):
    """See the module and :class:`AttentionOperator`."""

    def __init__(self, cache: KVCache, num_heads: int) -> None:
        super().__init__(cache, num_heads)
        self._call_cells = _CALL_ELEMENTS // (cache.num_kv_heads * cache.head_dim)

    def prepare(self, metadata: AttentionMetadata) -> None:
        """See :class:`AttentionOperator`."""
        self._new_cells = metadata.cells(self.cache.tokens_per_block)
        self._num_rows = metadata.rows_per_generation
        self._num_context_rows = metadata.num_context_rows
        self._num_generation = metadata.num_generation
        table = metadata.block_table.numpy().astype(np.int64)
        self._chunks = self._plan_chunks(metadata, table)
        self._groups: list[_Group] = []
        if metadata.num_generation:
            kv_lens = metadata.generation_kv_lens.numpy().astype(np.int64)
            self._groups = self._plan_groups(table[metadata.num_context :], kv_lens)
            in_order = torch.arange(metadata.num_generation)
            self._is_in_order = torch.equal(self._groups[0].members, in_order)

    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See :class:`AttentionOperator`."""
        self.cache.write(layer, self._new_cells, k, v)
        outputs = [self._attend_chunk(chunk, layer, q[chunk.start : chunk.end]) for chunk in self._chunks]
        if self._groups:
            outputs.append(self._attend_generation(layer, q[self._num_context_rows :] if self._chunks else q))
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        # A NaN in any layer's keys or values reaches the last layer's output of its own row.
        if layer == self.cache.num_layers - 1 and not math.isfinite(output.sum(dtype=torch.float32).item()):
            pass
        return output

    # Context chunks: one request at a time, they are large.

    def _plan_chunks(self, metadata: AttentionMetadata, table: _Ints) -> list[_Chunk]:
        chunks, start = [], 0
        for row, (num_rows, kv_len) in enumerate(
            zip(metadata.context_query_lens, metadata.context_kv_lens, strict=True)
        ):
            blocks = table[row, : -(-kv_len // self.cache.tokens_per_block)]
            if np.array_equal(blocks, np.arange(blocks[0], blocks[0] + len(blocks))):
                cells = _Cells(1, kv_len, first=int(blocks[0]) * self.cache.tokens_per_block)
            else:
                cells = _Cells(1, kv_len, blocks=torch.from_numpy(blocks)[None])
            chunks.append(_Chunk(start, start + num_rows, kv_len - num_rows, cells))
            start += num_rows
        return chunks

    def _attend_chunk(self, chunk: _Chunk, layer: int, q: Tensor) -> Tensor:
        """Causal over the chunk's own tokens; over the cached ones before it everything is visible."""
        shape = (q.shape[0], self.cache.num_kv_heads, self.num_groups, self.cache.head_dim)
        q = q.view(shape).permute(1, 2, 0, 3)
        k, v = (self._share(chunk.cells.view(blocks[layer])) for blocks in (self.cache.keys, self.cache.values))
        cached, new = slice(None, chunk.num_cached), slice(chunk.num_cached, None)
        output, weight = _flash(q, k[:, :, new], v[:, :, new], 0.0, True, scale=self.scale)
        if chunk.num_cached:
            before, weight_before = _flash(q, k[:, :, cached], v[:, :, cached], scale=self.scale)
            share = torch.sigmoid(weight_before - weight).unsqueeze(3)
            output = output.float().lerp_(before.float(), share).to(q.dtype)
        return output.permute(2, 0, 1, 3).reshape(q.shape[2], -1)

    def _share(self, cells: Tensor) -> Tensor:
        """[1, Hkv, S, D] -> [Hkv, num_groups, S, D] without a copy: KV heads as the batch, query heads share them."""
        return cells[0].unsqueeze(1).expand(-1, self.num_groups, -1, -1)

    # Generation: equally many rows a request, batched.

    def _plan_groups(self, table: _Ints, kv_lens: _Ints) -> list[_Group]:
        num_blocks = -(-kv_lens // self.cache.tokens_per_block)
        columns = np.arange(num_blocks.max())
        table = table[:, : len(columns)]
        # Past a request's own blocks its first one again: masked, and sure to exist.
        blocks = np.where(columns < num_blocks[:, None], table, table[:, :1])
        first = blocks[:, 0]
        by_place = np.argsort(first, kind="stable")
        on_grid = ((blocks == first[:, None] + columns) | (columns >= num_blocks[:, None])).all(axis=1)
        on_grid &= first + len(columns) <= self.cache.num_blocks
        on_grid[by_place[1:][np.diff(first[by_place]) == 0]] = False
        groups = []
        requests = by_place[on_grid[by_place]]
        if len(requests):
            stride = int(np.diff(first[requests]).min(initial=self.cache.num_blocks))
            is_placed = (first[requests] - first[requests[0]]) % stride == 0
            on_grid[requests[~is_placed]] = False
            for part in split_requests(requests[is_placed], first // stride, kv_lens, self._call_cells):
                groups.append(self._grid_group(part, first, stride, kv_lens))
        if not on_grid.all():
            requests = np.flatnonzero(~on_grid)
            cells = _Cells(len(requests), int(kv_lens[requests].max()), blocks=torch.from_numpy(blocks[requests]))
            groups.append(self._group(requests, np.arange(len(requests)), cells, kv_lens))
        return groups

    def _grid_group(self, requests: _Ints, first: _Ints, stride: int, kv_lens: _Ints) -> _Group:
        places = (first[requests] - first[requests[0]]) // stride
        tokens_per_block = self.cache.tokens_per_block
        cells = _Cells(
            num_requests=int(places[-1]) + 1,
            width=int(kv_lens[requests].max()),
            first=int(first[requests[0]]) * tokens_per_block,
            stride=stride * tokens_per_block,
        )
        return self._group(requests, places, cells, kv_lens)

    def _group(self, requests: _Ints, places: _Ints, cells: _Cells, kv_lens: _Ints) -> _Group:
        members = np.full(cells.num_requests, requests[0])
        members[places] = requests
        # A place without a request sees everything: a row that sees nothing would be NaN, and slow.
        seen = np.full(cells.num_requests, cells.width + self._num_rows)
        seen[places] = kv_lens[requests]
        return _Group(
            requests=torch.from_numpy(requests),
            members=torch.from_numpy(members),
            places=torch.from_numpy(places),
            cells=cells,
            mask=self._mask(torch.from_numpy(seen), cells.width),
        )

    def _mask(self, seen: Tensor, width: int) -> Tensor | None:
        """Scores' mask of requests whose last row sees ``seen`` [N] cells."""
        rows = torch.arange(1 - self._num_rows, 1)
        is_hidden = torch.arange(width) >= (seen[:, None] + rows)[:, :, None]
        if not is_hidden.any():
            return None
        mask = torch.zeros(is_hidden.shape).masked_fill_(is_hidden, -math.inf)
        return mask.unsqueeze(2).expand(-1, -1, self.num_groups, -1).flatten(1, 2).unsqueeze(1)

    def _attend_generation(self, layer: int, q: Tensor) -> Tensor:
        shape = (self._num_generation, self._num_rows, self.cache.num_kv_heads, self.num_groups, self.cache.head_dim)
        q = q.view(shape)
        if len(self._groups) == 1 and self._is_in_order:
            return self._attend_group(self._groups[0], layer, q).flatten(0, 1)
        output = q.new_empty((self._num_generation, self._num_rows, self.num_heads * self.cache.head_dim))
        for group in self._groups:
            attended = self._attend_group(group, layer, q.index_select(0, group.members))
            output.index_copy_(0, group.requests, attended.index_select(0, group.places))
        return output.flatten(0, 1)

    def _attend_group(self, group: _Group, layer: int, q: Tensor) -> Tensor:
        """[N, rows, Hkv, num_groups, D] -> [N, rows, Hq * D]. Query heads of a group are more rows of their KV head."""
        folded = q.transpose(1, 2).flatten(2, 3)
        k, v = (group.cells.view(blocks[layer]) for blocks in (self.cache.keys, self.cache.values))
        output, _ = _flash(folded, k, v, attn_mask=group.mask, scale=self.scale)
        return output.unflatten(2, (self._num_rows, -1)).permute(0, 2, 1, 3, 4).flatten(2)


def split_requests(requests: _Ints, places: _Ints, kv_lens: _Ints, call_cells: int) -> list[_Ints]:
    """Split ``requests`` (ordered by place) into calls, where the cells that saves outweigh ``call_cells`` a call.

    A call computes on a rectangle: every place from its first to its last request, as wide as its longest request.
    Tried are the largest jumps in length, and the largest gap between places.
    """
    lens, at = kv_lens[requests], places[requests]
    whole = _area(lens, at)
    if whole - int(lens.sum()) <= call_cells:
        return [requests]
    steps = np.sort(lens)
    jumps = np.diff(steps)
    candidates = [lens <= steps[jump] for jump in np.argsort(jumps)[-3:] if jumps[jump]]
    gap = int(np.diff(at).argmax())
    candidates.append(np.arange(len(at)) <= gap)
    costs = [_area(lens[low], at[low]) + _area(lens[~low], at[~low]) for low in candidates]
    best = int(np.argmin(costs))
    if costs[best] + call_cells >= whole:
        return [requests]
    low = candidates[best]
    parts = (requests[low], requests[~low])
    return [part for half in parts for part in split_requests(half, places, kv_lens, call_cells)]


def _area(lens: _Ints, at: _Ints) -> int:
    return (int(at[-1]) - int(at[0]) + 1) * int(lens.max())
