"""The device buffers of sampling parameters: one set an engine, whichever variant of ``sampling_params`` fills them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specbench.device.base import Device
from specbench.engine.config import EngineConfig
from specbench.engine.sampling.metadata import NormalizedParams, RowFacts, SamplingRows


@dataclass
class FillCounters:
    """What one variant's filling has cost the host so far.

    :ivar fills: sampled steps for which something was copied to the device.
    :ivar hits: sampled steps that found on the device what they needed and copied nothing.
    :ivar skips: all-greedy steps, which touch nothing.
    :ivar appends: values put into host lists one by one.
    :ivar copies: host-to-device copies; ``bytes``: what they carried.
    """

    fills: int = 0
    hits: int = 0
    skips: int = 0
    appends: int = 0
    copies: int = 0
    bytes: int = 0


class ParameterTable:
    """Device buffers of temperature, top_k and top_p, allocated once; rows say nothing about slots.

    :ivar temperature: [capacity] float32; ``top_k``: int64; ``top_p``: float32.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.temperature = torch.zeros(capacity, dtype=torch.float32, device=device)
        self.top_k = torch.zeros(capacity, dtype=torch.int64, device=device)
        self.top_p = torch.zeros(capacity, dtype=torch.float32, device=device)


class SlotTables:
    """Parameters by slot, and the slot behind each logits row, for rows that the device gathers by itself.

    What is to be written arrives as records of three int64 words: slot, top_k, and temperature with top_p as the two
    float32 halves of the third. One copy carries any number of them.

    :ivar parameters: by slot, padding's own behind the last.
    :ivar records: [slots, 3] int64, where records arrive.
    :ivar row_slots: [rows] int64, which slot's parameters each logits row takes.
    """

    RECORD_WORDS = 3
    _SLOT, _TOP_K = 0, 1  # words
    _TEMPERATURE, _TOP_P = 4, 5  # halves of words

    def __init__(self, max_batch_size: int, num_rows: int, device: torch.device) -> None:
        num_slots = max_batch_size + 1
        self.parameters = ParameterTable(num_slots, device)
        self.records = torch.zeros((num_slots, self.RECORD_WORDS), dtype=torch.int64, device=device)
        self.row_slots = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self._halves = self.records.view(torch.float32)

    @classmethod
    def pack(cls, values: Mapping[int, NormalizedParams]) -> Tensor:
        """One record a slot, on the host; [len(values), 3] int64, in memory of its own."""
        temperatures, top_ks, top_ps = zip(*values.values(), strict=True)
        words = np.empty((len(values), cls.RECORD_WORDS), dtype=np.int64)
        halves = words.view(np.float32)
        words[:, cls._SLOT] = list(values)
        words[:, cls._TOP_K] = top_ks
        halves[:, cls._TEMPERATURE] = temperatures
        halves[:, cls._TOP_P] = top_ps
        return torch.from_numpy(words)

    def write(self, num_records: int) -> None:
        """Put the first records where their slots are. A device operation, for device programs alone."""
        words, halves, table = self.records[:num_records], self._halves[:num_records], self.parameters
        slots = words[:, self._SLOT]
        table.temperature.index_copy_(0, slots, halves[:, self._TEMPERATURE])
        table.top_k.index_copy_(0, slots, words[:, self._TOP_K])
        table.top_p.index_copy_(0, slots, halves[:, self._TOP_P])

    def gather(self, rows: SamplingRows) -> None:
        """Fill every row of a step from its slot. A device operation, for device programs alone."""
        index, table = self.row_slots[: rows.facts.num_rows], self.parameters
        torch.index_select(table.temperature, 0, index, out=rows.temperature)
        torch.index_select(table.top_k, 0, index, out=rows.top_k)
        torch.index_select(table.top_p, 0, index, out=rows.top_p)


class SamplingBuffers:
    """Where sampling parameters lie on the device. It keeps no record of what was written: that is the variants' own.

    :param copy_async: enqueues destination <- source; it reads the source when the copy executes, which may be after
        the next step was prepared, so every write stages in tensors of its own.
    :param stage: puts a host tensor where ``copy_async`` may read it (pinned memory on CUDA).
    :ivar requests: [max_batch_size] parameters by request; ``rows``: [max_batch_size * (max K + 1)], by logits row.
    :ivar slots: parameters by slot.
    """

    requests: ParameterTable
    rows: ParameterTable
    slots: SlotTables

    def __init__(
        self,
        max_batch_size: int,
        max_draft_len: int,
        device: torch.device,
        copy_async: Callable[[Tensor, Tensor], None],
        stage: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._device = device
        self._copy_async = copy_async
        self._stage = stage or (lambda source: source)
        self.allocate(max_batch_size, max_draft_len)

    def allocate(self, max_batch_size: int, max_draft_len: int) -> None:
        """Replace all tables by new ones of this size, with nothing in them. No step may be in flight."""
        num_rows = max_batch_size * (max_draft_len + 1)
        self.requests = ParameterTable(max_batch_size, self._device)
        self.rows = ParameterTable(num_rows, self._device)
        self.slots = SlotTables(max_batch_size, num_rows, self._device)

    def write(
        self,
        table: ParameterTable,
        normalized: Sequence[NormalizedParams],
        row_counts: Sequence[int],
        counters: FillCounters,
    ) -> None:
        """Enqueue the copies that put each request's parameters in ``row_counts`` consecutive rows of ``table``."""
        temperatures: list[float] = []
        top_ks: list[int] = []
        top_ps: list[float] = []
        for (temperature, top_k, top_p), num_rows in zip(normalized, row_counts, strict=True):
            for _ in range(num_rows):
                temperatures.append(temperature)
                top_ks.append(top_k)
                top_ps.append(top_p)
        counters.appends += len(temperatures) + len(top_ks) + len(top_ps)
        self.copy(table.temperature, torch.tensor(temperatures, dtype=torch.float32), counters)
        self.copy(table.top_k, torch.tensor(top_ks, dtype=torch.int64), counters)
        self.copy(table.top_p, torch.tensor(top_ps, dtype=torch.float32), counters)

    def copy(self, buffer: Tensor, values: Tensor, counters: FillCounters) -> None:
        """Enqueue one copy to the front of ``buffer``. ``values`` is the caller's no more: it is read later."""
        self._copy_async(buffer[: values.shape[0]], self._stage(values))
        counters.copies += 1
        counters.bytes += values.numel() * values.element_size()

    def view(self, facts: RowFacts) -> SamplingRows:
        """What the sampler is given for a step with these rows: the front of the row table, and the facts."""
        num_rows, rows = facts.num_rows, self.rows
        return SamplingRows(rows.temperature[:num_rows], rows.top_k[:num_rows], rows.top_p[:num_rows], facts)


def build_buffers(config: EngineConfig, device: Device) -> SamplingBuffers:
    """Build what the variants of ``sampling_params`` share in one engine."""
    num_drafts = config.drafter.max_rows - 1
    return SamplingBuffers(config.max_batch_size, num_drafts, device.torch_device, device.copy_async, device.stage)
