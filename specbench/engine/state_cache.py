"""Recurrent state of hybrid models: memory of a fixed size a slot, whatever the length of its sequence.

A step with K draft tokens computes K + 1 states a request, one after each of its rows, and cannot know yet which of
them will stand: that depends on how many drafts are accepted. All are kept. The next step finds the one that stands by
subtraction: the first of its rows is the last committed token, and the cache remembers how many tokens each slot's
first state has read. Acceptance, the host and the scheduler need to know nothing of it.

Shapes: S slots, padding's own included, L layers with recurrent state, C channels of the convolution, Hv heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.kv_cache import lazy_zeros
from specbench.engine.models.config import LinearAttention


@dataclass(frozen=True)
class StateRows:
    """Rows of the flat views of a layer's memory, [N, ...] int64 each: which to read or write for N requests."""

    recurrent: Tensor
    conv: Tensor


class StateCache:
    """State of every slot and layer; the last slot, ``num_slots``, is padding's own.

    :param num_slots: slots of requests.
    :param num_states: states kept of a step, K + 1.
    :param dtype: of the convolution's rows, the model's; recurrent states are float32.

    :ivar num_read: int64 [S], tokens that the first of a slot's states has read; the others follow one by one.
    """

    def __init__(
        self, shape: LinearAttention, num_slots: int, num_states: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = shape
        self.num_states = num_states
        self.padding_slot = num_slots
        self.history = shape.conv_kernel - 1
        """Rows before a token that the convolution reads."""
        # State j reads conv rows j to j + history - 1: the states of a step overlap, and share their rows.
        self._conv_rows = self.history + num_states - 1
        rows = (shape.num_layers, num_slots + 1)
        heads = (shape.num_value_heads, shape.key_head_dim, shape.value_head_dim)
        self._recurrent = lazy_zeros((*rows, num_states, *heads), torch.float32, device)
        self._conv = lazy_zeros((*rows, self._conv_rows, shape.conv_width), dtype, device)
        self._flat_recurrent = [layer.flatten(0, 1) for layer in self._recurrent]
        self._flat_conv = [layer.flatten(0, 1) for layer in self._conv]
        self.num_read = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)
        self._offsets = torch.arange(self._conv_rows + num_states, device=device)

    @property
    def bytes(self) -> int:
        """Memory of all slots and layers."""
        return sum(part.numel() * part.element_size() for part in (self._recurrent, self._conv))

    def choose(self, slots: Tensor, num_read: Tensor) -> StateRows:
        """Where the states that have read ``num_read`` [N] tokens of ``slots`` [N] are; on the device.

        A count that no state of the slot has (padding's) takes the nearest.
        """
        index = (num_read - self.num_read[slots]).clamp_(0, self.num_states - 1)
        conv = (slots * self._conv_rows + index).unsqueeze(1) + self._offsets[: self.history]
        return StateRows(slots * self.num_states + index, conv)

    def replace(self, slots: Tensor, num_read: Tensor, num_rows: int) -> StateRows:
        """Where to write ``num_rows`` new states of ``slots`` [N]; the first of them has read ``num_read`` [N] tokens.

        :returns: ``recurrent`` [N, num_rows]; ``conv`` [N, history + num_rows - 1].
        """
        self.num_read[slots] = num_read
        recurrent = (slots * self.num_states).unsqueeze(1) + self._offsets[:num_rows]
        conv = (slots * self._conv_rows).unsqueeze(1) + self._offsets[: self.history + num_rows - 1]
        return StateRows(recurrent, conv)

    def read(self, layer: int, rows: StateRows) -> tuple[Tensor, Tensor]:
        """Copies of the recurrent states [N, Hv, Dk, Dv] and of the rows before them [N, history, C]."""
        conv = self._flat_conv[layer].index_select(0, rows.conv.flatten())
        history = conv.view(*rows.conv.shape, self.shape.conv_width)
        return self._flat_recurrent[layer].index_select(0, rows.recurrent), history

    def empty(self, num_requests: int) -> tuple[Tensor, Tensor]:
        """What :meth:`read` returns before a sequence's first token: zeros, whatever the memory holds."""
        heads = self._recurrent.shape[3:]
        conv = self._conv.new_zeros((num_requests, self.history, self.shape.conv_width))
        return self._recurrent.new_zeros((num_requests, *heads)), conv

    def write_recurrent(self, layer: int, rows: Tensor, states: Tensor) -> None:
        """Store ``states`` [N, Hv, Dk, Dv] at ``rows`` [N]."""
        self._flat_recurrent[layer].index_copy_(0, rows, states)

    def write_conv(self, layer: int, rows: Tensor, inputs: Tensor) -> None:
        """Store the convolution's inputs [N, R, C] at ``rows`` [N, R]."""
        self._flat_conv[layer].index_copy_(0, rows.flatten(), inputs.flatten(0, 1))
