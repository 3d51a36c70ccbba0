"""What progress looks like, on a terminal and in a log."""

from __future__ import annotations

import io
import time

import pytest
from call_counts import count_calls

from specbench.cli.progress import PlainProgress, TerminalProgress, describe_progress, format_clock, make_progress
from specbench.measure.driver import Progress

HALF = Progress(
    requests_done=3, requests_planned=8, tokens=1234, elapsed_s=20.0, fraction=0.25, acceptance_length=2.345
)
NOTHING = Progress(requests_done=0, requests_planned=8, tokens=0, elapsed_s=0.0, fraction=0.0, acceptance_length=None)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_has_tokens_speed_acceptance_and_eta() -> None:
    assert describe_progress(HALF) == "3/8 requests  1,234 tok  61.7 tok/s  2.35 tok/step  ETA 1:00"


def test_what_is_not_known_yet_is_left_out() -> None:
    assert describe_progress(NOTHING) == "0/8 requests  0 tok"


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (725, "12:05"), (3723, "1:02:03")])
def test_clock(seconds: float, text: str) -> None:
    assert format_clock(seconds) == text


def test_a_terminal_gets_one_line_redrawn_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (120, 80, 40):
        monkeypatch.setenv("COLUMNS", str(columns))
        stream = Terminal()
        shown = make_progress("trial 1 of 1", stream)
        assert isinstance(shown, TerminalProgress)
        shown.show(HALF)
        shown.show(HALF)
        *_, last = stream.getvalue().split("\r\x1b[2K")
        assert len(last) < columns
        assert "25%" in last
        assert "\n" not in stream.getvalue()
        shown.finish(HALF)
        assert stream.getvalue().endswith("\n")


def test_a_wide_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    make_progress("trial 1 of 1", stream).show(HALF)
    line = "[#####...............]  25%  3/8 requests  1,234 tok  61.7 tok/s  2.35 tok/step  ETA 1:00  trial 1 of 1"
    assert stream.getvalue().endswith(line)


def test_eighty_columns_still_have_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    make_progress("trial 1 of 1", stream).show(HALF)
    assert stream.getvalue().endswith("]  25%  3/8 requests  1,234 tok  61.7 tok/s  2.35 tok/step  ETA 1:00")
    assert "[##" in stream.getvalue()


def test_a_log_gets_plain_lines() -> None:
    stream = io.StringIO()
    shown = make_progress("trial 1 of 2", stream)
    assert isinstance(shown, PlainProgress)
    assert not shown.is_due(time.perf_counter_ns())  # the first after ten seconds, not at once
    shown.show(HALF)
    shown.finish(HALF)
    lines = stream.getvalue().splitlines()
    assert lines == ["trial 1 of 2: 25%  3/8 requests  1,234 tok  61.7 tok/s  2.35 tok/step  ETA 1:00"] * 2


def test_it_is_due_at_its_interval_and_no_sooner() -> None:
    shown = TerminalProgress("t", Terminal())
    due = [shown.is_due(ns) for ns in (10, 11, 10 + 499_999_999, 10 + 500_000_000, 10 + 500_000_001)]
    assert due == [True, False, False, True, False]


def test_drawing_costs_little() -> None:
    """Between two steps of what is measured: one line, formatted and written once."""
    stream = Terminal()
    shown = TerminalProgress("trial 1 of 1", stream)
    shown.show(HALF)
    assert count_calls(lambda: shown.show(HALF)) < 50
    assert stream.getvalue().count("\x1b[2K") == 2
