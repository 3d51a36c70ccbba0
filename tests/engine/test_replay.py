"""Replayed acceptance on the whole engine: the recorded steps again, with other K, preempted, overlapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from engine_driver import Outcome, ngram, overlapping, run, tiny_config
from test_engine_tokens import GREEDY, SAMPLED, prompts

from specbench.engine.config import AcceptanceSpec, EngineConfig, ModelSpec
from specbench.engine.models.loading import load_model
from specbench.engine.sampling.params import SamplingParams
from specbench.errors import InputError
from specbench.records import StepRecord

COUNT = 8


def differing() -> list[SamplingParams]:
    """Greedy and sampled requests of several lengths."""
    return [replace(SAMPLED if i % 2 else GREEDY, seed=i, max_tokens=25 + 3 * i) for i in range(COUNT)]


def replaying(config: EngineConfig) -> EngineConfig:
    return replace(config, acceptance=AcceptanceSpec("replay"))


def with_lengths(params: Sequence[SamplingParams], recorded: Outcome) -> list[SamplingParams]:
    return [
        replace(each, replay_lengths=tuple(request.accepted_lengths), max_tokens=len(request.output_token_ids))
        for each, request in zip(params, recorded.requests, strict=True)
    ]


def lengths_of(outcome: Outcome) -> list[list[int]]:
    return [request.accepted_lengths for request in outcome.requests]


def record(draft_len: int = 4) -> Outcome:
    outcome = run(tiny_config(drafter=ngram(draft_len)), prompts(COUNT), differing())
    assert any(length > 2 for lengths in lengths_of(outcome) for length in lengths), "nothing was accepted"
    return outcome


def rows(outcome: Outcome) -> list[tuple[int, ...]]:
    """What each step did, times left out."""
    steps = [step for step in outcome.steps if isinstance(step, StepRecord)]
    return [
        (s.num_context, s.num_context_tokens, s.num_generation, s.draft_len, s.num_committed, s.num_first_tokens)
        for s in steps
    ]


@pytest.mark.parametrize("overlap", [False, True])
def test_the_same_engine_repeats_a_strict_run(overlap: bool) -> None:
    config = tiny_config(drafter=ngram(4), overlap=overlap)
    recorded = run(config, prompts(COUNT), differing())
    again = run(replaying(config), prompts(COUNT), with_lengths(differing(), recorded))
    assert lengths_of(again) == lengths_of(recorded)
    assert again.outputs == recorded.outputs
    assert rows(again) == rows(recorded)


def test_overlap_changes_nothing() -> None:
    recorded = record()
    base = replaying(tiny_config(drafter=ngram(4)))
    params = with_lengths(differing(), recorded)
    plain, overlapped = (run(overlapping(base, overlap), prompts(COUNT), params) for overlap in (False, True))
    assert lengths_of(plain) == lengths_of(overlapped) == lengths_of(recorded)
    assert plain.outputs == overlapped.outputs == recorded.outputs


@pytest.mark.parametrize("draft_len", [0, 1, 2, 7])
def test_another_draft_len_keeps_totals_and_boundaries(draft_len: int) -> None:
    recorded = record()
    config = replaying(tiny_config(drafter=ngram(draft_len)))
    again = run(config, prompts(COUNT), with_lengths(differing(), recorded))
    for before, after in zip(recorded.requests, again.requests, strict=True):
        assert len(after.output_token_ids) == len(before.output_token_ids)
        assert max(after.accepted_lengths) <= draft_len + 1
        boundaries = set(accumulate(before.accepted_lengths))
        assert boundaries <= set(accumulate(after.accepted_lengths))
        if draft_len >= 4:
            assert after.accepted_lengths == before.accepted_lengths


def test_runtime_draft_len_keeps_totals_and_boundaries() -> None:
    recorded = record()
    drafter = replace(ngram(4), runtime_draft_len=((1, 4), (2, 2), (4, 1)))
    again = run(replaying(tiny_config(drafter=drafter)), prompts(COUNT), with_lengths(differing(), recorded))
    for before, after in zip(recorded.requests, again.requests, strict=True):
        assert set(accumulate(before.accepted_lengths)) <= set(accumulate(after.accepted_lengths))


@pytest.mark.parametrize("overlap", [False, True])
def test_preemption_in_the_middle(overlap: bool) -> None:
    recorded = record()
    base = replaying(tiny_config(drafter=ngram(4), overlap=overlap))
    tight = replace(base, num_blocks=-(-base.max_positions // 8) + 3, max_num_tokens=24)
    again = run(tight, prompts(COUNT), with_lengths(differing(), recorded))
    assert again.num_preemptions > 0
    assert any(request.num_preemptions and len(request.accepted_lengths) > 1 for request in again.requests)
    assert lengths_of(again) == lengths_of(recorded)


def test_beyond_the_recording_each_step_commits_one_token() -> None:
    params = replace(GREEDY, replay_lengths=(3, 2), max_tokens=10)
    again = run(replaying(tiny_config(drafter=ngram(4))), prompts(2), params)
    assert lengths_of(again) == [[3, 2, 1, 1, 1, 1]] * 2


def test_a_lower_cap_cuts_the_recording() -> None:
    again = run(
        replaying(tiny_config(drafter=ngram(4))), prompts(1), replace(GREEDY, replay_lengths=(3, 4), max_tokens=6)
    )
    assert lengths_of(again) == [[3, 2]]
    only_context = replace(GREEDY, replay_lengths=(3, 4), max_tokens=1)
    assert lengths_of(run(replaying(tiny_config(drafter=ngram(4))), prompts(1), only_context)) == [[]]


def test_a_slot_forgets_the_request_before() -> None:
    config = replaying(tiny_config(drafter=ngram(4), max_batch_size=1, num_blocks=20))
    params = [
        replace(GREEDY, replay_lengths=(5,) * 6, max_tokens=31),
        replace(GREEDY, replay_lengths=(2,), max_tokens=9),
    ]
    again = run(config, [[1, 2, 3], [4, 5, 6]], params)
    assert lengths_of(again) == [[5] * 6, [2, 1, 1, 1, 1, 1, 1]]


def test_arms_whose_tokens_differ_commit_alike_step_by_step() -> None:
    """bfloat16 against float32: the tokens part, the steps do not."""
    recorded = record()
    params = with_lengths(differing(), recorded)
    wide = replaying(tiny_config(drafter=ngram(4)))
    narrow = replace(wide, dtype="bfloat16")
    loaded = load_model(ModelSpec("tiny", weights="random", seed=1), torch.bfloat16, torch.device("cpu"))
    first, second = run(wide, prompts(COUNT), params), run(narrow, prompts(COUNT), params, loaded=loaded)
    assert first.outputs != second.outputs, "the same tokens throughout: nothing was tested"
    assert lengths_of(first) == lengths_of(second) == lengths_of(recorded)
    assert rows(first) == rows(second)


def test_all_draft_places_count_as_proposed() -> None:
    again = run(
        replaying(tiny_config(drafter=ngram(4))), prompts(2), replace(GREEDY, replay_lengths=(2, 2), max_tokens=5)
    )
    steps = [step for step in again.steps if isinstance(step, StepRecord) and step.num_target_steps]
    assert [step.drafted for step in steps] == [(2, 2, 2, 2)] * 2
    assert [step.accepted for step in steps] == [(2, 0, 0, 0)] * 2


def test_requests_and_engine_must_agree() -> None:
    with pytest.raises(InputError, match="request request-0: acceptance is replay"):
        run(replaying(tiny_config(drafter=ngram(2))), prompts(1), GREEDY)
    with pytest.raises(InputError, match="request request-0: recorded lengths are given, but acceptance is strict"):
        run(tiny_config(drafter=ngram(2)), prompts(1), replace(GREEDY, replay_lengths=(1,)))
    params = replace(GREEDY, replay_lengths=(4,) * 40, max_tokens=161)
    with pytest.raises(InputError, match="max_seq_len is 128"):
        run(replaying(tiny_config(drafter=ngram(2))), prompts(1), params)
