"""What the budget holds, and the plan that comes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from specbench import encoding
from specbench.errors import InputError
from specbench.records import Difference
from specbench.scenario.enumeration import planned_units
from specbench.scenario.plan import AbSettings, ComparisonPlan, PlanPoint, Question, RunPlan
from specbench.scenario.plan_io import plan_from_json, question_from_json
from specbench.scenario.sizing import MAX_UNITS, Calibration, plan_question

SCENARIO = {"name": "x", "sampling": {"seed": 3}, "drafter": {"runtime_draft_len": {"4": 2, "16": 1}}}


def _question(*designs: str, injected: dict[str, Any] | None = None, **settings: Any) -> Question:
    difference = Difference("drafter.name", None, "ngram", "numerically-equivalent", False)
    return Question(
        kind="ab",
        points=tuple(PlanPoint(i, f"v{i}", {"isl": [1, 2]}, SCENARIO, {"workload.osl": [1, 2]}) for i in range(2)),
        comparisons=tuple(
            ComparisonPlan(i, 0, 1, "candidate", design, "why", (difference,), "bit-identical", injected)
            for i, design in enumerate(designs)
        ),
        settings=AbSettings(**{"quads_per_segment": 4, **settings}),
        warmup_requests=4,
        scenario=SCENARIO,
        notes=("look out",),
    )


def _units(plan: RunPlan) -> list[int]:
    return [planned_units(plan, index) for index in range(len(plan.comparisons))]


def test_the_budget_is_filled_and_not_overdrawn() -> None:
    plan = plan_question(_question("mirrored", budget_s=120), Calibration((2.0,), warm_s=14.0))
    assert _units(plan) == [4 * 50]  # (0.95 * 120 - 14) / 2 visits of 4 quads
    assert plan.settings is not None
    assert plan.settings.max_units == 200
    assert plan.calibration["expected_s"] == 114.0
    assert "warning" not in plan.calibration


def test_all_comparisons_share_the_rounds() -> None:
    plan = plan_question(
        _question("mirrored", "runs", budget_s=100), Calibration((1.0, 4.0), segment_requests=(None, 6))
    )
    assert _units(plan) == [4 * 19, 19]
    assert [comparison.segment_requests for comparison in plan.comparisons] == [None, 6]
    assert plan.calibration["units"] == [76, 19]


def test_processes_each_warm_up_and_share_the_units() -> None:
    plan = plan_question(_question("mirrored", budget_s=400, processes=4), Calibration((5.0,), warm_s=20.0))
    assert _units(plan) == [4 * 4 * 15]  # each has 95 s, 20 of them to warm up
    assert [sum(t.process == p for t in plan.trials) for p in range(4)] == [30] * 4
    assert len({trial.segment for trial in plan.trials}) == 60


@pytest.mark.parametrize(("design", "least"), [("mirrored", 12), ("runs", 5)])
def test_too_small_a_budget_is_overdrawn_with_a_warning(design: str, least: int) -> None:
    plan = plan_question(_question(design, budget_s=10), Calibration((30.0,), warm_s=20.0))
    assert _units(plan) == [least]
    assert "over the budget of 10 s" in plan.calibration["warning"]


def test_processes_get_one_visit_at_least() -> None:
    plan = plan_question(_question("runs", budget_s=1, processes=8), Calibration((30.0,)))
    assert _units(plan) == [8]


def test_there_are_never_more_units_than_help() -> None:
    plan = plan_question(_question("mirrored", budget_s=86400), Calibration((0.001,)))
    assert _units(plan) == [MAX_UNITS]


@pytest.mark.parametrize(
    ("settings", "units"),
    [
        ({"max_units": 20}, [20, 20]),
        ({"max_units": 21}, [24, 21]),
        ({"max_units": 2}, [4, 2]),
        ({"max_units": 20, "processes": 4}, [32, 20]),
        ({"max_units": 5, "processes": 4, "quads_per_segment": 1}, [8, 8]),
    ],
)
def test_units_that_were_asked_for_win(settings: dict[str, Any], units: list[int]) -> None:
    plan = plan_question(_question("mirrored", "runs", budget_s=1, **settings), Calibration((9.0, 9.0)))
    assert _units(plan) == units
    assert "warning" not in plan.calibration
    assert plan.settings is not None
    assert plan.settings.max_units == max(units)


def test_requests_of_a_run_that_were_asked_for_win() -> None:
    plan = plan_question(_question("runs", segment_requests=9), Calibration((9.0,), segment_requests=(6,)))
    assert plan.comparisons[0].segment_requests == 9


def test_a_delay_in_percent_is_planned_in_microseconds() -> None:
    question = _question("mirrored", injected={"B": {"kind": "delay", "step_percent": 1.0}})
    plan = plan_question(question, Calibration((1.0,), step_us=(8500.0,)))
    assert plan.comparisons[0].injected == {"B": {"kind": "delay", "us": 85.0}}
    with pytest.raises(InputError, match="time of a step"):
        plan_question(question, Calibration((1.0,)))


def test_a_calibration_of_other_comparisons_is_refused() -> None:
    with pytest.raises(InputError, match="one time is needed for each comparison"):
        plan_question(_question("runs", "runs"), Calibration((1.0,)))


def test_equal_questions_and_calibrations_make_equal_plans() -> None:
    question, calibration = _question("runs", "mirrored"), Calibration((1.5, 0.5), 3.0, (4, None))
    plan = plan_question(question, calibration)
    assert plan == plan_question(question, calibration)
    assert plan.sha256 != plan_question(question, replace(calibration, warm_s=30.0)).sha256
    assert {trial.seed for trial in plan.trials}.isdisjoint({3})


def test_question_and_plan_survive_their_files() -> None:
    question = _question("runs", "mirrored")
    plan = plan_question(question, Calibration((1.5, 0.5), 3.0, (4, None)))
    read = question_from_json(json.loads(encoding.dumps(question, indent=2)))
    assert (read, read.sha256) == (question, question.sha256)
    assert plan_question(read, Calibration((1.5, 0.5), 3.0, (4, None))).sha256 == plan.sha256
    read_plan = plan_from_json(json.loads(encoding.dumps(plan)))
    assert (read_plan, read_plan.sha256) == (plan, plan.sha256)


def test_a_sweep_is_repeats_times_its_points() -> None:
    question = replace(_question(), kind="sweep", settings=None, repeats=3)
    plan = plan_question(question, Calibration(()))
    assert [trial.segment for trial in plan.trials] == [0, 0, 1, 1, 2, 2]
    assert {trial.seed for trial in plan.trials} == {3}
    assert (plan.kind, plan.comparisons, plan.settings) == ("sweep", (), None)
