"""One pass: periods, guards, switches, admission, cut and interruption, on a subject that can be computed by hand."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from fake_subject import STEP_NS, UPDATE_NS, US, FakeClock, FakeSource
from switching_subject import CHOICES, POINT, SwitchingSubject, complement, run_pass

from specbench import encoding
from specbench.errors import EngineError, InputError, PromptTooLongError
from specbench.measure.driver import Progress
from specbench.measure.interruption import StopSignal
from specbench.measure.slices import EndlessSource
from specbench.measure.trials import TrialContext, measure_pass
from specbench.records import TrialRecord
from specbench.scenario.plan import AbSettings, Trial


def test_a_period_is_settled_switched_guarded_and_timed() -> None:
    subject = SwitchingSubject()
    run_pass(subject, "ABBA", period_steps=3, guard_steps=2)
    assert subject.num_steps == 4 * (2 + 3)
    per_period = ["settle", "switch", "settle"]
    kinds = [kind.split()[0] for kind, _ in subject.log]
    assert kinds == ["settle", *per_period * 4, "settle"]
    assert [entry for entry in subject.log if entry[0].startswith("switch")] == [
        ("switch old", 0), ("switch new", 5), ("switch new", 10), ("switch old", 15),
    ]  # fmt: skip
    settled = [steps for kind, steps in subject.log[1:-1] if kind == "settle"]
    assert settled == [0, 5, 5, 10, 10, 15, 15, 20]


def test_equal_arms_switch_as_often_as_different_ones() -> None:
    same, different = SwitchingSubject(), SwitchingSubject()
    run_pass(same, "ABBABAAB", choices={"A": {"toggle": "old"}, "B": {"toggle": "old"}})
    run_pass(different, "ABBABAAB")
    assert len(same.log) == len(different.log)
    assert sum(kind.startswith("switch") for kind, _ in same.log) == 8


def test_figures_are_those_of_the_timed_steps() -> None:
    subject = SwitchingSubject(faster_ns=100 * US, switch_ns=5_000 * US)
    record = run_pass(subject, "ABBA", max_tokens=1000).record
    slow, fast = 3 * STEP_NS, 3 * (STEP_NS - 100 * US)
    assert [period.end_ns - period.start_ns for period in record.periods] == [slow, fast, fast, slow]
    assert record.wall_ns == 2 * slow + 2 * fast
    # Two requests: their context steps are the first guard; then every step commits two tokens to each.
    assert record.committed_tokens == 12 * 4
    assert record.output_tokens_per_s == pytest.approx(48 / (record.wall_ns / 1e9))
    assert record.acceptance_length == 2.0
    assert [(p.arm, p.quad, p.first_step, p.num_steps, p.num_guard_steps) for p in record.periods] == [
        ("A", 0, 1, 3, 1), ("B", 0, 5, 3, 1), ("B", 0, 9, 3, 1), ("A", 0, 13, 3, 1),
    ]  # fmt: skip
    assert len(record.steps) == 16  # guards included
    assert (record.mask, record.arm, record.status, record.comparison) == ("ABBA", None, "complete", 0)


def test_every_quad_has_its_number() -> None:
    record = run_pass(SwitchingSubject(), "ABBABAAB").record
    assert [period.quad for period in record.periods] == [0] * 4 + [1] * 4
    assert "".join(period.arm for period in record.periods) == record.mask


def test_the_record_survives_its_file() -> None:
    record = run_pass(SwitchingSubject(), injected={"B": {"kind": "delay", "us": 1}}).record
    assert encoding.from_json(TrialRecord, encoding.to_json(record)) == record


@pytest.mark.parametrize("turns", [(1, 1, 1), (3, 1, 2)])
@pytest.mark.parametrize("max_tokens", [2, 5, 9, 40])
@pytest.mark.parametrize("guard_steps", [0, 1, 2])
def test_both_passes_run_the_same_requests_through_the_same_steps(
    turns: tuple[int, ...], max_tokens: int, guard_steps: int
) -> None:
    first = run_pass(
        SwitchingSubject(faster_ns=70 * US), "ABBABAAB", turns=turns, max_tokens=max_tokens, guard_steps=guard_steps
    )
    second = run_pass(
        SwitchingSubject(FakeClock(123_456_789), faster_ns=70 * US, switch_ns=900 * US),
        complement("ABBABAAB"),
        turns=turns,
        max_tokens=max_tokens,
        guard_steps=guard_steps,
        pass_=1,
    )
    for name in ("step", "num_context", "num_generation", "num_committed", "num_first_tokens", "num_context_tokens"):
        assert first.record.steps.columns[name] == second.record.steps.columns[name], name
    assert first.outputs == second.outputs
    assert list(first.outputs) == list(second.outputs)
    assert first.record.tokens_sha256 == second.record.tokens_sha256
    assert first.record.committed_tokens == second.record.committed_tokens
    assert [p.num_steps for p in first.record.periods] == [p.num_steps for p in second.record.periods] == [3] * 8


def test_the_batch_is_kept_full() -> None:
    measured = run_pass(SwitchingSubject(), "ABBABAAB", max_tokens=4)
    columns = measured.record.steps.columns
    assert [c + g for c, g in zip(columns["num_context"], columns["num_generation"], strict=True)] == [2] * 32
    reasons = [request.finish_reason for request in measured.requests]
    assert reasons.count("abort") <= 2  # what was in flight at the end
    assert reasons.count("length") == len(reasons) - reasons.count("abort") > 10
    assert len({request.request_id for request in measured.requests}) == len(reasons)
    assert measured.record.planned_requests == len(reasons)


def test_first_turns_are_built_between_periods() -> None:
    class SlowSource(FakeSource):
        def build(self, conversation: int, turn: int, previous_outputs: object) -> object:  # type: ignore[override]
            clock.ns += 7_000 * US
            return super().build(conversation, turn, previous_outputs)  # type: ignore[arg-type]

    clock = FakeClock()
    subject = SwitchingSubject(clock)
    source = EndlessSource(SlowSource([1, 1, 1], max_tokens=4), 0)
    context = TrialContext(subject, clock, StopSignal(), None, "natural")
    trial = Trial(0, 0, 0, 0, "ABBA", 0)
    # A request takes three steps: at most one batch of new ones begins in a period of three.
    measured = measure_pass(context, POINT, trial, 0, source, 2, CHOICES, AbSettings(period_steps=3, guard_steps=0))
    assert [p.end_ns - p.start_ns for p in measured.record.periods] == [3 * STEP_NS] * 4
    assert measured.record.evidence.client_ms == 0
    assert len(measured.requests) > 4


def test_a_later_turn_is_built_when_its_time_has_come_and_accounted_for() -> None:
    class SlowTurns(FakeSource):
        def build(self, conversation: int, turn: int, previous_outputs: object) -> object:  # type: ignore[override]
            clock.ns += 7_000 * US if turn else 0
            return super().build(conversation, turn, previous_outputs)  # type: ignore[arg-type]

    clock = FakeClock()
    subject = SwitchingSubject(clock)
    context = TrialContext(subject, clock, StopSignal(), None, "natural")
    source = EndlessSource(SlowTurns([2, 2], max_tokens=6), 0)
    settings = AbSettings(period_steps=3, guard_steps=1)
    record = measure_pass(context, POINT, Trial(0, 0, 0, 0, "ABBA", 0), 0, source, 2, CHOICES, settings).record
    extra_ns = record.wall_ns - 12 * STEP_NS
    assert extra_ns > 0
    assert extra_ns % (7_000 * US) == 0
    assert record.evidence.client_ms == pytest.approx(extra_ns / 1e6)


def test_nothing_is_drained_or_collected_inside_a_pass() -> None:
    enabled: list[bool] = []
    subject = SwitchingSubject(on_step=lambda _step: enabled.append(gc.isenabled()))
    record = run_pass(subject).record
    assert subject.drains == [0, 16]
    assert not any(enabled)
    assert record.evidence.gc_collections == 0
    assert gc.isenabled()


def test_what_was_recorded_before_the_pass_or_after_its_end_is_left_out() -> None:
    class LateSubject(SwitchingSubject):
        def drain(self) -> object:
            if self.steps:
                self.steps.append(replace(self.steps[-1], output_ns=self.clock.ns + 9_000))
            return super().drain()

    late, plain = run_pass(LateSubject()).record, run_pass(SwitchingSubject()).record
    assert late.steps == plain.steps
    assert late.periods == plain.periods


def test_the_subject_is_left_empty() -> None:
    subject = SwitchingSubject()
    measured = run_pass(subject, max_tokens=1000)
    assert not subject.has_work
    assert [request.finish_reason for request in measured.requests] == ["abort", "abort"]
    assert [request.output_tokens for request in measured.requests] == [31, 31]  # 1 + 15 steps of 2


@pytest.mark.parametrize("step", [1, 2, 6, 8])
def test_a_stop_ends_a_pass_in_the_step(step: int) -> None:
    stop = StopSignal()
    subject = SwitchingSubject(on_step=lambda number: stop.request() if number == step else None)
    measured = run_pass(subject, stop=stop)
    assert measured.record.status == "interrupted"
    assert subject.num_steps == step
    assert len(measured.record.steps) == step
    assert len(measured.record.periods) == max(step - 1, 0) // 4
    assert not subject.has_work
    assert encoding.dumps(measured.record)


def test_a_later_turn_that_does_not_fit_ends_its_conversation_alone() -> None:
    class GrowingSource(FakeSource):
        def build(self, conversation: int, turn: int, previous_outputs: object) -> object:  # type: ignore[override]
            self.prompt_len = 3 if turn == 0 else 50
            return super().build(conversation, turn, previous_outputs)  # type: ignore[arg-type]

    subject, recorder = SwitchingSubject(max_seq_len=20), Recorder()
    context = TrialContext(subject, subject.clock, StopSignal(), None, "natural", progress=recorder)
    source = EndlessSource(GrowingSource([2, 1], max_tokens=3), 0)
    settings = AbSettings(period_steps=3, guard_steps=1)
    measured = measure_pass(context, POINT, Trial(0, 0, 0, 0, "ABBA", 0), 0, source, 2, CHOICES, settings)
    refused = [request for request in measured.requests if request.finish_reason == "error"]
    assert refused
    assert {request.turn for request in refused} == {1}
    assert all(request.request_id not in measured.outputs for request in refused)
    in_flight = sum(request.finish_reason == "abort" for request in measured.requests)
    assert recorder.shown[-1].requests_done == len(measured.requests) - in_flight
    assert min(measured.record.steps.columns["num_occupied"]) == 2


def test_a_first_turn_that_cannot_be_served_is_an_input_error() -> None:
    with pytest.raises(PromptTooLongError):
        run_pass(SwitchingSubject(max_seq_len=2))


def test_an_engine_that_forgets_a_request_is_an_error_not_a_hang() -> None:
    subject = SwitchingSubject()
    subject.idle_forever = True
    with pytest.raises(EngineError, match="c0/t0"):
        run_pass(subject)


def test_a_subject_that_cannot_switch_is_refused_before_anything_runs() -> None:
    subject = SwitchingSubject()
    subject.capabilities = replace(subject.capabilities, switchable=False)
    with pytest.raises(InputError, match="switch"):
        run_pass(subject)
    assert subject.num_steps == 0


def test_progress_is_shown_between_periods_alone() -> None:
    class Watcher:
        def __init__(self) -> None:
            self.asked: list[int] = []
            self.fractions: list[float] = []

        def is_due(self, now_ns: int) -> bool:
            self.asked.append(now_ns)
            return True

        def show(self, progress: object) -> None:
            self.fractions.append(progress.fraction)  # type: ignore[attr-defined]

        finish = show

    subject, watcher = SwitchingSubject(), Watcher()
    context = TrialContext(subject, subject.clock, StopSignal(), None, "natural", progress=watcher)
    source = EndlessSource(FakeSource([1]), 0)
    settings = AbSettings(period_steps=2, guard_steps=1)
    measure_pass(context, POINT, Trial(0, 0, 0, 0, "ABBA", 0), 0, source, 1, CHOICES, settings)
    assert watcher.fractions == [0.25, 0.5, 0.75, 1.0]
    assert len(watcher.asked) == 3


class Recorder:
    """Keeps all progress that it is shown."""

    def __init__(self) -> None:
        self.shown: list[Progress] = []

    def is_due(self, now_ns: int) -> bool:  # noqa: ARG002
        return True

    def show(self, progress: Progress) -> None:
        self.shown.append(progress)

    finish = show


def test_progress_counts_requests_that_ended_and_tokens_of_all() -> None:
    """A request takes five steps (1 + 4 x 2 tokens), two at once, four steps a period with its guard."""
    subject, recorder = SwitchingSubject(), Recorder()
    context = TrialContext(subject, subject.clock, StopSignal(), None, "natural", progress=recorder)
    source = EndlessSource(FakeSource([1], max_tokens=9), 0)
    settings = AbSettings(period_steps=3, guard_steps=1)
    measure_pass(context, POINT, Trial(0, 0, 0, 0, "ABBA", 0), 0, source, 2, CHOICES, settings)
    assert [progress.requests_done for progress in recorder.shown] == [0, 2, 4, 6]
    assert [progress.requests_planned for progress in recorder.shown] == [2, 4, 6, 8]
    assert [progress.tokens for progress in recorder.shown] == [14, 28, 42, 56]
    assert [progress.acceptance_length for progress in recorder.shown] == [2.0] * 4


def test_tokens_of_a_step_belong_to_the_period_that_timed_it() -> None:
    record = run_pass(SwitchingSubject(), "ABBA", max_tokens=7).record
    columns = record.steps.columns
    for period in record.periods:
        for step in range(period.first_step, period.first_step + period.num_steps):
            assert period.start_ns < columns["output_ns"][step] <= period.end_ns - UPDATE_NS
    timed = [s for p in record.periods for s in range(p.first_step, p.first_step + p.num_steps)]
    tokens = sum(columns["num_committed"][s] + columns["num_first_tokens"][s] for s in timed)
    assert tokens == record.committed_tokens
