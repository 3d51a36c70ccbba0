"""The plan of a run and its hash."""

from __future__ import annotations

from typing import Any

import pytest

from specbench.engine.models.presets import SMOLLM2_135M
from specbench.scenario.plan import PlanPoint, RunPlan, Trial
from specbench.scenario.planner import BASE, plan_run
from specbench.scenario.resolve import resolve
from specbench.scenario.schema import Scenario


def _plan(variant: str = BASE, **sections: Any) -> RunPlan:
    scenario = Scenario.model_validate({"name": "x", **sections})
    return plan_run(resolve(scenario, SMOLLM2_135M.config, available_memory=lambda _: None), variant)


def test_a_run_is_one_point_and_its_repeats() -> None:
    plan = _plan(
        "plain",
        drafter="ngram",
        workload={"kind": "random_tokens", "isl": [3, 9], "concurrency": 4},
        sampling={"seed": 17},
        measure={"repeats": 3, "warmup_requests": 5},
    )
    axes = {"concurrency": 4, "draft_len": 4, "isl": [3, 9], "osl": 128}
    assert plan.points == (PlanPoint(0, "plain", axes),)
    assert plan.trials == tuple(Trial(i, point=0, segment=0, pass_=0, mask=None, seed=17) for i in range(3))
    assert plan.warmup_requests == 5


def test_equal_scenarios_have_equal_plans_however_they_are_written() -> None:
    short = _plan(drafter="ngram", workload="chat80")
    full = _plan(workload={"kind": "chat80", "osl": 128}, drafter={"draft_len": 4, "name": "ngram"})
    assert short.sha256 == full.sha256
    assert len(short.sha256) == 64


def test_the_hash_is_the_same_in_every_process() -> None:
    """Of the plan's form as it stands: a change here means that runs of older versions cannot be resumed."""
    plan = RunPlan(
        (PlanPoint(0, BASE, {"concurrency": 1}),), (Trial(0, 0, 0, 0, None, 3),), 2, {"a": {"b": [1, 2.5, None]}}
    )
    assert plan.sha256 == "a0fb689e50bc1788f172d689639bb723dc8b726d7c5481bd8f9dbe77a12dc441"


@pytest.mark.parametrize(
    "sections",
    [
        {"drafter": "ngram"},
        {"model": "random:smollm2-135m"},
        {"sampling": {"seed": 1}},
        {"workload": {"seed": 1}},
        {"workload": {"concurrency": 2}},
        {"measure": {"repeats": 2}},
        {"measure": {"warmup_requests": 0}},
        {"engine": {"dtype": "float32"}},
    ],
)
def test_whatever_changes_the_measurement_changes_the_hash(sections: dict[str, Any]) -> None:
    assert _plan(**sections).sha256 != _plan().sha256


def test_names_and_unused_variants_do_not() -> None:
    assert _plan(variants={"plain": {"drafter": "none"}}, sweep={"osl": [1, 2]}).sha256 == _plan().sha256


def test_the_variant_that_was_applied_does() -> None:
    assert _plan("plain").sha256 != _plan().sha256
