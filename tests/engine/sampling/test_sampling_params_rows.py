"""What every variant of ``sampling_params`` must do, by the rows of the table of the sampling-parameter buffers.

Each mechanism is broken once, at the end of its row, and must be seen to be broken.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from variant_checks import (
    DEVICE_GATHER,
    GREEDY,
    LIKE_A,
    MAX_DRAFT_LEN,
    REFILL,
    SIGNATURE,
    VARIANTS,
    A,
    B,
    Make,
    OneStagingBuffer,
    Setup,
    Step,
    by_request,
    check_activation,
    check_greedy_steps_between,
    check_late_device,
    check_no_top_k,
    check_reallocation,
    check_sequence,
    check_shared_by_copies,
    check_unset_fields,
    every_variant,
    full_refill,
    of,
    tensors,
)

from specbench.engine.sampling.buffers import FillCounters, SamplingBuffers
from specbench.engine.sampling.device_gather import DeviceGatherSamplingParams
from specbench.engine.sampling.metadata import NormalizedParams, SamplingRows
from specbench.engine.sampling.params import TOP_K_OFF, SamplingParams
from specbench.engine.sampling.refill import RefillSamplingParams
from specbench.engine.sampling.signature import SignatureSamplingParams
from specbench.engine.sampling.step_params import StepParams


def sees(broken: type[Any], check: Callable[[Make], None]) -> None:
    with pytest.raises(AssertionError):
        check(of(broken))


# Row 1.1


def check_refill_counts(make: Make) -> None:
    """Three equal steps of two requests, K = 3: every row's three values are listed, twice three copies each step."""
    setup = Setup()
    filler = make(setup)
    for num_steps in range(1, 4):
        Step([A, B], [4, 4]).fill(filler)
        assert setup.queue.num_copies == 6 * num_steps
    num_rows = 3 * (2 + 8)
    assert filler.read_counters() == {
        "fills": 3, "hits": 0, "skips": 0, "appends": 3 * num_rows, "copies": 18, "bytes": (4 + 8 + 4) * num_rows,
    }  # fmt: skip
    assert setup.queue.num_bytes == filler.counters.bytes


def test_row_1_1_refill_appends_every_row_and_copies_six_buffers_each_step() -> None:
    check_refill_counts(REFILL)


class SkipsEqualSteps(RefillSamplingParams):
    """A refill that is none."""

    def fill(self, params, row_counts, slots=None):  # type: ignore[no-untyped-def]
        if not self.counters.fills:
            self.last = super().fill(params, row_counts, slots)
        return self.last


class CountsRequestsOnly(RefillSamplingParams):
    """Does not count what the expanded group costs."""

    def fill(self, params, row_counts, slots=None):  # type: ignore[no-untyped-def]
        before = replace(self.counters)
        rows = super().fill(params, row_counts, slots)
        for name in ("appends", "copies", "bytes"):
            setattr(self.counters, name, getattr(before, name) + 3 * len(params))
        return rows


@pytest.mark.parametrize("broken", [SkipsEqualSteps, CountsRequestsOnly])
def test_row_1_1_a_broken_refill_is_seen(broken: type[Any]) -> None:
    sees(broken, check_refill_counts)


# Row 1.5


@every_variant
def test_row_1_5_copies_of_a_view_share_what_they_know(make: Make) -> None:
    check_shared_by_copies(make)


def test_row_1_5_a_captured_view_fills_and_the_live_one_finds_it_filled() -> None:
    setup = Setup()
    live = SIGNATURE(setup)
    assert isinstance(live, SignatureSamplingParams)
    captured = copy.copy(live)
    captured.fill([A, B], [5, 5])
    assert live.needs_refill([A, B], [5, 5]) == (False, False)
    live.invalidate()
    assert captured.needs_refill([A, B], [5, 5]) == (True, True)


class SignaturesOfItsOwn(SignatureSamplingParams):
    """Each copy keeps its own signatures."""

    def __copy__(self) -> SignaturesOfItsOwn:
        twin = type(self)(self.buffers)
        twin.signatures = copy.copy(self.signatures)
        return twin


