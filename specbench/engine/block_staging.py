"""Block offsets on their way to the device: where the blocks of each request lie, for attention to read.

A step's offsets are one int32 tensor [pools, requests, 2 (keys, values), columns], in staging memory that belongs to
this step alone: the copy reads it when it executes, which may be after the next step was prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specbench.device.base import Device
from specbench.engine.block_manager import Slots
from specbench.engine.config import EngineConfig

EmptyStaging = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Returns uninitialised host memory that an asynchronous copy may read; see :meth:`Device.empty_staging`."""


class BlockOffsetSource(Protocol):
    """Whatever owns the blocks of one pool: here :class:`specbench.engine.block_manager.BlockManager`.

    Every method takes the cap, ``max_kv_len``: no token of a request from there on is read. None: there is no cap. A
    source made of others (self and cross attention, the beams of a request) hands the cap on to each.
    """

    version: int
    """Another number whenever offsets have changed."""

    def first_changed_column(self, since: int) -> int:
        """No offset left of this column has changed since ``version`` was ``since``; 0 where that is not known."""
        ...

    def num_columns(self, max_kv_len: int | None = None) -> int:
        """Columns of offsets under the cap."""
        ...

    def write_block_offsets(
        self, offsets: npt.NDArray[np.int32], slots: Slots, max_kv_len: int | None = None, first_column: int = 0
    ) -> None:
        """Fill ``offsets`` with those of ``slots``, in that order, from ``first_column`` on.

        :param offsets: [len(slots), 2, num_columns(max_kv_len) - first_column].
        """
        ...


@dataclass
class StagingCounters:
    """What one variant has staged so far.

    :ivar steps: steps that staged offsets; ``columns``: of all of them together.
    :ivar gated_steps: steps staged in full width because speculation may read past what the host knows.
    :ivar bytes: size of all that was staged, which is what is copied to the device.
    """

    steps: int = 0
    columns: int = 0
    gated_steps: int = 0
    bytes: int = 0


class FullBlockStaging:
    """Variant ``full`` of the choice point ``block_staging``: every column a sequence may ever use, each time."""

    def __init__(self, empty_staging: EmptyStaging) -> None:
        self._empty_staging = empty_staging
        self.counters = StagingCounters()

    def activate(self) -> None:
        """Nothing to forget: what is staged relies on nothing that was."""

    def read_counters(self) -> dict[str, int]:
        """See :class:`StagingCounters`."""
        return asdict(self.counters)

    def cap(self, max_kv_len: int) -> int | None:  # noqa: ARG002 - there is none
        """The cap that sources are given in a step where the host counts ``max_kv_len``."""
        return None

    def num_columns(self, sources: Sequence[BlockOffsetSource], max_kv_len: int) -> int:
        """See :class:`~specbench.engine.optimizations.choice_points.BlockStaging`."""
        return sources[0].num_columns(self.cap(max_kv_len))

    def stage(
        self,
        sources: Sequence[BlockOffsetSource],
        slots: Slots,
        max_kv_len: int,
        first_column: int = 0,  # noqa: ARG002 - every column, each time
    ) -> Tensor:
        """See :class:`~specbench.engine.optimizations.choice_points.BlockStaging`."""
        return self._stage(sources, slots, self.cap(max_kv_len), 0)

    def _stage(self, sources: Sequence[BlockOffsetSource], slots: Slots, cap: int | None, first_column: int) -> Tensor:
        num_columns = sources[0].num_columns(cap) - first_column
        staged = self._empty_staging((len(sources), len(slots), 2, num_columns), torch.int32)
        for offsets, source in zip(staged.numpy(), sources, strict=True):
            source.write_block_offsets(offsets, slots, cap, first_column)
        self.counters.steps += 1
        self.counters.columns += num_columns
        self.counters.bytes += staged.numel() * staged.element_size()
        return staged


class BoundedBlockStaging(FullBlockStaging):
    """Variant ``bounded``: the columns that hold the longest sequence of the batch, as long as the host counts it.

    Of those, a step that goes on from the last one is given the ones that may have changed.

    :param can_outrun_host: device lengths may run ahead of the host's count, and blocks of draft tokens are allocated
        before they are counted. All columns are staged then.
    """

    def __init__(self, empty_staging: EmptyStaging, *, can_outrun_host: bool) -> None:
        super().__init__(empty_staging)
        self._can_outrun_host = can_outrun_host

    def cap(self, max_kv_len: int) -> int | None:
        """See :meth:`FullBlockStaging.cap`."""
        return None if self._can_outrun_host else max_kv_len

    def stage(
        self, sources: Sequence[BlockOffsetSource], slots: Slots, max_kv_len: int, first_column: int = 0
    ) -> Tensor:
        """See :class:`~specbench.engine.optimizations.choice_points.BlockStaging`."""
        self.counters.gated_steps += self._can_outrun_host
        return self._stage(sources, slots, self.cap(max_kv_len), first_column)


def build_full(config: EngineConfig, device: Device) -> FullBlockStaging:  # noqa: ARG001
    """Build the variant for an engine."""
    return FullBlockStaging(device.empty_staging)


def build_bounded(config: EngineConfig, device: Device) -> BoundedBlockStaging:
    """Build the variant for an engine. Any drafter gates it, whatever its draft length in a step."""
    return BoundedBlockStaging(device.empty_staging, can_outrun_host=config.drafter.speculates)
