"""Row 1.10: a report says in words whether host work that moved was hidden, and what removing it could gain."""

from __future__ import annotations

import io
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from comparison_sample import AB, FASTER
from rich.console import Console

from specbench.measure import wording
from specbench.records import Analysis, Comparison, RangeEffect
from specbench.report.console import print_report
from specbench.report.formats import html, markdown
from specbench.report.report import build_report

POPULATE = "populate_sampling_params"


def equivalent(host_total_ms: float | None, host_exposed_ms: float | None, **changes: Any) -> Comparison:
    """Filling takes 193 of 271 us less, and throughput stays where it was."""
    times = {"step_ms": 6.306, "device_ms": 5.89, "host_total_ms": host_total_ms, "host_exposed_ms": host_exposed_ms}
    found = replace(
        FASTER, verdict="EQUIVALENT", speedup_pct=0.02, ci_low_pct=-0.11, ci_high_pct=0.15,
        ranges={POPULATE: RangeEffect(-71.4, -72.9, -69.8, 270.7, 77.4, 4.29)},
        step_ms={"baseline": times, "candidate": times}, **changes,
    )  # fmt: skip
    return replace(found, in_words=[line for speak in wording._SPEAKERS for line in speak(found)])


def texts(comparison: Comparison) -> list[str]:
    """The report of it, as Markdown, as HTML and on a terminal, on one line each."""
    analysis: Analysis = replace(AB, comparisons=[comparison])
    stream = io.StringIO()
    print_report(build_report(analysis), Console(file=stream, width=400, color_system=None))
    found = [markdown.render(analysis).replace("\\", ""), unescape(html.render(analysis)), stream.getvalue()]
    return [" ".join(text.split()) for text in found]


def check_hidden_work_is_said() -> None:
    for text in texts(equivalent(host_total_ms=0.95, host_exposed_ms=0.02)):
        assert f"{POPULATE} takes 193.3 µs a step less" in text
        assert "yet throughput did not clearly move" in text
        assert "This host work is hidden (the device idles during 2% of the host's preparation)" in text
        assert "what is saved there is not seen" in text
        assert "Removing it entirely could gain at most 4.48%" in text  # 4.29% of the step


def test_row_1_10_hidden_host_work_is_said_in_words_in_every_report() -> None:
    check_hidden_work_is_said()


@pytest.mark.parametrize("broken", [lambda _comparison: [], lambda _comparison: ["no gain"]])
def test_row_1_10_a_report_that_says_nothing_of_it_is_seen(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    speakers = tuple(broken if speak is wording.say_hidden_work else speak for speak in wording._SPEAKERS)
    monkeypatch.setattr(wording, "_SPEAKERS", speakers)
    with pytest.raises(AssertionError):
        check_hidden_work_is_said()


def test_row_1_10_exposure_is_judged_and_not_only_the_total(monkeypatch: pytest.MonkeyPatch) -> None:
    exposed = equivalent(host_total_ms=0.95, host_exposed_ms=0.94)
    assert all("This host work is exposed" in text for text in texts(exposed))
    partly = equivalent(host_total_ms=0.95, host_exposed_ms=0.5)
    assert all("This host work is partly hidden" in text for text in texts(partly))
    unknown = equivalent(host_total_ms=0.95, host_exposed_ms=None)
    assert all("Whether the device works meanwhile is not known" in text for text in texts(unknown))
    # Judged by the total alone, hidden work would pass for exposed.
    monkeypatch.setattr(wording, "HIDDEN", -1.0)
    with pytest.raises(AssertionError):
        check_hidden_work_is_said()


@pytest.mark.parametrize("kept", [True, False])
def test_row_1_10_both_figures_stand_in_the_table_of_the_step(kept: bool) -> None:
    comparison = equivalent(host_total_ms=0.95, host_exposed_ms=0.02)
    if not kept:
        arms = {arm: {**times, "host_exposed_ms": None} for arm, times in comparison.step_ms.items()}
        comparison = replace(comparison, step_ms=arms)
    text = markdown.render(replace(AB, comparisons=[comparison]))
    assert "| host total | 0.950 | 0.950 |" in text
    assert ("| host exposed | 0.020 | 0.020 |" in text) == kept


def test_row_1_10_a_difference_is_no_hidden_work() -> None:
    assert wording.say_hidden_work(FASTER) == []