class ContentsOfItsOwn(DeviceGatherSamplingParams):
    """Each copy keeps its own record of the slots."""

    def __copy__(self) -> ContentsOfItsOwn:
        return type(self)(self.buffers, self._launch)


@pytest.mark.parametrize("broken", [SignaturesOfItsOwn, ContentsOfItsOwn])
def test_row_1_5_copies_that_share_nothing_are_seen(broken: type[Any]) -> None:
    sees(broken, check_shared_by_copies)


# Row 1.6


@every_variant
def test_row_1_6_every_buffer_equals_a_full_refill_through_a_sequence(make: Make) -> None:
    check_sequence(make)


@every_variant
def test_row_1_6_an_all_greedy_step_between_two_equal_sampled_ones_still_hits(make: Make) -> None:
    check_greedy_steps_between(make)


@every_variant
def test_row_1_6_a_variant_that_takes_over_forgets(make: Make) -> None:
    check_activation(make)


@every_variant
def test_row_1_6_each_step_finds_its_own_values_on_a_device_that_is_late(make: Make) -> None:
    check_late_device(make)


@every_variant
def test_row_1_6_one_staging_buffer_for_all_steps_is_seen(make: Make) -> None:
    with pytest.raises(AssertionError):
        check_late_device(make, OneStagingBuffer)


class WithoutRowCounts(SignatureSamplingParams):
    """Signs the expanded group by its values alone."""

    def _sign_expanded(self, step: StepParams):  # type: ignore[no-untyped-def]
        return self.buffers.rows, step.values, ()


class NeverWritesTheRequests(SignatureSamplingParams):
    """Signs the request group and does not write it."""

    def _fill_request_group(self, step: StepParams) -> None:
        self.signatures.request = self._sign_request(step)


class KeepsTheFirstTopKMax(SignatureSamplingParams):
    """Hands out the facts of the first fill."""

    def fill(self, params, row_counts, slots=None):  # type: ignore[no-untyped-def]
        rows = super().fill(params, row_counts, slots)
        self.first = getattr(self, "first", rows.facts.top_k_max)
        return replace(rows, facts=replace(rows.facts, top_k_max=self.first))


class NeverForgets(SignatureSamplingParams):
    """Takes over and believes what it believed."""

    def activate(self) -> None:
        pass


class ForgetsWhenGreedy(SignatureSamplingParams):
    """Takes an all-greedy step for a change."""

    def fill(self, params, row_counts, slots=None):  # type: ignore[no-untyped-def]
        rows = super().fill(params, row_counts, slots)
        if rows.all_greedy:
            self.invalidate()
        return rows


class IndexWithoutRowCounts(DeviceGatherSamplingParams):
    """Makes the index by row anew only when slots differ."""

    def _copy_index(self, tables, step, slots):  # type: ignore[no-untyped-def]
        if self.contents.index is None or self.contents.index[0] != slots:
            super()._copy_index(tables, step, slots)
        self.contents.index = (slots, step.row_counts)


class IndexWithoutSlots(DeviceGatherSamplingParams):
    """Makes the index by row anew only when row counts differ."""

    def _copy_index(self, tables, step, slots):  # type: ignore[no-untyped-def]
        if self.contents.index is None or self.contents.index[1] != step.row_counts:
            super()._copy_index(tables, step, slots)
        self.contents.index = (slots, step.row_counts)


class WritesASlotOnce(DeviceGatherSamplingParams):
    """Takes a slot that was written for one that needs nothing."""

    def _send(self, step: StepParams, slots: list[int]) -> SamplingRows:
        known = self.contents.values
        known.update({slot: new for slot, new in zip(slots, step.values, strict=True) if slot in known})
        return super()._send(step, slots)


class GathersOnlyWhenSent(DeviceGatherSamplingParams):
    """Leaves the expanded buffers to whoever wrote them last when it has nothing to send."""

    def activate(self) -> None:
        pass

    def _enqueue(self, program: Callable[[], None]) -> None:
        if program.__name__ != "gather":
            super()._enqueue(program)


class SlotsNeverForgotten(DeviceGatherSamplingParams):
    """Takes over and believes what it believed."""

    def activate(self) -> None:
        pass


