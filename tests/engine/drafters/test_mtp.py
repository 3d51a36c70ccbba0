"""Multi-token prediction in the step against a plain module over whole sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from specbench.engine.config import DrafterSpec
from specbench.engine.drafters.base import TargetRows
from specbench.engine.drafters.mtp import MtpHead
from tests.engine.drafters.draft_checks import (
    CASES,
    RUNTIME_LENS,
    STAGGERED,
    case_id,
    check_followed,
    compare,
    without_speculation,
)
from tests.engine.drafters.head_cases import mtp_head
from tests.engine.drafters.head_runs import MANY_SMALL_BLOCKS, oracle_of, run_head
from tests.engine.engine_driver import forced

SPEC = DrafterSpec("mtp", 3)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_proposals_are_those_of_a_plain_module(case: dict[str, Any]) -> None:
    head = mtp_head()
    outcome, log = run_head(head, case, SPEC, acceptance=forced(2.6))
    assert outcome.num_preemptions > 0 or "num_blocks" not in case
    assert compare(log, oracle_of(head), every=2) > 20


@pytest.mark.parametrize("case", CASES[3:8], ids=case_id)
def test_tokens_are_those_of_no_speculation(case: dict[str, Any]) -> None:
    assert run_head(mtp_head(), case, SPEC)[0].outputs == without_speculation().outputs


@pytest.mark.parametrize("draft_len", range(1, 6))
def test_any_draft_length(draft_len: int) -> None:
    head, spec = mtp_head(), DrafterSpec("mtp", draft_len)
    assert run_head(head, {"overlap": True}, spec)[0].outputs == without_speculation().outputs
    _, log = run_head(head, {"overlap": True}, spec, acceptance=forced(draft_len + 1.0), **MANY_SMALL_BLOCKS)
    assert compare(log, oracle_of(head)) > 20


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("own_ends", [False, True])
def test_embedding_and_head_are_the_targets_or_its_own(reduced: bool, own_ends: bool) -> None:
    head = mtp_head(reduced=reduced, own_ends=own_ends)
    _, log = run_head(head, {}, SPEC, acceptance=forced(2.0))
    assert compare(log, oracle_of(head), every=4) > 10
    if reduced:
        ids = set(head.vocabulary.tolist())
        assert all(ids.issuperset(proposal.drafts) for proposal in log.proposals)
    other = mtp_head(reduced=reduced, own_ends=not own_ends)
    with pytest.raises(AssertionError):
        compare(log, oracle_of(replace(head, tensors={**head.tensors, **other.tensors})))


def test_the_cache_follows_steps_that_draft_nothing() -> None:
    head, spec = mtp_head(), replace(SPEC, runtime_draft_len=RUNTIME_LENS)
    check_followed(*run_head(head, {"overlap": True}, spec, STAGGERED), oracle_of(head))


def hidden_before_the_final_norm(head: MtpHead, rows: TargetRows, next_token_ids: Tensor, attention: Any) -> Tensor:
    return FIRST(head, replace(rows, hidden=rows.hidden * 2 - rows.hidden.roll(1, 0)), next_token_ids, attention)


def tokens_not_shifted(head: MtpHead, rows: TargetRows, _: Tensor, attention: Any) -> Tensor:
    return FIRST(head, rows, rows.token_ids, attention)


def passed_on_behind_the_norm(head: MtpHead, rows: TargetRows, next_token_ids: Tensor, attention: Any) -> Tensor:
    return head._norm.forward(FIRST(head, rows, next_token_ids, attention))


FIRST = MtpHead.first


@pytest.mark.parametrize("broken", [hidden_before_the_final_norm, tokens_not_shifted, passed_on_behind_the_norm])
def test_a_broken_pass_is_noticed(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    head = mtp_head()
    monkeypatch.setattr(MtpHead, "first", broken)
    _, log = run_head(head, {}, SPEC, acceptance=forced(2.0))
    with pytest.raises(AssertionError):
        compare(log, oracle_of(head))
