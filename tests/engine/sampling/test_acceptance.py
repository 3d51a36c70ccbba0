"""Acceptance against brute force; forced lengths against their distribution; speculation changes no token."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling_reference import make_rows
from scipy import stats

from specbench.engine.config import AcceptanceSpec
from specbench.engine.sampling.acceptance import Acceptance, Verification, build_acceptance
from specbench.engine.sampling.metadata import RowFacts, SamplingRows
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.sampler import select_tokens
from specbench.errors import InputError, UnknownNameError


def forced(max_draft_len: int, length: float | None = None, rates: tuple[float, ...] = ()) -> Acceptance:
    return build_acceptance(AcceptanceSpec("forced", length, rates), max_draft_len)


@dataclass
class State:
    """A slot a request: what acceptance reads of the device state."""

    seeds: torch.Tensor
    tokens_to_boundary: torch.Tensor


def accept(
    acceptance: Acceptance,
    target: torch.Tensor,
    drafts: torch.Tensor,
    proposed: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept with request i in the slot that is i-th from the end."""
    state = State(seeds.flip(0), torch.ones(len(seeds), 0, dtype=torch.int64))
    slots = torch.arange(len(seeds)).flip(0)
    nothing = torch.zeros(0)
    rows = SamplingRows(nothing, nothing, nothing, RowFacts())
    return acceptance.accept(state, Verification(slots, positions, target, drafts, proposed, nothing, rows))


def committed_lengths(acceptance: Acceptance, draft_len: int, count: int) -> torch.Tensor:
    """Committed tokens of ``count`` steps of different requests and positions, drafts that never match."""
    seeds, positions = torch.arange(count) % 100, torch.arange(count) // 100
    target = torch.zeros(count, draft_len + 1, dtype=torch.int64)
    drafts = torch.ones(count, draft_len, dtype=torch.int64)
    token_ids, num_committed = accept(acceptance, target, drafts, torch.zeros_like(seeds), seeds, positions)
    accepted = torch.arange(draft_len + 1) < (num_committed - 1).unsqueeze(1)
    counted = torch.arange(draft_len + 1) < num_committed.unsqueeze(1)
    assert torch.equal(token_ids[counted], accepted.to(torch.int64)[counted])
    return num_committed


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]], list[int]]:
    draft_len, requests = draw(st.integers(0, 5)), draw(st.integers(1, 6))
    token = st.integers(0, 2)
    target = [draw(st.lists(token, min_size=draft_len + 1, max_size=draft_len + 1)) for _ in range(requests)]
    drafts = [draw(st.lists(token, min_size=draft_len, max_size=draft_len)) for _ in range(requests)]
    return target, drafts, [draw(st.integers(0, draft_len)) for _ in range(requests)]


@given(step=steps())
def test_strict_against_brute_force(step: tuple[list[list[int]], list[list[int]], list[int]]) -> None:
    target, drafts, proposed = step
    requests, draft_len = len(target), len(drafts[0])
    seeds = torch.zeros(requests, dtype=torch.int64)
    token_ids, num_committed = accept(
        build_acceptance(AcceptanceSpec(), draft_len),
        torch.tensor(target),
        torch.tensor(drafts, dtype=torch.int64).view(requests, draft_len),
        torch.tensor(proposed),
        seeds,
        seeds,
    )
    assert token_ids.shape == (requests, draft_len + 1)
    for row in range(requests):
        expected = []
        for i in range(proposed[row]):
            if drafts[row][i] != target[row][i]:
                break
            expected.append(drafts[row][i])
        expected.append(target[row][len(expected)])
        assert token_ids[row, : num_committed[row]].tolist() == expected


