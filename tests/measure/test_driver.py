"""The closed loop: concurrency, turns, limits, interruption, what is left behind."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field

import pytest
from fake_subject import MS, STEP_NS, US, FakeClock, FakeSource, FakeSubject

from specbench.errors import EngineError, PromptTooLongError
from specbench.measure.driver import ClosedLoop, LoopResult, Progress
from specbench.measure.interruption import StopSignal


def drive(subject: FakeSubject, source: FakeSource, **changes: object) -> LoopResult:
    settings = {"concurrency": 2, "clock": subject.clock, "stop": StopSignal(), **changes}
    return ClosedLoop(subject=subject, source=source, **settings).run()  # type: ignore[arg-type]


def test_keeps_concurrency_and_serves_every_turn_once() -> None:
    subject, source = FakeSubject(FakeClock()), FakeSource([2, 1, 3, 1])
    result = drive(subject, source)
    assert subject.most_active == 2
    assert (result.status, result.planned_requests) == ("complete", 7)
    assert sorted(flight.planned.request_id for flight in result.flights) == sorted(
        ["c0/t0", "c0/t1", "c1/t0", "c2/t0", "c2/t1", "c2/t2", "c3/t0"]
    )
    assert all(flight.state is not None and flight.state.finish_reason == "length" for flight in result.flights)


def test_a_turn_waits_for_the_answer_before_it() -> None:
    subject, source = FakeSubject(FakeClock()), FakeSource([3, 1])
    result = drive(subject, source)
    assert (0, 2, (5, 5)) in source.built  # five output tokens of each of the two turns before it
    flights = {flight.planned.request_id: flight for flight in result.flights}
    first, second = flights["c0/t0"], flights["c0/t1"]
    assert first.state is not None
    assert second.start_ns > first.state.chunk_times_ns[-1]
    assert second.planned.prompt_token_ids[2] == first.state.output_token_ids[-1]


def test_first_turns_are_built_before_the_clock_starts() -> None:
    clock = FakeClock()

    class SlowSource(FakeSource):
        def build(self, conversation: int, turn: int, previous_outputs: object) -> object:  # type: ignore[override]
            clock.ns += 7 * MS
            return super().build(conversation, turn, previous_outputs)  # type: ignore[arg-type]

    start_ns = clock.ns
    result = drive(FakeSubject(clock), SlowSource([1, 1, 2]))
    assert result.origin_ns == start_ns + 3 * 7 * MS
    assert result.client_ns == 7 * MS  # the second turn, built between steps, is the load generator's own time


def test_timeout_cuts_and_leaves_the_subject_empty() -> None:
    subject = FakeSubject(FakeClock())
    result = drive(subject, FakeSource([1] * 10, max_tokens=100), timeout_s=3.5 * STEP_NS / 1e9)
    assert result.status == "timeout"
    assert subject.num_steps == 4  # the step in which the limit passed is the last
    assert [flight.state.finish_reason for flight in result.flights if flight.state] == ["abort", "abort"]
    assert not subject.has_work


def test_a_limit_that_falls_on_the_last_step_cuts_nothing() -> None:
    subject = FakeSubject(FakeClock())
    whole = drive(subject, FakeSource([1]))
    limited = drive(FakeSubject(FakeClock()), FakeSource([1]), timeout_s=subject.num_steps * STEP_NS / 1e9)
    assert (whole.status, limited.status) == ("complete", "complete")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_loop_within_the_step(number: signal.Signals) -> None:
    subject = FakeSubject(FakeClock(), on_step=lambda step: os.kill(os.getpid(), number) if step == 3 else None)
    with StopSignal() as stop:
        result = drive(subject, FakeSource([1] * 5, max_tokens=50), stop=stop)
    assert (result.status, subject.num_steps) == ("interrupted", 3)
    assert [flight.num_tokens for flight in result.flights] == [5, 5]  # 1 + 2 + 2: what was committed stays


def test_a_second_signal_interrupts_at_once() -> None:
    def twice(_step: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), StopSignal() as stop:
        drive(FakeSubject(FakeClock(), on_step=twice), FakeSource([1]), stop=stop)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_later_turn_that_cannot_be_served_fails_alone() -> None:
    class GrowingSource(FakeSource):
        def build(self, conversation: int, turn: int, previous_outputs: object) -> object:  # type: ignore[override]
            self.prompt_len = 3 if turn == 0 else 50
            return super().build(conversation, turn, previous_outputs)  # type: ignore[arg-type]

    watcher = Watcher()
    result = drive(FakeSubject(FakeClock(), max_seq_len=20), GrowingSource([3, 1, 1]), progress=watcher)
    failed = [flight for flight in result.flights if flight.state is None]
    assert [(flight.planned.request_id, flight.error) for flight in failed] == [("c0/t1", "the prompt has 50 tokens")]
    assert sum(flight.state is not None for flight in result.flights) == 3  # the others were served
    assert watcher.finished[0].requests_done == 4
    assert [progress.requests_done for progress in watcher.shown] == sorted(p.requests_done for p in watcher.shown)


def test_a_first_turn_that_cannot_be_served_is_an_input_error() -> None:
    with pytest.raises(PromptTooLongError):
        drive(FakeSubject(FakeClock(), max_seq_len=20), FakeSource([1], prompt_len=20))


def test_an_engine_that_forgets_a_request_is_an_error_not_a_hang() -> None:
    subject = FakeSubject(FakeClock())
    subject.idle_forever = True
    with pytest.raises(EngineError, match="c0/t0"):
        drive(subject, FakeSource([1]))


@dataclass
class Watcher:
    shown: list[Progress] = field(default_factory=list)
    finished: list[Progress] = field(default_factory=list)

    def is_due(self, now_ns: int) -> bool:
        return now_ns > 0

    def show(self, progress: Progress) -> None:
        self.shown.append(progress)

    def finish(self, progress: Progress) -> None:
        self.finished.append(progress)


def test_progress_says_what_is_known() -> None:
    watcher = Watcher()
    drive(FakeSubject(FakeClock()), FakeSource([1, 1], max_tokens=5), progress=watcher)
    # Both requests at once: 1 token each, then 2, then 2 each.
    assert [progress.tokens for progress in watcher.shown] == [2, 6, 10]
    assert [progress.fraction for progress in watcher.shown] == [0.2, 0.6, 1.0]
    assert [progress.acceptance_length for progress in watcher.shown] == [None, 2.0, 2.0]
    assert watcher.finished[0].requests_done == watcher.finished[0].requests_planned == 2
    assert watcher.shown[0].elapsed_s == pytest.approx(STEP_NS / 1e9)
    assert STEP_NS == 1350 * US
