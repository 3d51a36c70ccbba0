"""``measure.windows``: what follows from it, one point a context length, and what it cannot stand beside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.errors import InputError, ScenarioError
from specbench.scenario.loader import load_scenario
from specbench.scenario.planner import plan_run
from specbench.scenario.questions import ask_ab, ask_selftest, ask_sweep, resolved_points
from specbench.scenario.resolve import ResolvedScenario, resolve, workload_settings

Refusal = Callable[..., InputError]
Write = Callable[[str], Path]

TEXT = """
model: tiny
drafter: {name: ngram, draft_len: 3}
acceptance: {mode: forced, length: 2.4}
workload: {kind: random_tokens, concurrency: 4}
engine: {device: cpu}
measure:
  repeats: 2
  windows: {kv_len: [64, 256], steps: 100}
"""
OUTPUT = (100 + 2 + 2) * 4
"""Tokens that the timed steps, the two before them and two to spare may commit, K + 1 each."""


def _resolve(path: Path, *overrides: str) -> ResolvedScenario:
    return resolve(load_scenario(path, overrides), available_memory=lambda _: None)


def test_the_engine_holds_the_longest_window(write: Write) -> None:
    resolved = _resolve(write(TEXT))
    assert resolved.engine.max_seq_len == 256 + OUTPUT
    settings = workload_settings(resolved.scenario)
    assert (settings.isl, settings.osl, settings.num_requests) == (64, OUTPUT, 4)


def test_what_is_resolved_means_the_same_again(write: Write, tmp_path: Path) -> None:
    resolved = _resolve(write(TEXT))
    copy = tmp_path / "copy.yaml"
    copy.write_text(resolved.to_yaml())
    assert _resolve(copy) == resolved


def test_a_run_visits_every_context_length_by_turns(write: Write) -> None:
    plan = plan_run(_resolve(write(TEXT)))
    assert [point.coordinates for point in plan.points] == [
        {"measure.windows.kv_len": 64}, {"measure.windows.kv_len": 256},
    ]  # fmt: skip
    assert [trial.point for trial in plan.trials] == [0, 1, 0, 1]


def test_a_sweep_crosses_them_with_its_axes(write: Write) -> None:
    question = ask_sweep(write(TEXT), ["sweep.concurrency=1,2"])
    assert [tuple(point.coordinates.values()) for point in question.points] == [(1, 64), (1, 256), (2, 64), (2, 256)]
    lengths = [point.scenario.measure.windows for point in resolved_points(question)]
    assert [windows.kv_len for windows in lengths if windows] == [(64,), (256,), (64,), (256,)]


def test_arms_are_compared_at_each(write: Write) -> None:
    question = ask_ab(write(TEXT), (), "sampling_params=refill", ["sampling_params=signature"])
    assert len(question.comparisons) == 2
    assert question.settings is not None
    steps = 4 * (question.settings.period_steps + question.settings.guard_steps)
    assert question.settings.quads_per_segment == 100 // steps
    assert {comparison.design for comparison in question.comparisons} == {"mirrored"}


def test_a_selftest_takes_the_first_and_says_so(write: Write) -> None:
    question = ask_selftest(write(TEXT), num_aa=1)
    assert any("one context length, 64 tokens" in note for note in question.notes)


def test_one_number_is_a_list_of_one(write: Write) -> None:
    windows = _resolve(write(TEXT), "measure.windows={kv_len: 32, steps: 5}").scenario.measure.windows
    assert windows is not None
    assert (windows.kv_len, windows.steps) == ((32,), 5)
    again = _resolve(write(TEXT), "measure.windows.kv_len=16,48").scenario.measure.windows
    assert again is not None
    assert (again.kv_len, again.steps) == ((16, 48), 100)


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("workload: chat80", "x.yaml:2: workload.kind", "found 'chat80' (text); allowed under measure.windows: random"),
        ("model: tiny", "x.yaml: workload.kind", "allowed under measure.windows: random_tokens"),
        ("workload: {kind: random_tokens, isl: 3}", "x.yaml:2: workload.isl", "measure.windows.kv_len says how long"),
        ("workload: {kind: random_tokens, osl: 3}", "x.yaml:2: workload.osl", "measure.windows.steps says how much"),
        (
            "workload: {kind: random_tokens, num_requests: 3}",
            "x.yaml:2: workload.num_requests",
            "there is one request a slot",
        ),
        (
            "workload: random_tokens\nsampling: {ignore_eos: false}",
            "x.yaml:3: sampling.ignore_eos",
            "false would end requests within a window",
        ),
        (
            "workload: random_tokens\nsampling: {stop_token_ids: [3]}",
            "x.yaml:3: sampling.stop_token_ids",
            "would end requests within a window",
        ),
        ("workload: random_tokens\nprocess: {}", "x.yaml:3: process", "cannot be given a filled cache"),
    ],
)
def test_what_it_cannot_stand_beside(refusal: Refusal, text: str, where: str, what: str) -> None:
    error = refusal(f"measure: {{windows: {{kv_len: [64]}}}}\n{text}")
    assert what in error.what
    assert (error.where or "").endswith(where)
    assert error.hint


@pytest.mark.parametrize(
    ("measure", "where", "what"),
    [
        ("{windows: {kv_len: [8, 8]}}", "measure.windows.kv_len", "holds a value twice"),
        ("{windows: {kv_len: 8}, timeout: 3s}", "measure.timeout", "has no effect under measure.windows"),
        ("{windows: {kv_len: 8}, segment_requests: 3}", "measure.segment_requests", "has no effect under measure.w"),
        ("{windows: {kv_len: 0}}", "measure.windows.kv_len[0]", "found 0; allowed: 1 or more"),
        ("{windows: {kv_len: 8, steps: 0}}", "measure.windows.steps", "found 0; allowed: 1 or more"),
        ("{windows: {kv_len: []}}", "measure.windows.kv_len", "found a list"),
        ("{windows: {steps: 3}}", "measure.windows.kv_len", "is missing, and has no default"),
        ("{windows: {kvlen: 8}}", "measure.windows.kv", "no such key in measure.windows; allowed: kv_len, steps"),
        ("{windows: {kv_len: long}}", "measure.windows.kv_len[0]", "found 'long' (text); allowed: a whole number"),
    ],
)
def test_windows_that_cannot_be(refusal: Refusal, measure: str, where: str, what: str) -> None:
    error = refusal(f"workload: random_tokens\nmeasure: {measure}")
    text = f"{error.where}: {error.what}"
    assert what in text
    assert where in text


def test_replayed_requests_are_whole(refusal: Refusal) -> None:
    error = refusal("workload: random_tokens\nacceptance: replay\nmeasure: {windows: {kv_len: 8}}")
    assert "measure.windows cuts all of them" in error.what


@pytest.mark.parametrize(
    ("override", "where", "what"),
    [
        ("engine.max_seq_len=600", "--set engine.max_seq_len", "contexts of 256 tokens and what 100 steps may commit"),
        ("measure.windows.kv_len=2000", "measure.windows.kv_len", "2416 tokens, the model's limit is 2048"),
        ("measure.windows.steps=1000", "measure.windows.kv_len", "the model's limit is 2048"),
    ],
)
def test_windows_that_do_not_fit(write: Write, override: str, where: str, what: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        _resolve(write(TEXT), override)
    assert what in caught.value.what
    assert where in (caught.value.where or "")


def test_a_segment_must_fit_into_a_window(write: Write) -> None:
    arms = ("sampling_params=refill", ["sampling_params=signature"])
    with pytest.raises(ScenarioError, match=r": 1 quad of four periods takes \d+ steps, and a window has 10") as caught:
        ask_ab(write(TEXT), ["measure.windows.steps=10"], *arms)
    assert caught.value.where == "measure.windows.steps"
    with pytest.raises(ScenarioError, match=r": 3 quads of four periods take \d+ steps, and a window has 10"):
        ask_ab(write(TEXT), ["measure.windows.steps=10", "measure.quads_per_segment=3"], *arms)
