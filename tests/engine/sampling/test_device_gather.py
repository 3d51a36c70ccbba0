"""Variant ``device_gather`` of ``sampling_params``: what the host sends, what the device does, and in which order.

That it fills what a refill fills is in ``test_sampling_params_rows``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from call_counts import count_calls
from sampling_reference import CPU, Queue
from variant_checks import (
    GREEDY,
    A,
    B,
    OneStagingBuffer,
    Setup,
    Step,
    by_request,
    check_late_device,
    full_refill,
    of,
    tensors,
)

from specbench.device.cpu import CpuDevice
from specbench.engine.sampling.buffers import SamplingBuffers
from specbench.engine.sampling.device_gather import GATHER, DeviceGatherSamplingParams
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.refill import RefillSamplingParams
from specbench.profiling.window import WindowTracer

RECORD_BYTES = 24


def gathering(setup: Setup) -> DeviceGatherSamplingParams:
    filler = of(DeviceGatherSamplingParams)(setup)
    assert isinstance(filler, DeviceGatherSamplingParams)
    return filler


# What is sent: counts

SENT: list[tuple[str, Step, int, int]] = [
    ("first call", Step([A, B], [5, 5], [0, 1]), 2, 10),
    ("steady", Step([A, B], [5, 5], [0, 1]), 0, 0),
    ("a request takes a slot, as context", Step([B, A, B], [1, 5, 5], [7, 0, 1]), 1, 11),
    ("context becomes generation, rows by slot", Step([A, B, B], [5, 5, 5], [0, 1, 7]), 0, 15),
    ("K changes", Step([A, B, B], [3, 3, 3], [0, 1, 7]), 0, 9),
    ("a value changes", Step([A, A, B], [3, 3, 3], [0, 1, 7]), 1, 0),
    ("a request leaves", Step([A, B], [3, 3], [0, 7]), 0, 6),
    ("its slot is taken by one like it", Step([A, A, B], [3, 3, 3], [0, 1, 7]), 0, 9),
    ("all greedy", Step([GREEDY, GREEDY, GREEDY], [3, 3, 3], [0, 1, 7]), 0, 0),
    ("a greedy row beside sampled ones", Step([A, GREEDY, B], [3, 3, 3], [0, 1, 7]), 1, 0),
]
"""What happens, the step, records sent (one a slot that changed) and rows whose slot is sent (0: the index holds)."""


def check_what_is_sent(variant: type[DeviceGatherSamplingParams]) -> None:
    setup = Setup()
    filler = of(variant)(setup)
    queue, counted = setup.queue, filler.counters
    for name, step, num_records, num_index in SENT:
        before = replace(counted)
        num_copies, num_bytes, num_programs = queue.num_copies, queue.num_bytes, len(queue.launched)
        all_greedy = step.fill(filler).all_greedy
        assert counted.appends - before.appends == 4 * num_records, name
        assert counted.copies - before.copies == (num_records > 0) + (num_index > 0), name
        assert counted.bytes - before.bytes == RECORD_BYTES * num_records + 8 * num_index, name
        assert queue.num_copies - num_copies == counted.copies - before.copies, name
        assert queue.num_bytes - num_bytes == counted.bytes - before.bytes, name
        assert queue.launched[num_programs:] == ([] if all_greedy else [GATHER]), name
    steps = filler.read_counters()
    assert (steps["fills"], steps["hits"], steps["skips"], steps["gathers"]) == (8, 1, 1, 9)


def test_row_1_3_only_what_changed_is_sent_and_counted() -> None:
    check_what_is_sent(DeviceGatherSamplingParams)


class SendsTheIndexEachStep(DeviceGatherSamplingParams):
    """Reuses no index."""

    def fill(self, params, row_counts, slots=None):  # type: ignore[no-untyped-def]
        self.contents.index = self.contents.last = None
        return super().fill(params, row_counts, slots)


class SendsEverySlot(DeviceGatherSamplingParams):
    """Remembers no slot."""

    def fill(self, params, row_counts, slots=None):  # type: ignore[no-untyped-def]
        self.contents.values.clear()
        self.contents.last = None
        return super().fill(params, row_counts, slots)


@pytest.mark.parametrize("broken", [SendsTheIndexEachStep, SendsEverySlot])
def test_row_1_3_sending_too_much_is_seen(broken: type[DeviceGatherSamplingParams]) -> None:
    with pytest.raises(AssertionError):
        check_what_is_sent(broken)


def test_row_1_3_three_index_selects_fill_the_expanded_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup()
    filler = gathering(setup)
    Step([A, B], [5, 5]).fill(filler)
    filled: list[int] = []
    select = torch.index_select

    def counting(*arguments: Any, out: torch.Tensor) -> torch.Tensor:
        filled.append(out.data_ptr())
        return select(*arguments, out=out)

    monkeypatch.setattr(torch, "index_select", counting)
    table = filler.buffers.rows
    for _ in range(2):
        filled.clear()
        Step([A, B], [5, 5]).fill(filler)
        assert filled == [table.temperature.data_ptr(), table.top_k.data_ptr(), table.top_p.data_ptr()]


def test_row_1_3_an_all_greedy_step_touches_nothing() -> None:
    setup = Setup(is_late=True)
    filler = gathering(setup)
    rows = filler.fill([GREEDY, SamplingParams(temperature=0.0)], [5, 1], [3, 4])
    assert rows.all_greedy
    assert setup.queue.pending == []
    assert filler.contents.values == {}
    assert (filler.counters.skips, filler.counters.gathers) == (1, 0)


# In which order: nothing waits, and each step finds its own


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    opened = CpuDevice(num_threads=1)
    yield opened
    opened.close()


def run_ahead_of_stalled_device(device: CpuDevice, buffers: type[SamplingBuffers]) -> list[bool]:
    """Prepare five steps while the device stands still; then say of each whether it found its own rows."""
    shared = buffers(8, 4, CPU, device.copy_async, device.stage)
    filler = DeviceGatherSamplingParams(shared, device.launch)
    steps = [
        Step([replace(A, temperature=0.5 + 0.1 * i), replace(B, top_k=3 + i), A][: 2 + i % 2], [5, 1, 2][: 2 + i % 2])
        for i in range(5)
    ]
    gate, seen = threading.Event(), []
    device.launch(gate.wait, "stall")
    try:
        for step in steps:
            rows = step.fill(filler)
            device.launch(lambda rows=rows: seen.append([tensor.clone() for tensor in tensors(rows)]), "device_step")
        assert seen == []  # nothing of this waited for the device
    finally:
        gate.set()
    device.synchronize()
    expected = [tensors(full_refill(step)[0]) for step in steps]
    pairs = zip(seen, expected, strict=True)
    return [all(torch.equal(*pair) for pair in zip(*both, strict=True)) for both in pairs]


def test_row_1_3_steps_prepared_ahead_of_a_stalled_device_find_their_own_rows(device: CpuDevice) -> None:
    assert run_ahead_of_stalled_device(device, SamplingBuffers) == [True] * 5


def test_row_1_3_one_staging_buffer_would_be_seen_there(device: CpuDevice) -> None:
    assert run_ahead_of_stalled_device(device, OneStagingBuffer) != [True] * 5


class GathersAheadOfCopies(DeviceGatherSamplingParams):
    """Runs its program at once, whatever waits."""

    def _enqueue(self, program) -> None:  # type: ignore[no-untyped-def]
        program()


def test_row_1_3_a_program_out_of_order_is_seen() -> None:
    with pytest.raises(AssertionError):
        check_late_device(of(GathersAheadOfCopies))


# What it costs the host


class NoQueue(Queue):
    """Enqueues nothing: what is left is the variant's own work."""

    def _put(self, item) -> None:  # type: ignore[no-untyped-def]
        pass


