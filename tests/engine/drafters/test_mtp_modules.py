"""Several MTP modules in the step against plain modules over whole sequences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.build import build_engine
from specbench.engine.config import AcceptanceSpec, DrafterSpec, ModelSpec
from specbench.engine.drafters import mtp
from specbench.engine.drafters.base import DraftState, DraftStep, TargetRows
from specbench.engine.drafters.declaration import WeightsQuery
from specbench.engine.drafters.draft_weights import find_draft_weights
from specbench.engine.drafters.earlier_rows import EarlierRows, WidenedRows
from specbench.engine.drafters.head_weights import load_head
from specbench.engine.drafters.mtp import MtpDrafter, MtpHead
from specbench.engine.models.presets import TINY
from specbench.errors import InputError
from tests.engine.drafters.draft_checks import (
    CASES,
    GREEDY,
    PROMPTS,
    STAGGERED,
    case_id,
    compare,
    config_of,
    watching,
    without_speculation,
)
from tests.engine.drafters.head_cases import mtp_head, tiny_host, using_head
from tests.engine.drafters.head_runs import MANY_SMALL_BLOCKS, oracle_of, plain_modules, run_head
from tests.engine.engine_driver import forced, run, tiny_model
from tests.engine.head_checkpoints import MTP, OWN_CHECKPOINT, mtp_tensors, write_head

SHORT_PROMPTS = [[3], [7, 1], [4, 9, 2], [5], [8, 8, 8, 8]]
"""Shorter than what is run again."""


def spec_of(draft_len: int) -> DrafterSpec:
    return DrafterSpec("mtp", draft_len)


def rates(draft_len: int) -> AcceptanceSpec:
    """Steps that commit any number of tokens, so that drafts are turned down at every place."""
    return AcceptanceSpec("forced", rates=(0.6,) * draft_len)


@pytest.mark.parametrize("num_modules", [pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_proposals_are_those_of_plain_modules(case: dict[str, Any], num_modules: int) -> None:
    head = mtp_head(num_modules=num_modules)
    outcome, log = run_head(head, case, spec_of(num_modules), acceptance=rates(num_modules))
    assert outcome.num_preemptions > 0 or "num_blocks" not in case
    assert compare(log, oracle_of(head), every=2) > 20


@pytest.mark.parametrize("num_modules", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES[3:8], ids=case_id)
def test_tokens_are_those_of_no_speculation(case: dict[str, Any], num_modules: int) -> None:
    head = mtp_head(num_modules=num_modules)
    assert run_head(head, case, spec_of(num_modules))[0].outputs == without_speculation().outputs


@pytest.mark.parametrize("length", [1.0, 2.5])
def test_sequences_shorter_than_what_is_run_again(length: float) -> None:
    head = mtp_head(num_modules=4)
    _, log = run_head(
        head, {"overlap": True}, spec_of(4), prompts=SHORT_PROMPTS, acceptance=forced(length), **MANY_SMALL_BLOCKS
    )
    assert min(len(proposal.token_ids) for proposal in log.proposals) == 2
    assert compare(log, oracle_of(head)) > 20


def test_no_row_lies_beyond_the_blocks_that_a_step_reserves(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, spare = DrafterSpec("mtp", 4, runtime_draft_len=((2, 4), (4, 1))), []

    def watched(earlier: EarlierRows, rows: TargetRows) -> WidenedRows:
        widened = WIDEN(earlier, rows)
        context, num_rows = rows.metadata.num_context_rows, rows.metadata.rows_per_generation
        reserved = rows.positions[context::num_rows] + 1 + (spec.max_draft_len + 1 + spec.num_ahead)
        used = widened.metadata.generation_kv_lens
        spare.extend((reserved - used).tolist())
        return widened

    config = config_of({}, spec, acceptance=rates(4), **MANY_SMALL_BLOCKS)
    monkeypatch.setattr(EarlierRows, "widen", watched)
    with using_head(mtp_head(num_modules=4)):
        run(config, SHORT_PROMPTS, STAGGERED[: len(SHORT_PROMPTS)], concurrency=4)
    assert min(spare) >= 0
    assert len(set(spare)) > 2  # sequences that are shorter than what is run again among them


def test_chunks_shorter_than_what_is_run_again() -> None:
    head = mtp_head(num_modules=3)
    _, log = run_head(head, {"max_num_tokens": 17}, spec_of(3), acceptance=rates(3))
    assert compare(log, oracle_of(head), every=2) > 20


@pytest.mark.parametrize("graphs", ["off", "captured"])
def test_the_cache_follows_steps_that_draft_less_or_nothing(graphs: str) -> None:
    head = mtp_head(num_modules=3)
    spec = DrafterSpec("mtp", 3, runtime_draft_len=((1, 3), (2, 2), (3, 1)))
    outcome, log = run_head(head, {"overlap": True, "graphs": graphs}, spec, STAGGERED)
    assert outcome.outputs == without_speculation(STAGGERED).outputs
    assert {len(proposal.drafts) for proposal in log.proposals} == {0, 1, 2, 3}
    assert compare(log, oracle_of(head)) > 5


@pytest.mark.parametrize(("reduced", "own_ends"), [(True, False), (False, True)])
def test_embedding_and_head_are_the_targets_or_of_each_module(reduced: bool, own_ends: bool) -> None:
    head = mtp_head(num_modules=2, reduced=reduced, own_ends=own_ends)
    _, log = run_head(head, {}, spec_of(2), acceptance=forced(2.0))
    assert compare(log, oracle_of(head), every=4) > 10


def test_behind_a_lookup() -> None:
    head, spec = mtp_head(num_modules=2), DrafterSpec("ngram+mtp", 2)
    outcome, log = run_head(head, {"overlap": True}, spec)
    assert outcome.outputs == without_speculation().outputs
    assert compare(log, oracle_of(head), every=4) > 10


def test_drawn_tokens_are_what_the_next_module_reads() -> None:
    head, params = mtp_head(num_modules=2), replace(GREEDY, temperature=1.5, seed=3)
    _, log = run_head(head, {"overlap": True}, spec_of(2), params, acceptance=AcceptanceSpec("rejection"))
    num_other = 0
    for proposal in log.proposals[::3]:
        first, logits = plain_modules(proposal.token_ids, head, 2, proposal.drafts)
        torch.testing.assert_close(proposal.logits, logits, rtol=1e-3, atol=1e-3)
        num_other += first[0] != proposal.drafts[0]
    assert num_other > 5  # drawn, and not the likeliest


def nothing_is_run_again(_: EarlierRows, rows: TargetRows) -> WidenedRows:
    return WidenedRows(rows.positions, rows.slots, rows.hidden, rows.ends, rows.metadata)


def nothing_is_kept(earlier: EarlierRows, rows: TargetRows) -> WidenedRows:
    widened = WIDEN(earlier, rows)
    earlier._hidden.zero_()
    return widened


def rows_kept_as_if_all_were_accepted(earlier: EarlierRows, rows: TargetRows) -> WidenedRows:
    widened = WIDEN(earlier, rows)
    num_rows = rows.metadata.rows_per_generation
    if not rows.metadata.num_context:
        last = rows.hidden.unflatten(0, (-1, num_rows))[:, -earlier._count :]
        earlier._hidden.index_copy_(0, rows.slots[::num_rows], last)
    return widened


def replayed(slots_keep: bool, patch: pytest.MonkeyPatch) -> list[list[list[int]]]:
    """Draft tokens of the same cached requests twice, with other requests in the same slots in between."""
    if slots_keep:
        patch.setattr(EarlierRows, "forget", lambda *_: None)
    found = []
    with using_head(mtp_head(num_modules=2)), watching(MtpDrafter) as log:
        engine = build_engine(config_of({}, DrafterSpec("mtp", 2), acceptance=rates(2)), loaded=tiny_model())
        for tokens in ([3, 4, 5], None, [3, 4, 5]):
            log.proposals.clear()
            for token in tokens or range(30, 34):
                add = engine.add_request if tokens is None else engine.add_cached_request
                add([token] * 20, GREEDY)
            while engine.has_work:
                engine.step()
            found.append([proposal.drafts for proposal in log.proposals])
        engine.shutdown()
    return found


@pytest.mark.parametrize("slots_keep", [False, True])
def test_a_context_that_was_not_computed_finds_nothing_of_another(
    slots_keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, again = replayed(slots_keep, monkeypatch)
    assert (first == again) is not slots_keep


def drafts_not_read(state: Any, rows: Any, num_tokens: Tensor, distance: int, num_drafts: int) -> Tensor:  # noqa: ARG001
    return READ_AHEAD(state, rows, num_tokens, distance, 0)


def lengths_of_the_last_request(state: Any, step: Any) -> Tensor:  # noqa: ARG001
    return state.num_tokens


WIDEN, READ_AHEAD = EarlierRows.widen, mtp._read_ahead


@pytest.mark.parametrize(
    ("name", "broken"), [("_read_ahead", drafts_not_read), ("_lengths_of", lengths_of_the_last_request)]
)
def test_tokens_of_the_wrong_place_are_noticed(name: str, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    head = mtp_head(num_modules=3)
    monkeypatch.setattr(mtp, name, broken)
    _, log = run_head(head, {"max_num_tokens": 24}, spec_of(3), acceptance=rates(3))
    with pytest.raises(AssertionError):
        compare(log, oracle_of(head))


@pytest.mark.parametrize("broken", [nothing_is_run_again, nothing_is_kept, rows_kept_as_if_all_were_accepted])
def test_a_broken_rerun_is_noticed(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    head = mtp_head(num_modules=2)
    monkeypatch.setattr(EarlierRows, "widen", broken)
    _, log = run_head(head, {}, spec_of(2), acceptance=rates(2))
    with pytest.raises(AssertionError):
        compare(log, oracle_of(head))


def test_a_module_of_the_wrong_place_is_noticed() -> None:
    head = mtp_head(num_modules=2)
    tensors = {name.replace("modules.0.", "modules.1."): tensor for name, tensor in head.tensors.items()
               if name.startswith("modules.0.")}  # fmt: skip
    _, log = run_head(replace(head, tensors={**head.tensors, **tensors}), {}, spec_of(2), acceptance=forced(2.0))
    with pytest.raises(AssertionError):
        compare(log, oracle_of(head))


def test_as_many_modules_are_built_as_there_are_draft_tokens() -> None:
    built = []
    for spec in (DrafterSpec("mtp", draft_len) for draft_len in (1, 2, 3)):
        with using_head(mtp_head(num_modules=3)):
            built.append(MtpDrafter(spec, tiny_host(spec)))
    assert [drafter.needs.num_kv_layers for drafter in built] == [1, 2, 3]
    assert [drafter.attention.cache.num_layers for drafter in built] == [1, 2, 3]


def test_one_draft_token_runs_no_row_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EarlierRows, "widen", None)
    head = mtp_head(num_modules=3)
    _, log = run_head(head, {}, spec_of(1), acceptance=forced(1.5))
    assert compare(log, oracle_of(head), every=4) > 10


def test_committed_tokens_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, num_written = MtpDrafter.draft, 0

    def watched(drafter: MtpDrafter, state: DraftState, step: DraftStep) -> None:
        nonlocal num_written
        before = state.token_ids.clone()
        draft(drafter, state, step)
        num_written += int((state.token_ids != before).sum())

    monkeypatch.setattr(MtpDrafter, "draft", watched)
    with using_head(mtp_head(num_modules=3)):
        run(config_of({}, DrafterSpec("mtp", 3)), PROMPTS[:2], GREEDY, concurrency=2)
    assert num_written == 0


@pytest.mark.parametrize("spec", [DrafterSpec("mtp", 4), DrafterSpec("ngram+mtp", 1, runtime_draft_len=((2, 4),))])
def test_more_draft_tokens_than_modules_are_refused(spec: DrafterSpec) -> None:
    with using_head(mtp_head(num_modules=3)), pytest.raises(InputError, match=r"4 draft tokens .* 3 modules") as caught:
        run(config_of({}, spec), PROMPTS, GREEDY)
    assert caught.value.where == "drafter.draft_len"
    assert caught.value.hint == "set drafter.draft_len to 3 or less"


def test_a_draft_shorter_than_the_modules_takes_as_many_layers(tmp_path: Path) -> None:
    directory = write_head(tmp_path / "head", MTP, mtp_tensors())
    one, both = (
        find_draft_weights(
            WeightsQuery(replace(spec_of(draft_len), model=str(directory)), ModelSpec("tiny"), TINY.config)
        )
        for draft_len in (1, 2)
    )
    assert one is not None
    assert both is not None
    assert 2 * one.kv_bytes_per_token(2) == both.kv_bytes_per_token(2)


@pytest.mark.parametrize("naming", [MTP, OWN_CHECKPOINT])
def test_a_checkpoint_of_two_modules_drafts(tmp_path: Path, naming: str) -> None:
    # Random weights of variance 1 make outputs that rounding alone can turn; these are as small as trained ones.
    tensors = {name: tensor * 0.2 if tensor.dim() == 2 else tensor for name, tensor in mtp_tensors().items()}
    spec = DrafterSpec("mtp", 2, model=str(write_head(tmp_path / "head", naming, tensors)))
    with watching(MtpDrafter, MtpHead) as log:
        outcome = run(config_of({"overlap": True, "graphs": "captured"}, spec), PROMPTS, GREEDY, concurrency=4)
    assert outcome.outputs == without_speculation().outputs
    loaded = load_head("mtp", spec, ModelSpec("tiny"), TINY.config, torch.float32)
    assert loaded.config.num_modules == 2
    assert compare(log, oracle_of(loaded), every=3) > 20
