"""Drafters: prompt lookup against a plain Python search, and the interface every drafter keeps."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specbench.engine.config import DrafterSpec
from specbench.engine.drafters.base import Drafter, DrafterNeeds, build_drafter
from specbench.engine.drafters.ngram import NgramDrafter
from specbench.engine.drafters.none import NoDrafter
from specbench.errors import InputError, UnknownNameError

MAX_DRAFT_LEN = 5
WIDTH = 40
STALE = 10**6
"""What columns and slots hold that no drafter may read or write."""


@dataclass
class State:
    token_ids: torch.Tensor
    num_tokens: torch.Tensor
    draft_token_ids: torch.Tensor
    num_draft_tokens: torch.Tensor


def state_of(sequences: list[list[int]], width: int = WIDTH) -> State:
    token_ids = torch.full((len(sequences), width), STALE)
    for row, sequence in enumerate(sequences):
        token_ids[row, : len(sequence)] = torch.tensor(sequence, dtype=torch.int64)
    shape = (len(sequences), MAX_DRAFT_LEN)
    return State(
        token_ids,
        torch.tensor([len(sequence) for sequence in sequences]),
        torch.full(shape, -1),
        torch.full((len(sequences),), -1),
    )


def propose(
    drafter: Drafter, sequences: list[list[int]], draft_len: int = 4, bound: int | None = None
) -> tuple[list[list[int]], list[int]]:
    state = state_of(sequences)
    bound = max(len(sequence) for sequence in sequences) if bound is None else bound
    drafter.propose(state, torch.arange(len(sequences)), draft_len, bound)
    return state.draft_token_ids[:, :draft_len].tolist(), state.num_draft_tokens.tolist()


def lookup(sequence: list[int], draft_len: int, min_ngram: int, max_ngram: int) -> list[int]:
    """What prompt lookup proposes, by plain search: longest n first, most recent occurrence first."""
    for n in range(max_ngram, min_ngram - 1, -1):
        suffix = sequence[-n:]
        for start in range(len(sequence) - n - 1, -1, -1):
            if len(suffix) == n and sequence[start : start + n] == suffix:
                return sequence[start + n : start + n + draft_len]
    return []


@given(
    sequences=st.integers(1, 4).flatmap(
        lambda distinct: st.lists(st.lists(st.integers(0, distinct), min_size=1, max_size=30), min_size=1, max_size=5)
    ),
    draft_len=st.integers(0, MAX_DRAFT_LEN),
    lengths=st.tuples(st.integers(1, 4), st.integers(0, 3)),
    excess=st.integers(0, 10),
    data=st.data(),
)
def test_ngram_against_plain_search(
    sequences: list[list[int]], draft_len: int, lengths: tuple[int, int], excess: int, data: st.DataObject
) -> None:
    min_ngram, max_ngram = lengths[0], lengths[0] + lengths[1]
    drafter = NgramDrafter(DrafterSpec("ngram", MAX_DRAFT_LEN, max_ngram=max_ngram, min_ngram=min_ngram))
    state = state_of(sequences)
    slots = data.draw(st.lists(st.sampled_from(range(len(sequences))), min_size=1, max_size=6))
    bound = max(len(sequences[slot]) for slot in slots) + excess
    drafter.propose(state, torch.tensor(slots), draft_len, bound)
    for slot, sequence in enumerate(sequences):
        drafts, count = state.draft_token_ids[slot].tolist(), int(state.num_draft_tokens[slot])
        if slot not in slots:
            assert (drafts, count) == ([-1] * MAX_DRAFT_LEN, -1)
            continue
        expected = lookup(sequence, draft_len, min_ngram, max_ngram)
        assert count == len(expected)
        filled = expected + [sequence[-1]] * (draft_len - len(expected))
        assert drafts == filled + [-1] * (MAX_DRAFT_LEN - draft_len)


def ngram(draft_len: int = 4, max_ngram: int = 3, min_ngram: int = 1) -> NgramDrafter:
    return NgramDrafter(DrafterSpec("ngram", draft_len, max_ngram=max_ngram, min_ngram=min_ngram))


def test_longest_match_beats_a_more_recent_shorter_one() -> None:
    drafts, counts = propose(ngram(), [[1, 2, 3, 40, 41, 42, 43, 9, 3, 50, 51, 1, 2, 3]])
    assert (drafts, counts) == ([[40, 41, 42, 43]], [4])


def test_most_recent_match_beats_an_older_one() -> None:
    drafts, counts = propose(ngram(), [[1, 2, 7, 7, 7, 7, 1, 2, 8, 9, 10, 11, 1, 2]])
    assert (drafts, counts) == ([[8, 9, 10, 11]], [4])


def test_a_continuation_that_ends_early_is_proposed_as_far_as_it_goes() -> None:
    drafts, counts = propose(ngram(), [[5, 6, 5, 6]])
    assert (drafts, counts) == ([[5, 6, 6, 6]], [2])


def test_no_match_leaves_the_last_token_in_every_place() -> None:
    drafts, counts = propose(ngram(), [[1, 2, 3, 4], [7]])
    assert (drafts, counts) == ([[4] * 4, [7] * 4], [0, 0])


def test_min_ngram_rules_shorter_matches_out() -> None:
    sequence = [1, 2, 3, 9, 3]
    assert propose(ngram(min_ngram=1), [sequence])[1] == [2]
    assert propose(ngram(min_ngram=2), [sequence])[1] == [0]


def test_a_slot_that_was_never_used_gets_valid_ids() -> None:
    state = state_of([[], [1, 2, 1]])
    state.token_ids[0] = 0
    ngram().propose(state, torch.tensor([0, 1, 0]), 4, 3)
    assert state.num_draft_tokens.tolist() == [0, 2]
    assert state.draft_token_ids[0, :4].tolist() == [0] * 4


def test_columns_past_the_bound_and_stale_tokens_are_not_read() -> None:
    state = state_of([[1, 2, 3, 1, 2]])
    # A stale tail that repeats the suffix, as a turned down draft would leave it.
    state.token_ids[0, 5:10] = torch.tensor([3, 1, 2, 99, 98])
    for bound in (5, 8, WIDTH, WIDTH + 100):
        ngram().propose(state, torch.tensor([0]), 4, bound)
        assert state.draft_token_ids[0, :4].tolist() == [3, 1, 2, 2]
        assert state.num_draft_tokens.tolist() == [3]


def test_none_proposes_nothing_and_touches_its_slots_alone() -> None:
    state = state_of([[1, 1, 1]] * 4)
    NoDrafter(DrafterSpec()).propose(state, torch.tensor([2, 0]), 0, 3)
    assert state.num_draft_tokens.tolist() == [0, -1, 0, -1]
    assert (state.draft_token_ids == -1).all()


def test_build_drafter() -> None:
    assert isinstance(build_drafter(DrafterSpec()), NoDrafter)
    drafter = build_drafter(DrafterSpec("ngram", 3, runtime_draft_len=((1, 5), (8, 2))))
    assert isinstance(drafter, NgramDrafter)
    assert drafter.max_draft_len == 5
    assert drafter.needs == DrafterNeeds(hidden_layers=(), num_kv_layers=0)


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        (DrafterSpec("none", 4), "drafter.draft_len"),
        (DrafterSpec("none", 0, runtime_draft_len=((4, 2),)), "drafter.draft_len"),
        (DrafterSpec("ngram", 4, min_ngram=0), "drafter.min_ngram"),
        (DrafterSpec("ngram", 4, max_ngram=2, min_ngram=3), "drafter.max_ngram"),
    ],
)
def test_specifications_that_cannot_work(spec: DrafterSpec, where: str) -> None:
    with pytest.raises(InputError) as caught:
        build_drafter(spec)
    assert caught.value.where == where


def test_unknown_drafter_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ngram'") as caught:
        build_drafter(DrafterSpec("n-gram", 4))
    assert caught.value.where == "drafter.name"
