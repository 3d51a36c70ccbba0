"""ResolvedScenario -> RunPlan: every trial there will be, fixed and hashed before the first one starts."""

from __future__ import annotations

from typing import Any

from specbench.scenario.conflicts import REPLAY
from specbench.scenario.places import Issue, raise_issues
from specbench.scenario.plan import PlanPoint, RunPlan, Trial
from specbench.scenario.resolve import ResolvedScenario
from specbench.scenario.schema import Scenario
from specbench.scenario.windows import KV_LEN_KEY
from specbench.scenario.yaml12 import to_plain

BASE = "base"
"""Name of the scenario as it stands, where a variant is named otherwise."""
_MISSING_SOURCE = Issue(
    ("acceptance", "source"),
    "is missing: replayed acceptance needs a run whose accepted lengths it takes (only `specbench ab` records them)",
    "--set acceptance.source=results/FOLDER",
)
_ARMS_ONLY = Issue(
    ("process",),
    "is for the arms of `specbench ab`; this measures in specbench's own process",
    "set it in a variant, and compare with --baseline and --candidate",
)


def plan_run(resolved: ResolvedScenario, variant: str = BASE) -> RunPlan:
    """The plan of ``specbench run``: ``measure.repeats`` trials that replay the same requests. One point, or one for
    each context length of ``measure.windows``, visited by turns.

    The sweep of the scenario is for ``specbench sweep`` and has no part in it.

    :param variant: name of the variant that was applied, for the records.
    """
    scenario = resolved.scenario
    points = _points(scenario, variant)
    order = [point.index for _ in range(scenario.measure.repeats) for point in points]
    trials = tuple(
        Trial(trial=index, point=point, segment=0, pass_=0, mask=None, seed=scenario.sampling.seed)
        for index, point in enumerate(order)
    )
    return RunPlan(points, trials, scenario.measure.warmup_requests or 0, to_plain(scenario.model_dump()))


def _points(scenario: Scenario, variant: str) -> tuple[PlanPoint, ...]:
    axes, windows = name_axes(scenario), scenario.measure.windows
    if windows is None:
        return (PlanPoint(0, variant, axes),)
    return tuple(
        PlanPoint(index, variant, axes, coordinates={KV_LEN_KEY: kv_len}) for index, kv_len in enumerate(windows.kv_len)
    )


def require_recorded(scenario: Scenario) -> None:
    """Refuse to replay what nothing has recorded, and an interpreter for a single arm: only ``ab`` has a baseline.

    :raises ScenarioError: with what to set.
    """
    if scenario.acceptance.mode == REPLAY and scenario.acceptance.source is None:
        raise_issues([_MISSING_SOURCE], scenario.places, str(scenario.places.root))
    if scenario.process is not None:
        raise_issues([_ARMS_ONLY], scenario.places, str(scenario.places.root))


def name_axes(scenario: Scenario) -> dict[str, Any]:
    """A point's coordinates, as records carry them."""
    workload, table = scenario.workload, scenario.drafter.runtime_draft_len
    return {
        "concurrency": workload.concurrency,
        "draft_len": scenario.drafter.draft_len,
        **({"runtime_draft_len": {str(size): k for size, k in sorted(table.items())}} if table else {}),
        "isl": to_plain(workload.isl),
        "osl": to_plain(workload.osl),
    }