@given(step=steps(), share=st.floats(0.0, 1.0), seed=st.integers(-(2**63), 2**63 - 1))
def test_forced_commits_drafts_then_the_targets_own(
    step: tuple[list[list[int]], list[list[int]], list[int]], share: float, seed: int
) -> None:
    target, drafts, proposed = step
    requests, draft_len = len(target), len(drafts[0])
    length = 1.0 + share * draft_len
    token_ids, num_committed = accept(
        forced(draft_len, length),
        torch.tensor(target),
        torch.tensor(drafts, dtype=torch.int64).view(requests, draft_len),
        torch.tensor(proposed),
        torch.full((requests,), seed),
        torch.arange(requests),
    )
    for row in range(requests):
        accepted = int(num_committed[row]) - 1
        assert int(length - 1.0) <= accepted <= min(int(length - 1.0) + 1, draft_len)
        assert token_ids[row, : accepted + 1].tolist() == [*drafts[row][:accepted], target[row][accepted]]


@pytest.mark.parametrize("length", [1.0, 1.25, 2.4, 3.0, 4.9, 5.0])
def test_forced_mean_length(length: float) -> None:
    committed = committed_lengths(forced(4, length), 4, 40_000).to(torch.float64)
    share = length % 1.0
    # Five standard errors of a mixture of two neighbouring lengths.
    assert committed.mean().item() == pytest.approx(length, abs=5 * (share * (1 - share) / 40_000) ** 0.5 + 1e-12)
    assert set(committed.tolist()) == ({float(int(length)), float(int(length)) + 1} if share else {length})


def test_forced_2_4_is_one_with_0_6_and_two_with_0_4() -> None:
    counts = committed_lengths(forced(4, 2.4), 4, 40_000).bincount(minlength=6)
    assert counts[[0, 1, 4, 5]].sum() == 0
    assert stats.binomtest(int(counts[3]), 40_000, 0.4).pvalue > 1e-4


def test_forced_conditional_rates_by_position() -> None:
    rates = (0.9, 0.5, 0.25, 1.0)
    committed = committed_lengths(forced(4, rates=rates), 4, 40_000)
    for position, rate in enumerate(rates):
        reached = int((committed > position).sum())
        accepted = int((committed > position + 1).sum())
        assert stats.binomtest(accepted, reached, rate).pvalue > 1e-4


@pytest.mark.parametrize("rates", [(0.0, 1.0), (1.0, 0.0)])
def test_forced_rates_of_none_and_all(rates: tuple[float, ...]) -> None:
    assert committed_lengths(forced(2, rates=rates), 2, 500).tolist() == [1 + int(rates[0])] * 500


def test_forced_draws_by_seed_and_position_alone() -> None:
    acceptance = forced(4, 2.4)
    target, drafts = torch.zeros(60, 5, dtype=torch.int64), torch.ones(60, 4, dtype=torch.int64)
    seeds, positions = torch.arange(60) % 6, torch.arange(60) // 6
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    _, committed = accept(acceptance, target, drafts, seeds, seeds, positions)
    _, shuffled = accept(acceptance, target, drafts, seeds, seeds[order], positions[order])
    assert torch.equal(shuffled, committed[order])
    by_position = committed.view(10, 6)
    assert (by_position[1:] != by_position[:-1]).any()
    assert (by_position[:, 1:] != by_position[:, :-1]).any()


def test_forced_with_a_smaller_draft_length_than_the_largest() -> None:
    assert set(committed_lengths(forced(4, 4.5), 2, 500).tolist()) == {3}
    assert set(committed_lengths(forced(4, 2.4), 0, 500).tolist()) == {1}


@pytest.mark.parametrize("length", [0.9, 0.0, -1.0, 5.1, float("nan"), float("inf")])
def test_a_length_out_of_reach_is_an_input_error(length: float) -> None:
    with pytest.raises(InputError) as caught:
        forced(4, length)
    assert caught.value.where == "acceptance.length"
    assert "1 .. 5" in caught.value.what


