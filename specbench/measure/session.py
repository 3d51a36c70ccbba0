"""Opening the folder of a new or a resumed run, and closing it with an analysis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import specbench
from specbench import encoding
from specbench.errors import ResultsError
from specbench.measure.analysis import RunContext, analyze_run
from specbench.measure.clock import iso_utc
from specbench.measure.environment import differences
from specbench.measure.masking import mask, mask_all
from specbench.measure.results_folder import (
    ANALYSIS,
    ENVIRONMENT,
    PLAN,
    SCENARIO,
    ResultsFolder,
    create_folder,
    folder_name,
    read_json,
)
from specbench.records import SCHEMA_VERSION, Analysis
from specbench.scenario.planner import RunPlan

DEFAULT_PARENT = Path("results")


@dataclass(frozen=True)
class RunIdentity:
    """What a run is called, and how and when it was started."""

    name: str
    command: str
    started: datetime


def start_folder(
    plan: RunPlan, scenario_yaml: str, environment: Mapping[str, Any], identity: RunIdentity, out: Path | None
) -> Path:
    """Create the folder of a new run and write what is known before anything is measured. Secrets are masked.

    :raises ResultsError: it cannot be created or written.
    """
    name = folder_name(identity.name, plan.sha256, identity.started)
    path = create_folder(out, DEFAULT_PARENT, name)
    folder = ResultsFolder(path)
    folder.write(SCENARIO, mask(scenario_yaml))
    folder.write(ENVIRONMENT, encoding.dumps(environment, indent=2) + "\n")
    described = {
        "schema_version": SCHEMA_VERSION,
        "kind": "run",
        "plan_hash": plan.sha256,
        "command": identity.command,
        "started_utc": iso_utc(identity.started),
        "specbench": specbench.__version__,
        "num_trials": len(plan.trials),
        "warmup_requests": plan.warmup_requests,
        "points": plan.points,
        "trials": plan.trials,
    }
    folder.write(PLAN, encoding.dumps(described, indent=2) + "\n")
    return path


def read_plan(path: Path) -> dict[str, Any]:
    """``plan.json`` of a folder that is to be resumed.

    :raises ResultsError: this is not a folder that a run left.
    """
    if not path.is_dir():
        raise ResultsError("there is no such folder", where=f"--resume {path}")
    return read_json(path / PLAN)


def require_same_run(path: Path, plan: RunPlan, environment: Mapping[str, Any]) -> None:
    """Refuse to finish a run with another plan, or on another machine or build.

    :raises ResultsError: names what differs.
    """
    found = read_plan(path)
    if found.get("plan_hash") != plan.sha256:
        raise ResultsError(
            f"the folder was planned as {str(found.get('plan_hash'))[:8]}, and what is asked for is {plan.sha256[:8]}",
            where=f"--resume {path}",
            hint=f"the scenario and flags that it began with: {found.get('command')}",
        )
    changed = differences(read_json(path / ENVIRONMENT), environment)
    if changed:
        raise ResultsError(
            f"the run began elsewhere ({'; '.join(changed)}), so its figures would be of two machines",
            where=f"--resume {path}",
            hint="go on where it began, or start a new run",
        )


def conclude(folder: ResultsFolder, plan: RunPlan) -> Analysis:
    """Analyse what is on disk and write ``analysis.json``.

    :raises ResultsError: no trial was measured.
    :raises StorageError: it could not be written.
    """
    found = read_json(folder.path / PLAN)
    context = RunContext(
        scenario=mask_all(plan.scenario),
        environment=read_json(folder.path / ENVIRONMENT),
        command=found.get("command"),
        plan_hash=plan.sha256,
        planned_trials=len(plan.trials),
    )
    analysis = analyze_run(folder.contents.trials, folder.contents.requests, context)
    folder.write(ANALYSIS, encoding.dumps(analysis, indent=2) + "\n")
    return analysis
