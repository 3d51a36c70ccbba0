"""Where the blocks of a batch lie in the cache, and which requests one kernel call can read together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cells:
    """Where the keys and values of some requests are: ``num_requests`` times ``width`` cells of the cache.

    :param first: cell of the first request, ``stride`` cells from one request to the next.
    :param blocks: [num_requests, columns] block ids to gather, instead of ``first`` and ``stride``.
    """

    num_requests: int
    width: int
    first: int = 0
    stride: int = 0
    blocks: Tensor | None = None

    def view(self, blocks: Tensor) -> Tensor:
        """Return [num_requests, num_kv_heads, width, head_dim] of one layer's ``blocks``; a view where possible."""
        num_heads, head_dim = blocks.shape[2:]
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
class Placement:
    """Requests that one call reads: ``requests`` (indices into the batch) at ``places`` of ``cells``."""

    requests: Ints
    places: Ints
    cells: Cells


def place_sequence(blocks: Ints, kv_len: int, tokens_per_block: int) -> Cells:
    """Return the cells of one request that owns ``blocks``."""
    if np.array_equal(blocks, np.arange(blocks[0], blocks[0] + len(blocks))):
        return Cells(1, kv_len, first=int(blocks[0]) * tokens_per_block)
    return Cells(1, kv_len, blocks=torch.from_numpy(blocks)[None])


def place_requests(
    table: Ints, kv_lens: Ints, tokens_per_block: int, num_blocks: int, call_cells: int
) -> list[Placement]:
    """Divide a batch among calls.

    :param table: [N, columns] blocks of each request; columns past its last block are ignored.
    :param kv_lens: [N] tokens in each request's blocks.
    :param num_blocks: blocks of the pool: no view may reach past it.
    :param call_cells: see :func:`split_requests`.
    """
    if not len(kv_lens):
        return []
    used = -(-kv_lens // tokens_per_block)
    columns = np.arange(used.max())
    # Past a request's own blocks its first one again: masked, and sure to exist.
    blocks = np.where(columns < used[:, None], table[:, : len(columns)], table[:, :1])
    first = blocks[:, 0]
    ordered, stride = _find_grid(blocks, used, num_blocks)
    placements = []
    if len(ordered):
        for requests in split_requests(ordered, first // stride, kv_lens, call_cells):
            start = int(first[requests[0]])
            places = (first[requests] - start) // stride
            width = int(kv_lens[requests].max())
            cells = Cells(int(places[-1]) + 1, width, start * tokens_per_block, stride * tokens_per_block)
            placements.append(Placement(requests, places, cells))
    scattered = np.setdiff1d(np.arange(len(first)), ordered)
    if len(scattered):
        cells = Cells(len(scattered), int(kv_lens[scattered].max()), blocks=torch.from_numpy(blocks[scattered]))
        placements.append(Placement(scattered, np.arange(len(scattered)), cells))
    return placements


def _find_grid(blocks: Ints, used: Ints, num_blocks: int) -> tuple[Ints, int]:
    """Return the requests whose blocks are consecutive and start a multiple of a stride apart, in order of place."""
    first, columns = blocks[:, 0], np.arange(blocks.shape[1])
    is_consecutive = ((blocks == first[:, None] + columns) | (columns >= used[:, None])).all(axis=1)
    # A view is as wide as the longest request.
    is_consecutive &= first + len(columns) <= num_blocks
    ordered = np.flatnonzero(is_consecutive)
    # One request a place: a second one that starts with the same block is not on the grid.
    ordered = ordered[np.unique(first[ordered], return_index=True)[1]]
    stride = int(np.diff(first[ordered]).min(initial=num_blocks))
    return ordered[(first[ordered] - first[ordered[:1]]) % stride == 0], stride


def split_requests(requests: Ints, places: Ints, kv_lens: Ints, call_cells: int) -> list[Ints]:
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
    candidates.append(np.arange(len(at)) <= int(np.diff(at).argmax()))
    costs = [_area(lens[low], at[low]) + _area(lens[~low], at[~low]) for low in candidates]
    best = int(np.argmin(costs))
    if costs[best] + call_cells >= whole:
        return [requests]
    low = candidates[best]
    return [
        part for half in (requests[low], requests[~low]) for part in split_requests(half, places, kv_lens, call_cells)
    ]


def _area(lens: Ints, at: Ints) -> int:
    return (int(at[-1]) - int(at[0]) + 1) * int(lens.max())
