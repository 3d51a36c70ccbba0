"""What must hold of a variant of ``sampling_params``, whichever it is.

Each check takes what builds the variant, so that a broken one can be put to it: a check that a mechanism could pass
without is no check.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from sampling_reference import CPU, Queue

from specbench.engine.sampling.buffers import FillCounters, SamplingBuffers
from specbench.engine.sampling.device_gather import DeviceGatherSamplingParams
from specbench.engine.sampling.metadata import SamplingRows
from specbench.engine.sampling.params import TOP_K_OFF, SamplingParams
from specbench.engine.sampling.refill import RefillSamplingParams
from specbench.engine.sampling.signature import SignatureSamplingParams

MAX_BATCH_SIZE, MAX_DRAFT_LEN = 8, 4
GREEDY = SamplingParams()
A = SamplingParams(temperature=0.7, top_k=50, top_p=0.9, seed=1)
LIKE_A = replace(A, seed=2, max_tokens=9)
B = SamplingParams(temperature=1.5, top_k=20, seed=3)

Filler = RefillSamplingParams | SignatureSamplingParams | DeviceGatherSamplingParams


@dataclass(frozen=True)
class Step:
    """What a step asks to be filled."""

    params: Sequence[SamplingParams]
    row_counts: Sequence[int]
    slots: Sequence[int] | None = None

    @property
    def places(self) -> list[int]:
        return list(range(len(self.params)) if self.slots is None else self.slots)

    def fill(self, filler: Filler) -> SamplingRows:
        """With lists of its own, as the engine makes them each step."""
        slots = None if self.slots is None else list(self.slots)
        return filler.fill(list(self.params), list(self.row_counts), slots)


class Setup:
    """Buffers behind a queue."""

    def __init__(
        self,
        *,
        is_late: bool = False,
        buffers: type[SamplingBuffers] = SamplingBuffers,
        num_slots: int = MAX_BATCH_SIZE,
    ) -> None:
        self.queue = Queue(is_late=is_late)
        self.buffers = buffers(num_slots, MAX_DRAFT_LEN, CPU, self.queue.copy)


Make = Callable[[Setup], Filler]


def of(variant: type[Any]) -> Make:
    """What builds ``variant``, broken or not."""
    if issubclass(variant, DeviceGatherSamplingParams):
        return lambda setup: variant(setup.buffers, setup.queue.launch)
    return lambda setup: variant(setup.buffers)


REFILL, SIGNATURE, DEVICE_GATHER = (
    of(variant) for variant in (RefillSamplingParams, SignatureSamplingParams, DeviceGatherSamplingParams)
)
VARIANTS = {"refill": REFILL, "signature": SIGNATURE, "device_gather": DEVICE_GATHER}
every_variant = pytest.mark.parametrize("make", list(VARIANTS.values()), ids=list(VARIANTS))


def tensors(rows: SamplingRows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return rows.temperature, rows.top_k, rows.top_p


def by_request(filler: Filler, step: Step) -> list[tuple[float, int, float]]:
    """The requests' parameters, from where the variant keeps them."""
    if isinstance(filler, DeviceGatherSamplingParams):
        table, index = filler.buffers.slots.parameters, torch.tensor(step.places)
    else:
        table, index = filler.buffers.requests, torch.arange(len(step.params))
    columns = (table.temperature[index].tolist(), table.top_k[index].tolist(), table.top_p[index].tolist())
    return list(zip(*columns, strict=True))


def full_refill(step: Step) -> tuple[SamplingRows, list[tuple[float, int, float]]]:
    """What a forced refill puts into buffers of its own: rows, and parameters by request."""
    reference = RefillSamplingParams(Setup(num_slots=max(MAX_BATCH_SIZE, len(step.params))).buffers)
    return step.fill(reference), by_request(reference, step)


def assert_like_full_refill(filler: Filler, step: Step) -> None:
    """Fill on a device that executes at once, and compare every buffer and fact with a full refill."""
    expected, requests = full_refill(step)
    found = step.fill(filler)
    assert found.facts == expected.facts
    assert found.top_k_max == expected.top_k_max
    if not expected.all_greedy:
        assert found.temperature.data_ptr() == filler.buffers.rows.temperature.data_ptr()
        for ours, theirs in zip(tensors(found), tensors(expected), strict=True):
            assert torch.equal(ours, theirs), step
        assert by_request(filler, step) == requests, step


# Row 1.5


def check_shared_by_copies(make: Make) -> None:
    """What one view overwrites, the other must not take for its own."""
    live = make(Setup())
    captured = copy.copy(live)
    both = Step([A, B], [5, 5])
    for view, step in [
        (captured, both), (live, both), (captured, Step([B], [5])), (live, both), (live, Step([A, A], [1, 5])),
        (captured, Step([A, B], [1, 5])), (live, Step([A, A], [1, 5])), (captured, both),
    ]:  # fmt: skip
        assert_like_full_refill(view, step)


# Row 1.6


def check_sequence(make: Make) -> None:
    """First fill, steady, generation to context, steady, a value changes, requests reorder, leave, come, mix."""
    filler = make(Setup())
    cooler = replace(B, temperature=0.3)
    for step in [
        Step([A, B], [5, 5], [0, 1]),
        Step([A, B], [5, 5], [0, 1]),
        Step([A, B], [1, 5], [0, 1]),
        Step([A, B], [1, 5], [0, 1]),
        Step([A, cooler], [1, 5], [0, 1]),
        Step([cooler, A], [1, 5], [1, 0]),
        Step([cooler, A], [5, 1], [1, 0]),
        Step([A, GREEDY], [5, 5], [0, 1]),
        Step([A, GREEDY, B], [3, 3, 1], [0, 1, 7]),
        Step([B], [3], [7]),
        Step([A, B], [1, 3], [7, 0]),
        Step([GREEDY, GREEDY], [1, 3], [7, 0]),
        Step([A, B], [1, 3], [7, 0]),
        Step([B, A], [3, 0], [0, 7]),
        Step([B, B], [3, 3], [0, 7]),
    ]:
        assert_like_full_refill(filler, step)


