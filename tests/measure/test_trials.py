"""One run or pass, measured without a plan or a folder around it."""

from __future__ import annotations

from typing import Any

import pytest
from fake_subject import STEP_NS, FakeClock, FakeSource, FakeSubject
from switching_subject import POINT, SwitchingSubject, run_pass

from specbench.errors import InputError
from specbench.measure.driver import PlannedRequest
from specbench.measure.interruption import StopSignal
from specbench.measure.recording import Kept
from specbench.measure.trials import MeasuredTrial, TrialContext, measure_run, warm_up
from specbench.records import WarmUp
from specbench.scenario.plan import SEGMENT_STEPS, AbSettings, Trial

TRIAL = Trial(
    trial=6, point=0, segment=2, pass_=3, mask=None, seed=9, comparison=1, arm="B", process=4
)  # fmt: skip


def context(subject: FakeSubject, **changes: Any) -> TrialContext:
    return TrialContext(subject, subject.clock, StopSignal(), "abc", "natural", **changes)


def run(subject: FakeSubject | None = None, turns: tuple[int, ...] = (2, 1), **changes: Any) -> MeasuredTrial:
    subject = subject or FakeSubject(FakeClock())
    warmup = changes.pop("warmup", None)
    return measure_run(context(subject, **changes), POINT, TRIAL, 5, FakeSource(turns, 5), 2, warmup=warmup)


def test_a_record_says_where_in_the_plan_it_belongs() -> None:
    record = run(note="noise", profile="nvtx", axes={"model": "fake"}).record
    assert (record.trial, record.segment, record.pass_, record.seed, record.attempt) == (6, 2, 3, 9, 5)
    assert (record.comparison, record.arm, record.process) == (1, "B", 4)
    assert (record.plan_hash, record.label, record.variant) == ("abc", "natural", "base")
    assert record.axes == {"model": "fake", "concurrency": 2}
    assert (record.subject["profile"], record.subject["content_note"]) == ("nvtx", "noise")
    assert record.injected is None
    assert record.periods == []


def test_outputs_are_there_in_workload_order_though_they_are_not_kept() -> None:
    measured = run()
    assert list(measured.outputs) == ["c0/t0", "c0/t1", "c1/t0"]
    assert [len(output) for output in measured.outputs.values()] == [5, 5, 5]
    assert list(measured.prompts["c0/t1"]) == [0, 1, measured.outputs["c0/t0"][-1]]
    assert {request.output_token_ids for request in measured.requests} == {None}
    kept = run(kept=Kept(outputs=True))
    assert [request.output_token_ids for request in kept.requests] == list(kept.outputs.values())


def test_a_refused_request_has_a_line_but_no_output() -> None:
    class GrowingSource(FakeSource):
        def build(self, conversation: int, turn: int, previous_outputs: Any) -> PlannedRequest:
            self.prompt_len = 3 if turn == 0 else 50
            return super().build(conversation, turn, previous_outputs)

    subject = FakeSubject(FakeClock(), max_seq_len=20)
    measured = measure_run(context(subject), POINT, TRIAL, 0, GrowingSource([2, 1], 5), 2)
    assert [request.finish_reason for request in measured.requests] == ["length", "error", "length"]
    assert list(measured.outputs) == ["c0/t0", "c1/t0"]


def test_warm_up_leaves_nothing_to_the_trial_after_it() -> None:
    subject = FakeSubject(FakeClock())
    found = warm_up(context(subject), FakeSource([1, 1, 1], 3), 2)
    assert found == WarmUp(3, 9, 4, 4 * STEP_NS / 1e9)
    measured = run(subject, warmup=found)
    assert measured.record.warmup == found
    assert len(measured.record.steps) == len(run().record.steps)


def test_a_pass_needs_a_mask() -> None:
    with pytest.raises(InputError, match="mask"):
        run_pass(SwitchingSubject(), "")


def test_default_settings_give_twelve_quads_of_two_steps() -> None:
    settings = AbSettings()
    mask = "ABBA" * settings.quads_per_segment
    record = run_pass(SwitchingSubject(), mask, period_steps=settings.period_steps).record
    assert len(record.steps) == 48 * 3 == SEGMENT_STEPS
    assert {period.num_steps for period in record.periods} == {2}
