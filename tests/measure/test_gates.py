"""Each gate passes on a clean trial and speaks up about the one thing that spoils it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from arm_process import Prompts, run_loop, tiny_config
from fake_subject import make_plan, make_run, open_folder

from specbench.engine import capture
from specbench.engine.sampling.params import SamplingParams
from specbench.measure.counters import count_between
from specbench.measure.executor import execute
from specbench.measure.gates import Measured, judge_run
from specbench.measure.subject import BuiltinSubject
from specbench.records import Evidence, Gate, RequestRecord, StepTable, TrialRecord, VariantCounts

QUIET = Evidence(
    load_average_start=0.1, load_average_end=0.2, other_cpu_fraction=0.01, governor="performance", cpu_throttle_events=0
)

CAPTURED = {
    "replays": 24, "padded_steps": 4, "padding_requests": 5, "eager_context": 6, "eager_not_captured": 0, "captures": 0
}  # fmt: skip
"""What captured steps count in a window in which nothing is wrong."""


@pytest.fixture
def clean(tmp_path: Path) -> Measured:
    """Two equal trials of requests long enough to be judged warm, on a quiet machine."""
    with open_folder(tmp_path) as folder:
        execute(make_run(folder, make_plan(repeats=2), turns=[1] * 30))
        trials = [replace(trial, evidence=QUIET) for trial in folder.contents.trials]
        return Measured(trials, folder.contents.requests)


def judge(measured: Measured, name: str) -> Gate:
    (found,) = [gate for gate in judge_run(measured) if gate.name == name]
    return found


def with_trial(measured: Measured, **changes: Any) -> Measured:
    return Measured([replace(measured.trials[0], **changes), *measured.trials[1:]], measured.requests)


def with_evidence(measured: Measured, **changes: Any) -> Measured:
    return with_trial(measured, evidence=replace(QUIET, **changes))


def with_request(measured: Measured, **changes: Any) -> Measured:
    return Measured(measured.trials, [replace(measured.requests[0], **changes), *measured.requests[1:]])


def test_a_clean_run_passes_what_applies(clean: Measured) -> None:
    status = {gate.name: gate.status for gate in judge_run(clean)}
    assert status == {
        "complete": "pass",
        "requests": "pass",
        "token counts": "pass",
        "repeatable": "pass",
        "sampling parameters": "n/a",
        "content": "pass",
        "repetition loops": "pass",
        "warm": "pass",
        "garbage collection": "pass",
        "capture and compile": "n/a",
        "eager fallbacks": "n/a",
        "preemptions": "pass",
        "prefix cache": "n/a",
        "declared times": "n/a",
        "profiler": "pass",
        "other load": "pass",
        "clocks": "pass",
    }


@pytest.mark.parametrize(
    ("name", "change", "status", "figure"),
    [
        ("complete", lambda m: with_trial(m, status="interrupted"), "warn", "by the user"),
        ("complete", lambda m: with_trial(m, status="timeout"), "warn", "measure.timeout"),
        ("requests", lambda m: with_request(m, finish_reason="error", error="too long"), "fail", "1 of 60 failed"),
        ("requests", lambda m: with_request(m, max_tokens=9), "warn", "engine.max_seq_len"),
        ("token counts", lambda m: with_trial(m, committed_tokens=149), "fail", "150 tokens by step, 149 by request"),
        ("token counts", lambda m: with_trial(m, subject={}), "n/a", "no steps"),
        ("complete", lambda m: with_request(m, finish_reason="error"), "fail", "59 of 60 requests were sent, 59 ended"),
        ("complete", lambda m: with_request(m, finish_reason="abort"), "fail", "60 of 60 requests were sent, 59 ended"),
        ("complete", lambda m: Measured(m.trials, m.requests[1:]), "fail", "59 of 60 requests were sent, 59 ended"),
        ("repeatable", lambda m: with_trial(m, tokens_sha256="other"), "fail", "trials 0 and 1 are equal but"),
        ("repeatable", lambda m: with_trial(m, tokens_sha256="other", seed=8), "n/a", "no trial was repeated"),
        ("repeatable", lambda m: Measured(m.trials[:1], m.requests), "n/a", "no trial was repeated"),
        ("content", lambda m: with_trial(m, label="synthetic input"), "warn", "synthetic input"),
        ("repetition loops", lambda m: with_trial(m, label="forced acceptance"), "n/a", "forced"),
        ("garbage collection", lambda m: with_evidence(m, gc_collections=2, gc_ms=3.5), "warn", "2 collections"),
        ("profiler", lambda m: with_trial(m, subject={**m.trials[0].subject, "profile": "torch"}), "warn", "torch"),
        ("preemptions", lambda m: with_request(m, num_preemptions=3), "warn", "3"),
        ("other load", lambda m: with_evidence(m, other_cpu_fraction=0.4), "warn", "40.0%"),
        ("clocks", lambda m: with_evidence(m, cpu_throttle_events=4), "warn", "throttled: 4"),
        ("clocks", lambda m: with_evidence(m, gpu={"throttle_reasons": 0x20}), "warn", "0x20"),
    ],
)
def test_what_spoils_a_figure_is_named(clean: Measured, name: str, change: Any, status: str, figure: str) -> None:
    gate = judge(change(clean), name)
    assert gate.status == status
    assert figure in gate.detail


def test_an_unsteady_governor_warns(clean: Measured) -> None:
    trials = [replace(trial, evidence=replace(QUIET, governor="powersave")) for trial in clean.trials]
    assert judge(Measured(trials, clean.requests), "clocks") == Gate(
        "clocks", "warn", "governor powersave, 0 throttle events"
    )


def test_what_cannot_be_read_is_not_a_pass(clean: Measured) -> None:
    blind = Measured([replace(trial, evidence=Evidence()) for trial in clean.trials], clean.requests)
    assert judge(blind, "other load").status == "n/a"
    assert judge(blind, "clocks").status == "n/a"


def loop(request: RequestRecord, tail: int) -> RequestRecord:
    return replace(request, output_tokens=128, max_tokens=128, repeated_tail_tokens=tail)


def test_repetition_loops_warn_when_they_are_many(clean: Measured) -> None:
    few = Measured(clean.trials, [loop(r, 60 if i < 3 else 0) for i, r in enumerate(clean.requests)])
    many = Measured(clean.trials, [loop(r, 60 if i < 4 else 0) for i, r in enumerate(clean.requests)])
    short = Measured(clean.trials, [loop(r, 31) for r in clean.requests])
    assert [judge(m, "repetition loops").status for m in (few, many, short)] == ["pass", "warn", "pass"]
    assert "4 of 60" in judge(many, "repetition loops").detail


def slowed(trial: TrialRecord, factor: int) -> TrialRecord:
    """The first five steps that follow a pure generation step take ``factor`` times as long."""
    columns = {name: list(values) for name, values in trial.steps.columns.items()}
    pure = [i for i in range(1, len(trial.steps)) if columns["num_context"][i] == columns["num_context"][i - 1] == 0]
    for i in pure[:5]:
        extra = (columns["output_ns"][i] - columns["output_ns"][i - 1]) * (factor - 1)
        columns["output_ns"] = columns["output_ns"][:i] + [ns + extra for ns in columns["output_ns"][i:]]
    return replace(trial, steps=StepTable(columns))


def test_cold_first_steps_warn(clean: Measured) -> None:
    cold = Measured([slowed(trial, 2) for trial in clean.trials], clean.requests)
    assert judge(cold, "warm") == Gate("warm", "warn", "first 5 generation steps took 2.00 times the next ones")
    assert judge(clean, "warm").detail == "first 5 generation steps took 1.00 times the next ones"


def test_too_few_steps_to_be_judged_warm(tmp_path: Path) -> None:
    with open_folder(tmp_path) as folder:
        execute(make_run(folder, turns=[1]))
        assert judge(Measured(folder.contents.trials, folder.contents.requests), "warm").status == "n/a"


def with_counters(measured: Measured, **counts: int) -> Measured:
    """As if captured steps had counted this in every window, of 30 steps each."""
    counters = {"graphs": {"captured": VariantCounts(30, {**CAPTURED, **counts})}}
    return Measured([replace(trial, counters=counters) for trial in measured.trials], measured.requests)


def test_captures_and_fallbacks_are_those_of_the_windows(clean: Measured) -> None:
    names = ("capture and compile", "eager fallbacks")
    replayed = with_counters(clean)
    assert [judge(replayed, name) for name in names] == [
        Gate("capture and compile", "pass", "0 in the window"),
        Gate("eager fallbacks", "pass", "0 steps; 48 were replayed, 8 of them padded; 12 with prompts ran eagerly"),
    ]
    spoiled = with_counters(clean, captures=1, eager_not_captured=3, replays=21)
    assert [judge(spoiled, name) for name in names] == [
        Gate("capture and compile", "warn", "2 in the window"),
        Gate("eager fallbacks", "warn", "6 steps; 42 were replayed, 8 of them padded; 12 with prompts ran eagerly"),
    ]


@pytest.mark.parametrize("largest", [1, 2])
def test_a_batch_size_that_was_not_captured_warns(
    clean: Measured, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests at a time, with steps captured for up to ``largest``."""
    monkeypatch.setattr(capture, "capture_shapes", lambda config: [(largest, config.drafter.draft_len)])
    subject, _ = BuiltinSubject.build(tiny_config(optimizations=(("graphs", "captured"),)), None, None)
    try:
        before = subject.read_counters()
        run_loop(subject, Prompts(2, SamplingParams(ignore_eos=True)))
        steps = len(subject.drain().steps)
        counters = count_between((before, subject.read_counters()), steps)
    finally:
        subject.close()
    gate = judge(Measured([replace(clean.trials[0], counters=counters)], clean.requests), "eager fallbacks")
    assert gate.status == ("warn" if largest == 1 else "pass")
    assert (gate.detail[0] == "0") is (largest == 2)


