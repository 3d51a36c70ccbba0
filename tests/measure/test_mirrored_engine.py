"""Mirrored passes on the real engine: the same steps and tokens in both passes, whichever arm ran them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from engine_driver import ngram, tiny_config
from switching_subject import POINT, complement

from specbench.device.tracing import RangeRecorder
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.scoring import logit_margin
from specbench.measure import intervals
from specbench.measure.clock import SystemClock
from specbench.measure.divergence import find_divergence
from specbench.measure.driver import PlannedRequest
from specbench.measure.interruption import StopSignal
from specbench.measure.slices import EndlessSource
from specbench.measure.subject import BuiltinSubject
from specbench.measure.trials import MeasuredTrial, TrialContext, measure_pass
from specbench.scenario.plan import AbSettings, Trial

MASK = "ABBABAAB"
TOGGLED = {"A": {"sampling_params": "refill"}, "B": {"sampling_params": "signature"}}
COMPOSITION = (
    "num_context", "num_generation", "num_context_tokens", "draft_len", "num_committed", "num_first_tokens",
    "num_target_steps", "drafted", "accepted", "eligible", "opened", "num_occupied",
)  # fmt: skip


class Repetitive:
    """Conversations of one and two turns, prompts of several lengths, greedy and sampled, that end in various steps."""

    num_turns = (1, 2, 1, 1, 2)

    def __init__(self, equal: bool = False) -> None:
        self.equal = equal

    def build(self, conversation: int, turn: int, previous_outputs: Sequence[Sequence[int]]) -> PlannedRequest:
        length = 6 if self.equal else 4 + 3 * conversation
        prompt = [(7 * conversation + i % 3) % 90 + 1 for i in range(length)]
        prompt += [token for output in previous_outputs for token in output][-5:]
        params = SamplingParams(
            temperature=0.8 if conversation % 2 else None,
            top_k=20 if conversation % 2 else None,
            seed=11 * conversation + turn,
            max_tokens=12 if self.equal else 9 + 4 * conversation,
            ignore_eos=True,
        )
        return PlannedRequest(f"c{conversation}/t{turn}", conversation, turn, None, prompt, params)


@pytest.fixture(params=[False, True], ids=["serial", "overlap"])
def subject(request: pytest.FixtureRequest) -> Iterator[BuiltinSubject]:
    config = replace(tiny_config(overlap=request.param), drafter=ngram(3), num_threads=1)
    recorder = RangeRecorder()
    built, _ = BuiltinSubject.build(config, recorder, recorder)
    yield built
    built.close()


def run_pass(
    subject: BuiltinSubject,
    mask: str,
    number: int,
    source: Repetitive | None = None,
    injected: Mapping[str, Mapping[str, Any]] | None = None,
    choices: Mapping[str, Mapping[str, str]] = TOGGLED,
) -> MeasuredTrial:
    context = TrialContext(subject, SystemClock(), StopSignal(), None, "synthetic input")
    trial = Trial(number, 0, 0, number, mask, 0, comparison=0)
    settings = AbSettings(period_steps=5, guard_steps=2)
    return measure_pass(
        context, POINT, trial, 0, EndlessSource(source or Repetitive(), 3), 3, choices, settings, injected
    )


@pytest.mark.parametrize("equal", [False, True], ids=["unlike", "all end at once"])
def test_both_passes_take_the_same_steps_to_the_same_tokens(subject: BuiltinSubject, equal: bool) -> None:
    first = run_pass(subject, MASK, 0, Repetitive(equal))
    second = run_pass(subject, complement(MASK), 1, Repetitive(equal))
    for name in COMPOSITION:
        assert first.record.steps.columns[name] == second.record.steps.columns[name], name
    assert find_divergence(first, second, partial(logit_margin, subject.engine.loaded)) is None
    assert first.outputs == second.outputs
    assert first.record.tokens_sha256 == second.record.tokens_sha256
    assert [p.num_steps for p in first.record.periods] == [p.num_steps for p in second.record.periods]
    assert first.record.steps.columns["num_first_tokens"].count(0) < len(first.record.steps)
    assert sum(sum(position) for position in first.record.steps.columns["accepted"]) > 0
    ended = [request for request in first.requests if request.finish_reason == "length"]
    assert len(ended) > 6


def test_tokens_of_timed_steps_arrive_between_the_edges(subject: BuiltinSubject) -> None:
    record = run_pass(subject, MASK, 0).record
    columns = record.steps.columns
    assert [period.arm for period in record.periods] == list(MASK)
    assert {period.num_steps for period in record.periods} <= {4, 5}  # one finds nothing to launch where all ended
    overlaps = subject.engine.variants["overlap"] == "on"
    # Launched ahead, the second guard step is the first one whose tokens arrive in the period.
    assert record.periods[0].first_step == record.periods[0].num_guard_steps == (1 if overlaps else 2)
    for period in record.periods:
        for step in range(period.first_step, period.first_step + period.num_steps):
            assert period.start_ns <= columns["output_ns"][step] <= period.end_ns
            is_first = step == period.first_step
            # What is prepared while no other step runs lies outside.
            assert is_first or period.start_ns <= columns["host_start_ns"][step]
            assert overlaps or period.start_ns <= columns["host_start_ns"][step]
    timed = sum(period.num_steps for period in record.periods)
    assert timed + sum(period.num_guard_steps for period in record.periods) == len(record.steps)
    assert record.wall_ns == sum(period.end_ns - period.start_ns for period in record.periods)
    steps = [s for p in record.periods for s in range(p.first_step, p.first_step + p.num_steps)]
    assert record.committed_tokens == sum(columns["num_committed"][s] + columns["num_first_tokens"][s] for s in steps)
    assert record.device_busy is not None
    assert record.device_busy.end_ns[-1] <= record.periods[-1].end_ns
    assert not subject.has_work
    assert subject.drain().steps == []


def test_both_variants_ran_in_their_periods(subject: BuiltinSubject) -> None:
    before = subject.describe()["toggles"]["sampling_params"]["counters"]
    record = run_pass(subject, "ABBA", 0).record
    assert subject.engine.variants["sampling_params"] == "refill"  # the last period's
    after = record.subject["toggles"]["sampling_params"]["counters"]
    assert all(after[variant] != before.get(variant) for variant in ("refill", "signature"))


def test_a_changed_token_is_found_where_it_was_committed(subject: BuiltinSubject) -> None:
    first = run_pass(subject, MASK, 0, injected={"B": {"kind": "token"}})
    second = run_pass(subject, complement(MASK), 1)
    found = find_divergence(first, second, partial(logit_margin, subject.engine.loaded))
    assert found is not None
    assert found.candidate_token_id == first.outputs[found.request_id][found.position]
    assert found.baseline_token_id == second.outputs[found.request_id][found.position]
    assert found.margin is not None
    assert first.record.tokens_sha256 != second.record.tokens_sha256


@pytest.mark.parametrize("lane", ["host", "device"])
def test_a_delay_of_both_lanes_is_hidden_behind_neither(subject: BuiltinSubject, lane: str) -> None:
    """A period takes what it would have taken on either lane, and the delay on top."""
    defect = {"kind": "delay", "us": 3000, "lane": "both"}
    record = run_pass(subject, "ABBA", 0, injected={"B": defect}).record
    names = ("schedule", "prepare_inputs", "launch") if lane == "host" else ("device_step",)
    for period in (period for period in record.periods if period.arm == "B"):
        worked_ns = sum(
            end_ns - start_ns
            for name in names
            for start_ns, end_ns in zip(record.ranges[name].start_ns, record.ranges[name].end_ns, strict=True)
            if period.start_ns <= start_ns and end_ns <= period.end_ns
        )
        assert worked_ns > 0
        assert period.end_ns - period.start_ns >= delays_within(subject, period.num_steps) * 3_000_000 + worked_ns


def delays_within(subject: BuiltinSubject, num_steps: int) -> int:
    """Delays that a period has in full: launched ahead, its first step may have waited before the host saw it begin."""
    return num_steps - (subject.engine.variants["overlap"] == "on")


def test_a_hidden_sleep_is_no_work_of_the_device(subject: BuiltinSubject) -> None:
    record = run_pass(subject, "ABBA", 0, injected={"B": {"kind": "hidden_sleep", "us": 3000}}).record
    assert record.device_busy is not None
    busy = intervals.pair(record.device_busy.start_ns, record.device_busy.end_ns)
    for period in (period for period in record.periods if period.arm == "B"):
        busy_ns = intervals.total(intervals.clip(busy, period.start_ns, period.end_ns))
        assert period.num_steps > 1
        assert period.end_ns - period.start_ns - busy_ns >= delays_within(subject, period.num_steps) * 3_000_000


def test_equal_choices_measure_the_same_steps(subject: BuiltinSubject) -> None:
    choices = {"A": TOGGLED["A"], "B": TOGGLED["A"]}
    first = run_pass(subject, MASK, 0, choices=choices)
    second = run_pass(subject, complement(MASK), 1)
    assert first.record.tokens_sha256 == second.record.tokens_sha256
