"""A report of something in which a known defect stood says so, in red, before any figure."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from comparison_sample import AB, AB_DEFECT, AB_DEFECTS, AB_SWEEP, FASTER, SWEEP
from rich.console import Console
from sample import ANALYSIS

from specbench.cli.selftest_report import build_selftest_report
from specbench.engine.optimizations.base import Exactness, load_toggle
from specbench.engine.optimizations.defects import known_defects
from specbench.measure import wording
from specbench.measure.analysis import strongest_label
from specbench.measure.labels import join_label, strongest
from specbench.measure.selftest import PASS, Check, EqualArms, Floor, SelfTest
from specbench.records import Analysis, Difference, Gate, SamplingAudit, SamplingValues, TrialRecord
from specbench.registry import OPTIMIZATIONS
from specbench.report import report as reports
from specbench.report.console import print_report
from specbench.report.defects import defect_lines
from specbench.report.facts import run_facts, setup_facts
from specbench.report.formats import html, markdown
from specbench.report.report import build_report

SETTING = "capture_params=leak"
TOGGLES = {"capture_params": {"variant": "leak", "counters": {}}, "graphs": {"variant": "captured"}}
RED = "\x1b[1;31m"
"""How a terminal is told to write bold and red."""


def with_toggles(analysis: Analysis, toggles: dict[str, Any]) -> Analysis:
    return replace(analysis, subject={**analysis.subject, "toggles": toggles})


RUN = with_toggles(replace(ANALYSIS, label="KNOWN DEFECT, natural"), TOGGLES)
SWEPT = replace(
    SWEEP,
    label="KNOWN DEFECT, natural",
    points=[replace(SWEEP.points[0], axes={"optimizations.capture_params": "leak"}), *SWEEP.points[1:]],
)
WITHOUT_EFFECT = with_toggles(replace(AB, comparisons=[FASTER], label="KNOWN DEFECT, natural"), TOGGLES)
"""The gates pass: an engine without a drafter never looks at the override."""
DEFECTIVE = {
    "run": RUN,
    "sweep": SWEPT,
    "ab": AB_DEFECT,
    "several": AB_DEFECTS,
    "both arms": WITHOUT_EFFECT,
}


def on_terminal(analysis: Analysis) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=400, force_terminal=True, color_system="standard", highlight=False)
    print_report(build_report(analysis), console)
    return stream.getvalue()


def check_red(analysis: Analysis) -> None:
    """The defect is named in red on a terminal and in HTML, bold and before every alert in Markdown."""
    shown = on_terminal(analysis)
    assert f"{RED}KNOWN DEFECT: {SETTING}" in shown
    page = html.render(analysis)
    assert f'<p class="alert bad">KNOWN DEFECT: {SETTING}' in page
    assert '<span class="label bad">KNOWN DEFECT' in page
    pasted = markdown.render(analysis).replace("\\", "")
    lines = [line for line in pasted.splitlines() if line]
    assert lines[2] == "> [!CAUTION]"
    assert lines[3].startswith(f"> - **KNOWN DEFECT: {SETTING}")
    assert "KNOWN DEFECT" in lines[1]  # the label


@pytest.mark.parametrize("name", DEFECTIVE)
def test_a_known_defect_is_said_in_red(name: str) -> None:
    check_red(DEFECTIVE[name])


@pytest.mark.parametrize("name", DEFECTIVE)
def test_a_report_that_does_not_say_it_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "defect_lines", lambda _analysis: ())
    with pytest.raises(AssertionError):
        check_red(DEFECTIVE[name])


@pytest.mark.parametrize("name", DEFECTIVE)
def test_the_headline_is_red_whatever_the_verdict(name: str) -> None:
    report = build_report(DEFECTIVE[name])
    assert report.tone == "bad"
    assert f"{RED}{report.title}" in on_terminal(DEFECTIVE[name])


def test_the_verdict_comes_first_then_the_defect_then_why_it_is_invalid() -> None:
    for text in (on_terminal(AB_DEFECT), html.render(AB_DEFECT), markdown.render(AB_DEFECT).replace("\\", "")):
        places = [
            text.index(part)
            for part in (
                "INVALID: no claim",
                f"KNOWN DEFECT: {SETTING}",
                "INVALID: sampling parameters: 420 of 840 rows were served otherwise",
                "The known defect was caught by",
            )
        ]
        assert places == sorted(places)


def test_each_defect_is_named_once_with_what_it_does() -> None:
    leak, at_copy = defect_lines(AB_DEFECTS)
    assert leak.startswith("KNOWN DEFECT: capture_params=leak: clear the flag in the live metadata alone")
    assert at_copy.startswith("KNOWN DEFECT: capture_params=clear_at_copy: ")


@pytest.mark.parametrize("point_or_arm", ["point", "arm"])
def test_where_a_defect_stood_is_said_where_its_name_does_not(point_or_arm: str) -> None:
    if point_or_arm == "point":
        at = {"workload.concurrency": 4, "optimizations.capture_params": "leak"}
        analysis = replace(AB_SWEEP, comparisons=[replace(AB_SWEEP.comparisons[0], point=at)])
        assert defect_lines(analysis)[0].startswith("KNOWN DEFECT: capture_params=leak: ")
        return
    difference = Difference("optimizations.capture_params", "leak", "real_params", "known-defect", False)
    analysis = replace(AB, comparisons=[replace(FASTER, baseline="as it was", differences=[difference])])
    assert defect_lines(analysis)[0].startswith("KNOWN DEFECT: capture_params=leak (as it was): ")


@pytest.mark.parametrize("analysis", [ANALYSIS, AB, AB_SWEEP, SWEEP])
def test_a_sound_engine_has_no_such_line(analysis: Analysis) -> None:
    sound = with_toggles(analysis, {"capture_params": {"variant": "real_params"}, "graphs": {"variant": "captured"}})
    assert defect_lines(sound) == ()
    assert "KNOWN DEFECT" not in on_terminal(sound) + html.render(sound) + markdown.render(sound)
    assert "[!CAUTION]" not in markdown.render(sound)


def test_defects_are_those_that_toggles_declare() -> None:
    declared = {
        f"{name}={variant}"
        for name, toggle in ((name, load_toggle(name)) for name in OPTIMIZATIONS)
        for variant in toggle.variants
        if toggle.exactness_of(variant) is Exactness.KNOWN_DEFECT
    }
    found = [
        defect for name in OPTIMIZATIONS for variant in load_toggle(name).variants
        for defect in known_defects({name: variant})
    ]  # fmt: skip
    assert sorted(found) == sorted(declared)
    assert SETTING in found
    assert known_defects({"capture_params": "of another version", "unknown": "leak", "graphs": None}) == {}


def test_why_a_comparison_at_many_points_is_invalid_is_told_of_the_first() -> None:
    (invalid,) = AB_DEFECT.comparisons
    at = [
        replace(invalid, index=i, point={"workload.concurrency": 4**i}, reasons=[f"sampling parameters: {i} rows"])
        for i in range(4)
    ]
    other = replace(invalid, index=4, candidate="other", reasons=["sampling parameters: 9 rows"])
    report = build_report(replace(AB_DEFECT, comparisons=[*at, other]))
    assert report.alerts == (
        "INVALID: leak against real_params, concurrency 1: sampling parameters: 0 rows; likewise at 3 more points",
        "INVALID: other against real_params: sampling parameters: 9 rows",
    )


@pytest.mark.parametrize(
    ("toggles", "words"),
    [
        ({"graphs": {"variant": "captured"}}, "captured steps, "),
        ({"graphs": {"variant": "off"}}, "eager steps, "),
        ({}, ""),
    ],
)
def test_the_engine_is_named_with_its_steps(toggles: dict[str, Any], words: str) -> None:
    overlap = {"overlap": {"variant": "on"}}
    run = with_toggles(ANALYSIS, {**overlap, **toggles})
    assert dict(run_facts(run))["engine"] == f"cpu, bfloat16, overlap on, {words}cpu-paged"
    sets = {"real_params": {"batch_sizes": [1, 2]}, "leak": {"batch_sizes": [1, 2, 4]}}
    if words.startswith("captured"):
        told = replace(run, subject={**run.subject, "captured_steps": {"sets": sets}})
        assert "overlap on, captured steps (batch 1, 2, 4), " in dict(run_facts(told))["engine"]
        by_point = {"0": [1], "1": [1, 2, 4, 8], "2": [1, 2]}
        told = replace(told, subject={**told.subject, "captured_batch_sizes": by_point})
        assert "captured steps (batch 1, 2, 4, 8, over all points), " in dict(setup_facts(told))["engine"]


def test_what_varies_is_no_fact_of_the_engine() -> None:
    difference = Difference("optimizations.graphs", "off", "captured", "numerically-equivalent", False)
    analysis = with_toggles(AB, {"graphs": {"variant": "captured"}})
    assert "captured steps" in dict(setup_facts(analysis))["engine"]
    analysis = replace(analysis, comparisons=[replace(FASTER, differences=[difference])])
    assert "captured steps" not in dict(setup_facts(analysis))["engine"]


def test_a_selftest_of_a_known_defect_says_so_and_is_red() -> None:
    floor = [Floor(minutes, 10, None, None) for minutes in (1, 5, 15)]
    passed = SelfTest(
        verdict=PASS, checks=[Check("equal arms", True, "none")], delay=None, swapped=None, floor=floor,
        equal_arms=EqualArms(20, 0, 4, 0.0, 0.17, []), unit_sd_pct=None, units_per_minute=None,
    )  # fmt: skip
    report = build_selftest_report(passed, WITHOUT_EFFECT)
    assert report.defects == defect_lines(WITHOUT_EFFECT)
    assert (report.tone, len(report.defects)) == ("bad", 1)
    sound = build_selftest_report(passed, AB)
    assert (sound.tone, sound.defects) == ("good", ())


def test_the_mark_stands_first_in_a_label_and_goes_into_that_of_several() -> None:
    label = join_label("forced acceptance", known_defect=True, simulated=True)
    assert label == "KNOWN DEFECT, SIMULATED, forced acceptance"
    assert strongest([label, "natural"]) == label
    assert strongest(["natural"], known_defect=True) == "KNOWN DEFECT, natural"


@pytest.mark.parametrize("told_by", ["the variant at the end", "a row that was served meanwhile", "neither"])
def test_a_trial_in_which_a_defect_stood_is_labelled(told_by: str) -> None:
    values = SamplingValues(1.0, 50, 1.0)
    toggles = {"capture_params": {"variant": "leak" if told_by == "the variant at the end" else "real_params"}}
    served = {"capture_params": "leak" if told_by.startswith("a row") else "real_params"}
    audit = [SamplingAudit(served, values, values, 1)]
    trial = SimpleNamespace(label="natural", subject={"toggles": toggles}, sampling_audit=audit)
    found = strongest_label([cast(TrialRecord, trial)])
    assert found == ("natural" if told_by == "neither" else "KNOWN DEFECT, natural")


@pytest.mark.parametrize(
    ("status", "line"),
    [
        ("fail", "The known defect was caught by the gate 'sampling parameters'"),
        ("pass", "A known defect is compared, and it did not show: 9 rows were served as they asked for."),
        ("n/a", "A known defect is compared, and what rows were served with is not told here."),
        (None, "A known defect is compared, and what rows were served with is not told here."),
    ],
)
def test_whether_a_defect_showed_is_said_in_words(status: str | None, line: str) -> None:
    gates = [] if status is None else [Gate("sampling parameters", status, "9 rows were served as they asked for")]
    (said,) = wording.say_defect(replace(AB_DEFECT.comparisons[0], gates=gates))
    assert said.startswith(line)
    assert wording.say_defect(FASTER) == []


def test_a_known_defect_promises_no_equal_tokens() -> None:
    (said,) = wording.say_tokens(replace(AB_DEFECT.comparisons[0], first_divergence=None))
    assert said == "Tokens differ."
    assert wording.say_label(replace(FASTER, label="KNOWN DEFECT, natural")) == []
    (said,) = wording.say_label(replace(FASTER, label="KNOWN DEFECT, synthetic input"))
    assert said.startswith("The content is labelled synthetic input: ")