def test_eager_steps_have_no_fallbacks(clean: Measured) -> None:
    counted = {"sampling_params": {"signature": VariantCounts(30, {"hits": 30})}}
    for counters in (None, {}, counted):
        eager = Measured([replace(trial, counters=counters) for trial in clean.trials], clean.requests)
        names = ("capture and compile", "eager fallbacks")
        assert [judge(eager, name).status for name in names] == ["n/a", "n/a"]


def test_arms_of_which_one_is_captured_tell_that_one_s_counts(clean: Measured) -> None:
    one = Measured([with_counters(clean, eager_not_captured=2).trials[0], clean.trials[1]], clean.requests)
    assert judge(one, "eager fallbacks").detail.startswith("2 steps; 24 were replayed")


def test_prefix_hits_count_where_a_subject_tells_them(clean: Measured) -> None:
    told = {**clean.trials[0].subject, "prefix_cache_hits": 0}
    measured = Measured([replace(trial, subject=told) for trial in clean.trials], clean.requests)
    assert judge(measured, "prefix cache").status == "pass"
    assert judge(with_trial(measured, subject={**told, "prefix_cache_hits": 2}), "prefix cache").status == "warn"


@pytest.mark.parametrize("temperature", [None, 0.7])
def test_equal_trials_with_different_tokens_make_the_run_invalid(clean: Measured, temperature: float | None) -> None:
    # Sampled or greedy alike: a token's random number depends on the request's seed and its position alone.
    subject = {**clean.trials[0].subject, "sampling": {"temperature": temperature}}
    trials = [replace(trial, subject=subject) for trial in clean.trials]
    other = Measured([trials[0], replace(trials[1], tokens_sha256="other")], clean.requests)
    assert [gate.name for gate in judge_run(other) if gate.status == "fail"] == ["repeatable"]
    assert [gate for gate in judge_run(Measured(trials, clean.requests)) if gate.status == "fail"] == []
