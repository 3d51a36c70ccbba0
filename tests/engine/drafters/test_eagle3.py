"""EAGLE-3 drafting in the step against a plain head over whole sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.config import DrafterSpec
from specbench.engine.drafters.base import DraftState, DraftStep, TargetRows
from specbench.engine.drafters.eagle3 import Eagle3Head
from specbench.engine.drafters.model_drafter import ModelDrafter
from tests.engine.drafters.draft_checks import (
    CASES,
    RUNTIME_LENS,
    STAGGERED,
    case_id,
    check_followed,
    compare,
    without_speculation,
)
from tests.engine.drafters.head_cases import eagle3_head
from tests.engine.drafters.head_runs import MANY_SMALL_BLOCKS, oracle_of, run_head
from tests.engine.engine_driver import forced

SPEC = DrafterSpec("eagle3", 3)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_proposals_are_those_of_a_plain_head(case: dict[str, Any]) -> None:
    head = eagle3_head()
    # Forced: steps that accept nothing, some and all of a draft, whatever a random head proposes.
    outcome, log = run_head(head, case, SPEC, acceptance=forced(2.6))
    assert outcome.num_preemptions > 0 or "num_blocks" not in case
    assert compare(log, oracle_of(head), every=2) > 20


@pytest.mark.parametrize("case", CASES[3:8], ids=case_id)
def test_tokens_are_those_of_no_speculation(case: dict[str, Any]) -> None:
    assert run_head(eagle3_head(), case, SPEC)[0].outputs == without_speculation().outputs


@pytest.mark.parametrize("draft_len", range(1, 6))
def test_any_draft_length(draft_len: int) -> None:
    head = eagle3_head()
    spec = DrafterSpec("eagle3", draft_len)
    outcome, log = run_head(head, {"overlap": True}, spec)
    assert outcome.outputs == without_speculation().outputs
    # All accepted: what is drafted next lies farthest behind the rows of the step.
    _, accepted = run_head(head, {"overlap": True}, spec, acceptance=forced(draft_len + 1.0), **MANY_SMALL_BLOCKS)
    assert compare(log, oracle_of(head), every=7) > 5
    assert compare(accepted, oracle_of(head)) > 20


@pytest.mark.parametrize("before_fc", [False, True])
@pytest.mark.parametrize("before_residual", [False, True])
def test_norms_that_a_head_may_have(before_fc: bool, before_residual: bool) -> None:
    head = eagle3_head(norm_before_fc=before_fc, norm_before_residual=before_residual)
    _, log = run_head(head, {}, SPEC, acceptance=forced(2.0))
    assert compare(log, oracle_of(head), every=5) > 10
    # The same weights under other norms draft something else: the check above can tell them apart.
    other = replace(head, config=replace(head.config, norm_before_fc=not before_fc))
    with pytest.raises(AssertionError):
        compare(log, oracle_of(other))


RUNTIME = replace(SPEC, runtime_draft_len=RUNTIME_LENS)


def test_the_cache_follows_steps_that_draft_nothing() -> None:
    head = eagle3_head()
    check_followed(*run_head(head, {"overlap": True}, RUNTIME, STAGGERED), oracle_of(head))


def hidden_of_the_next_row(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Eagle3Head.first

    def shifted(self: Eagle3Head, rows: TargetRows, next_token_ids: Tensor, attention: Any) -> Tensor:
        return first(
            self, replace(rows, tapped=tuple(state.roll(-1, 0) for state in rows.tapped)), next_token_ids, attention
        )

    monkeypatch.setattr(Eagle3Head, "first", shifted)


def tokens_not_shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Eagle3Head.first
    monkeypatch.setattr(
        Eagle3Head, "first", lambda self, rows, _, attention: first(self, rows, rows.token_ids, attention)
    )


def row_of_another_end(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = ModelDrafter.draft

    def last_row(self: ModelDrafter, state: DraftState, step: DraftStep) -> None:
        rows = step.target_rows
        draft(self, state, replace(step, rows=replace(rows, ends=(rows.ends - 1).clamp(min=0))))

    monkeypatch.setattr(ModelDrafter, "draft", last_row)


def output_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Eagle3Head.next

    def forgetful(self: Eagle3Head, token_ids: Tensor, positions: Tensor, hidden: Tensor, attention: Any) -> Tensor:
        # The first pass goes through here too, with more rows than tokens of a request.
        kept = hidden if hidden.shape[0] > 4 else torch.zeros_like(hidden)
        return advance(self, token_ids, positions, kept, attention)

    monkeypatch.setattr(Eagle3Head, "next", forgetful)


@pytest.mark.parametrize(
    "broken", [hidden_of_the_next_row, tokens_not_shifted, row_of_another_end, output_not_passed_on]
)
def test_a_broken_pass_is_noticed(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    head = eagle3_head()
    broken(monkeypatch)
    outcome, log = run_head(head, {}, SPEC, acceptance=forced(2.0))
    assert outcome.requests
    with pytest.raises(AssertionError):
        compare(log, oracle_of(head))


def test_a_cache_that_does_not_follow_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = ModelDrafter.draft

    def idle(self: ModelDrafter, state: DraftState, step: DraftStep) -> None:
        if step.draft_len:
            draft(self, state, step)
        else:
            state.num_draft_tokens.index_fill_(0, step.slots, 0)

    monkeypatch.setattr(ModelDrafter, "draft", idle)
    head = eagle3_head()
    _, log = run_head(head, {"overlap": True}, RUNTIME, STAGGERED)
    with pytest.raises(AssertionError):
        compare(log, oracle_of(head))


def test_blocks_are_there_for_what_lies_behind_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    head, spec = eagle3_head(), DrafterSpec("eagle3", 5)
    monkeypatch.setattr(DrafterSpec, "num_ahead", 0)

    def draft_and_compare() -> None:
        _, log = run_head(head, {"overlap": True}, spec, acceptance=forced(6.0), **MANY_SMALL_BLOCKS)
        compare(log, oracle_of(head))

    # The last drafts then go to blocks that other requests own, or past the table.
    with pytest.raises((AssertionError, IndexError)):
        draft_and_compare()
