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
from specbench.report.layout import NUM_SHOWN_SECTIONS
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
        assert "The host's work is hidden (the device idles during 2% of the host's preparation)" in text
        assert "no gain is expected from less of it, since the device waits 20.0 of 950.0 µs a step" in text
        # 0.02 of 6.306 ms, and not the 4.29% of the step that the range takes: the device does not wait for those.
        assert "Removing all of it could gain at most 0.32%" in text
        assert "4.48%" not in text


def test_row_1_10_hidden_host_work_is_said_in_words_in_every_report() -> None:
    check_hidden_work_is_said()


@pytest.mark.parametrize("broken", [lambda _comparison: [], lambda _comparison: ["no gain"]])
def test_row_1_10_a_report_that_says_nothing_of_it_is_seen(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    speakers = tuple(broken if speak is wording.say_hidden_work else speak for speak in wording._SPEAKERS)
    monkeypatch.setattr(wording, "_SPEAKERS", speakers)
    with pytest.raises(AssertionError):
        check_hidden_work_is_said()


@pytest.mark.parametrize(
    ("verdict", "interval", "is_said"),
    [
        ("INVALID", (-0.11, 0.15), True),
        ("INVALID", (1.2, 1.9), False),
        ("INVALID", (-1.9, -1.2), False),
        ("INCONCLUSIVE", (0.1, 1.9), False),
        ("INCONCLUSIVE", (None, None), True),
        ("FASTER BUT NEGLIGIBLE", (0.1, 0.2), True),
    ],
)
def test_row_1_10_throughput_whose_interval_has_no_zero_is_not_called_unmoved(
    verdict: str, interval: tuple[float | None, float | None], is_said: bool
) -> None:
    low, high = interval
    found = replace(equivalent(0.95, 0.02), verdict=verdict, ci_low_pct=low, ci_high_pct=high)
    lines = wording.say_hidden_work(found)
    assert bool(lines) == is_said
    assert any("did not clearly move" in line for line in lines) == (is_said and "NEGLIGIBLE" not in verdict)


def test_row_1_10_exposure_is_judged_and_not_only_the_total(monkeypatch: pytest.MonkeyPatch) -> None:
    exposed = equivalent(host_total_ms=0.95, host_exposed_ms=0.94)
    for text in texts(exposed):
        assert "This host work is exposed" in text
        assert "no gain is expected" not in text
        assert "Removing it entirely could gain at most 4.48%" in text  # 4.29% of the step
    partly = equivalent(host_total_ms=0.95, host_exposed_ms=0.5)
    for text in texts(partly):
        assert "The host's work is partly hidden" in text
        assert "the device waits 500.0 of 950.0 µs a step" in text
        assert "could gain at most 8.61%" in text
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


def test_row_1_10_a_table_of_many_comparisons_says_it_in_a_column() -> None:
    hidden = equivalent(host_total_ms=0.95, host_exposed_ms=0.02)
    exposed = replace(FASTER, step_ms=equivalent(host_total_ms=2.0, host_exposed_ms=1.9).step_ms)
    unknown = replace(FASTER, step_ms={})
    cases = [hidden, exposed, unknown, *[hidden] * NUM_SHOWN_SECTIONS]
    points = [replace(case, point={"workload.concurrency": 2**i}) for i, case in enumerate(cases)]
    text = markdown.render(replace(AB, comparisons=points))
    table = [line for line in text.splitlines() if line.startswith("|")][: len(points) + 2]
    ends = [line.rstrip("| ").rpartition("| ")[2] for line in table]
    assert ends[0] == "host exposed"
    assert ends[2:5] == ["2% of 950 µs", "95% of 2,000 µs", "-"]
    assert "Near 0% the work is hidden, and less of it gains nothing" in text
    few = markdown.render(replace(AB, comparisons=points[:2]))
    assert "| host exposed |" not in few.partition("What differs")[0]