def check_greedy_steps_between(make: Make) -> None:
    """An all-greedy step touches nothing, so the next sampled step finds what the one before it left."""
    setup = Setup()
    filler = make(setup)
    sampled, greedy = Step([A, B], [5, 5]), Step([GREEDY, SamplingParams(temperature=0.0)], [5, 5])
    assert_like_full_refill(filler, sampled)
    before = (setup.queue.num_copies, len(setup.queue.launched))
    rows = greedy.fill(filler)
    assert rows.all_greedy
    assert rows.is_greedy.tolist() == [True] * 10
    assert (setup.queue.num_copies, len(setup.queue.launched)) == before
    assert_like_full_refill(filler, sampled)
    assert filler.counters.skips == 1
    if not isinstance(filler, RefillSamplingParams):
        assert setup.queue.num_copies == before[0]
        assert (filler.counters.fills, filler.counters.hits) == (1, 1)


def check_late_device(make: Make, buffers: type[SamplingBuffers] = SamplingBuffers) -> None:
    """Steps are prepared while none has run: each must find its own values when its turn comes."""
    setup = Setup(is_late=True, buffers=buffers)
    filler = make(setup)
    prepared = []
    for step in [
        Step([A, B], [5, 5], [0, 1]),
        Step([B, A], [5, 5], [0, 1]),
        Step([B, A, A], [2, 2, 1], [1, 0, 3]),
        Step([B, A, A], [2, 2, 2], [1, 0, 3]),
        Step([GREEDY, A], [2, 2], [1, 0]),
    ]:
        rows = step.fill(filler)
        prepared.append((step, rows, len(setup.queue.pending)))
    done = 0
    for step, rows, num_items in prepared:
        setup.queue.run(num_items - done)
        done = num_items
        expected, requests = full_refill(step)
        for ours, theirs in zip(tensors(rows), tensors(expected), strict=True):
            assert torch.equal(ours, theirs), step
        assert by_request(filler, step) == requests


class OneStagingBuffer(SamplingBuffers):
    """Stages every copy to a buffer in the same host tensor."""

    def copy(self, buffer: torch.Tensor, values: torch.Tensor, counters: FillCounters) -> None:
        self.reused: dict[int, torch.Tensor] = getattr(self, "reused", {})
        staging = self.reused.setdefault(buffer.data_ptr(), torch.empty_like(buffer))[: values.shape[0]]
        staging.copy_(values)
        super().copy(buffer, staging, counters)


def check_activation(make: Make) -> None:
    """After another variant has stood, whatever it wrote."""
    step, other_step = Step([A, B], [5, 5]), Step([B, A], [5, 5])
    for make_other in VARIANTS.values():
        setup = Setup()
        filler, other = make(setup), make_other(setup)
        filler.activate()
        assert_like_full_refill(filler, step)
        other.activate()
        assert_like_full_refill(other, other_step)
        filler.activate()
        assert_like_full_refill(filler, step)


# Row 1.7


def check_reallocation(make: Make) -> None:
    """New tables hold nothing, in every view; a view whose tables are its own says nothing about the live ones."""
    live = make(Setup())
    captured = copy.copy(live)
    step = Step([replace(A, top_k=None), replace(B, top_k=0)], [5, 5])
    assert_like_full_refill(captured, step)
    live.buffers.allocate(MAX_BATCH_SIZE + 1, MAX_DRAFT_LEN)
    assert_like_full_refill(captured, step)
    assert_like_full_refill(live, step)
    captured.buffers = Setup().buffers
    for view in (captured, live, captured):
        assert_like_full_refill(view, step)


def check_no_top_k(make: Make) -> None:
    """No top_k is 2147483647; a new table is full of zeros, which is something else."""
    filler = make(Setup())
    assert filler.buffers.rows.top_k.tolist()[:2] == [0, 0]
    step = Step([replace(A, top_k=None)], [2])
    assert step.fill(filler).top_k.tolist() == [TOP_K_OFF, TOP_K_OFF] == [2147483647] * 2
    for top_k in (0, TOP_K_OFF, TOP_K_OFF - 1, None):
        assert_like_full_refill(filler, Step([replace(A, top_k=top_k)], [2]))


# Row 1.8

UNSET = {
    SamplingParams(top_p=0.9): (1.0, TOP_K_OFF, 0.9),
    SamplingParams(top_k=40): (1.0, 40, 1.0),
    SamplingParams(temperature=0.7): (0.7, TOP_K_OFF, 1.0),
    SamplingParams(top_k=40, top_p=0.9): (1.0, 40, 0.9),
    SamplingParams(temperature=0.7, top_p=0.9): (0.7, TOP_K_OFF, 0.9),
}
"""A request that is sampled, one field or two unset -> its row."""


def check_unset_fields(make: Make) -> None:
    """A field that a sampled request leaves unset is neutral; only a request with none at all is greedy for it."""
    for params, row in UNSET.items():
        rows = Step([params, GREEDY], [1, 1]).fill(make(Setup()))
        assert rows.facts.num_sampled == 1, params
        assert (rows.temperature[0].item(), rows.top_k[0].item(), rows.top_p[0].item()) == pytest.approx(row)
