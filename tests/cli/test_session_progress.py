"""What progress of comparisons and sweeps looks like, on a terminal and in a log."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from specbench.cli.session_progress import (
    MAX_ROWS,
    PlainSession,
    TerminalSession,
    describe_comparison,
    describe_session,
    make_observer,
)
from specbench.cli.sweep_progress import SweepLines, SweepTable, make_sweep_observer, name_point, short_names
from specbench.measure.observers import ComparisonProgress, SessionProgress
from specbench.records import Evidence, StepTable, TrialRecord
from specbench.scenario.plan import PlanPoint

EARLY = ComparisonProgress("on", units=4)
KNOWN = ComparisonProgress("on", units=12, mean_pct=0.1234, low_pct=-0.31, high_pct=0.55)
SETTLED = replace(KNOWN, verdict="EQUIVALENT")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def progress(*comparisons: ComparisonProgress) -> SessionProgress:
    return SessionProgress(units_done=12, units_planned=40, elapsed_s=42, budget_s=120, comparisons=comparisons)


def test_what_is_said_of_a_session_and_of_a_comparison() -> None:
    assert describe_session(progress(KNOWN)) == "12/40 units  0:42 of 2:00"
    assert describe_session(replace(progress(KNOWN), budget_s=0.001)) == "12/40 units  0:42 of 1 ms"
    assert describe_comparison(KNOWN) == "+0.12% +/- 0.43 (plain)"
    assert describe_comparison(SETTLED) == "EQUIVALENT  +0.12%"  # the interval shown so far is not its own
    assert describe_comparison(replace(EARLY, verdict="INCONCLUSIVE")) == "INCONCLUSIVE"
    assert describe_comparison(EARLY) == ""
    assert describe_comparison(replace(KNOWN, high_pct=float("inf"))) == "+0.12%"
    assert describe_comparison(replace(KNOWN, low_pct=None, high_pct=None)) == "+0.12%"


def test_the_stream_chooses_the_display() -> None:
    assert isinstance(make_observer(Terminal()), TerminalSession)
    assert isinstance(make_observer(io.StringIO()), PlainSession)


def screen(text: str) -> list[str]:
    """The lines a terminal shows after ``text``, which moves up and clears lines but does nothing else."""
    lines = [""]
    parts = text.split("\x1b[1A\x1b[2K")
    for index, part in enumerate(parts):
        if index:
            del lines[-2:]
            lines.append("")
        first, *rest = part.split("\n")
        lines[-1] += first
        lines += rest
    return lines


def test_a_terminal_redraws_a_bar_and_a_row_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    stream, clock = Terminal(), Clock()
    shown = TerminalSession(stream, clock)
    shown.announce("loading tiny")
    shown.show(progress(EARLY, KNOWN))
    clock.now += 10
    shown.show(progress(SETTLED, KNOWN))
    assert screen(stream.getvalue()) == [
        "loading tiny",
        "[#######.............]  12/40 units  0:42 of 2:00",
        "  on    12 units  EQUIVALENT  +0.12%",
        "  on    12 units  +0.12% +/- 0.43 (plain)",
        "",
    ]
    shown.announce("look 1")
    assert screen(stream.getvalue()) == ["loading tiny", "look 1", ""]
    shown.finish()
    assert len(screen(stream.getvalue())) == 6


def test_a_terminal_is_not_redrawn_more_often_than_it_can_be_read() -> None:
    stream, clock = Terminal(), Clock()
    shown = TerminalSession(stream, clock)
    shown.show(progress(EARLY))
    drawn = stream.getvalue()
    shown.show(progress(KNOWN))
    assert stream.getvalue() == drawn
    shown.finish()
    assert "+0.12%" in stream.getvalue()[len(drawn) :]  # the last state is always left


def test_rows_fit_a_narrow_terminal_and_many_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    TerminalSession(stream).show(progress(*[SETTLED] * 22))
    lines = stream.getvalue().splitlines()
    assert all(len(line) < 40 for line in lines)
    assert len(lines) == 1 + MAX_ROWS + 1
    assert lines[-1] == "  and 14 more"


def test_a_log_gets_a_line_every_ten_seconds_and_each_verdict_once() -> None:
    stream, clock = io.StringIO(), Clock()
    shown = PlainSession(stream, clock)
    shown.show(progress(KNOWN))
    assert stream.getvalue() == ""  # the first after ten seconds, not at once
    clock.now += 10
    shown.show(progress(KNOWN))
    shown.show(progress(replace(KNOWN, verdict="INCONCLUSIVE")))
    shown.show(progress(SETTLED))
    shown.show(progress(SETTLED))
    shown.finish()
    assert stream.getvalue().splitlines() == [
        "12/40 units  0:42 of 2:00  +0.12% +/- 0.43 (plain)",
        "on: EQUIVALENT  +0.12%",
        "12/40 units  0:42 of 2:00  EQUIVALENT  +0.12%",
    ]


def test_a_log_says_nothing_twice_in_a_row_and_counts_on_only_now_and_then() -> None:
    stream, clock = io.StringIO(), Clock()
    shown = PlainSession(stream, clock)
    for number in range(1, 23):
        shown.announce(f"warm-up and calibration {number} of 22, not measured")
        clock.now += 1
    shown.announce("note without a count")
    shown.announce("note without a count")
    shown.show(progress(KNOWN))
    clock.now += 10
    shown.show(progress(KNOWN))
    shown.finish()
    calibration = [f"warm-up and calibration {number} of 22, not measured" for number in (1, 11, 21)]
    line = "12/40 units  0:42 of 2:00  +0.12% +/- 0.43 (plain)"
    assert stream.getvalue().splitlines() == [*calibration, *["note without a count"] * 2, line]


def test_a_log_counts_several_comparisons() -> None:
    stream, clock = io.StringIO(), Clock()
    shown = PlainSession(stream, clock)
    shown.show(progress(KNOWN, EARLY, replace(SETTLED, verdict="INCONCLUSIVE")))
    shown.finish()
    assert stream.getvalue() == "12/40 units  0:42 of 2:00  0 of 3 comparisons settled\n"


def test_nothing_measured_leaves_nothing() -> None:
    for stream in (Terminal(), io.StringIO()):
        make_observer(stream).finish()
        assert stream.getvalue() == ""


POINTS = [
    PlanPoint(0, "base", {}, {}, {"workload.concurrency": 1}),
    PlanPoint(1, "base", {}, {}, {"workload.concurrency": 4}),
]


def trial(point: int, number: int, **changes: object) -> TrialRecord:
    record = TrialRecord(
        trial=number,
        point=point,
        segment=0,
        pass_=0,
        mask=None,
        seed=0,
        attempt=0,
        status="complete",
        started_utc="2026-01-01T00:00:00Z",
        variant="base",
        axes={},
        label="natural",
        subject={},
        wall_ns=2_000_000_000,
        planned_requests=1,
        committed_tokens=250,
        tokens_sha256=None,
        output_tokens_per_s=125.0,
        acceptance_length=2.5,
        steps=StepTable({}),
        device_busy=None,
        ranges={},
        evidence=Evidence(),
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def test_points_are_named_by_what_the_sweep_varies() -> None:
    assert name_point(POINTS[1]) == "concurrency=4"
    assert name_point(PlanPoint(0, "on", {})) == "on"
    assert short_names({"a.x": 1, "b.x": 2}) == {"a.x": 1, "b.x": 2}


def test_a_log_gets_a_line_a_trial_with_the_time_left() -> None:
    stream = io.StringIO()
    shown = make_sweep_observer(POINTS, 4, 1, stream)
    assert isinstance(shown, SweepLines)
    shown.trial_done(POINTS[1], trial(1, 1))
    shown.trial_done(POINTS[0], trial(0, 2, status="failed", error="the step\nwent wrong"))
    shown.trial_done(POINTS[0], trial(0, 3, status="interrupted", acceptance_length=None))
    shown.finish()
    first, second, third = stream.getvalue().splitlines()
    assert first == "2/4 trials  0:00  ETA 0:00  concurrency=4: 125.0 tok/s, 2.50 tok/step"
    assert second.endswith("concurrency=1: FAILED: the step went wrong")
    # What was cut is measured again, and counted then.
    assert third == "3/4 trials  0:00  ETA 0:00  concurrency=1: 125.0 tok/s (interrupted)"


def test_a_terminal_gets_a_table_that_fills() -> None:
    stream = Terminal()
    shown = make_sweep_observer(POINTS, 4, 0, stream)
    assert isinstance(shown, SweepTable)
    shown.announce("2 points")
    shown.trial_done(POINTS[0], trial(0, 0))
    shown.announce("[bold]next[/bold]")
    shown.trial_done(POINTS[1], trial(1, 1, status="failed", error="out of [memory]"))
    shown.finish()
    text = stream.getvalue()
    assert text.startswith("2 points\n")
    assert "[bold]next[/bold]" in text
    last = text[text.rindex("concurrency") :]
    assert "125.0" in last
    assert "2.50" in last
    assert "FAILED: out of [memory]" in last
    assert "2/4 trials" in last


def test_a_table_counts_a_trial_that_was_cut_when_it_was_measured_again() -> None:
    stream = Terminal()
    shown = make_sweep_observer(POINTS, 4, 0, stream)
    for status, count in (("interrupted", "0"), ("complete", "1")):
        shown.trial_done(POINTS[0], trial(0, 0, status=status))
        (row,) = re.findall(
            r"^ *1 +(\d) +125.0", stream.getvalue()[stream.getvalue().rindex("concurrency") :], re.MULTILINE
        )
        assert row == count
    assert "1/4 trials" in stream.getvalue()[stream.getvalue().rindex("concurrency") :]
    shown.finish()
