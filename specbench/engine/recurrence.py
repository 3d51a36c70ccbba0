"""Recurrent layers over a step's ragged rows: context chunks, then generation requests of equally many rows.

What :class:`specbench.engine.attention.base.AttentionOperator` is to keys and values, :class:`GatedDeltaOperator` is to
recurrent state. A hybrid model gets both as one operator.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.device.recording import runtime_operator
from specbench.engine.attention.base import AttentionOperator
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.gated_delta import advance, advance_sequence, convolve, normalize_heads
from specbench.engine.models.config import ModelConfig
from specbench.engine.state_cache import StateCache, StateRows


@dataclass(frozen=True)
class _Chunk:
    """Rows ``start`` to ``end - 1`` of the step.

    :param before: where the state before them is; None: the sequence starts with them.
    """

    start: int
    end: int
    before: StateRows | None
    after: StateRows


@dataclass(frozen=True)
class _Generation:
    """G requests with ``num_rows`` rows each, from row ``start`` of the step on."""

    start: int
    num_rows: int
    before: StateRows
    after: StateRows


class GatedDeltaOperator:
    """Convolution and gated delta rule of one engine's requests.

    Each request's rows are read in their order; its state is taken from the cache before them and put back after them.
    Generation requests advance together, one row after another; a chunk advances in products over many of its tokens.

    :param cache: holds the state of every slot.
    """

    def __init__(self, cache: StateCache) -> None:
        self.cache = cache
        shape = cache.shape
        self._num_key_heads, self._num_heads = shape.num_key_heads, shape.num_value_heads
        self._head_dims = (shape.key_head_dim, shape.value_head_dim)
        self._widths = [shape.key_width, shape.key_width, shape.value_width]

    def prepare(self, metadata: AttentionMetadata) -> None:
        """Take over a step's metadata; on the device, before the first layer.

        :raises ValueError: the step does not say where the state of its requests is.
        """
        if metadata.state is None:
            raise ValueError("a model with recurrent state needs the state indices of a step")
        # Whatever slot a padding request names, it writes to padding's own.
        slots = torch.where(metadata.state.is_padding != 0, self.cache.padding_slot, metadata.state.slots)
        self._chunks = self._plan_chunks(metadata, slots)
        self._generation = self._plan_generation(metadata, slots[metadata.num_context :])

    def _plan_chunks(self, metadata: AttentionMetadata, slots: Tensor) -> list[_Chunk]:
        chunks, row = [], 0
        lens = zip(metadata.context_query_lens, metadata.context_kv_lens, strict=True)
        for request, (num_rows, end) in enumerate(lens):
            slot, num_cached = slots[request : request + 1], end - num_rows
            before = self.cache.choose(slot, torch.full_like(slot, num_cached)) if num_cached else None
            after = self.cache.replace(slot, torch.full_like(slot, end), 1)
            chunks.append(_Chunk(row, row + num_rows, before, after))
            row += num_rows
        return chunks

    def _plan_generation(self, metadata: AttentionMetadata, slots: Tensor) -> _Generation | None:
        if not metadata.num_generation:
            return None
        start, num_rows = metadata.num_context_rows, metadata.rows_per_generation
        # The position of a request's first row is the number of tokens before it.
        num_read = metadata.positions[start::num_rows]
        before = self.cache.choose(slots, num_read)
        return _Generation(start, num_rows, before, self.cache.replace(slots, num_read + 1, num_rows))

    @runtime_operator("recurrence")
    def forward(self, layer: int, qkv: Tensor, g: Tensor, beta: Tensor, conv_weight: Tensor) -> Tensor:
        """Read every row of the step into the state of its request.

        :param layer: among the layers with recurrent state.
        :param qkv: [T, C] in the model's dtype, before the convolution; q, k and v side by side.
        :param g: [T, Hv] float32, logarithm of the decay; ``beta`` likewise.
        :param conv_weight: [taps, C] float32.
        :returns: [T, Hv, Dv] float32.
        """
        outputs = [self._read_chunk(chunk, layer, qkv, g, beta, conv_weight) for chunk in self._chunks]
        if self._generation is not None:
            outputs.append(self._read_generation(self._generation, layer, qkv, g, beta, conv_weight))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _read_chunk(
        self, chunk: _Chunk, layer: int, qkv: Tensor, g: Tensor, beta: Tensor, conv_weight: Tensor
    ) -> Tensor:
        rows = slice(chunk.start, chunk.end)
        state, history = self.cache.empty(1) if chunk.before is None else self.cache.read(layer, chunk.before)
        padded = torch.cat([history, qkv[rows].unsqueeze(0)], dim=1)
        q, k, v = self._split(convolve(padded, conv_weight))
        state, output = advance_sequence(state[0], q[0], k[0], v[0], g[rows], beta[rows])
        self.cache.write_conv(layer, chunk.after.conv, padded[:, padded.shape[1] - self.cache.history :])
        self.cache.write_recurrent(layer, chunk.after.recurrent[:, 0], state.unsqueeze(0))
        return output

    def _read_generation(
        self, part: _Generation, layer: int, qkv: Tensor, g: Tensor, beta: Tensor, conv_weight: Tensor
    ) -> Tensor:
        state, history = self.cache.read(layer, part.before)
        shape = (state.shape[0], part.num_rows, -1)
        padded = torch.cat([history, qkv[part.start :].view(shape)], dim=1)
        q, k, v = self._split(convolve(padded, conv_weight))
        g, beta = g[part.start :].view(shape), beta[part.start :].view(shape)
        self.cache.write_conv(layer, part.after.conv, padded[:, 1:])
        outputs = []
        for row in range(part.num_rows):
            state, output = advance(state, q[:, row], k[:, row], v[:, row], g[:, row], beta[:, row])
            self.cache.write_recurrent(layer, part.after.recurrent[:, row], state)
            outputs.append(output)
        return torch.stack(outputs, dim=1).flatten(0, 1)

    def _split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, T, C] -> q and k [N, T, Hv, Dk], of unit length, and v [N, T, Hv, Dv]."""
        q, k, v = mixed.split_with_sizes(self._widths, -1)
        key_dim, value_dim = self._head_dims
        q, k = (part.view(*part.shape[:-1], self._num_key_heads, key_dim) for part in (q, k))
        return *normalize_heads(q, k, self._num_heads), v.view(*v.shape[:-1], self._num_heads, value_dim)


