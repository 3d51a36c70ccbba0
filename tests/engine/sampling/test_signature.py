"""Variant ``signature`` of ``sampling_params``: which group it writes, which it leaves, and when.

Tests are named by the rows of the table of the sampling-parameter buffers that they hold. What all variants have in
common is in ``test_sampling_params_rows``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from call_counts import count_calls
from sampling_reference import CPU, Copies, copy_at_once
from variant_checks import GREEDY, LIKE_A, A, B, Setup, Step, assert_like_full_refill, of

from specbench.engine.sampling.buffers import SamplingBuffers
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.refill import RefillSamplingParams
from specbench.engine.sampling.signature import FillSignatures, RefillNeeds, SignatureSamplingParams
from specbench.engine.sampling.step_params import StepParams

Variant = type[SignatureSamplingParams]


def signature(variant: Variant = SignatureSamplingParams) -> SignatureSamplingParams:
    filler = of(variant)(Setup())
    assert isinstance(filler, SignatureSamplingParams)
    return filler


# Row 1.2


def check_slots_do_not_count(variant: Variant) -> None:
    filler = signature(variant)
    filler.fill([A, B], [5, 5], [0, 1])
    filler.fill([A, B], [5, 5], [3, 2])
    assert (filler.counters.fills, filler.counters.hits, filler.counters.copies) == (1, 1, 6)


def check_groups_apart(variant: Variant) -> None:
    copies = Copies()
    filler = variant(SamplingBuffers(8, 4, CPU, copies))
    filler.fill([A, B], [1, 5])
    copies.run()
    filler.fill([A, B], [5, 5])
    rows = filler.buffers.rows
    written = {destination.data_ptr() for destination, _ in copies.pending}
    assert written == {rows.temperature.data_ptr(), rows.top_k.data_ptr(), rows.top_p.data_ptr()}
    assert len(copies.pending) == 3
    assert filler.read_counters() == {
        "fills": 2, "hits": 0, "skips": 0, "appends": 3 * (2 + 6 + 10), "copies": 9, "bytes": 16 * (2 + 6 + 10),
    }  # fmt: skip


def check_top_k_max(variant: Variant) -> None:
    filler = signature(variant)
    assert filler.fill([A, B], [5, 5]).top_k_max == 50
    assert filler.fill([B, B], [5, 5]).top_k_max == 20
    assert filler.fill([B, A], [5, 0]).top_k_max == 20  # a request without rows is in no row
    assert filler.fill([B, A], [5, 5]).top_k_max == 50
    assert filler.fill([replace(A, top_k=None)], [5]).top_k_max == 0


def check_greedy_touches_nothing(variant: Variant) -> None:
    setup = Setup()
    filler = of(variant)(setup)
    assert isinstance(filler, SignatureSamplingParams)
    rows = filler.fill([GREEDY, SamplingParams(temperature=0.0)], [5, 1])
    assert rows.all_greedy
    assert rows.is_greedy.tolist() == [True] * 6
    assert setup.queue.num_copies == 0
    assert filler.signatures == FillSignatures()
    assert filler.counters.skips == 1


ROW_1_2 = (check_slots_do_not_count, check_groups_apart, check_top_k_max, check_greedy_touches_nothing)


@pytest.mark.parametrize("check", ROW_1_2)
def test_row_1_2_two_signatures(check: Callable[[Variant], None]) -> None:
    check(SignatureSamplingParams)


class SignsSlots(SignatureSamplingParams):
    """Puts the slots into both signatures."""

    def fill(self, params, row_counts, slots=None):  # type: ignore[no-untyped-def]
        self.slots = tuple(slots or ())
        return super().fill(params, row_counts, slots)

    def _sign_request(self, step: StepParams):  # type: ignore[no-untyped-def]
        return self.buffers.requests, (step.values, self.slots)


class FillsBothGroups(SignatureSamplingParams):
    """Writes all as soon as anything differs."""

    def _compare(self, step: StepParams) -> RefillNeeds:
        needs = super()._compare(step)
        return RefillNeeds(any(needs), any(needs))


class KeepsTheFirstFacts(SignatureSamplingParams):
    """Refreshes values, and no top_k_max."""

    def _fill_expanded_group(self, step: StepParams):  # type: ignore[no-untyped-def]
        self.first = getattr(self, "first", step.facts)
        return super()._fill_expanded_group(step._replace(facts=self.first))


class FillsGreedySteps(SignatureSamplingParams):
    """Has no early return."""

    def fill(self, params, row_counts, slots=None):  # type: ignore[no-untyped-def]
        step = self._reader.read(params, row_counts)
        self._fill_request_group(step)
        return super().fill(params, row_counts, slots)


@pytest.mark.parametrize(
    ("broken", "check"),
    list(zip((SignsSlots, FillsBothGroups, KeepsTheFirstFacts, FillsGreedySteps), ROW_1_2, strict=True)),
)
def test_row_1_2_a_broken_mechanism_is_seen(broken: Variant, check: Callable[[Variant], None]) -> None:
    with pytest.raises(AssertionError):
        check(broken)


# Row 1.4

WARMER = replace(B, top_k=21)
TRANSITIONS: list[tuple[str, Step, tuple[bool, bool]]] = [
    ("first call", Step([A, B], [1, 5]), (True, True)),
    ("steady", Step([A, B], [1, 5]), (False, False)),
    ("context becomes generation", Step([A, B], [5, 5]), (False, True)),
    ("K changes", Step([A, B], [3, 3]), (False, True)),
    ("a value changes", Step([A, WARMER], [3, 3]), (True, True)),
    ("order changes, differing values", Step([WARMER, A], [3, 3]), (True, True)),
    ("a request becomes like another", Step([A, A], [3, 3]), (True, True)),
    ("order changes, equal values", Step([LIKE_A, A], [3, 3]), (False, False)),
    ("batch grows", Step([A, A, A], [3, 3, 3]), (True, True)),
    ("batch shrinks", Step([A, A], [3, 3]), (True, True)),
    ("explicit invalidate", Step([A, A], [3, 3]), (True, True)),
]
"""What happens, the step it happens in, and what has to be written: (request group, expanded group)."""


def walk_transitions(variant: Variant) -> list[tuple[str, tuple[bool, bool]]]:
    """What the variant says it needs at each transition. What it then does must equal a full refill."""
    filler = signature(variant)
    found = []
    for name, step, _ in TRANSITIONS:
        if name == "explicit invalidate":
            filler.invalidate()
        before = filler.counters.copies
        needs = filler.needs_refill(step.params, step.row_counts)
        found.append((name, (needs.request, needs.expanded)))
        assert_like_full_refill(filler, step)
        assert filler.counters.copies - before == 3 * (needs.request + needs.expanded), name
        assert filler.needs_refill(step.params, step.row_counts) == (False, False), name
    return found


def show_transitions(found: list[tuple[str, tuple[bool, bool]]]) -> str:
    """The table, a line a transition."""
    lines = [f"{'transition':34}request group  expanded group"]
    lines += [f"{name:34}{_words(request):15}{_words(expanded)}" for name, (request, expanded) in found]
    return "\n".join(lines)


def _words(is_written: bool) -> str:
    return "refill" if is_written else "-"


def check_transitions(variant: Variant) -> None:
    assert walk_transitions(variant) == [(name, expected) for name, _, expected in TRANSITIONS]


def test_row_1_4_transitions() -> None:
    check_transitions(SignatureSamplingParams)
    table = show_transitions(walk_transitions(SignatureSamplingParams))
    print(table)  # pytest -rP shows it
    assert table.splitlines() == [
        "transition                        request group  expanded group",
        "first call                        refill         refill",
        "steady                            -              -",
        "context becomes generation        -              refill",
        "K changes                         -              refill",
        "a value changes                   refill         refill",
        "order changes, differing values   refill         refill",
        "a request becomes like another    refill         refill",
        "order changes, equal values       -              -",
        "batch grows                       refill         refill",
        "batch shrinks                     refill         refill",
        "explicit invalidate               refill         refill",
    ]


class WithoutRowCounts(SignatureSamplingParams):
    """Signs the expanded group by its values alone."""

    def _sign_expanded(self, step: StepParams):  # type: ignore[no-untyped-def]
        return self.buffers.rows, step.values, ()


class WithoutOrder(SignatureSamplingParams):
    """Signs the set of values."""

    def _sign_request(self, step: StepParams):  # type: ignore[no-untyped-def]
        return self.buffers.requests, tuple(sorted(step.values))


class NeverWritesTheRequests(SignatureSamplingParams):
    """Signs the request group and does not write it."""

    def _fill_request_group(self, step: StepParams) -> None:
        self.signatures.request = self._sign_request(step)


class SignsSeeds(SignatureSamplingParams):
    """Takes requests for different that differ in nothing that is written."""

    def needs_refill(self, params, row_counts):  # type: ignore[no-untyped-def]
        self.seeds = [request.seed for request in params]
        return super().needs_refill(params, row_counts)

    def _sign_request(self, step: StepParams):  # type: ignore[no-untyped-def]
        return self.buffers.requests, (step.values, tuple(self.seeds))


class CannotBeInvalidated(SignatureSamplingParams):
    """Believes what it believed."""

    def invalidate(self) -> None:
        pass


@pytest.mark.parametrize(
    "broken", [WithoutRowCounts, WithoutOrder, NeverWritesTheRequests, SignsSeeds, CannotBeInvalidated]
)
def test_row_1_4_a_broken_mechanism_is_seen(broken: Any) -> None:
    with pytest.raises(AssertionError):
        check_transitions(broken)


def check_a_twentieth_of_a_refill(variant: type[SignatureSamplingParams]) -> None:
    """Batch 128, K = 5: calls, values and copies of a step like the one before."""
    shared = SamplingBuffers(128, 5, CPU, copy_at_once)
    params = [replace(A, seed=i, temperature=0.5 + 0.1 * (i % 7)) for i in range(128)]

    def cost(filler: RefillSamplingParams | SignatureSamplingParams) -> tuple[int, int, int]:
        filler.activate()
        filler.fill(list(params), [6] * 128)
        appends, copies = filler.counters.appends, filler.counters.copies
        step, counts = list(params), [6] * 128
        calls = count_calls(lambda: filler.fill(step, counts))
        return calls, filler.counters.appends - appends, filler.counters.copies - copies

    refill, steady = cost(RefillSamplingParams(shared)), cost(variant(shared))
    assert refill[1:] == (3 * 128 * (1 + 6), 6)
    assert steady[0] < refill[0] / 20
    assert steady[1:] == (0, 0)


def test_a_steady_step_costs_a_twentieth_of_a_refill() -> None:
    check_a_twentieth_of_a_refill(SignatureSamplingParams)


class RemembersNoStep(SignatureSamplingParams):
    """Normalises every request of every step."""

    def fill(self, params, row_counts, slots=None):  # type: ignore[no-untyped-def]
        self._reader = type(self._reader)()
        return super().fill(params, row_counts, slots)


class RemembersNoTable(SignatureSamplingParams):
    """Signs nothing."""

    def _compare(self, step: StepParams) -> RefillNeeds:
        self.invalidate()
        return super()._compare(step)


@pytest.mark.parametrize("broken", [RemembersNoStep, RemembersNoTable])
def test_a_steady_step_that_costs_more_is_seen(broken: type[SignatureSamplingParams]) -> None:
    with pytest.raises(AssertionError):
        check_a_twentieth_of_a_refill(broken)


def test_row_1_7_new_tables_are_filled_once_and_hit_after_that() -> None:
    live = signature()
    captured = copy.copy(live)
    step = Step([replace(A, top_k=None), replace(B, top_k=0)], [5, 5])
    asked = (step.params, step.row_counts)
    assert_like_full_refill(captured, step)
    live.buffers.allocate(9, 4)
    assert live.needs_refill(*asked) == captured.needs_refill(*asked) == (True, True)
    assert_like_full_refill(captured, step)
    assert_like_full_refill(live, step)
    captured.buffers = Setup().buffers
    for view in (captured, live, captured):
        assert view.needs_refill(*asked) == (True, True)
        assert_like_full_refill(view, step)
        assert view.needs_refill(*asked) == (False, False)
