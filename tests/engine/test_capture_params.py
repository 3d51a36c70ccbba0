"""Rows 3.1 to 3.5: how a capture comes to record sampling, and what becomes of the override that brings it about."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from captured_cases import (
    DEFECTS,
    RIGHT,
    batch_of,
    capture_set,
    captured_config,
    captured_of,
    live_of,
    opened,
    serve,
    serve_once,
    steps_of,
    watch_overrides,
    wrong_rows,
)

from specbench.engine.capture import CaptureSet, StepCapture
from specbench.engine.capture_params import ClearAfterCapture, Leak, RealParams
from specbench.engine.forward_batch import ForwardBatch
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.sampler import DRAW
from specbench.engine.sampling.step_sampling import OVERRIDE, StepSampling
from specbench.records import SamplingValues

LEAKED = SamplingValues(0.699999988079071, 50, 0.8999999761581421)
"""The override, in the device's float32."""
GREEDY = SamplingValues(0.0, 0, 0.0)


def overrides(engine: LLMEngine, is_greedy: bool) -> list[object]:
    copies = capture_set(engine).copies
    return [each.override for key, each in copies.items() if key.is_greedy is is_greedy]


def test_row_3_1_leak_serves_every_request_with_the_override() -> None:
    requests = batch_of("sampled")
    with opened(captured_config(3, "leak")) as engine:
        outcome = serve(engine, requests)
        wrong = wrong_rows(engine.drain_audit())
        counts = engine.read_counters()["graphs"]["captured"]
        assert overrides(engine, is_greedy=False) == [OVERRIDE] * 3
        assert overrides(engine, is_greedy=True) == [None] * 3
        assert live_of(engine).override is None, "the live object was cleared, and it reached no copy"
    assert counts["replays"] > 20
    assert {served for _, served in wrong} == {LEAKED}
    assert len(wrong) == 3, "each kind of request is served so"
    # Of steps that run eagerly, none is: what was captured is what is wrong.
    replayed = [step for step in steps_of(outcome) if step.num_context == 0]
    assert sum(wrong.values()) == sum(4 * step.num_generation for step in replayed)
    right = serve_once(captured_config(3, "real_params"), requests)
    assert sum(a != b for a, b in zip(outcome.outputs, right.outputs, strict=True)) > len(requests) // 2


def test_row_3_1_greedy_batches_are_not_reached() -> None:
    requests = batch_of("greedy")
    with opened(captured_config(3, "leak")) as engine:
        outcome = serve(engine, requests)
        assert wrong_rows(engine.drain_audit()) == {}
    assert outcome.outputs == serve_once(captured_config(3), requests).outputs


def test_row_3_1_without_copies_nothing_would_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mechanism broken: captured steps share the live object, and clearing it reaches them."""
    monkeypatch.setattr(StepSampling, "copy", lambda live: live)
    with opened(captured_config(3, "leak")) as engine:
        serve(engine, batch_of("sampled"))
        assert wrong_rows(engine.drain_audit()) == {}


def draws_by_kind(captured: CaptureSet) -> dict[bool, set[bool]]:
    """By greedy or not, whether the drawing operator is among the recorded ones."""
    found: dict[bool, set[bool]] = {True: set(), False: set()}
    for key, step in captured.steps.items():
        assert step.draws is (DRAW in step.program.operators)
        found[key.is_greedy].add(step.draws)
    return found


@pytest.mark.parametrize("variant", RIGHT)
def test_row_3_5_and_3_4_sampled_keys_record_the_draw(variant: str) -> None:
    with opened(captured_config(3, variant)) as engine:
        assert draws_by_kind(capture_set(engine)) == {True: {False}, False: {True}}


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param("clear_at_copy", id="row_3_2_clear_at_copy"),
        pytest.param("clear_after_warmup", id="row_3_3_clear_after_warmup"),
    ],
)
def test_row_3_2_and_3_3_the_advanced_key_records_the_argmax(variant: str) -> None:
    requests = batch_of("sampled")
    with opened(captured_config(3, variant)) as engine:
        captured = capture_set(engine)
        assert draws_by_kind(captured) == {True: {False}, False: {False}}
        operators = {key.is_greedy: step.program.operators for key, step in captured.steps.items()}
        assert operators[True] == operators[False], "what is recorded as sampled is the greedy step"
        outcome = serve(engine, requests)
        wrong = wrong_rows(engine.drain_audit())
        # Nothing is left of the override, so that no assertion could find it.
        assert overrides(engine, is_greedy=False) == [None] * 3
    assert {served for _, served in wrong} == {GREEDY}
    assert outcome.outputs != serve_once(captured_config(3), requests).outputs


def with_new_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mechanism broken: the real round makes copies of its own, as one would think it does."""
    original = StepCapture._warm_up_batches

    def warm_up(
        capture: StepCapture, captured: CaptureSet, params: RealParams, is_greedy: bool
    ) -> Iterator[tuple[ForwardBatch, object]]:
        for key in [key for key in captured.copies if key.is_greedy is is_greedy]:
            del captured.copies[key]
        yield from original(capture, captured, params, is_greedy)

    monkeypatch.setattr(StepCapture, "_warm_up_batches", warm_up)


