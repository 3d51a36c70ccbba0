"""Paged cache of keys and values: the memory behind the block tables."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

NOISE_TOKENS = 64
"""Positions after which synthetic keys and values repeat."""


class KVCache:
    """Keys and values of every layer, in blocks of ``tokens_per_block`` tokens.

    Every cell is finite at all times: memory starts as zeros, and whoever writes calls :meth:`repair` when a value may
    have been NaN or infinite. Backends can therefore mask a cell nobody owns by adding minus infinity to its score;
    with a NaN left in it, the masked cell would still spoil the sum (0 * NaN is NaN).

    :param num_blocks: blocks, padding's included.
    :param num_padding_blocks: how many of them, the last ones, belong to padding requests: nobody asks what is there.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        tokens_per_block: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        num_padding_blocks: int = 0,
    ) -> None:
        self.num_layers = num_layers
        self.num_blocks = num_blocks
        self.first_padding_block = num_blocks - num_padding_blocks
        self.tokens_per_block = tokens_per_block
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        self.device = device
        shape = (num_layers, 2, num_blocks, tokens_per_block, num_kv_heads, head_dim)
        self._storage = lazy_zeros(shape, dtype, device)
        self.keys: list[Tensor] = [layer[0] for layer in self._storage]
        """Per layer [num_blocks, tokens_per_block, num_kv_heads, head_dim]."""
        self.values: list[Tensor] = [layer[1] for layer in self._storage]
        """Per layer, shaped as ``keys``."""
        self._flat_keys = [layer.view(-1, num_kv_heads * head_dim) for layer in self.keys]
        self._flat_values = [layer.view(-1, num_kv_heads * head_dim) for layer in self.values]

    @property
    def bytes(self) -> int:
        """Size of the cache once all of it has been touched."""
        return self._storage.numel() * self._storage.element_size()

    @property
    def num_cells(self) -> int:
        """Tokens the pool holds."""
        return self.num_blocks * self.tokens_per_block

    def write(self, layer: int, cells: Tensor, k: Tensor, v: Tensor) -> None:
        """Store ``k`` and ``v`` [T, num_kv_heads, head_dim] at ``cells`` [T] (block * tokens_per_block + offset)."""
        self._flat_keys[layer].index_copy_(0, cells, k.flatten(1))
        self._flat_values[layer].index_copy_(0, cells, v.flatten(1))

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Put what is at the cells ``sources`` [T] at ``targets`` [T] too, in every layer; all is read before.

        A cell that is a target twice gets one of the two.
        """
        flat = self._storage.view(-1, self.num_cells, self.num_kv_heads * self.head_dim)
        flat.index_copy_(1, targets, flat.index_select(1, sources))

    def fill(self, blocks: Tensor) -> None:
        """Put seeded noise into ``blocks`` [N], one sequence's in logical order, of every layer.

        Noise repeats every :data:`NOISE_TOKENS` positions. It is a function of the position alone: what a request
        finds depends neither on which blocks it has nor on how many tokens a block holds.
        """
        positions = torch.arange(blocks.numel() * self.tokens_per_block, device=self.device) % NOISE_TOKENS
        for cells, noise in zip((*self.keys, *self.values), self._noise, strict=True):
            cells[blocks] = noise[positions].view(-1, *cells.shape[1:])

    @cached_property
    def _noise(self) -> list[Tensor]:
        """Of every layer's keys, then values; drawn once, for all that are filled."""
        source = torch.Generator(device="cpu").manual_seed(0)
        shape = (NOISE_TOKENS, self.num_kv_heads, self.head_dim)
        drawn = [torch.randn(shape, generator=source, dtype=torch.float32) for _ in range(2 * self.num_layers)]
        return [noise.to(self.dtype).to(self.device) for noise in drawn]

    def repair(self, cells: Tensor) -> None:
        """Replace what is not finite at ``cells`` [T] by zero, in every layer."""
        for flat in (*self._flat_keys, *self._flat_values):
            flat[cells] = flat[cells].nan_to_num(0.0, 0.0, 0.0)


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that take memory only where they are touched, where the platform allows it."""
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch.zeros writes every page; numpy asks the system for pages that are zero when first touched.
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(dtype).view(shape)
