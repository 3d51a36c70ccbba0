"""Variant ``signature`` of ``sampling_params``: what it writes, what it leaves, and that what it left was right.

Tests are named by the rows of the table of the sampling-parameter buffers that they hold. A check that a mechanism
could pass without is no check: the mechanisms are broken one by one at the end, and each must be seen.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_reference import CPU, Copies, copy_at_once

from specbench.engine.sampling.buffers import ParameterTable, SamplingBuffers
from specbench.engine.sampling.metadata import RowFacts, SamplingRows
from specbench.engine.sampling.params import TOP_K_OFF, SamplingParams
from specbench.engine.sampling.refill import RefillSamplingParams
from specbench.engine.sampling.signature import (
    FillSignatures,
    RowSignature,
    SignatureSamplingParams,
    StepParams,
)

MAX_BATCH_SIZE, MAX_DRAFT_LEN = 8, 4
GREEDY = SamplingParams()
A = SamplingParams(temperature=0.7, top_k=50, top_p=0.9, seed=1)
LIKE_A = replace(A, seed=2, max_tokens=9)
B = SamplingParams(temperature=1.5, top_k=20, seed=3)

Step = tuple[Sequence[SamplingParams], Sequence[int]]
Make = Callable[[SamplingBuffers], SignatureSamplingParams]


def buffers(copies: Callable[[torch.Tensor, torch.Tensor], None] = copy_at_once) -> SamplingBuffers:
    return SamplingBuffers(MAX_BATCH_SIZE, MAX_DRAFT_LEN, CPU, copies)


def signature(copies: Callable[[torch.Tensor, torch.Tensor], None] = copy_at_once) -> SignatureSamplingParams:
    return SignatureSamplingParams(buffers(copies))


def contents(table: ParameterTable, count: int) -> list[tuple[float, int, float]]:
    columns = (table.temperature[:count].tolist(), table.top_k[:count].tolist(), table.top_p[:count].tolist())
    return list(zip(*columns, strict=True))


def assert_like_full_refill(filler: SignatureSamplingParams, step: Step) -> RowFacts:
    """Fill, and compare every buffer and fact with what a full refill puts into buffers of its own."""
    params, row_counts = list(step[0]), list(step[1])
    reference = RefillSamplingParams(buffers())
    expected, found = reference.fill(params, row_counts), filler.fill(params, row_counts)
    assert found.facts == expected.facts
    assert found.top_k_max == expected.top_k_max
    if not expected.all_greedy:
        num_requests, num_rows = len(params), expected.facts.num_rows
        assert contents(filler.buffers.requests, num_requests) == contents(reference.buffers.requests, num_requests)
        assert contents(filler.buffers.rows, num_rows) == contents(reference.buffers.rows, num_rows)
        assert found.temperature.data_ptr() == filler.buffers.rows.temperature.data_ptr()
        for ours, theirs in zip(tensors(found), tensors(expected), strict=True):
            assert torch.equal(ours, theirs)
    return found.facts


def tensors(rows: SamplingRows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return rows.temperature, rows.top_k, rows.top_p


# What must hold of the mechanisms; each takes the class, so that a broken one can be put to it.


def check_transitions(make: Make) -> None:
    filler = make(buffers())
    steps: list[tuple[Step, tuple[bool, bool]]] = [
        (([A, B], [1, 5]), (True, True)),  # first call
        (([A, B], [1, 5]), (False, False)),  # steady
        (([A, B], [5, 5]), (False, True)),  # context becomes generation
        (([A, B], [3, 3]), (False, True)),  # K changes
        (([A, replace(B, top_k=21)], [3, 3]), (True, True)),  # a value changes
        (([replace(B, top_k=21), A], [3, 3]), (True, True)),  # order, differing values
        (([A, A], [3, 3]), (True, True)),
        (([LIKE_A, A], [3, 3]), (False, False)),  # order, equal values
        (([A, A, A], [3, 3, 3]), (True, True)),  # the batch grows
        (([A, A], [3, 3]), (True, True)),  # and shrinks
    ]
    for step, expected in steps:
        assert filler.needs_refill(*step) == expected, step
        assert_like_full_refill(filler, step)
        assert filler.needs_refill(*step) == (False, False)
    filler.invalidate()
    assert filler.needs_refill([A, A], [3, 3]) == (True, True)


def check_shared_by_copies(make: Make) -> None:
    live = make(buffers())
    captured = copy.copy(live)
    assert_like_full_refill(captured, ([A, B], [5, 5]))
    assert live.needs_refill([A, B], [5, 5]) == (False, False)
    assert_like_full_refill(live, ([A, B], [5, 5]))
    # What one view overwrites, the other must not take for its own.
    assert_like_full_refill(captured, ([B], [5]))
    assert live.needs_refill([A, B], [5, 5]) == (True, True)
    assert_like_full_refill(live, ([A, B], [5, 5]))
    live.invalidate()
    assert captured.needs_refill([A, B], [5, 5]) == (True, True)


def check_activation(make: Make) -> None:
    shared = buffers()
    filler, other = make(shared), RefillSamplingParams(shared)
    filler.activate()
    assert_like_full_refill(filler, ([A, B], [5, 5]))
    other.activate()
    other.fill([B, A], [5, 5])
    filler.activate()
    assert_like_full_refill(filler, ([A, B], [5, 5]))


def check_greedy_steps_between(make: Make) -> None:
    filler = make(buffers())
    assert_like_full_refill(filler, ([A, B], [5, 5]))
    assert filler.needs_refill([GREEDY, GREEDY], [5, 5]) == (False, False)
    assert_like_full_refill(filler, ([GREEDY, GREEDY], [5, 5]))
    assert filler.needs_refill([A, B], [5, 5]) == (False, False)
    assert_like_full_refill(filler, ([A, B], [5, 5]))
    assert filler.counters.copies == 6


def check_reallocation(make: Make) -> None:
    live = make(buffers())
    captured = copy.copy(live)
    step: Step = ([replace(A, top_k=None), replace(B, top_k=0)], [5, 5])
    assert_like_full_refill(captured, step)
    # New tables for every view: nothing is in them, so whichever comes first fills, and both see it.
    live.buffers.allocate(MAX_BATCH_SIZE + 1, MAX_DRAFT_LEN)
    assert live.needs_refill(*step) == captured.needs_refill(*step) == (True, True)
    assert_like_full_refill(captured, step)
    assert_like_full_refill(live, step)
    # A view whose tables are not the live ones: neither may skip on account of what the other wrote elsewhere.
    captured.buffers = buffers()
    for view in (captured, live, captured):
        assert view.needs_refill(*step) == (True, True)
        assert_like_full_refill(view, step)
        assert view.needs_refill(*step) == (False, False)


def test_1_2_slots_are_in_neither_signature() -> None:
    filler = signature()
    filler.fill([A, B], [5, 5], [0, 1])
    filler.fill([A, B], [5, 5], [3, 2])
    assert (filler.counters.fills, filler.counters.hits, filler.counters.copies) == (1, 1, 6)


def test_1_2_only_the_group_that_changed_is_copied() -> None:
    copies = Copies()
    filler = signature(copies)
    filler.fill([A, B], [1, 5])
    copies.run()
    filler.fill([A, B], [5, 5])
    rows = filler.buffers.rows
    written = {destination.data_ptr() for destination, _ in copies.pending}
    assert written == {rows.temperature.data_ptr(), rows.top_k.data_ptr(), rows.top_p.data_ptr()}
    assert len(copies.pending) == 3
    counters = filler.read_counters()
    assert counters == {
        "fills": 2, "hits": 0, "skips": 0, "appends": 3 * (2 + 6 + 10), "copies": 9, "bytes": 16 * (2 + 6 + 10),
    }  # fmt: skip


def test_1_2_top_k_max_follows_the_values() -> None:
    filler = signature()
    assert filler.fill([A, B], [5, 5]).top_k_max == 50
    assert filler.fill([B, B], [5, 5]).top_k_max == 20
    assert filler.fill([B, A], [5, 0]).top_k_max == 20  # a request without rows is in no row
    assert filler.fill([B, A], [5, 5]).top_k_max == 50
    assert filler.fill([replace(A, top_k=None)], [5]).top_k_max == 0


def test_1_2_an_all_greedy_step_touches_neither_buffers_nor_signatures() -> None:
    copies = Copies()
    filler = signature(copies)
    rows = filler.fill([GREEDY, SamplingParams(temperature=0.0)], [5, 1])
    assert rows.all_greedy
    assert rows.is_greedy.tolist() == [True] * 6
    assert copies.pending == []
    assert filler.signatures == FillSignatures()
    assert filler.counters.skips == 1


def test_1_4_transitions() -> None:
    check_transitions(SignatureSamplingParams)


def test_1_5_copies_share_their_signatures() -> None:
    check_shared_by_copies(SignatureSamplingParams)


def test_1_6_an_all_greedy_step_between_two_equal_sampled_ones_still_hits() -> None:
    check_greedy_steps_between(SignatureSamplingParams)


def test_1_6_buffers_equal_a_full_refill_through_a_sequence() -> None:
    filler = signature()
    for step in [
        ([A, B], [5, 5]),
        ([A, B], [5, 5]),
        ([A, B], [1, 5]),
        ([A, B], [1, 5]),
        ([A, replace(B, temperature=0.3)], [1, 5]),
    ]:
        assert_like_full_refill(filler, step)
    assert (filler.counters.fills, filler.counters.hits) == (3, 2)


VALUES = st.sampled_from(
    [A, LIKE_A, B, GREEDY, SamplingParams(top_p=0.9), SamplingParams(top_k=0), SamplingParams(temperature=1.0)]
)
STEPS = st.lists(st.lists(st.tuples(VALUES, st.integers(0, MAX_DRAFT_LEN + 1)), min_size=1, max_size=4), max_size=12)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, switches=st.lists(st.booleans(), min_size=12, max_size=12), views=st.lists(st.booleans()))
def test_1_6_any_sequence_is_right_when_the_copies_run(
    steps: list[list[tuple[SamplingParams, int]]], switches: list[bool], views: list[bool]
) -> None:
    """Steps are prepared ahead of a device that runs late; variants and views change under way."""
    copies = Copies()
    shared = buffers(copies)
    live, other = SignatureSamplingParams(shared), RefillSamplingParams(shared)
    captured = copy.copy(live)
    prepared = []
    for index, requests in enumerate(steps):
        params, counts = [p for p, _ in requests], [count for _, count in requests]
        if switches[index]:
            other.fill(params[::-1], counts[::-1])
            live.activate()
        view = captured if index < len(views) and views[index] else live
        rows = view.fill(params, counts)
        prepared.append((params, counts, rows, len(copies.pending)))
    done = 0
    for params, counts, rows, num_copies in prepared:
        copies.run(num_copies - done)
        done = num_copies
        reference = RefillSamplingParams(buffers())
        expected = reference.fill(params, counts)
        assert rows.facts == expected.facts
        if not expected.all_greedy:
            for ours, theirs in zip(tensors(rows), tensors(expected), strict=True):
                assert torch.equal(ours, theirs)
            count = len(params)
            assert contents(shared.requests, count) == contents(reference.buffers.requests, count)


def test_1_7_reallocated_buffers_are_refilled_in_every_view() -> None:
    check_reallocation(SignatureSamplingParams)


def test_1_7_no_top_k_is_2147483647_and_not_0() -> None:
    filler = signature()
    without = replace(A, top_k=None)
    # A new table is full of zeros: a batch without any top_k must not be taken for what is in it.
    assert filler.buffers.rows.top_k.tolist()[:2] == [0, 0]
    assert filler.fill([without], [2]).top_k.tolist() == [TOP_K_OFF, TOP_K_OFF] == [2147483647] * 2
    assert filler.needs_refill([replace(A, top_k=0)], [2]) == (False, False)
    assert filler.needs_refill([replace(A, top_k=TOP_K_OFF)], [2]) == (False, False)
    assert filler.needs_refill([replace(A, top_k=TOP_K_OFF - 1)], [2]) == (True, True)


@pytest.mark.parametrize(
    ("params", "row"),
    [
        (SamplingParams(top_p=0.9), (1.0, TOP_K_OFF, 0.9)),
        (SamplingParams(top_k=40), (1.0, 40, 1.0)),
        (SamplingParams(temperature=0.7), (0.7, TOP_K_OFF, 1.0)),
        (SamplingParams(top_k=40, top_p=0.9), (1.0, 40, 0.9)),
        (SamplingParams(temperature=0.7, top_p=0.9), (0.7, TOP_K_OFF, 0.9)),
    ],
)
@pytest.mark.parametrize("variant", [RefillSamplingParams, SignatureSamplingParams])
def test_1_8_an_unset_field_of_a_sampled_request_is_neutral(
    variant: Callable[[SamplingBuffers], RefillSamplingParams | SignatureSamplingParams],
    params: SamplingParams,
    row: tuple[float, int, float],
) -> None:
    rows = variant(buffers()).fill([params], [1])
    assert not rows.all_greedy
    assert (rows.temperature.item(), rows.top_k.item(), rows.top_p.item()) == pytest.approx(row)


def test_1_8_unset_and_neutral_sign_alike() -> None:
    filler = signature()
    filler.fill([SamplingParams(top_p=0.9)], [5])
    assert filler.needs_refill([SamplingParams(temperature=1.0, top_k=0, top_p=0.9)], [5]) == (False, False)


def test_another_variant_may_have_written_the_buffers() -> None:
    check_activation(SignatureSamplingParams)


def test_callers_may_reuse_their_lists() -> None:
    filler = signature()
    params, counts = [A, B], [5, 5]
    filler.fill(params, counts)
    params[0], counts[1] = B, 1
    assert filler.needs_refill(params, counts) == (True, True)
    assert_like_full_refill(filler, (params, counts))


def test_lengths_that_disagree_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        signature().fill([A, B], [1])


def test_a_write_that_failed_half_way_is_not_believed() -> None:
    failures = [False, True, False]

    def failing(destination: torch.Tensor, source: torch.Tensor) -> None:
        if failures and failures.pop(0):
            raise MemoryError("no memory to stage in")
        destination.copy_(source)

    filler = signature()
    filler.fill([A], [5])
    filler.buffers._copy_async = failing
    with pytest.raises(MemoryError):
        filler.fill([B], [5])
    assert filler.needs_refill([A], [5]).request
    assert_like_full_refill(filler, ([A], [5]))


def test_a_steady_step_costs_a_twentieth_of_a_refill() -> None:
    """Batch 128, K = 5. The ratio here is above 200; the best of many rounds does not see a busy machine."""
    shared = SamplingBuffers(128, 5, CPU, copy_at_once)
    params = [replace(A, seed=i, temperature=0.5 + 0.1 * (i % 7)) for i in range(128)]

    def cost(filler: RefillSamplingParams | SignatureSamplingParams) -> float:
        filler.activate()
        filler.fill(list(params), [6] * 128)
        times = []
        for _ in range(50):
            step, counts = list(params), [6] * 128
            start = time.perf_counter_ns()
            filler.fill(step, counts)
            times.append(time.perf_counter_ns() - start)
        return median(sorted(times)[:20])

    assert cost(SignatureSamplingParams(shared)) < cost(RefillSamplingParams(shared)) / 20


# Broken mechanisms: the checks above must see each of them.


class WithoutRowCounts(SignatureSamplingParams):
    """Signs the expanded group by its values alone."""

    def _sign_expanded(self, step: StepParams) -> RowSignature:
        return self.buffers.rows, step.values, ()


class NeverForgets(SignatureSamplingParams):
    """Takes over and believes what it believed."""

    def activate(self) -> None:
        pass


class StoreOfItsOwn(SignatureSamplingParams):
    """Each copy keeps its own signatures."""

    def __copy__(self) -> StoreOfItsOwn:
        twin = type(self)(self.buffers)
        twin.signatures = copy.copy(self.signatures)
        return twin


class BlindToTables(SignatureSamplingParams):
    """Signs values without the table they were written to."""

    def _sign_request(self, step: StepParams):  # type: ignore[no-untyped-def]
        return (None, step.values)

    def _sign_expanded(self, step: StepParams):  # type: ignore[no-untyped-def]
        return (None, step.values, step.row_counts)


class ForgetsWhenGreedy(SignatureSamplingParams):
    """Takes an all-greedy step for a change."""

    def fill(self, params, row_counts, slots=None):  # type: ignore[no-untyped-def]
        rows = super().fill(params, row_counts, slots)
        if rows.all_greedy:
            self.invalidate()
        return rows


class NeverWritesTheRequests(SignatureSamplingParams):
    """Signs the request group and does not write it."""

    def _fill_request_group(self, step: StepParams) -> None:
        self.signatures.request = self._sign_request(step)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (WithoutRowCounts, check_transitions),
        (NeverWritesTheRequests, check_transitions),
        (NeverForgets, check_activation),
        (StoreOfItsOwn, check_shared_by_copies),
        (BlindToTables, check_reallocation),
        (ForgetsWhenGreedy, check_greedy_steps_between),
    ],
)
def test_a_broken_mechanism_is_seen(broken: Make, check: Callable[[Make], None]) -> None:
    with pytest.raises(AssertionError):
        check(broken)