class SlotsForgottenWhenGreedy(DeviceGatherSamplingParams):
    """Takes an all-greedy step for a change."""

    def fill(self, params, row_counts, slots=None):  # type: ignore[no-untyped-def]
        rows = super().fill(params, row_counts, slots)
        if rows.all_greedy:
            self.activate()
        return rows


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (WithoutRowCounts, check_sequence),
        (NeverWritesTheRequests, check_sequence),
        (KeepsTheFirstTopKMax, check_sequence),
        (NeverForgets, check_activation),
        (ForgetsWhenGreedy, check_greedy_steps_between),
        (IndexWithoutRowCounts, check_sequence),
        (IndexWithoutSlots, check_sequence),
        (WritesASlotOnce, check_sequence),
        (GathersOnlyWhenSent, check_activation),
        (SlotsNeverForgotten, check_activation),
        (SlotsForgottenWhenGreedy, check_greedy_steps_between),
    ],
)
def test_row_1_6_a_broken_mechanism_is_seen(broken: type[Any], check: Callable[[Make], None]) -> None:
    sees(broken, check)


VALUES = st.sampled_from(
    [A, LIKE_A, B, GREEDY, SamplingParams(top_p=0.9), SamplingParams(top_k=0), SamplingParams(temperature=1.0)]
)
REQUESTS = st.lists(st.tuples(VALUES, st.integers(0, MAX_DRAFT_LEN + 1)), min_size=1, max_size=4)
STEPS = st.lists(st.tuples(REQUESTS, st.permutations(range(4)), st.sampled_from(sorted(VARIANTS)), st.booleans()))


@settings(max_examples=80, deadline=None)
@given(steps=STEPS)
def test_row_1_6_any_sequence_is_right_when_the_device_gets_to_it(
    steps: list[tuple[list[tuple[SamplingParams, int]], Sequence[int], str, bool]],
) -> None:
    """Variants and their captured views take turns over one set of buffers, ahead of a device that has not begun."""
    setup = Setup(is_late=True)
    live = {name: make(setup) for name, make in VARIANTS.items()}
    captured = {name: copy.copy(view) for name, view in live.items()}
    standing, prepared = "signature", []
    for requests, slots, variant, is_captured in steps:
        step = Step([p for p, _ in requests], [count for _, count in requests], list(slots[: len(requests)]))
        if variant != standing:
            live[variant].activate()
            standing = variant
        filler = (captured if is_captured else live)[variant]
        rows = step.fill(filler)
        prepared.append((step, filler, rows, len(setup.queue.pending)))
    done = 0
    for step, filler, rows, num_items in prepared:
        setup.queue.run(num_items - done)
        done = num_items
        expected, by_reference = full_refill(step)
        assert rows.facts == expected.facts
        if not expected.all_greedy:
            for ours, theirs in zip(tensors(rows), tensors(expected), strict=True):
                assert torch.equal(ours, theirs)
            assert by_request(filler, step) == by_reference


# Row 1.7


@every_variant
def test_row_1_7_reallocated_buffers_are_refilled_in_every_view(make: Make) -> None:
    check_reallocation(make)


@every_variant
def test_row_1_7_no_top_k_is_2147483647_and_not_0(make: Make) -> None:
    check_no_top_k(make)


class BlindToTables(SignatureSamplingParams):
    """Signs values without the table they were written to."""

    def _sign_request(self, step: StepParams):  # type: ignore[no-untyped-def]
        return (None, step.values)

    def _sign_expanded(self, step: StepParams):  # type: ignore[no-untyped-def]
        return (None, step.values, step.row_counts)


class BlindToSlotTables(DeviceGatherSamplingParams):
    """Takes any tables for those it has written."""

    def fill(self, params, row_counts, slots=None):  # type: ignore[no-untyped-def]
        if self.contents.tables is not None:
            self.contents.tables = self.buffers.slots
        return super().fill(params, row_counts, slots)


class TakesZeroForNoTopK(DeviceGatherSamplingParams):
    """Believes that a slot full of zeros has no top_k already."""

    def _copy_records(self, tables, changed: dict[int, NormalizedParams]) -> None:  # type: ignore[no-untyped-def]
        zero = {slot: (t, 0 if top_k == TOP_K_OFF else top_k, p) for slot, (t, top_k, p) in changed.items()}
        super()._copy_records(tables, zero)


