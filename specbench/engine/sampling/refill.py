"""Sampling parameters refilled from scratch each step: the plain way, and what the other variants are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from specbench.device.base import Device
from specbench.engine.config import EngineConfig
from specbench.engine.sampling.buffers import FillCounters, SamplingBuffers
from specbench.engine.sampling.metadata import RowFacts, SamplingRows, normalize
from specbench.engine.sampling.params import SamplingParams


class RefillSamplingParams:
    """Variant ``refill`` of the choice point ``sampling_params``: six copies a step, whatever was there before.

    :param buffers: shared with the other variants of the engine.
    """

    def __init__(self, buffers: SamplingBuffers) -> None:
        self.buffers = buffers
        self.counters = FillCounters()

    def activate(self) -> None:
        """Nothing to forget: no fill relies on an earlier one."""

    def read_counters(self) -> dict[str, int]:
        """See :class:`FillCounters`."""
        return asdict(self.counters)

    def fill(
        self,
        params: Sequence[SamplingParams],
        row_counts: Sequence[int],
        slots: Sequence[int] | None = None,  # noqa: ARG002 - parameters are kept by row here
    ) -> SamplingRows:
        """See :class:`~specbench.engine.optimizations.choice_points.SamplingParamsFill`.

        An all-greedy step touches nothing.
        """
        buffers = self.buffers
        normalized = [normalize(request) for request in params]
        facts = RowFacts.of(zip(normalized, row_counts, strict=True))
        if facts.num_sampled == 0:
            self.counters.skips += 1
        else:
            self.counters.fills += 1
            buffers.write(buffers.requests, normalized, [1] * len(normalized), self.counters)
            buffers.write(buffers.rows, normalized, row_counts, self.counters)
        return buffers.view(facts)


def build_refill(config: EngineConfig, device: Device, buffers: SamplingBuffers) -> RefillSamplingParams:  # noqa: ARG001
    """Build the variant for an engine."""
    return RefillSamplingParams(buffers)
