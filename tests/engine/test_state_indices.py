"""Row 2.9: how the device learns whose recurrent state each request of a step uses, and what the variants refuse."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specbench.device.base import Device
from specbench.engine.config import DrafterSpec, EngineConfig, ModelSpec
from specbench.engine.optimizations.base import Exactness, build_switch, load_toggle
from specbench.engine.state_indices import BulkIndices, PerRequestIndices, StateIndexBuffers, StateIndices

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
Fill = Callable[[Sequence[int], Sequence[bool]], StateIndices]


class LateDevice:
    """Executes copies when told to, as a busy device would."""

    torch_device = CPU

    def __init__(self) -> None:
        self.pending: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.num_staged = 0

    def empty_staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.full(shape, -77, dtype=dtype)

    def stage(self, source: torch.Tensor) -> torch.Tensor:
        self.num_staged += 1
        return source

    def copy_async(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        self.pending.append((destination, source))

    def run(self, count: int | None = None) -> None:
        for destination, source in self.pending[:count]:
            destination.copy_(source)
        del self.pending[:count]


VARIANTS = {"per_request": PerRequestIndices, "bulk": BulkIndices}


def build(variant: type[PerRequestIndices] | type[BulkIndices], max_requests: int = 64):
    device = LateDevice()
    return variant(StateIndexBuffers(max_requests, cast(Device, device))), device


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> type[PerRequestIndices] | type[BulkIndices]:
    return VARIANTS[request.param]


BATCHES = st.lists(st.tuples(st.integers(0, 63), st.booleans()), max_size=40)


@given(batches=st.lists(BATCHES, min_size=1, max_size=5))
def test_row_2_9_both_variants_send_the_same_each_step(batches: list[list[tuple[int, bool]]]) -> None:
    """Step after step over one buffer: indices in the caller's order, the mask of this batch, nothing of the last."""
    fillers = [build(each) for each in VARIANTS.values()]
    for batch in batches:
        slots, is_padding = [slot for slot, _ in batch], [padding for _, padding in batch]
        for filler, device in fillers:
            sent = filler.fill(slots, is_padding)
            device.run()
            assert sent.slots.tolist() == slots
            assert sent.is_padding.tolist() == [int(padding) for padding in is_padding]
            assert sent.slots.dtype == sent.is_padding.dtype == torch.int64


def test_row_2_9_per_request_writes_an_element_a_request_and_bulk_converts_once() -> None:
    slots, is_padding = [5, 0, 3, 9], [False, False, False, True]
    counters = {}
    for name, kind in VARIANTS.items():
        filler, device = build(kind)
        for _ in range(3):
            filler.fill(slots, is_padding)
        assert len(device.pending) == 3
        counters[name] = filler.read_counters()
    # Four indices and one mark of padding a step.
    assert counters["per_request"] == {
        "fills": 3, "conversions": 0, "element_writes": 15, "copies": 3, "bytes": 3 * 2 * 4 * 8,
    }  # fmt: skip
    assert counters["bulk"] == {"fills": 3, "conversions": 3, "element_writes": 0, "copies": 3, "bytes": 3 * 2 * 4 * 8}


def check_refusal(fill: Fill, device: LateDevice) -> None:
    """A result of length one for many requests, and any other length that is not theirs."""
    for slots, num_requests in (([7], 4), ([1, 2, 3], 4), ([1, 2], 1), ([], 2)):
        with pytest.raises(ValueError, match=f"{len(slots)} state indices for {num_requests} requests"):
            fill(slots, [False] * num_requests)
    assert not device.pending, "refused, and copied all the same"


def test_row_2_9_a_single_index_for_many_requests_is_refused(variant) -> None:
    filler, device = build(variant)
    check_refusal(filler.fill, device)
    sent = filler.fill([7], [False])
    device.run()
    assert sent.slots.tolist() == [7]


def test_row_2_9_broadcasting_is_what_the_refusal_prevents() -> None:
    """The mechanism broken: assigning a converted list of one gives its slot to every request, without a word."""

    class Broadcasting(BulkIndices):
        def fill(self, slots: Sequence[int], is_padding: Sequence[bool]) -> StateIndices:
            staged = torch.zeros((2, len(is_padding)), dtype=torch.int64)
            staged[0] = torch.tensor(slots)
            staged[1] = torch.tensor(is_padding)
            return self.buffers.send(staged, self.counters)

    filler, device = build(Broadcasting)
    sent = filler.fill([7], [False] * 4)
    device.run()
    assert sent.slots.tolist() == [7, 7, 7, 7]
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        check_refusal(filler.fill, device)


