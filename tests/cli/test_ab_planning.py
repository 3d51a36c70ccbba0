"""Flags of ``ab`` as keys, and the conditions of ``--fail-on``."""

from __future__ import annotations

from typing import Any

import pytest

from specbench.cli.ab_planning import FAIL_ON, Settings, met_conditions, parse_fail_on, typed_flags
from specbench.errors import ScenarioError
from specbench.records import Comparison


def comparison(verdict: str, **changes: Any) -> Comparison:
    fields: dict[str, Any] = {
        "index": 0, "role": "candidate", "baseline": "off", "candidate": "on", "point": {}, "design": "mirrored",
        "why_design": "", "differences": [], "exactness": "bit-identical", "token_rule": "", "label": "natural",
        "metric": "time", "n_units": 20, "n_processes": 1, "baseline_tokens_per_s": 1.0, "candidate_tokens_per_s": 1.0,
        "speedup_pct": 0.0, "ci_low_pct": -0.1, "ci_high_pct": 0.1, "confidence": 0.95, "output_changed": False,
        "reasons": [], "margin_pct": 0.5, "mde_pct": None, "units_needed": None, "scope": "", "bound": "",
        "alpha": 0.05, "p_value": 0.5, "p_holm": None, "tokens_identical": True, "first_divergence": None,
        "decomposition": {}, "decomposition_pct": {}, "ranges": {}, "acceptance_length": {}, "step_ms": {},
        "second_line": {}, "gates": [], "in_words": [],
    }  # fmt: skip
    return Comparison(verdict=verdict, **{**fields, **changes})


def test_flags_stand_for_keys_of_measure() -> None:
    settings = Settings(margin="1%", budget="90s", processes=4, looks=3, anytime=True, design="runs")
    assert settings.overrides() == [
        "measure.margin=1%", "measure.budget=90s", "measure.processes=4", "measure.looks=3", "measure.anytime=true",
        "measure.design=runs",
    ]  # fmt: skip
    assert Settings().overrides() == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(margin="1"), ["--margin", "'1'", "0.5%"]),
        (Settings(margin="0%"), ["--margin", "above 0%"]),
        (Settings(margin="-1%"), ["--margin"]),
        (Settings(budget="5"), ["--budget", "5m"]),
        (Settings(budget="0s"), ["--budget", "above 0"]),
        (Settings(processes=0), ["--processes", "from 1"]),
        (Settings(looks=-1), ["--looks", "from 1"]),
        (Settings(design="paired"), ["--design", "auto, mirrored, runs"]),
    ],
)
def test_a_wrong_value_is_named_by_its_flag(settings: Settings, words: list[str]) -> None:
    with pytest.raises(ScenarioError) as caught:
        settings.overrides()
    assert all(word in str(caught.value) for word in words), caught.value


VERDICTS = (
    "FASTER", "SLOWER", "EQUIVALENT", "FASTER BUT NEGLIGIBLE", "SLOWER BUT NEGLIGIBLE", "INCONCLUSIVE", "INVALID",
)  # fmt: skip
MET = {
    "slower": {"SLOWER"},
    "not-equivalent": {"FASTER", "SLOWER", "INCONCLUSIVE"},
    "inconclusive": {"INCONCLUSIVE"},
}


@pytest.mark.parametrize("name", FAIL_ON)
def test_which_verdicts_meet_a_condition(name: str) -> None:
    met = {verdict for verdict in VERDICTS if met_conditions([name], [comparison(verdict)])}
    assert met == MET[name]


def test_any_candidate_at_any_point_meets_it_and_is_named() -> None:
    found = [
        comparison("EQUIVALENT"),
        comparison("SLOWER", point={"workload.concurrency": 4}),
        comparison("SLOWER", candidate="other", output_changed=True),
        comparison("SLOWER", role="alone"),
    ]
    (line,) = met_conditions(["slower", "inconclusive"], found)
    assert line == "slower: on at workload.concurrency=4 is SLOWER, other is OUTPUT CHANGED: SLOWER"


def test_fail_on_is_a_list_and_may_be_repeated() -> None:
    assert parse_fail_on(["slower,inconclusive", " slower"]) == ("slower", "inconclusive")
    assert parse_fail_on([]) == ()
    for text in ("slow", "", "slower,", "slower;inconclusive"):
        with pytest.raises(ScenarioError, match="allowed, with commas"):
            parse_fail_on([text])


def test_flags_that_were_given() -> None:
    assert typed_flags({"--a": None, "--b": [], "--c": "x", "--d": False, "--e": True}) == ("--c", "--e")