class SignsZeroForNoTopK(SignatureSamplingParams):
    """Refills no table whose zeros it takes for rows without top_k."""

    def _fill_expanded_group(self, step: StepParams) -> SamplingRows:
        if all(top_k == TOP_K_OFF for _, top_k, _ in step.values) and self.signatures.expanded is None:
            self.signatures.expanded = self._sign_expanded(step)
            self.signatures.rows = self.buffers.view(step.facts)
            return self.signatures.rows
        return super()._fill_expanded_group(step)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (BlindToTables, check_reallocation),
        (BlindToSlotTables, check_reallocation),
        (TakesZeroForNoTopK, check_no_top_k),
        (SignsZeroForNoTopK, check_no_top_k),
    ],
)
def test_row_1_7_a_broken_mechanism_is_seen(broken: type[Any], check: Callable[[Make], None]) -> None:
    sees(broken, check)


# Row 1.8


@every_variant
def test_row_1_8_an_unset_field_of_a_sampled_request_is_neutral(make: Make) -> None:
    check_unset_fields(make)


def test_row_1_8_unset_and_neutral_are_the_same() -> None:
    unset, neutral = SamplingParams(top_p=0.9), SamplingParams(temperature=1.0, top_k=0, top_p=0.9)
    signature = SIGNATURE(Setup())
    assert isinstance(signature, SignatureSamplingParams)
    signature.fill([unset], [5])
    assert signature.needs_refill([neutral], [5]) == (False, False)
    gathering = DEVICE_GATHER(Setup())
    for params in (unset, neutral):
        gathering.fill([params], [5])
    assert (gathering.counters.fills, gathering.counters.hits) == (1, 1)


@every_variant
def test_row_1_8_taking_an_unset_temperature_for_greedy_is_seen(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    is_greedy = SamplingParams.is_greedy
    assert isinstance(is_greedy, property)
    broken = property(lambda self: self.temperature is None or is_greedy.__get__(self))
    monkeypatch.setattr(SamplingParams, "is_greedy", broken)
    with pytest.raises(AssertionError):
        check_unset_fields(make)


# All of them


@every_variant
def test_callers_may_reuse_their_lists(make: Make) -> None:
    filler = make(Setup())
    params, counts, slots = [A, B], [5, 5], [0, 1]
    filler.fill(params, counts, slots)
    params[0], counts[1] = B, 1
    slots.reverse()
    expected, _ = full_refill(Step(params, counts))
    for ours, theirs in zip(tensors(filler.fill(params, counts, slots)), tensors(expected), strict=True):
        assert torch.equal(ours, theirs)


@every_variant
def test_lengths_that_disagree_are_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="shorter"):
        make(Setup()).fill([A, B], [1])


class Failing(SamplingBuffers):
    """Runs out of memory in the second step: in its first copy, or in its second."""

    fails_at = (7, 7)

    def copy(self, buffer: torch.Tensor, values: torch.Tensor, counters: FillCounters) -> None:
        self.num_calls = getattr(self, "num_calls", 0) + 1
        if self.num_calls in self.fails_at:
            raise MemoryError("no memory to stage in")
        super().copy(buffer, values, counters)


@pytest.mark.parametrize("later", [0, 1])
@pytest.mark.parametrize(("make", "first"), [(SIGNATURE, 7), (DEVICE_GATHER, 3)], ids=["signature", "device_gather"])
def test_a_step_that_failed_half_way_is_not_believed(make: Make, first: int, later: int) -> None:
    filler = make(Setup(buffers=type("FailingThere", (Failing,), {"fails_at": (first + later,)})))
    Step([A], [5], [0]).fill(filler)
    with pytest.raises(MemoryError):
        Step([B], [4], [0]).fill(filler)
    for step in (Step([A], [5], [0]), Step([B], [4], [0])):
        expected, by_reference = full_refill(step)
        for ours, theirs in zip(tensors(step.fill(filler)), tensors(expected), strict=True):
            assert torch.equal(ours, theirs)
        assert by_request(filler, step) == by_reference