def check_mask(fill: Fill, device: LateDevice) -> None:
    """Padding comes, goes and moves while the buffer stays the same."""
    for is_padding in ([False, True, True], [False, False, False], [True, False, True], [False, False, True]):
        sent = fill([0, 1, 2], is_padding)
        device.run()
        assert sent.is_padding.tolist() == [int(padding) for padding in is_padding], "the mask of another batch"


def test_row_2_9_the_padding_mask_is_of_the_current_batch(variant) -> None:
    filler, device = build(variant)
    check_mask(filler.fill, device)

    class Stale(variant):
        """The mechanism broken: the mask is computed after the indices were sent, and so is one batch late."""

        last: Sequence[bool] = ()

        def fill(self, slots: Sequence[int], is_padding: Sequence[bool]) -> StateIndices:
            late = self.last if len(self.last) == len(slots) else [False] * len(slots)
            self.last = is_padding
            return super().fill(slots, late)

    stale, late = build(Stale)
    with pytest.raises(AssertionError, match="the mask of another batch"):
        check_mask(stale.fill, late)


def check_order(fill: Fill, device: LateDevice) -> None:
    """A batch whose slots neither rise nor fall, and that changes its order."""
    for slots in ([4, 0, 3, 1], [1, 3, 0, 4], [2, 2, 9, 0]):
        sent = fill(slots, [False] * len(slots))
        device.run()
        assert sent.slots.tolist() == slots, "another order than the caller's"


def test_row_2_9_indices_come_back_in_caller_order(variant) -> None:
    filler, device = build(variant)
    check_order(filler.fill, device)

    class Sorted(variant):
        """The mechanism broken: the order of the slots."""

        def fill(self, slots: Sequence[int], is_padding: Sequence[bool]) -> StateIndices:
            return super().fill(sorted(slots), is_padding)

    by_slot, late = build(Sorted)
    with pytest.raises(AssertionError, match="another order than the caller's"):
        check_order(by_slot.fill, late)


def test_a_late_copy_still_reads_its_own_steps_indices(variant) -> None:
    filler, device = build(variant)
    first = filler.fill([3, 1], [False, True])
    second = filler.fill([2, 0], [False, False])  # prepared while the first step's copy waits
    device.run(1)
    assert (first.slots.tolist(), first.is_padding.tolist()) == ([3, 1], [0, 1])
    device.run()
    assert (second.slots.tolist(), second.is_padding.tolist()) == ([2, 0], [0, 0])


def test_variants_fill_one_buffer_and_a_size_has_its_place() -> None:
    config = EngineConfig(ModelSpec("tiny-hybrid"), "cpu", 64, 8, 8, drafter=DrafterSpec("ngram", 3))
    switch = build_switch("state_indices", config, cast(Device, LateDevice()))
    assert switch.variant == "bulk"
    places = []
    for name in ("bulk", "per_request", "bulk"):
        switch.switch(name)
        sent = switch.current.fill([4, 2, 1], [False] * 3)
        places.append((sent.slots.data_ptr(), sent.is_padding.data_ptr()))
    assert len(set(places)) == 1
    with pytest.raises(ValueError, match="9 requests, room for 8"):
        switch.current.fill([0] * 9, [False] * 9)


def test_declaration() -> None:
    toggle = load_toggle("state_indices")
    assert (toggle.baseline, toggle.recommended) == ("per_request", "bulk")
    assert toggle.exactness is Exactness.BIT_IDENTICAL
    assert toggle.step_preserving
    assert toggle.needs_recurrent_state
    assert not load_toggle("sampling_params").needs_recurrent_state


def test_the_benchmark_compares_the_variants(tmp_path: Path) -> None:
    """Its figures as JSON; which of them is the smaller one is for whoever runs it at rest to say."""
    script = ROOT / "benchmarks" / "state_indices.py"
    command = [sys.executable, str(script), "--requests", "64,256", "--rounds", "5", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = json.loads((tmp_path / "state_indices.json").read_text())
    assert [row["requests"] for row in found["sizes"]] == [64, 256]
    for row in found["sizes"]:
        assert min(row["per_request_us"], row["bulk_us"]) > 0
        assert row["ratio"] == pytest.approx(row["per_request_us"] / row["bulk_us"], rel=0.01)
        assert len(row["rounds"]) == 5
    assert (tmp_path / "state_indices.md").read_text() == done.stdout.removesuffix("\n")
    assert "| 256 |" in done.stdout


def test_the_benchmark_can_be_imported() -> None:
    spec = importlib.util.spec_from_file_location("state_indices_benchmark", ROOT / "benchmarks" / "state_indices.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    row = module.measure(16, rounds=5)
    assert row.requests == 16
    assert len(row.rounds) == 5
