"""A small model that drafts in the target's step, against the same model over whole sequences."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from specbench.engine.config import DrafterSpec, ModelSpec
from specbench.engine.drafters import draft_model
from specbench.engine.drafters.base import DraftState, DraftStep, TargetRows
from specbench.engine.drafters.draft_model import DraftModelDrafter, DraftModelHead
from specbench.engine.drafters.head_location import check_draft_model
from specbench.engine.models.hf_config_writer import to_hf_config
from specbench.engine.models.loading import LoadedModel, build_model, fill_model, load_model
from specbench.engine.models.presets import TINY, TINY_HYBRID
from specbench.engine.models.random_weights import RandomSource
from specbench.engine.models.tensor_shapes import model_shapes
from specbench.errors import CheckpointError, InputError
from tests.engine.drafters.draft_checks import (
    CASES,
    GREEDY,
    PROMPTS,
    RUNTIME_LENS,
    STAGGERED,
    DraftLog,
    Oracle,
    Params,
    case_id,
    check_followed,
    compare,
    config_of,
    watching,
    without_speculation,
)
from tests.engine.drafters.head_cases import dense_forward, tiny_host
from tests.engine.drafters.head_runs import MANY_SMALL_BLOCKS
from tests.engine.engine_driver import Outcome, forced, run, tiny_model

SPEC = DrafterSpec("draft_model", 3, model="random:tiny")


@cache
def small_model() -> LoadedModel:
    """What ``random:tiny`` is, of another seed than the target."""
    return load_model(ModelSpec("tiny", "random"), torch.float32, torch.device("cpu"))


def model_of(**changes: Any) -> LoadedModel:
    config = replace(TINY.config, **changes)
    model = build_model(config, dtype=torch.float32, device=torch.device("cpu"))
    expected = model.expected_tensors()
    source = RandomSource(config, expected, seed=3, dtype=torch.float32, device=torch.device("cpu"))
    fill_model(model, source, Path("random"))
    return replace(small_model(), model=model, config=config)


@contextmanager
def drafting_with(loaded: LoadedModel) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft_model, "load_model", lambda *_, **__: loaded)
        patch.setattr(draft_model, "resolve_model_config", lambda *_: loaded.config)
        yield


def oracle_of(loaded: LoadedModel, vocab_size: int = 512) -> Oracle:
    def draft(token_ids: list[int], draft_len: int) -> tuple[list[int], Tensor]:
        read, logits = list(token_ids), []
        for _ in range(draft_len):
            hidden = dense_forward(loaded.model, read)
            logits.append(loaded.model.compute_logits(hidden[-1:])[0, :vocab_size])
            read.append(int(logits[-1].argmax()))
        return read[len(token_ids) :], torch.stack(logits)

    return draft


def run_model(
    loaded: LoadedModel, case: dict[str, Any], spec: DrafterSpec = SPEC, params: Params = GREEDY, **changes: Any
) -> tuple[Outcome, DraftLog]:
    with drafting_with(loaded), watching(DraftModelDrafter, DraftModelHead) as log:
        return run(config_of(case, spec, **changes), PROMPTS, params, concurrency=4), log


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_proposals_are_those_of_the_model_alone(case: dict[str, Any]) -> None:
    outcome, log = run_model(small_model(), case, acceptance=forced(2.6))
    assert outcome.num_preemptions > 0 or "num_blocks" not in case
    assert compare(log, oracle_of(small_model()), every=2) > 20


@pytest.mark.parametrize("case", CASES[3:8], ids=case_id)
def test_tokens_are_those_of_no_speculation(case: dict[str, Any]) -> None:
    assert run_model(small_model(), case)[0].outputs == without_speculation().outputs


@pytest.mark.parametrize("draft_len", range(1, 6))
def test_a_model_that_is_the_target_is_always_accepted(draft_len: int) -> None:
    spec = replace(SPEC, draft_len=draft_len)
    outcome, _ = run_model(tiny_model(), {"overlap": True}, spec, **MANY_SMALL_BLOCKS)
    assert outcome.outputs == without_speculation().outputs
    for request in outcome.requests:
        # The first token comes from the prompt's step, the last step is cut at the end of the request.
        assert set(request.accepted_lengths[:-1]) <= {draft_len + 1}
        assert sum(request.accepted_lengths) == GREEDY.max_tokens - 1


def test_a_model_of_another_shape_and_of_more_tokens() -> None:
    loaded = model_of(
        vocab_size=600, hidden_size=32, num_layers=3, num_heads=4, num_kv_heads=4, head_dim=8, intermediate_size=48
    )
    outcome, log = run_model(loaded, {"overlap": True, "max_num_tokens": 24}, acceptance=forced(2.0))
    assert compare(log, oracle_of(loaded), every=3) > 20
    assert all(0 <= token < 512 for proposal in log.proposals for token in proposal.drafts)
    # Without the mask some of them would not be the target's.
    with pytest.raises(AssertionError):
        compare(log, oracle_of(loaded, vocab_size=600))
    assert outcome.requests


def test_the_cache_follows_steps_that_draft_nothing() -> None:
    spec = replace(SPEC, runtime_draft_len=RUNTIME_LENS)
    check_followed(*run_model(small_model(), {"overlap": True}, spec, STAGGERED), oracle_of(small_model()))


@pytest.mark.parametrize("case", [{}, {"max_num_tokens": 24}, {"num_blocks": 16}], ids=case_id)
def test_every_committed_token_is_read_once(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[int, list[int]] = {}
    shift = draft_model.shift_rows

    def watched(state: DraftState, rows: TargetRows) -> TargetRows:
        shifted = shift(state, rows)
        num_context = shifted.metadata.num_context_rows
        columns = (shifted.slots.tolist(), shifted.positions.tolist(), shifted.token_ids.tolist())
        for row, (slot, position, token) in enumerate(zip(*columns, strict=True)):
            assert token == state.token_ids[slot, position]
            if position == 0:
                read[slot] = []
            if row < num_context or position < int(state.num_tokens[slot]):
                read[slot].append(position)
        return shifted

    monkeypatch.setattr(draft_model, "shift_rows", watched)
    run_model(small_model(), case, acceptance=forced(2.0))
    assert all(positions == list(range(len(positions))) for positions in read.values())
    assert max(map(len, read.values())) > 40


def first_token_left_out(state: DraftState, rows: TargetRows) -> TargetRows:
    shifted = SHIFT(state, rows)
    # The second token takes the place of the first: what every later token attends to is another.
    token_ids = torch.where(shifted.positions == 0, state.token_ids[shifted.slots, 1], shifted.token_ids)
    return replace(shifted, token_ids=token_ids)


def rows_not_shifted(state: DraftState, rows: TargetRows) -> TargetRows:  # noqa: ARG001
    return rows


def positions_of_the_target(state: DraftState, rows: TargetRows) -> TargetRows:
    shifted = SHIFT(state, rows)
    positions = (shifted.positions - 1).clamp(min=0)
    return replace(shifted, positions=positions, metadata=replace(shifted.metadata, positions=positions))


SHIFT = draft_model.shift_rows


@pytest.mark.parametrize("broken", [first_token_left_out, rows_not_shifted, positions_of_the_target])
def test_a_broken_shift_is_noticed(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_model, "shift_rows", broken)
    _, log = run_model(small_model(), {}, acceptance=forced(2.0))
    with pytest.raises(AssertionError):
        compare(log, oracle_of(small_model()))


def test_a_cache_that_does_not_follow_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = DraftModelDrafter.draft

    def idle(self: DraftModelDrafter, state: DraftState, step: DraftStep) -> None:
        if step.draft_len:
            draft(self, state, step)
        else:
            state.num_draft_tokens.index_fill_(0, step.slots, 0)

    monkeypatch.setattr(DraftModelDrafter, "draft", idle)
    spec = replace(SPEC, runtime_draft_len=RUNTIME_LENS)
    _, log = run_model(small_model(), {"overlap": True}, spec, STAGGERED)
    with pytest.raises(AssertionError):
        compare(log, oracle_of(small_model()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 500}, "500 tokens and the target 512"),
        ({"max_position_embeddings": 100}, "reads 100 positions"),
        ({"sliding_window": 64}, "reads 64 positions"),
        ({"linear_attention": TINY_HYBRID.config.linear_attention}, "recurrent state"),
    ],
)
def test_models_that_cannot_draft(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        check_draft_model(replace(TINY.config, **changes), TINY.config, max_seq_len=128)
    assert caught.value.where == "drafter.model"
    check_draft_model(TINY.config, TINY.config, max_seq_len=TINY.config.max_position_embeddings)


def test_a_draft_model_is_named() -> None:
    with pytest.raises(InputError, match="missing") as caught:
        run(config_of({}, replace(SPEC, model=None)), PROMPTS, GREEDY)
    assert caught.value.where == "drafter.model"


def test_a_draft_model_with_a_weight_that_is_not_finite_drafts_nothing(tmp_path: Path) -> None:
    source = RandomSource(
        TINY.config, model_shapes(TINY.config), seed=1, dtype=torch.float32, device=torch.device("cpu")
    )
    tensors = {name: source.read(name) for name in source.shapes}
    (tmp_path / "config.json").write_text(json.dumps(to_hf_config(TINY.config)))
    spec = replace(SPEC, model=str(tmp_path))
    save_file(tensors, tmp_path / "model.safetensors")
    DraftModelDrafter(spec, tiny_host(spec))
    tensors["model.norm.weight"][7] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"'model\.norm\.weight': 1 of 64 values are not finite") as caught:
        DraftModelDrafter(spec, tiny_host(spec))
    assert caught.value.where == f"drafter.model: {tmp_path / 'model.safetensors'}"
