"""Rejection sampling is lossless: pairs of output tokens have the target's distribution, whatever the draft is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from rejection_cases import DRAFTS, PARAMS, TARGET, Batch, exact_pairs, look_up, p_value
from torch import Tensor

from specbench.engine.config import AcceptanceSpec
from specbench.engine.drafters import draft_choice
from specbench.engine.sampling import rejection, residual
from specbench.engine.sampling.acceptance import build_acceptance
from specbench.engine.sampling.distribution import mass_of
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.rng import Purpose, uniform
from specbench.engine.sampling.selection import CumulativeMass
from specbench.errors import InputError

NUM_PAIRS = 100_000
RIGHT = 1e-3
"""The least p-value of a test that passes; seeds are fixed, so that each has one p-value for ever."""


FAST = {
    "temperature 0.7": "good",
    "temperature 1.0": "bad",
    "temperature 1.3": "adversarial",
    "top-k": "bad",
    "top-p": "adversarial",
}
"""One draft for each kind of sampling; the whole product is slow."""


@pytest.mark.parametrize(
    ("draft", "name"),
    [
        pytest.param(draft, name, marks=() if FAST[name] == draft else pytest.mark.slow)
        for draft in ("good", "bad", "adversarial")
        for name in FAST
    ],
)
def test_pairs_have_the_targets_distribution(draft: str, name: str) -> None:
    batch = Batch(DRAFTS[draft], [PARAMS[name]], NUM_PAIRS)
    assert p_value(batch.run(2), exact_pairs(PARAMS[name])) > RIGHT
    accepted = batch.num_accepted / batch.num_steps
    assert accepted > 1.0 if draft == "good" else 0.0 < accepted < 1.0


@pytest.mark.parametrize("draft", ["without likely tokens", "looked up", "looked up or drawn"])
def test_pairs_in_a_batch_of_all_kinds_of_sampling(draft: str) -> None:
    """Some requests propose one token, some none."""
    kinds = list(PARAMS.values())
    batch = Batch(DRAFTS[draft], kinds, NUM_PAIRS, draft_lens=(2, 2, 1, 2, 0))
    pairs = batch.run(2)
    found = [p_value(pairs[index :: len(kinds)], exact_pairs(params)) for index, params in enumerate(kinds)]
    assert min(found) > RIGHT, found
    assert batch.num_accepted > 0


def test_greedy_requests_beside_sampled_ones_get_the_argmax() -> None:
    kinds = [SamplingParams(), SamplingParams(temperature=1.0)]
    batch = Batch(DRAFTS["good"], kinds, 4_000)
    pairs = batch.run(2)
    first = TARGET[0].argmax()
    assert (pairs[::2] == torch.stack([first, TARGET[first].argmax()])).all()
    assert p_value(pairs[1::2], exact_pairs(kinds[1])) > RIGHT
    greedy = Batch(DRAFTS["good"], kinds[:1], 10)
    assert greedy.run(2).tolist() == pairs[:20:2].tolist(), "a step of greedy requests alone goes the strict way"
    assert not greedy.state.drafts_are_drawn.any()


def test_a_slot_forgets_that_its_last_drafts_were_drawn() -> None:
    batch = Batch(DRAFTS["good"], [SamplingParams(temperature=1.0)], 4)
    batch.run(1)
    assert batch.state.drafts_are_drawn[:4].all()
    batch.params = [SamplingParams()]
    batch.step(torch.arange(3))
    assert batch.state.drafts_are_drawn.tolist() == [False, False, False, True, False]
    batch.params = [SamplingParams(), SamplingParams(temperature=1.0)]
    batch.step(torch.arange(4))
    assert batch.state.drafts_are_drawn.tolist() == [False, True, False, True, False]


def test_without_a_proposal_the_token_is_that_of_plain_decoding() -> None:
    params = [replace(params, seed=0) for params in PARAMS.values()]
    with_none = Batch(DRAFTS["good"], params, 600, draft_lens=(0,))
    strict = Batch(DRAFTS["looked up"], params, 600, draft_lens=(0,))
    assert torch.equal(with_none.run(2), strict.run(2))


def test_a_draft_that_is_the_target_is_always_accepted() -> None:
    batch = Batch(replace(DRAFTS["good"], table=TARGET), [SamplingParams(temperature=0.7)], 20_000)
    batch.step(torch.arange(20_000))
    assert batch.num_accepted == 2 * batch.num_steps


@pytest.mark.parametrize("draft", ["bad", "looked up or drawn"])
def test_tokens_depend_on_seed_and_position_alone(draft: str) -> None:
    """Neither on the slot, nor on the order of the batch, nor on who else is in it."""
    count, kinds = 1_200, [SamplingParams(), *PARAMS.values(), SamplingParams(temperature=1.0, top_k=50, top_p=0.9)]
    shuffle = torch.Generator().manual_seed(0)
    plain = Batch(DRAFTS[draft], kinds, count).run(6)
    moved = Batch(
        DRAFTS[draft], kinds, count,
        slots=torch.randperm(count, generator=shuffle), order=torch.randperm(count, generator=shuffle),
    ).run(6)  # fmt: skip
    assert torch.equal(moved, plain)
    few = Batch(DRAFTS[draft], kinds, count, order=torch.arange(0, count, 7))
    few.run(6)
    assert torch.equal(few.tokens[::7, 1:7], plain[::7])
    assert not torch.equal(Batch(DRAFTS[draft], kinds, count, first_seed=count).run(6), plain)


def test_two_draft_tokens_that_are_one_of_the_target_are_refused() -> None:
    with pytest.raises(InputError, match="one token of the target"):
        build_acceptance(AcceptanceSpec("rejection"), 4, torch.tensor([3, 5, 3]))


def of_target_alone(p: CumulativeMass, rejected: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    """A residual from which nothing is taken."""
    return mass_of(p.mass / p.mass.amax(dim=-1, keepdim=True)), torch.zeros_like(rejected, dtype=torch.bool)


def with_the_number_for(other: Purpose, taken: Purpose) -> Callable[[Tensor, Tensor, Purpose], Tensor]:
    """Random numbers of which one purpose has those of another."""
    return lambda seeds, positions, purpose: uniform(seeds, positions, other if purpose is taken else purpose)


BROKEN = {
    "recovered from p": (residual, "_residual_mass", of_target_alone),
    "not divided by q": (rejection, "passes", lambda draws, p, _q: draws < p),
    "q taken for certain": (rejection, "passes", lambda draws, p, q: draws * (q > 0) < p),
    "recovered with the number that judged": (
        rejection, "uniform", with_the_number_for(Purpose.ACCEPT, Purpose.RECOVER),
    ),
    "judged with the number that drafted": (
        rejection, "uniform", with_the_number_for(Purpose.DRAFT, Purpose.ACCEPT),
    ),
    "drafted with the number of every position alike": (
        draft_choice, "uniform", lambda seeds, positions, purpose: uniform(seeds, positions * 0, purpose),
    ),
}  # fmt: skip


@lru_cache(maxsize=1)
def p_value_of_a_bad_draft() -> float:
    params = PARAMS["temperature 1.0"]
    return p_value(Batch(DRAFTS["bad"], [params], 50_000).run(2), exact_pairs(params))


@pytest.mark.parametrize("broken", list(BROKEN))
def test_what_is_broken_has_another_distribution(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert p_value_of_a_bad_draft() > RIGHT
    monkeypatch.setattr(*BROKEN[broken])
    assert p_value_of_a_bad_draft.__wrapped__() < 1e-9


def test_a_lookup_that_keeps_the_mark_of_a_drawn_draft_has_another_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params, draft = PARAMS["temperature 1.0"], DRAFTS["looked up or drawn"]
    original = Batch._draft

    def draft_and_keep_the_mark(batch: Batch, requests: Tensor, slots: Tensor) -> Tensor:
        token_ids = original(batch, requests, slots)
        batch.state.drafts_are_drawn[slots] = True
        return token_ids

    monkeypatch.setattr(Batch, "_draft", draft_and_keep_the_mark)
    assert p_value(Batch(draft, [params], 50_000).run(2), exact_pairs(params)) < 1e-9
    assert len(set(look_up(torch.arange(12)).tolist())) > 1