def calls_of(filler: Any, step: Step) -> int:
    """Python and C functions called by one fill."""
    params, counts, slots = list(step.params), list(step.row_counts), step.places
    return count_calls(lambda: filler.fill(params, counts, slots))


def batch(draft_len: int, seed: int = 0, size: int = 64) -> Step:
    params = [replace(A, temperature=0.5 + 0.01 * ((i + seed) % size)) for i in range(size)]
    return Step(params, [draft_len + 1] * size)


def costs_by_draft_len(make: Any, steps: Sequence[str]) -> dict[str, set[int]]:
    """Calls of a steady step, and of one in which K, every value, or nothing but a slot has changed; over several K."""
    found: dict[str, set[int]] = {name: set() for name in steps}
    for draft_len in (0, 1, 7, 15):
        queue = NoQueue()
        filler = make(SamplingBuffers(64, 16, CPU, queue.copy), queue.launch)
        first = batch(draft_len)
        calls_of(filler, first)
        found["steady"].add(calls_of(filler, first))
        found["K changes"].add(calls_of(filler, batch(draft_len + 1)))
        found["values change"].add(calls_of(filler, batch(draft_len + 1, seed=1)))
    return found


CHANGES = ("steady", "K changes", "values change")


def test_row_1_3_host_work_does_not_grow_with_rows() -> None:
    flat = costs_by_draft_len(DeviceGatherSamplingParams, CHANGES)
    assert {name: len(calls) for name, calls in flat.items()} == dict.fromkeys(CHANGES, 1), flat
    growing = costs_by_draft_len(lambda buffers, _launch: RefillSamplingParams(buffers), CHANGES)
    assert {name: len(calls) for name, calls in growing.items()} == dict.fromkeys(CHANGES, 4), growing


