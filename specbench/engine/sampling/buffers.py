"""The device buffers of sampling parameters: one set an engine, whichever variant of ``sampling_params`` fills them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.device.base import Device
from specbench.engine.config import EngineConfig
from specbench.engine.sampling.metadata import NormalizedParams, RowFacts, SamplingRows


@dataclass
class FillCounters:
    """What one variant's filling has cost so far.

    :ivar fills: steps that wrote to the buffers.
    :ivar hits: sampled steps that found their parameters there and wrote nothing.
    :ivar skips: all-greedy steps, which touch nothing.
    :ivar appends: values appended to host lists.
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


class SamplingBuffers:
    """Where sampling parameters lie on the device. It keeps no record of what was written: that is the variants' own.

    :param copy_async: enqueues destination <- source; it reads the source when the copy executes, which may be after
        the next step was prepared, so every write stages in tensors of its own.
    :param stage: puts a host tensor where ``copy_async`` may read it (pinned memory on CUDA).
    :ivar requests: [max_batch_size] parameters by request; ``rows``: [max_batch_size * (max K + 1)], by logits row.
    """

    requests: ParameterTable
    rows: ParameterTable

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
        """Replace both tables by new ones of this size, with nothing in them. No step may be in flight."""
        self.requests = ParameterTable(max_batch_size, self._device)
        self.rows = ParameterTable(max_batch_size * (max_draft_len + 1), self._device)

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
        self._copy(table.temperature, torch.tensor(temperatures, dtype=torch.float32), counters)
        self._copy(table.top_k, torch.tensor(top_ks, dtype=torch.int64), counters)
        self._copy(table.top_p, torch.tensor(top_ps, dtype=torch.float32), counters)

    def _copy(self, buffer: Tensor, values: Tensor, counters: FillCounters) -> None:
        self._copy_async(buffer[: values.shape[0]], self._stage(values))
        counters.copies += 1
        counters.bytes += values.numel() * values.element_size()

    def view(self, facts: RowFacts) -> SamplingRows:
        """What the sampler is given for a step with these rows: the front of the row table, and the facts."""
        num_rows, rows = facts.num_rows, self.rows
        return SamplingRows(rows.temperature[:num_rows], rows.top_k[:num_rows], rows.top_p[:num_rows], facts)


def build_buffers(config: EngineConfig, device: Device) -> SamplingBuffers:
    """Build what the variants of ``sampling_params`` share in one engine."""
    max_draft_len = config.drafter.max_draft_len
    return SamplingBuffers(config.max_batch_size, max_draft_len, device.torch_device, device.copy_async, device.stage)
