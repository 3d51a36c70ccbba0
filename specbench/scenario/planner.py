"""ResolvedScenario -> RunPlan: every trial there will be, fixed and hashed before the first one starts."""

from __future__ import annotations

from typing import Any

from specbench.scenario.plan import PlanPoint, RunPlan, Trial
from specbench.scenario.resolve import ResolvedScenario
from specbench.scenario.schema import Scenario
from specbench.scenario.yaml12 import to_plain

BASE = "base"
"""Name of the scenario as it stands, where a variant is named otherwise."""


def plan_run(resolved: ResolvedScenario, variant: str = BASE) -> RunPlan:
    """The plan of ``specbench run``: one point, ``measure.repeats`` trials that replay the same requests.

    The sweep of the scenario is for ``specbench sweep`` and has no part in it.

    :param variant: name of the variant that was applied, for the records.
    """
    scenario = resolved.scenario
    point = PlanPoint(0, variant, name_axes(scenario))
    trials = tuple(
        Trial(trial=index, point=0, segment=0, pass_=0, mask=None, seed=scenario.sampling.seed)
        for index in range(scenario.measure.repeats)
    )
    return RunPlan((point,), trials, scenario.measure.warmup_requests or 0, to_plain(scenario.model_dump()))


def name_axes(scenario: Scenario) -> dict[str, Any]:
    """A point's coordinates, as records carry them."""
    workload = scenario.workload
    return {
        "concurrency": workload.concurrency,
        "draft_len": scenario.drafter.draft_len,
        "isl": to_plain(workload.isl),
        "osl": to_plain(workload.osl),
    }
