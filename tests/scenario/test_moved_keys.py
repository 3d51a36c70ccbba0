"""Keys that became toggles: a scenario that still has one is told what to write, older results are read as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench import encoding
from specbench.errors import InputError, ScenarioError
from specbench.scenario.loader import load_scenario
from specbench.scenario.plan import Question
from specbench.scenario.plan_io import question_from_json
from specbench.scenario.questions import ask_ab, resolved_points

Write = Callable[[str], Path]
Refusal = Callable[..., InputError]


@pytest.mark.parametrize("value", ["on", "off"])
def test_the_old_key_of_overlap_names_the_new_one(refusal: Refusal, value: str) -> None:
    error = refusal(f"model: tiny\nengine:\n  device: cpu\n  overlap: {value}\n")
    assert error.where is not None
    assert error.where.endswith("x.yaml:4: engine.overlap")
    assert error.what == "is a toggle now: optimizations.overlap"
    assert error.hint is not None
    assert error.hint.startswith(f"write optimizations: {{overlap: {value}}};")


def test_what_the_hint_says_is_accepted(write: Write, refusal: Refusal) -> None:
    hint = str(refusal("model: tiny\nengine: {overlap: on}\n").hint)
    in_file, _, in_flag = hint.removeprefix("write ").partition("; after a flag or in a variant, ")
    assert load_scenario(write(in_file)).optimizations == {"overlap": "on"}
    assert load_scenario(write("name: x"), [in_flag]).optimizations == {"overlap": "on"}
    assert load_scenario(write("name: x"), variant=in_flag).optimizations == {"overlap": "on"}


def test_the_old_default_is_to_be_dropped(refusal: Refusal) -> None:
    assert str(refusal("engine: {overlap: auto}").hint).startswith("drop it")


@pytest.mark.parametrize(
    ("overrides", "variant", "place"),
    [
        (["engine.overlap=off"], None, "--set engine.overlap"),
        ([], "engine.overlap=off", "--variant engine.overlap"),
        ([], "late", "x.yaml:2 (variant 'late'): engine.overlap"),
    ],
)
def test_flags_and_variants_are_told_as_well(
    refusal: Refusal, overrides: list[str], variant: str | None, place: str
) -> None:
    error = refusal("variants:\n  late: {engine.overlap: off}\n", *overrides, variant=variant)
    assert error.where is not None
    assert error.where.endswith(place)
    assert "optimizations.overlap=off" in str(error.hint)


def test_a_sweep_of_the_old_key_names_the_new_one(refusal: Refusal) -> None:
    error = refusal("sweep: {grid: {engine.overlap: [off, on]}}")
    assert (error.what, error.hint) == ("is no scenario key that can be swept", "optimizations.overlap")


def test_a_toggle_at_the_top_level_of_set_is_found(refusal: Refusal) -> None:
    assert refusal("name: x", "overlap=on").hint == "did you mean optimizations.overlap?"


def older(question: Question) -> dict[str, Any]:
    """``question`` as a version wrote it that had the key."""
    data: dict[str, Any] = json.loads(encoding.dumps(question))
    for scenario in [data["scenario"], *(point["scenario"] for point in data["points"])]:
        scenario["engine"]["overlap"] = "off"
    return data


def test_a_plan_with_the_old_key_is_read_and_refused_only_where_it_would_run(write: Write) -> None:
    path = write("model: tiny\nworkload: random_tokens\n")
    read = question_from_json(older(ask_ab(path)))
    with pytest.raises(ScenarioError) as caught:
        resolved_points(read)
    assert caught.value.what == "is a toggle now: optimizations.overlap"
    assert caught.value.where == "scenario of the plan: engine.overlap"
