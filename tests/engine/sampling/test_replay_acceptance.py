"""Replay: recorded lengths as boundaries in the sequence, whatever K looks them up."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specbench.engine.config import AcceptanceSpec, DrafterSpec, EngineConfig, ModelSpec
from specbench.engine.sampling.acceptance import Verification, build_acceptance
from specbench.engine.sampling.metadata import RowFacts, SamplingRows
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.replay import check_replay, tokens_to_boundary
from specbench.errors import InputError

LENGTHS = st.lists(st.integers(1, 7), max_size=12)


@dataclass
class State:
    """Two slots; the second is the one that replays, after a prompt of ``START`` - 1 tokens and one of the context."""

    tokens_to_boundary: torch.Tensor
    seeds: torch.Tensor


START = 5


def step_of(*requests: torch.Tensor) -> Verification:
    """A step of these requests; replay does not look at how the target chose."""
    nothing = torch.zeros(0)
    return Verification(*requests, nothing, SamplingRows(nothing, nothing, nothing, RowFacts()))


def replayed(lengths: list[int], draft_lens: list[int], num_tokens: int) -> list[int]:
    """Tokens committed by each step, with K of each step in turn, over and over, until ``num_tokens`` are there."""
    acceptance = build_acceptance(AcceptanceSpec("replay"), max(draft_lens))
    table = torch.ones(2, START + num_tokens + 20, dtype=torch.int64)
    table[1, START : START + num_tokens] = torch.from_numpy(tokens_to_boundary(lengths, num_tokens))
    state, positions = State(table, torch.zeros(2, dtype=torch.int64)), torch.tensor([START])
    committed: list[int] = []
    while sum(committed) < num_tokens:
        draft_len = draft_lens[len(committed) % len(draft_lens)]
        target, drafts = torch.zeros(1, draft_len + 1, dtype=torch.int64), torch.ones(1, draft_len, dtype=torch.int64)
        slots, proposed = torch.tensor([1]), torch.tensor([0])
        token_ids, count = acceptance.accept(state, step_of(slots, positions, target, drafts, proposed))
        committed.append(int(count))
        # Draft tokens first, proposed or not, then the target's own.
        assert token_ids[0, : committed[-1]].tolist() == [1] * (committed[-1] - 1) + [0]
        positions += committed[-1]
    return committed


@given(lengths=LENGTHS, draft_len=st.integers(0, 6))
def test_enough_rows_commit_what_was_recorded(lengths: list[int], draft_len: int) -> None:
    wide = max([draft_len + 1, *lengths]) - 1
    beyond = 3
    assert replayed(lengths, [wide], sum(lengths) + beyond) == [*lengths, *[1] * beyond]


@given(lengths=LENGTHS, draft_lens=st.lists(st.integers(0, 5), min_size=1, max_size=3))
def test_few_rows_take_several_steps_to_each_boundary(lengths: list[int], draft_lens: list[int]) -> None:
    total = sum(lengths)
    committed = replayed(lengths, draft_lens, total)
    assert sum(committed) == total
    ends = set(accumulate(committed))
    assert set(accumulate(lengths)) <= ends
    position = 0
    for step, count in enumerate(committed):
        next_boundary = min(end for end in accumulate(lengths) if end > position)
        assert count == min(next_boundary - position, draft_lens[step % len(draft_lens)] + 1)
        position += count


def test_the_table_of_a_recording() -> None:
    assert tokens_to_boundary((3, 1, 2), 8).tolist() == [3, 2, 1, 1, 2, 1, 1, 1]
    assert tokens_to_boundary((3, 1, 2), 4).tolist() == [3, 2, 1, 1]
    assert tokens_to_boundary((3, 1, 2), 1).tolist() == [3]
    assert tokens_to_boundary((3, 1, 2), 0).tolist() == []
    assert tokens_to_boundary((), 2).tolist() == [1, 1]


def test_slots_replay_their_own_recordings() -> None:
    table = torch.ones(3, 40, dtype=torch.int64)
    table[0, 10:13] = torch.from_numpy(tokens_to_boundary((3,), 3))
    table[1, 20:22] = torch.from_numpy(tokens_to_boundary((2,), 2))
    state = State(table, torch.zeros(3, dtype=torch.int64))
    drafts, target = torch.ones(3, 4, dtype=torch.int64), torch.zeros(3, 5, dtype=torch.int64)
    slots, positions = torch.tensor([1, 2, 0]), torch.tensor([20, 0, 10])  # slot 2 is padding's
    acceptance = build_acceptance(AcceptanceSpec("replay"), 4)
    _, committed = acceptance.accept(state, step_of(slots, positions, target, drafts, slots))
    assert committed.tolist() == [2, 1, 3]


def config(mode: str, max_seq_len: int = 20) -> EngineConfig:
    return EngineConfig(
        ModelSpec("tiny"), "cpu", max_seq_len, 1, 8, drafter=DrafterSpec("ngram", 2), acceptance=AcceptanceSpec(mode)
    )


def test_a_request_without_a_recording_is_refused_under_replay() -> None:
    with pytest.raises(InputError, match="has no recorded lengths") as caught:
        check_replay(SamplingParams(), 4, config("replay"), "request r")
    assert caught.value.where == "request r"
    assert "replay_lengths" in str(caught.value)


@pytest.mark.parametrize("mode", ["strict", "forced"])
def test_a_recording_is_refused_where_nothing_replays_it(mode: str) -> None:
    with pytest.raises(InputError, match=f"acceptance is {mode}"):
        check_replay(SamplingParams(replay_lengths=()), 4, config(mode), "request r")
    check_replay(SamplingParams(), 4, config(mode), "request r")


def test_a_recording_must_fit_the_sequence() -> None:
    params = SamplingParams(replay_lengths=(3, 2), max_tokens=6)
    check_replay(params, 14, config("replay"), "request r")
    with pytest.raises(InputError, match=r"ends at token 21 .*max_seq_len is 20.*\n.*max_seq_len to 21"):
        check_replay(params, 15, config("replay"), "request r")
    # A cap that is lower cuts it, as it cuts any output: warm-up does.
    check_replay(SamplingParams(replay_lengths=(3, 2), max_tokens=5), 15, config("replay"), "request r")


@pytest.mark.parametrize("lengths", [(0,), (2, -1, 3)])
def test_a_step_that_commits_nothing_is_no_recording(lengths: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="at least 1 token"):
        SamplingParams(replay_lengths=lengths)
