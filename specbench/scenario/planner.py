"""ResolvedScenario -> RunPlan: every trial there will be, fixed and hashed before the first one starts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from specbench.scenario.resolve import ResolvedScenario
from specbench.scenario.schema import Scenario
from specbench.scenario.yaml12 import to_plain

BASE = "base"
"""Name of the scenario as it stands, where a variant is named otherwise."""
NOT_MEASURED = ("name", "study", "sweep", "variants")
"""Scenario keys that change nothing in what a plan of one point measures; they are left out of its hash."""


@dataclass(frozen=True)
class PlanPoint:
    """One configuration that is measured.

    :param axes: its coordinates: concurrency, draft_len, isl, osl (tokens; a range as [low, high]).
    """

    index: int
    variant: str
    axes: dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """One measured window.

    :param point: index of its :class:`PlanPoint`.
    :param segment: which stretch of work; trials of one segment replay the same requests.
    :param pass_: pass of a mirrored segment, 0 elsewhere.
    :param mask: which arm each period of a mirrored pass runs (``ABBA...``); None elsewhere.
    :param seed: of request sampling; with the workload's own seed it fixes every input of the trial.
    """

    trial: int
    point: int
    segment: int
    pass_: int
    mask: str | None
    seed: int


@dataclass(frozen=True)
class RunPlan:
    """What a command will do.

    :param warmup_requests: run once before the first trial, in no figure.
    :param scenario: as resolved, in plain data.
    """

    points: tuple[PlanPoint, ...]
    trials: tuple[Trial, ...]
    warmup_requests: int
    scenario: dict[str, Any]

    @cached_property
    def sha256(self) -> str:
        """Hash of the canonical JSON of the plan: equal plans measure the same thing."""
        measured = {key: value for key, value in self.scenario.items() if key not in NOT_MEASURED}
        plan = {
            "points": self.points,
            "trials": self.trials,
            "warmup_requests": self.warmup_requests,
            "scenario": measured,
        }
        text = json.dumps(plan, sort_keys=True, separators=(",", ":"), allow_nan=False, default=asdict)
        return hashlib.sha256(text.encode()).hexdigest()


def plan_run(resolved: ResolvedScenario, variant: str = BASE) -> RunPlan:
    """The plan of ``specbench run``: one point, ``measure.repeats`` trials that replay the same requests.

    The sweep of the scenario is for ``specbench sweep`` and has no part in it.

    :param variant: name of the variant that was applied, for the records.
    """
    scenario = resolved.scenario
    point = PlanPoint(0, variant, _axes(scenario))
    trials = tuple(
        Trial(trial=index, point=0, segment=0, pass_=0, mask=None, seed=scenario.sampling.seed)
        for index in range(scenario.measure.repeats)
    )
    return RunPlan((point,), trials, scenario.measure.warmup_requests or 0, to_plain(scenario.model_dump()))


def _axes(scenario: Scenario) -> dict[str, Any]:
    workload = scenario.workload
    return {
        "concurrency": workload.concurrency,
        "draft_len": scenario.drafter.draft_len,
        "isl": to_plain(workload.isl),
        "osl": to_plain(workload.osl),
    }