@pytest.mark.parametrize(
    ("spec", "where", "message"),
    [
        (AcceptanceSpec("forced"), "acceptance.length", "needs a mean length"),
        (AcceptanceSpec("forced", 2.0, (0.5,) * 4), "acceptance.length", "not both"),
        (AcceptanceSpec("forced", None, (0.5, 0.5)), "acceptance.length", "2 conditional rates are given for 4"),
        (AcceptanceSpec("forced", None, (0.5, 1.2, 0.1, 0.1)), "acceptance.length", "found 1.2"),
        (AcceptanceSpec("forced", None, (0.5, float("nan"), 0.1, 0.1)), "acceptance.length", "found nan"),
        (AcceptanceSpec("strict", 2.0), "acceptance.length", "strict acceptance"),
        (AcceptanceSpec("replay", 2.0), "acceptance.length", "replay takes the lengths that another run recorded"),
        (AcceptanceSpec("replay", None, (0.5,) * 4), "acceptance.length", "replay takes"),
        (AcceptanceSpec("rejection", 2.0), "acceptance.length", "rejection sampling takes"),
        (AcceptanceSpec("chance"), "acceptance.mode", "'chance'; known: forced, rejection, replay, strict"),
    ],
)
def test_bad_specifications(spec: AcceptanceSpec, where: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        build_acceptance(spec, 4)
    assert caught.value.where == where
    assert message in str(caught.value)


def test_unknown_mode_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'strict'"):
        build_acceptance(AcceptanceSpec("stirct"), 4)


def test_strict_and_rejection_judge_content() -> None:
    assert build_acceptance(AcceptanceSpec(), 4).judges_content
    assert build_acceptance(AcceptanceSpec("rejection"), 4).judges_content
    assert not forced(4, 2.0).judges_content
    assert not build_acceptance(AcceptanceSpec("replay"), 4).judges_content


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(temperature=1.0, seed=7), SamplingParams(temperature=0.8, top_k=9, top_p=0.9)],
    ids=["greedy", "temperature", "top-k and top-p"],
)
@pytest.mark.parametrize("draft_len", [1, 3, 5])
def test_speculation_commits_the_tokens_of_plain_decoding(params: SamplingParams, draft_len: int) -> None:
    """A target whose logits follow from the last token, and drafts that are right about two times in three."""
    table = torch.randn(30, 30, generator=torch.Generator().manual_seed(5)) * 2
    guess = torch.Generator().manual_seed(6)

    def choose(previous: list[int], first_position: int) -> torch.Tensor:
        count = len(previous)
        rows = make_rows([params], [count])
        seeds, positions = torch.full((count,), params.seed), torch.arange(count) + first_position
        return select_tokens(table[torch.tensor(previous)], rows, seeds, positions)

    plain = [0]
    while len(plain) < 120:
        plain.append(int(choose([plain[-1]], len(plain))))
    strict = build_acceptance(AcceptanceSpec(), draft_len)
    tokens, lengths = [0], []
    while len(tokens) < 120:
        known = plain[len(tokens) : len(tokens) + draft_len]
        known += [0] * (draft_len - len(known))
        right = torch.rand(draft_len, generator=guess) < 0.67
        drafts = torch.where(right, torch.tensor(known), torch.randint(0, 30, (draft_len,), generator=guess))
        target = choose([tokens[-1], *drafts.tolist()], len(tokens))
        one = torch.tensor([0])
        token_ids, num_committed = accept(strict, target[None], drafts[None], torch.tensor([draft_len]), one, one)
        tokens += token_ids[0, : num_committed[0]].tolist()
        lengths.append(int(num_committed))
    assert tokens[:120] == plain
    assert max(lengths) > 1
    assert min(lengths) < draft_len + 1


def test_what_counts_as_proposed() -> None:
    proposed = torch.tensor([0, 2, 4])
    assert build_acceptance(AcceptanceSpec(), 4).count_proposed(proposed, 4).tolist() == [0, 2, 4]
    assert build_acceptance(AcceptanceSpec("rejection"), 4).count_proposed(proposed, 4).tolist() == [0, 2, 4]
    assert forced(4, 2.0).count_proposed(proposed, 3).tolist() == [3, 3, 3]
    assert build_acceptance(AcceptanceSpec("replay"), 4).count_proposed(proposed, 3).tolist() == [3, 3, 3]