def check_a_fraction_of_a_refill(make: Any) -> None:
    """Batch 128, K = 7: calls and values of a step in which nothing changes, and of one in which every value does."""

    def cost(make: Any, last: Step) -> tuple[int, int]:
        queue = NoQueue()
        filler = make(SamplingBuffers(128, 7, CPU, queue.copy), queue.launch)
        calls_of(filler, batch(7, size=128))
        before = filler.counters.appends
        return calls_of(filler, last), filler.counters.appends - before

    steady, changing = batch(7, size=128), batch(7, seed=1, size=128)
    refill = cost(lambda buffers, _launch: RefillSamplingParams(buffers), steady)
    assert refill[1] == 3 * 128 * (1 + 8)
    calls, appends = cost(make, steady)
    assert calls < refill[0] / 10
    assert appends == 0
    calls, appends = cost(make, changing)
    assert calls < refill[0] / 1.5
    assert appends == 4 * 128


def test_row_1_3_host_work_is_a_fraction_of_a_refills_even_when_all_changes() -> None:
    check_a_fraction_of_a_refill(DeviceGatherSamplingParams)


class ListsEveryRow(DeviceGatherSamplingParams):
    """Lays the index out row by row, in every step."""

    def fill(self, params, row_counts, slots=None):  # type: ignore[no-untyped-def]
        rows: list[int] = []
        for slot, num_rows in zip(slots, row_counts, strict=True):
            for _ in range(num_rows):
                rows.append(slot)
        return super().fill(params, row_counts, slots)


@pytest.mark.parametrize("broken", [SendsEverySlot, ListsEveryRow])
def test_row_1_3_host_work_of_a_refill_is_seen(broken: type[DeviceGatherSamplingParams]) -> None:
    with pytest.raises(AssertionError):
        check_a_fraction_of_a_refill(broken)


# Slots


def test_requests_that_share_a_slot_must_be_alike() -> None:
    setup = Setup()
    filler = gathering(setup)
    padded = Step([A, B, B], [5, 5, 5], [0, 8, 8])  # padding's slot lies behind the others
    for ours, theirs in zip(tensors(padded.fill(filler)), tensors(full_refill(padded)[0]), strict=True):
        assert torch.equal(ours, theirs)
    assert by_request(filler, padded) == full_refill(padded)[1]
    with pytest.raises(ValueError, match="one slot have unequal"):
        Step([A, B, A], [5, 5, 5], [0, 8, 8]).fill(filler)
    with pytest.raises(ValueError, match="argument 2 is longer"):
        filler.fill([A, B], [1, 1], [0])


def test_a_slot_keeps_what_it_held_through_greedy_steps() -> None:
    filler = gathering(Setup())
    Step([A], [5], [2]).fill(filler)
    Step([GREEDY], [5], [2]).fill(filler)
    copies = filler.counters.copies
    Step([A], [5], [2]).fill(filler)
    assert filler.counters.copies == copies


def test_the_program_lies_between_steps_for_profilers() -> None:
    """It runs ahead of its step, on a lane where the step before is the last one that was begun."""
    tracer = WindowTracer()
    tracer.step_started(1, "")
    for name, step in ((GATHER, None), ("device_step", 1), ("target_forward", 1), (GATHER, None)):
        assert tracer._place_on_device(name)[0] == step
