"""Captured steps: the tokens are those of eager steps, and what could not be replayed is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from captured_cases import (
    Requests,
    batch_of,
    capture_set,
    captured_config,
    captured_of,
    counts_of,
    eager,
    misread_keys,
    opened,
    serve,
    serve_once,
    simulated,
    steps_of,
    watch_batches,
    wrong_rows,
)
from engine_driver import count_near_ties, forced, ngram, overlapping, tiny_model
from test_engine_tokens import GREEDY, SAMPLED, assert_same, differing, prompts
from test_hybrid_engine import assert_same as assert_same_hybrid
from test_hybrid_engine import hybrid_config, hybrid_model, texts

from specbench.engine import capture
from specbench.engine.capture import CapturedStep, CaptureKey
from specbench.engine.captured_steps import CapturedSteps
from specbench.engine.config import EngineConfig
from specbench.engine.device_state import DeviceState
from specbench.engine.forward_batch import ForwardBatch, InputSource
from specbench.engine.simulated_step import SimulatedStep


def check_counts(counts: dict[str, int], num_steps: int, num_prompt_steps: int) -> None:
    """Each step is replayed or eager, and those with prompts are eager."""
    assert counts["replays"] + counts["eager_context"] + counts["eager_not_captured"] == num_steps
    assert counts["eager_context"] == num_prompt_steps
    assert counts["padded_steps"] <= counts["padding_requests"] <= 3 * counts["padded_steps"]


def compare(config: EngineConfig, requests: Requests) -> dict[str, int]:
    """Serve three requests at a time, eagerly and with captured steps; the tokens are equal but for a near tie."""
    with opened(eager(config)) as engine:
        expected = serve(engine, requests, concurrency=3)
    with opened(config) as engine:
        found = serve(engine, requests, concurrency=3)
        counts = counts_of(engine)
        assert wrong_rows(engine.drain_audit()) == {}
    assert_same(expected, found)
    steps = steps_of(found)
    assert found.num_preemptions == expected.num_preemptions
    check_counts(counts, len(steps), sum(step.num_context > 0 for step in steps))
    return {**counts, "preemptions": found.num_preemptions, "accepted": sum(sum(step.accepted) for step in steps)}


@pytest.mark.parametrize("draft_len", [0, 3])
@pytest.mark.parametrize(
    ("kind", "overlap"), [("greedy", False), ("sampled", False), ("mixed", False), ("mixed", True)]
)
def test_tokens_equal_those_of_eager_steps(kind: str, overlap: bool, draft_len: int) -> None:
    counts = compare(overlapping(captured_config(draft_len), overlap), batch_of(kind, 7))
    assert counts["eager_not_captured"] == 0
    assert counts["replays"] > counts["padded_steps"] > 5
    assert kind == "sampled" or bool(counts["accepted"]) is bool(draft_len)


@pytest.mark.parametrize("draft_len", [0, 3])
def test_tokens_equal_where_requests_are_preempted_and_prompts_come_in_pieces(draft_len: int) -> None:
    config = captured_config(draft_len, num_blocks=14, max_num_tokens=20, max_seq_len=80)
    requests = [(text, replace(params, max_tokens=30)) for text, params in zip(prompts(7), differing(7), strict=True)]
    counts = compare(config, requests)
    assert counts["preemptions"] > 0
    assert counts["replays"] > 20


def test_tokens_equal_under_forced_acceptance() -> None:
    counts = compare(captured_config(3, acceptance=forced(2.4)), batch_of("mixed"))
    assert counts["replays"] > 10
    assert counts["accepted"] > 0


def shape_steps(engine_steps: list[ForwardBatch]) -> list[tuple[int, int, int]]:
    return [
        (batch.num_generation, batch.draft_len, batch.next_draft_len) for batch in engine_steps if not batch.context
    ]


def test_a_change_of_k_runs_eagerly_and_is_counted() -> None:
    """K by batch size: a step whose next K is another one has no captured program. Those before and after it have."""
    drafter = replace(ngram(4), draft_len=4, runtime_draft_len=((1, 4), (2, 3), (3, 1)))
    config = replace(captured_config(4), drafter=drafter)
    requests = [
        (text, replace(params, max_tokens=n))
        for text, params, n in zip(prompts(4), differing(4), (12, 24, 40, 50), strict=True)
    ]
    with opened(config) as engine:
        batches = watch_batches(engine)
        found = serve(engine, requests)
        counts, shapes = counts_of(engine), shape_steps(batches)
        assert wrong_rows(engine.drain_audit()) == {}
    assert_same(serve_once(eager(config), requests), found)
    changes = [shape for shape in shapes if shape[1] != shape[2]]
    assert len(changes) == counts["eager_not_captured"] >= 2
    assert {draft_len for _, draft_len, _ in shapes} == {0, 1, 3, 4}
    assert counts["replays"] == len(shapes) - len(changes) > 20


@pytest.mark.parametrize("draft_len", [0, 3])
def test_full_batches_give_the_same_bits(draft_len: int) -> None:
    """Without padding nothing has another shape."""
    config = captured_config(draft_len, acceptance=forced(1.0 + draft_len / 2))
    # Of one length and one seed: each accepts as many as the others, and all end in one step.
    params = [replace(each, seed=7, max_tokens=36) for each in differing(4)]
    requests = [(text[:6], each) for text, each in zip(prompts(4), params, strict=True)]
    with opened(config) as engine:
        found = serve(engine, requests)
        counts = counts_of(engine)
    assert found.outputs == serve_once(eager(config), requests).outputs
    assert counts["replays"] > 10
    assert counts["padded_steps"] == 0


def run_padded_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pad as ever, and launch operator by operator what would have been replayed."""

    def program_for(choice: CapturedSteps, batch: ForwardBatch, output: object) -> object:
        return choice._runner.program(batch, output)  # type: ignore[arg-type]

    monkeypatch.setattr(CapturedSteps, "program_for", program_for)


