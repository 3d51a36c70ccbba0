"""Sampling parameters refilled from scratch each step: the plain way, and what the other variants are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.device.base import Device
from specbench.engine.config import EngineConfig
from specbench.engine.sampling.metadata import NormalizedParams, RowFacts, SamplingRows, normalize
from specbench.engine.sampling.params import SamplingParams


@dataclass
class FillCounters:
    """What filling has cost so far.

    :ivar fills: steps that were filled; ``skips``: all-greedy steps, which touch nothing.
    :ivar appends: values appended to host lists.
    :ivar copies: host-to-device copies; ``bytes``: what they carried.
    """

    fills: int = 0
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


class RefillSamplingParams:
    """Variant ``refill`` of the choice point ``sampling_params``.

    :param copy_async: enqueues destination <- source; it reads the source when the copy executes, which may be after
        the next step was prepared, so every fill stages in tensors of its own.
    :param stage: puts a host tensor where ``copy_async`` may read it (pinned memory on CUDA).
    :ivar requests: [max_batch_size] parameters by request; ``rows``: [max_batch_size * (max K + 1)], by logits row.
    """

    def __init__(
        self,
        max_batch_size: int,
        max_draft_len: int,
        device: torch.device,
        copy_async: Callable[[Tensor, Tensor], None],
        stage: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._copy_async = copy_async
        self._stage = stage or (lambda source: source)
        self.requests = ParameterTable(max_batch_size, device)
        self.rows = ParameterTable(max_batch_size * (max_draft_len + 1), device)
        self.counters = FillCounters()

    def activate(self) -> None:
        """Nothing to forget: no fill relies on an earlier one."""

    def fill(
        self,
        params: Sequence[SamplingParams],
        row_counts: Sequence[int],
        slots: Sequence[int] | None = None,  # noqa: ARG002 - parameters are kept by row here
    ) -> SamplingRows:
        """See :class:`specbench.engine.optimizations.base.SamplingParamsFill`. An all-greedy step touches nothing."""
        normalized = [normalize(request) for request in params]
        facts = RowFacts.of(zip(normalized, row_counts, strict=True))
        if facts.num_sampled == 0:
            self.counters.skips += 1
        else:
            self.counters.fills += 1
            self._fill_table(self.requests, normalized, [1] * len(normalized))
            self._fill_table(self.rows, normalized, row_counts)
        num_rows = facts.num_rows
        rows = self.rows
        return SamplingRows(rows.temperature[:num_rows], rows.top_k[:num_rows], rows.top_p[:num_rows], facts)

    def _fill_table(
        self, table: ParameterTable, normalized: Sequence[NormalizedParams], row_counts: Sequence[int]
    ) -> None:
        temperatures: list[float] = []
        top_ks: list[int] = []
        top_ps: list[float] = []
        for (temperature, top_k, top_p), num_rows in zip(normalized, row_counts, strict=True):
            for _ in range(num_rows):
                temperatures.append(temperature)
                top_ks.append(top_k)
                top_ps.append(top_p)
        self.counters.appends += len(temperatures) + len(top_ks) + len(top_ps)
        self._copy(table.temperature, torch.tensor(temperatures, dtype=torch.float32))
        self._copy(table.top_k, torch.tensor(top_ks, dtype=torch.int64))
        self._copy(table.top_p, torch.tensor(top_ps, dtype=torch.float32))

    def _copy(self, buffer: Tensor, values: Tensor) -> None:
        self._copy_async(buffer[: values.shape[0]], self._stage(values))
        self.counters.copies += 1
        self.counters.bytes += values.numel() * values.element_size()


def build_refill(config: EngineConfig, device: Device) -> RefillSamplingParams:
    """Build the variant for an engine."""
    max_draft_len = config.drafter.max_draft_len
    return RefillSamplingParams(
        config.max_batch_size, max_draft_len, device.torch_device, device.copy_async, device.stage
    )