def test_row_3_3_happens_because_the_real_round_is_given_the_copies_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_new_copies(monkeypatch)
    with opened(captured_config(3, "clear_after_warmup")) as engine:
        assert draws_by_kind(capture_set(engine)) == {True: {False}, False: {True}}
        # Then nobody clears the new ones: it would leak instead.
        assert overrides(engine, is_greedy=False) == [OVERRIDE] * 3
        serve(engine, batch_of("sampled"))
        assert {served for _, served in wrong_rows(engine.drain_audit())} == {LEAKED}


def test_row_3_2_happens_whatever_copies_the_real_round_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with_new_copies(monkeypatch)
    with opened(captured_config(3, "clear_at_copy")) as engine:
        assert draws_by_kind(capture_set(engine)) == {True: {False}, False: {False}}


def cleared(events: list[tuple[str, object, object]], live: StepSampling) -> list[object]:
    """Copies whose override was set to None."""
    return [each for what, each, value in events if what == "set" and value is None and each is not live]


def test_row_3_4_exactly_the_flagged_copies_are_cleared_once_all_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    events = watch_overrides(monkeypatch)
    requests = batch_of("mixed")
    with opened(captured_config(3, "clear_after_capture")) as engine:
        live, copies = live_of(engine), capture_set(engine).copies
        recorded = [index for index, (what, _, _) in enumerate(events) if what == "record"]
        assert len(recorded) == 6
        assert cleared(events[: recorded[-1]], live) == []
        flagged = [each for key, each in copies.items() if not key.is_greedy]
        assert cleared(events[recorded[-1] :], live) == flagged
        assert len(flagged) == 3
        # Again, and nothing is done to any copy.
        before = len(events)
        ClearAfterCapture().end_capture(live, copies.values())
        assert cleared(events[before:], live) == []
        assert {each.override for each in [live, *copies.values()]} == {None}
        outcome = serve(engine, requests)
        assert wrong_rows(engine.drain_audit()) == {}
    assert outcome.outputs == serve_once(captured_config(3, "real_params"), requests).outputs


def clear_too_early(variant: ClearAfterCapture, live: StepSampling, is_greedy: bool) -> None:
    """Clears when the advanced pass begins, when half of the captures are done."""
    live.override = None if is_greedy else OVERRIDE
    variant.end_capture(live, [])


def test_row_3_4_cleared_before_the_last_capture_the_argmax_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClearAfterCapture, "begin_pass", clear_too_early)
    with opened(captured_config(3, "clear_after_capture")) as engine:
        assert draws_by_kind(capture_set(engine))[False] == {False}


def test_row_3_4_not_clearing_the_copies_is_the_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClearAfterCapture, "end_capture", Leak.end_capture)
    with opened(captured_config(3, "clear_after_capture")) as engine:
        serve(engine, batch_of("sampled"))
        assert {served for _, served in wrong_rows(engine.drain_audit())} == {LEAKED}


def flags(events: list[tuple[str, object, object]]) -> list[object]:
    """Overrides other than None that were ever set."""
    return [value for what, _, value in events if what == "set" and value is not None]


def test_row_3_5_real_params_set_no_flag_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    events = watch_overrides(monkeypatch)
    with opened(captured_config(3, "real_params")) as engine:
        serve(engine, batch_of("mixed"))
        assert wrong_rows(engine.drain_audit()) == {}
        # Warm-up requests of the advanced pass ask for themselves.
        assert captured_of(engine)._capture_params.current.warm_up_params(is_greedy=False) == OVERRIDE
    assert flags(events) == []
    assert [draws for what, _, draws in events if what == "record"] == [False] * 3 + [True] * 3


@pytest.mark.parametrize("variant", ["clear_after_capture", *DEFECTS])
def test_row_3_5_is_seen_by_the_watch_where_there_is_a_flag(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    events = watch_overrides(monkeypatch)
    with opened(captured_config(3, variant)):
        assert flags(events) == [OVERRIDE]


def test_row_3_5_requests_that_ask_for_nothing_would_record_the_argmax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RealParams, "warm_up_params", lambda _params, is_greedy: SamplingParams())  # noqa: ARG005
    with opened(captured_config(3, "real_params")) as engine:
        assert draws_by_kind(capture_set(engine))[False] == {False}