@pytest.mark.parametrize("draft_len", [0, 3])
def test_a_replay_gives_the_bits_of_the_same_padded_step_run_eagerly(
    draft_len: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = batch_of("mixed", 7)
    found = serve_once(captured_config(draft_len), requests)
    run_padded_eagerly(monkeypatch)
    expected = serve_once(captured_config(draft_len), requests)
    assert found.outputs == expected.outputs


@pytest.mark.parametrize(("draft_len", "overlap"), [(0, False), (3, True)])
def test_a_hybrid_model_gives_the_same_tokens(draft_len: int, overlap: bool) -> None:
    config = overlapping(replace(captured_config(draft_len), model=hybrid_config().model), overlap)
    requests = [(text, params) for text, (_, params) in zip(texts(6), batch_of("mixed", 6), strict=True)]
    expected = serve_once(eager(config), requests, hybrid_model())
    with opened(config, hybrid_model()) as engine:
        found = serve(engine, requests, concurrency=3)
        counts = counts_of(engine)
    assert_same_hybrid(expected, found)
    assert counts["replays"] > counts["padded_steps"] > 5


LONG = [(text[:5], replace(SAMPLED, max_tokens=50)) for text in prompts(6)]
"""Served three at a time, 98 tokens one after another where a sequence may have 62 positions."""


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("draft_len", [0, 3])
def test_the_padding_slot_stays_a_sequence_of_one_token(draft_len: int, device: str) -> None:
    """In many padded steps, on the device that only keeps books as well."""
    config = captured_config(draft_len, max_seq_len=60)
    with opened(config if device == "cpu" else simulated(config)) as engine:
        serve(engine, LONG, concurrency=3)
        assert counts_of(engine)["padded_steps"] > 30
        length = int(engine._model_runner.state.num_tokens[engine.config.padding_slot])
    assert 1 <= length <= 2 + draft_len, "what the last step committed, and no more"


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_a_padding_slot_that_is_never_reset_runs_out_of_positions(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceState, "reset_padding", lambda _state: None)
    original = SimulatedStep.keep_books
    monkeypatch.setattr(
        SimulatedStep, "keep_books", lambda step, batch, *rest: original(step, replace(batch, num_padding=0), *rest)
    )
    config = captured_config(0, max_seq_len=60)
    config = config if device == "cpu" else simulated(config)
    with pytest.raises(IndexError), opened(config) as engine:
        serve(engine, LONG, concurrency=3)


# Batch sizes that were not captured.


def forget_sizes(monkeypatch: pytest.MonkeyPatch, largest: int) -> None:
    original = capture.capture_shapes
    monkeypatch.setattr(
        capture, "capture_shapes", lambda config: [shape for shape in original(config) if shape[0] <= largest]
    )


@pytest.mark.parametrize("draft_len", [0, 3])
def test_a_batch_size_that_was_not_captured_falls_back_and_is_counted(
    draft_len: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_sizes(monkeypatch, largest=2)
    requests = batch_of("mixed")
    config = captured_config(draft_len)
    with opened(config) as engine:
        batches = watch_batches(engine)
        found = serve(engine, requests)
        counts, shapes = counts_of(engine), shape_steps(batches)
        assert wrong_rows(engine.drain_audit()) == {}
    assert counts["eager_not_captured"] == sum(size > 2 for size, _, _ in shapes) > 5
    assert counts["replays"] == sum(size <= 2 for size, _, _ in shapes) > 0
    assert_same(serve_once(eager(config), requests), found)


# Keys that are read without one of their parts.


def without_kind(key: CaptureKey) -> CaptureKey:
    return key._replace(is_greedy=True)


def without_source(key: CaptureKey) -> CaptureKey:
    return key._replace(program=key.program._replace(source=InputSource.HOST))


@pytest.mark.parametrize(
    ("change", "draft_len", "kind"),
    [
        pytest.param(without_kind, 0, "sampled", id="is_greedy-K0"),
        pytest.param(without_kind, 3, "sampled", id="is_greedy-K3"),
        pytest.param(without_source, 0, "greedy", id="source"),
    ],
)
def test_a_key_that_lacks_a_part_gives_other_tokens(
    change: Callable[[CaptureKey], CaptureKey], draft_len: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, requests = captured_config(draft_len), batch_of(kind, 3)
    expected = serve_once(config, requests)
    misread_keys(monkeypatch, lambda key: key)
    assert serve_once(config, requests).outputs == expected.outputs
    monkeypatch.undo()
    misread_keys(monkeypatch, change)
    with pytest.raises(AssertionError, match="differs with a margin"):
        count_near_ties(tiny_model(), expected, serve_once(config, requests))


def test_every_step_has_a_program_of_its_own() -> None:
    for draft_len in (0, 3):
        with opened(captured_config(draft_len)) as engine:
            steps = capture_set(engine).steps
            assert len({id(step.program) for step in steps.values()}) == len(steps)
            for key, step in steps.items():
                assert isinstance(step, CapturedStep)
                assert step.output.shape[0] == key.batch_size
            assert captured_of(engine).describe()["sets"]["real_params"]["batch_sizes"] == [1, 2, 4]


def test_greedy_and_sampled_batches_take_turns() -> None:
    """The same size and K, now of one kind, now of the other; nothing of a step is left for the next."""
    config = captured_config(0)
    kinds = [GREEDY, SAMPLED] * 4
    requests = [
        (text, replace(kind, max_tokens=8, seed=i))
        for i, (text, kind) in enumerate(zip(prompts(8), kinds, strict=True))
    ]
    expected = [serve_once(eager(config), [one]).outputs[0] for one in requests]
    with opened(config) as engine:
        found = [serve(engine, [one]).outputs[0] for one in requests]
    assert found == expected
