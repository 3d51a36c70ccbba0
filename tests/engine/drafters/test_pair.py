"""A lookup and a head together: by request the lookup's proposals where it found something, else the head's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specbench.engine.config import DrafterSpec
from specbench.engine.drafters.base import Drafter, DraftState, DraftStep, build_drafter
from specbench.engine.drafters.ngram import NgramDrafter
from specbench.engine.drafters.none import NoDrafter
from specbench.engine.drafters.pair import PairDrafter
from specbench.errors import InputError
from tests.engine.drafters.draft_checks import (
    CASES,
    GREEDY,
    RUNTIME_LENS,
    STAGGERED,
    DraftLog,
    Oracle,
    Params,
    case_id,
    compare,
    config_of,
    watching,
    without_speculation,
)
from tests.engine.drafters.head_cases import eagle3_head, mtp_head, using_head
from tests.engine.drafters.head_runs import oracle_of
from tests.engine.drafters.test_drafters import lookup
from tests.engine.engine_driver import Outcome, forced, run

SPEC = DrafterSpec("ngram+eagle3", 3, max_ngram=3, min_ngram=1)
PROMPTS = [
    [
        (index * 7 + place * 13) % 512 if index % 2 else [5, 6, 7, 8, 9, 5, 6][place % 7]
        for place in range(4 + 9 * index)
    ]
    for index in range(6)
]
"""Every other one repeats itself, so that a batch has requests of both kinds."""


def pair_oracle(head: Oracle, spec: DrafterSpec = SPEC) -> Oracle:
    def draft(token_ids: list[int], draft_len: int) -> tuple[list[int], Any]:
        found = lookup(token_ids, draft_len, spec.min_ngram, spec.max_ngram)
        return (found, None) if found else (head(token_ids, draft_len)[0], None)

    return draft


def count_lookups(log: DraftLog, spec: DrafterSpec = SPEC) -> tuple[int, int]:
    """Proposals that the lookup finds, and those that it does not."""
    drafted = [proposal for proposal in log.proposals if proposal.drafts]
    found = [lookup(each.token_ids, len(each.drafts), spec.min_ngram, spec.max_ngram) for each in drafted]
    return sum(map(bool, found)), len(found) - sum(map(bool, found))


def run_pair(
    case: dict[str, Any], spec: DrafterSpec = SPEC, params: Params = GREEDY, **changes: Any
) -> tuple[Outcome, DraftLog]:
    with using_head(eagle3_head()), using_head(mtp_head()), watching(PairDrafter) as log:
        return run(config_of(case, spec, **changes), PROMPTS, params, concurrency=4), log


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_proposals_are_the_lookups_else_the_heads(case: dict[str, Any]) -> None:
    outcome, log = run_pair(case, acceptance=forced(1.8))
    assert outcome.num_preemptions > 0 or "num_blocks" not in case
    assert min(count_lookups(log)) > 10
    assert compare(log, pair_oracle(oracle_of(eagle3_head())), every=2) > 20


def test_any_head_may_be_the_second() -> None:
    spec = replace(SPEC, name="ngram+mtp")
    _, log = run_pair({"overlap": True}, spec, acceptance=forced(1.8))
    assert min(count_lookups(log, spec)) > 10
    assert compare(log, pair_oracle(oracle_of(mtp_head()), spec), every=2) > 20


def test_the_shortest_match_that_counts() -> None:
    _, short = run_pair({}, replace(SPEC, min_ngram=1))
    _, long = run_pair({}, replace(SPEC, min_ngram=3))
    shares = [found / (found + other) for found, other in map(count_lookups_of, ((short, 1), (long, 3)))]
    assert shares[0] > shares[1]


def count_lookups_of(case: tuple[DraftLog, int]) -> tuple[int, int]:
    log, min_ngram = case
    return count_lookups(log, replace(SPEC, min_ngram=min_ngram))


@pytest.mark.parametrize("case", CASES[3:8], ids=case_id)
def test_tokens_are_those_of_no_speculation(case: dict[str, Any]) -> None:
    assert run_pair(case)[0].outputs == without_speculation(prompts=PROMPTS).outputs


@pytest.mark.parametrize("draft_len", [1, 2, 4, 5])
def test_any_draft_length(draft_len: int) -> None:
    outcome, log = run_pair({"overlap": True}, replace(SPEC, draft_len=draft_len))
    assert outcome.outputs == without_speculation(prompts=PROMPTS).outputs
    assert compare(log, pair_oracle(oracle_of(eagle3_head())), every=5) > 5


def test_the_heads_cache_follows_steps_that_draft_nothing() -> None:
    spec = replace(SPEC, runtime_draft_len=RUNTIME_LENS)
    outcome, log = run_pair({"overlap": True}, spec, STAGGERED)
    assert outcome.outputs == without_speculation(STAGGERED, PROMPTS).outputs
    assert compare(log, pair_oracle(oracle_of(eagle3_head()))) > 5


def head_alone(self: PairDrafter, state: DraftState, step: DraftStep) -> None:
    self.model.draft(state, step)


def lookup_for_all_or_none(self: PairDrafter, state: DraftState, step: DraftStep) -> None:
    self.model.draft(state, step)
    if step.slots.shape[0] and step.draft_len:
        drafts, counts = state.draft_token_ids.clone(), state.num_draft_tokens.clone()
        self.lookup.draft(state, step)
        if not state.num_draft_tokens[step.slots].any():
            state.draft_token_ids.copy_(drafts)
            state.num_draft_tokens.copy_(counts)


def head_only_when_needed(self: PairDrafter, state: DraftState, step: DraftStep) -> None:
    """The head's cache misses the steps in which the lookup found something for every request."""
    if step.slots.shape[0] and step.draft_len:
        self.lookup.draft(state, step)
        if state.num_draft_tokens[step.slots].all():
            return
    DRAFT(self, state, step)


DRAFT = PairDrafter.draft


@pytest.mark.parametrize("broken", [head_alone, lookup_for_all_or_none, head_only_when_needed])
def test_a_broken_choice_is_noticed(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PairDrafter, "draft", broken)
    # One request at a time, where the head's cache is at stake: then what the lookup finds is found for all.
    with using_head(eagle3_head()), watching(PairDrafter) as log:
        run(config_of({}, SPEC, acceptance=forced(1.8)), PROMPTS, GREEDY, concurrency=2)
    with pytest.raises(AssertionError):
        compare(log, pair_oracle(oracle_of(eagle3_head())))


class _Model(Drafter):
    def draft(self, state: DraftState, step: DraftStep) -> None:
        raise NotImplementedError


def test_what_is_a_pair() -> None:
    ngram, model, none = NgramDrafter(SPEC), _Model(SPEC), NoDrafter(DrafterSpec())
    for first, second in ((model, ngram), (ngram, ngram), (model, model), (none, model), (ngram, none)):
        with pytest.raises(InputError, match="is no pair") as caught:
            PairDrafter(SPEC, first, second)
        assert caught.value.where == "drafter.name"
    assert PairDrafter(SPEC, ngram, model).max_draft_len == 3
    assert SPEC.num_ahead == 2, "the head's cache goes on behind the target's rows"
    with pytest.raises(TypeError, match="for an engine"):
        build_drafter(SPEC)