class HybridOperator(AttentionOperator):
    """Attention and recurrence of a model that has layers of both kinds, prepared together.

    :ivar recurrence: for the layers with recurrent state.
    """

    def __init__(self, attention: AttentionOperator, recurrence: GatedDeltaOperator) -> None:
        super().__init__(attention.cache, attention.num_heads)
        self._attention = attention
        self.recurrence = recurrence

    def prepare(self, metadata: AttentionMetadata) -> None:
        """See :class:`AttentionOperator`."""
        self._attention.prepare(metadata)
        self.recurrence.prepare(metadata)

    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See :class:`AttentionOperator`; ``layer`` counts the layers with keys and values."""
        return self._attention.forward(layer, q, k, v)


def with_recurrence(
    attention: AttentionOperator, config: ModelConfig, num_slots: int, num_states: int
) -> AttentionOperator:
    """Return what a model of ``config`` needs beside its weights: ``attention``, with a state cache where it has state.

    :param num_slots: slots of requests, padding's own not counted.
    :param num_states: rows a generation request may take, K + 1.
    """
    if config.linear_attention is None:
        return attention
    cache = attention.cache
    states = StateCache(config.linear_attention, num_slots, num_states, cache.dtype, cache.device)
    return HybridOperator(attention, GatedDeltaOperator(states))
