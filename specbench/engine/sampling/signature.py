"""Sampling parameters written only when they changed: each table of the buffers has a signature of what it holds.

Two groups. The *request group* is the table by request; it holds the requests' normalised values, in order. The
*expanded group* is the table by logits row; it holds the same values, each as many times as its request has rows. A
step whose signature of a group equals the last one written leaves that group alone. Slots are in neither signature:
rows say nothing about slots.

In words of a batch: when a prompt turns into a generation request, or K changes, only the expanded group is written;
when a value, the order of unequal values or the number of requests changes, both are; equal requests that trade
places change nothing. An all-greedy step reads no parameters, so it touches neither the tables nor their signatures.

A field that a request leaves unset has its neutral value before it is signed (see
:class:`specbench.engine.sampling.params.SamplingParams`): ``top_p=0.9`` alone is temperature 1.0 with top_k off, and
signs like it. No top_k is 2147483647 in the signature as in the table. A new table is full of zeros and holds no
batch at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from specbench.device.base import Device
from specbench.engine.config import EngineConfig
from specbench.engine.sampling.buffers import FillCounters, ParameterTable, SamplingBuffers
from specbench.engine.sampling.metadata import NormalizedParams, SamplingRows
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.step_params import ParamsReader, StepParams

RequestSignature = tuple[ParameterTable, tuple[NormalizedParams, ...]]
"""A table by request, and the values written to it. The table counts too: another allocation holds something else."""
RowSignature = tuple[ParameterTable, tuple[NormalizedParams, ...], tuple[int, ...]]
"""A table by row, and the values and row counts written to it."""


@dataclass
class FillSignatures:
    """What is in the tables, as far as is known; None: nothing is.

    :ivar rows: given to the sampler by the step that filled the expanded group: its views, its facts, ``top_k_max``.
    """

    request: RequestSignature | None = None
    expanded: RowSignature | None = None
    rows: SamplingRows | None = None

    def clear(self) -> None:
        """Forget everything."""
        self.request = self.expanded = self.rows = None


class RefillNeeds(NamedTuple):
    """Which groups have to be written for a step."""

    request: bool
    expanded: bool


class SignatureSamplingParams:
    """Variant ``signature`` of the choice point ``sampling_params``.

    A shallow copy, as a captured step keeps one, is another view of the same tables. It shares ``signatures``: what
    either writes is known to both, and neither relies on what the other has overwritten.

    :param buffers: shared with the other variants of the engine. A view may be given buffers of its own: a signature
        names the table it is about, so that no view skips over a tensor that another one filled.
    """

    def __init__(self, buffers: SamplingBuffers) -> None:
        self.buffers = buffers
        self.signatures = FillSignatures()
        self.counters = FillCounters()
        self._reader = ParamsReader()

    def activate(self) -> None:
        """Forget what the tables hold: another variant may have written them."""
        self.invalidate()

    def invalidate(self) -> None:
        """Make the next sampled step write both groups, in every view."""
        self.signatures.clear()

    def read_counters(self) -> dict[str, int]:
        """See :class:`FillCounters`."""
        return asdict(self.counters)

    def needs_refill(self, params: Sequence[SamplingParams], row_counts: Sequence[int]) -> RefillNeeds:
        """Say what :meth:`fill` would write; changes nothing."""
        step = self._reader.read(params, row_counts)
        return RefillNeeds(False, False) if step.all_greedy else self._compare(step)

    def fill(
        self,
        params: Sequence[SamplingParams],
        row_counts: Sequence[int],
        slots: Sequence[int] | None = None,  # noqa: ARG002 - parameters are kept by row here
    ) -> SamplingRows:
        """See :class:`~specbench.engine.optimizations.choice_points.SamplingParamsFill`.

        An all-greedy step touches nothing.

        Skipping is safe while earlier steps wait: the device executes copies and steps in order, so what was last
        enqueued for a table is in it when this step runs.
        """
        step = self._reader.read(params, row_counts)
        if step.all_greedy:
            self.counters.skips += 1
            return self.buffers.view(step.facts)
        needs = self._compare(step)
        if needs.request:
            self._fill_request_group(step)
        rows = self.signatures.rows
        if rows is None or needs.expanded:
            rows = self._fill_expanded_group(step)
        if needs.request or needs.expanded:
            self.counters.fills += 1
        else:
            self.counters.hits += 1
        return rows

    def _compare(self, step: StepParams) -> RefillNeeds:
        signatures = self.signatures
        return RefillNeeds(
            signatures.request != self._sign_request(step), signatures.expanded != self._sign_expanded(step)
        )

    def _sign_request(self, step: StepParams) -> RequestSignature:
        return self.buffers.requests, step.values

    def _sign_expanded(self, step: StepParams) -> RowSignature:
        return self.buffers.rows, step.values, step.row_counts

    def _fill_request_group(self, step: StepParams) -> None:
        buffers = self.buffers
        self.signatures.request = None  # should the write fail half-way
        buffers.write(buffers.requests, step.values, [1] * len(step.values), self.counters)
        self.signatures.request = self._sign_request(step)

    def _fill_expanded_group(self, step: StepParams) -> SamplingRows:
        buffers, signatures = self.buffers, self.signatures
        signatures.expanded = None  # should the write fail half-way
        buffers.write(buffers.rows, step.values, step.row_counts, self.counters)
        signatures.expanded = self._sign_expanded(step)
        signatures.rows = rows = buffers.view(step.facts)
        return rows


def build_signature(config: EngineConfig, device: Device, buffers: SamplingBuffers) -> SignatureSamplingParams:  # noqa: ARG001
    """Build the variant for an engine."""
    return SignatureSamplingParams(buffers)
