"""What the toggles' variants counted: in the timed steps alone, by variant, and by arm."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ab_sample import make_comparison, make_plan, make_requests, measure_trials
from arm_process import Prompts, Settings, run_loop, tiny_config
from fake_subject import FakeClock, FakeSource, FakeSubject
from switching_subject import POINT, SwitchingSubject, run_pass

from specbench import encoding
from specbench.device.tracing import NullTracer
from specbench.engine.sampling.params import SamplingParams
from specbench.measure.ab_points import compute_points
from specbench.measure.analysis import compute_point
from specbench.measure.comparing import compare, make_studies
from specbench.measure.counters import (
    CounterReading,
    add_counts,
    choose_counts,
    chosen_variants,
    count_arms,
    count_between,
)
from specbench.measure.interruption import StopSignal
from specbench.measure.recording import record_window
from specbench.measure.remote import RemoteSubject
from specbench.measure.subject import BuiltinSubject
from specbench.measure.trials import MeasuredTrial, TrialContext, measure_run
from specbench.records import Difference, ToggleCounts, TrialRecord, VariantCounts
from specbench.scenario.plan import RUNS, Trial

REFILL = VariantCounts(10, {"copies": 60, "bytes": 6000})
SIGNATURE = VariantCounts(10, {"copies": 6, "bytes": 40})
OLD: ToggleCounts = {"sampling_params": {"refill": REFILL}}
NEW: ToggleCounts = {"sampling_params": {"signature": SIGNATURE}}
BOTH: ToggleCounts = {"sampling_params": {"refill": REFILL, "signature": SIGNATURE}}


def measure(subject: FakeSubject, turns: tuple[int, ...] = (1, 1)) -> MeasuredTrial:
    context = TrialContext(subject, subject.clock, StopSignal(), None, "natural")
    trial = Trial(trial=0, point=0, segment=0, pass_=0, mask=None, seed=0)
    return measure_run(context, POINT, trial, 0, FakeSource(turns, 5), 2)


def test_a_run_counts_its_window_alone() -> None:
    subject = SwitchingSubject()
    measure(subject)  # what came before is not in it
    record = measure(subject).record
    steps = len(record.steps)
    assert steps > 0
    assert record.counters == {"toggle": {"old": VariantCounts(steps, {"launches": steps, "bytes": 100 * steps})}}


def test_a_pass_counts_the_timed_steps_of_each_variant() -> None:
    """Guard steps, in which a variant finds its buffers as another one left them, are in no count."""
    record = run_pass(SwitchingSubject(), "ABBABAAB", guard_steps=2).record
    assert {period.num_steps for period in record.periods} == {3}
    assert record.counters == {
        "toggle": {
            "old": VariantCounts(12, {"launches": 12, "bytes": 1200}),
            "new": VariantCounts(12, {"launches": 12, "bytes": 120}),
        }
    }


def test_counting_takes_no_measured_time() -> None:
    class Slow(SwitchingSubject):
        def read_counters(self) -> CounterReading:
            self.clock.ns += 7_000_000
            return super().read_counters()

    quick, slow = (run_pass(kind(), "ABBA").record for kind in (SwitchingSubject, Slow))
    assert slow.wall_ns == quick.wall_ns
    assert slow.counters == quick.counters
    assert measure(Slow()).record.wall_ns == measure(SwitchingSubject()).record.wall_ns


def test_what_a_subject_does_not_tell_is_null() -> None:
    record = measure(FakeSubject(FakeClock())).record
    assert record.counters is None
    assert '"counters":null' in encoding.dumps(record)
    assert run_pass(FakeSubject(FakeClock()), "ABBA").record.counters is None


def test_counts_survive_their_file_and_older_files_are_read() -> None:
    record = run_pass(SwitchingSubject(), "ABBA").record
    data = json.loads(encoding.dumps(record))
    assert encoding.from_json(TrialRecord, data).counters == record.counters is not None
    del data["counters"]
    assert encoding.from_json(TrialRecord, data).counters is None


def test_a_difference_is_of_the_variant_that_stood() -> None:
    before = CounterReading({"t": "a", "u": "x"}, {"t": {"a": {"copies": 5}, "b": {"copies": 1}}, "u": {}})
    after = CounterReading({"t": "a", "u": "x"}, {"t": {"a": {"copies": 9, "fresh": 2}, "b": {"copies": 1}}, "u": {}})
    assert count_between((before, after), 4) == {"t": {"a": VariantCounts(4, {"copies": 4, "fresh": 2})}}
    assert count_between((None, after), 4) is None
    assert count_between((before, None), 4) is None


def test_windows_add_up_unless_one_does_not_tell() -> None:
    assert add_counts([OLD, NEW, OLD]) == {
        "sampling_params": {"refill": VariantCounts(20, {"copies": 120, "bytes": 12000}), "signature": SIGNATURE}
    }
    assert REFILL.counts == {"copies": 60, "bytes": 6000}  # what was added is left as it was
    assert add_counts([OLD, None]) is None
    assert add_counts([]) is None


@pytest.mark.parametrize(
    ("counted", "chosen", "expected"),
    [
        (BOTH, {"sampling_params": "refill"}, OLD),
        (BOTH, {"sampling_params": "device_gather"}, {}),  # never stood
        (BOTH, {}, {}),  # nobody says which
        (OLD, {}, OLD),
        (None, {"sampling_params": "refill"}, {}),
    ],
)  # fmt: skip
def test_a_configuration_has_the_counts_of_its_own_variant(
    counted: ToggleCounts | None, chosen: dict[str, str], expected: ToggleCounts
) -> None:
    assert choose_counts(counted, chosen) == expected


def test_counts_a_step() -> None:
    counted = VariantCounts(10, {"copies": 60})
    assert counted.per_step("copies") == 6.0
    assert counted.per_step("appends") is None
    assert replace(counted, steps=0).per_step("copies") is None


def test_arms_of_a_mirrored_comparison_are_told_apart_by_their_variants() -> None:
    plan = make_plan()
    trials = [replace(trial, counters=BOTH) for trial in measure_trials(plan)]
    comparison = plan.comparisons[0]
    assert chosen_variants(comparison) == ({"sampling_params": "refill"}, {"sampling_params": "signature"})
    found = count_arms(comparison, trials)
    copies = [found["baseline"]["sampling_params"]["refill"], found["candidate"]["sampling_params"]["signature"]]
    assert [counted.counts["copies"] for counted in copies] == [60 * len(trials), 6 * len(trials)]
    requests = make_requests(trials)
    (compared,), _ = compare(plan, trials, requests, [])
    assert compared.counters == found
    points = compute_points(plan, make_studies(plan, trials, requests, []))
    assert [point.counters for point in points] == [found["baseline"], found["candidate"]]


def test_arms_of_runs_are_told_apart_by_their_trials() -> None:
    differing = (Difference("drafter.draft_len", 0, 4, "numerically-equivalent", False),)
    plan = make_plan(comparisons=[make_comparison(design=RUNS, differences=differing)], design=RUNS)
    drafting = {"sampling_params": {"refill": VariantCounts(5, {"copies": 30, "bytes": 9})}}
    by_arm: dict[str | None, Any] = {"A": OLD, "B": drafting}
    trials = [replace(trial, counters=by_arm[trial.arm]) for trial in measure_trials(plan)]
    found = count_arms(plan.comparisons[0], trials)
    assert {arm: counts["sampling_params"]["refill"].per_step("bytes") for arm, counts in found.items()} == {
        "baseline": 600.0, "candidate": 1.8,
    }  # fmt: skip
    points = compute_points(plan, make_studies(plan, trials, make_requests(trials), []))
    assert [point.counters for point in points] == [found["baseline"], found["candidate"]]


def test_trials_of_a_point_are_pooled() -> None:
    record = measure(SwitchingSubject()).record
    point = compute_point([record, record], [])
    steps = 2 * len(record.steps)
    assert point.counters == {"toggle": {"old": VariantCounts(steps, {"launches": steps, "bytes": 100 * steps})}}
    assert compute_point([record, replace(record, counters=None)], []).counters == {}


SAMPLED = SamplingParams(temperature=0.2, top_k=3, ignore_eos=True)


def count(subject: Any) -> ToggleCounts | None:
    subject.drain()
    before = subject.read_counters()
    loop = run_loop(subject, Prompts(3, SAMPLED))
    readings = (before, subject.read_counters())
    return record_window(loop, subject.drain(), True, readings).counters


@pytest.mark.parametrize("overlap", [False, True])
def test_every_step_that_was_prepared_is_counted_by_the_engine(overlap: bool) -> None:
    subject, _ = BuiltinSubject.build(tiny_config(overlap=overlap), NullTracer(), None)
    try:
        for variant in ("refill", "signature", "device_gather"):
            subject.switch({"sampling_params": variant})
            found = count(subject)
            assert found is not None
            counted = found["sampling_params"][variant]
            counts = counted.counts
            assert counted.steps == counts["fills"] + counts["hits"] + counts["skips"] > 0
            sampled = counted.steps - counts["skips"]
            assert (counts["copies"] == 6 * sampled) == (variant == "refill")
    finally:
        subject.close()


def test_an_arm_in_a_process_of_its_own_counts_alike() -> None:
    config = tiny_config(optimizations=(("sampling_params", "signature"),))
    subject, _ = BuiltinSubject.build(config, NullTracer(), None)
    try:
        here = count(subject)
    finally:
        subject.close()
    with RemoteSubject.start(config, Settings(), with_ranges=False) as remote:
        assert count(remote) == here


class _Answers:
    """A process of another commit."""

    def __init__(self, description: dict[str, Any]) -> None:
        self.description = description

    def ask(self, _operation: str) -> dict[str, Any]:
        return {"description": self.description}


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ({}, None),
        ({"toggles": {"t": {"variant": "a"}}}, None),
        (
            {"toggles": {"t": {"variant": "a", "counters": {"a": {"copies": 1}}}}},
            CounterReading({"t": "a"}, {"t": {"a": {"copies": 1}}}),
        ),
    ],
)
def test_a_commit_that_does_not_count_is_null(description: dict[str, Any], expected: CounterReading | None) -> None:
    remote = RemoteSubject.__new__(RemoteSubject)
    remote._server = _Answers(description)  # type: ignore[assignment]
    assert remote.read_counters() == expected
