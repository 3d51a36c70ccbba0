"""How a step tells the device which slot's recurrent state each of its requests uses.

Both variants of the toggle ``state_indices`` write the same device buffer, [2, requests] int64: slots, then 1 for each
padding request. Staging is fresh each step, since a copy reads its source when it executes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from specbench.device.base import Device
from specbench.engine.config import EngineConfig


@dataclass(frozen=True)
class StateIndices:
    """Of each request of a step, context requests first; int64 [requests] on the device.

    Views of buffers that the next fill writes, in the order of the device's stream.

    :param slots: whose state it is; of a padding request any slot, nothing is written there.
    :param is_padding: 1 for a padding request, else 0.
    """

    slots: Tensor
    is_padding: Tensor

    @classmethod
    def of(cls, slots: Sequence[int], device: torch.device) -> StateIndices:
        """Indices of their own, without padding, for a forward beside the engine."""
        made = torch.tensor(slots, dtype=torch.int64, device=device)
        return cls(made, torch.zeros_like(made))


@dataclass
class IndexCounters:
    """Since the engine was built: steps filled, list conversions, element writes, copies and bytes to the device."""

    fills: int = 0
    conversions: int = 0
    element_writes: int = 0
    copies: int = 0
    bytes: int = 0


class StateIndexBuffers:
    """What the variants of ``state_indices`` fill; allocated once an engine.

    :param max_requests: most requests of a step, padding requests included.
    """

    def __init__(self, max_requests: int, device: Device) -> None:
        self.device = device
        self._memory = torch.zeros(2 * max_requests, dtype=torch.int64, device=device.torch_device)

    def rows(self, num_requests: int) -> Tensor:
        """The part that a step of ``num_requests`` uses, [2, num_requests]; the same memory for the same number.

        :raises ValueError: more requests than there is room for.
        """
        if 2 * num_requests > self._memory.shape[0]:
            raise ValueError(f"{num_requests} requests, room for {self._memory.shape[0] // 2}")
        return self._memory[: 2 * num_requests].view(2, num_requests)

    def send(self, staged: Tensor, counters: IndexCounters) -> StateIndices:
        """Enqueue the one copy of a step: ``staged`` is [2, requests] in staging memory."""
        rows = self.rows(staged.shape[1])
        if staged.numel():
            self.device.copy_async(rows, staged)
            counters.copies += 1
            counters.bytes += staged.numel() * staged.element_size()
        counters.fills += 1
        return StateIndices(rows[0], rows[1])


def require_one_each(slots: Sequence[int], is_padding: Sequence[bool]) -> None:
    """Refuse a list of another length than the batch, above all a single index, which a copy would broadcast.

    :raises ValueError: the lengths differ.
    """
    if len(slots) != len(is_padding):
        raise ValueError(f"{len(slots)} state indices for {len(is_padding)} requests: one each is needed")


class _Indices:
    """What both variants have: the buffers they share, and counters of their own."""

    def __init__(self, buffers: StateIndexBuffers) -> None:
        self.buffers = buffers
        self.counters = IndexCounters()

    def activate(self) -> None:
        """Nothing to forget: no fill relies on an earlier one."""

    def read_counters(self) -> dict[str, int]:
        """See :class:`IndexCounters`."""
        return asdict(self.counters)


class PerRequestIndices(_Indices):
    """Variant ``per_request``: read one scalar and write one element of the staged tensor, request by request."""

    def fill(self, slots: Sequence[int], is_padding: Sequence[bool]) -> StateIndices:
        """See :class:`~specbench.engine.optimizations.choice_points.StateIndicesFill`."""
        require_one_each(slots, is_padding)
        staged = self.buffers.device.empty_staging((2, len(slots)), torch.int64)
        indices, padding = staged
        padding.zero_()
        for request in range(len(slots)):
            indices[request] = slots[request]
            if is_padding[request]:
                padding[request] = 1
        self.counters.element_writes += len(slots) + sum(is_padding)
        return self.buffers.send(staged, self.counters)


class BulkIndices(_Indices):
    """Variant ``bulk``: one conversion of the lists, one copy."""

    def fill(self, slots: Sequence[int], is_padding: Sequence[bool]) -> StateIndices:
        """See :class:`~specbench.engine.optimizations.choice_points.StateIndicesFill`."""
        require_one_each(slots, is_padding)
        # numpy reads Python lists three times as fast as torch does.
        converted = torch.from_numpy(np.array((slots, is_padding), dtype=np.int64))
        self.counters.conversions += 1
        return self.buffers.send(self.buffers.device.stage(converted), self.counters)


def build_buffers(config: EngineConfig, device: Device) -> StateIndexBuffers:
    """Build what the variants share."""
    return StateIndexBuffers(config.max_batch_size, device)


def build_per_request(config: EngineConfig, device: Device, buffers: StateIndexBuffers) -> PerRequestIndices:  # noqa: ARG001
    """Build the variant for an engine."""
    return PerRequestIndices(buffers)


def build_bulk(config: EngineConfig, device: Device, buffers: StateIndexBuffers) -> BulkIndices:  # noqa: ARG001
    """Build the variant for an engine."""
    return BulkIndices(buffers)
