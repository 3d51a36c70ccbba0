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
from specbench.measure.masking import mask_scenario
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
from specbench.scenario.plan import RunPlan
from specbench.scenario.yaml12 import dump_yaml

DEFAULT_PARENT = Path("results")


@dataclass(frozen=True)
class RunIdentity:
    """What a run is called, and how and when it was started."""

    name: str
    command: str
    started: datetime


def start_folder(plan: RunPlan, environment: Mapping[str, Any], identity: RunIdentity, out: Path | None) -> Path:
    """Create the folder of a new run and write what is known before anything is measured.

    :param plan: secrets in its scenario masked already, so that its hash is that of what is written.
    :raises ResultsError: it cannot be created or written.
    """
    name = folder_name(identity.name, plan.sha256, identity.started)
    path = create_folder(out, DEFAULT_PARENT, name)
    folder = ResultsFolder(path)
    folder.write(SCENARIO, dump_yaml(mask_scenario(plan.scenario)))
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
    _refuse(path, differences(read_json(path / ENVIRONMENT), environment))


def _refuse(path: Path, changed: list[str]) -> None:
    if changed:
        raise ResultsError(
            f"the run began elsewhere ({'; '.join(changed)}), so its figures would be of two machines or builds",
            where=f"--resume {path}",
            hint="go on where it began, or start a new run",
        )


def join(folder: ResultsFolder, environment: Mapping[str, Any], fingerprint: str) -> None:
    """Check what is known once the engine is up, before anything is measured: threads, builds, weights.

    ``environment.json`` is that of the first start; a later one is kept beside it as ``environment-2.json`` and so on.

    :param environment: with what :func:`~specbench.measure.environment.describe_torch` says.
    :param fingerprint: of the weights that were loaded.
    :raises ResultsError: trials in the folder were measured with something else; names what differs.
    :raises StorageError: it could not be written.
    """
    first = read_json(folder.path / ENVIRONMENT)
    changed = differences(first, environment)
    for found in (trial.subject.get("fingerprint") for trial in folder.contents.trials):
        if found is not None and found != fingerprint:
            changed.append(f"weights: {str(found)[:12]} -> {fingerprint[:12]}")
            break
    _refuse(folder.path, changed)
    if "torch" not in first:  # this is the first start, or that one never got as far as an engine
        name, described = ENVIRONMENT, {**first, "torch": environment["torch"]}
    else:
        name, described = _next_name(folder.path, ENVIRONMENT), dict(environment)
    folder.write(name, encoding.dumps(described, indent=2) + "\n")


def _next_name(path: Path, name: str) -> str:
    """``environment-2.json``, or the first of its kind that is not taken."""
    stem, suffix = Path(name).stem, Path(name).suffix
    number = 2
    while (path / f"{stem}-{number}{suffix}").exists():
        number += 1
    return f"{stem}-{number}{suffix}"


def conclude(folder: ResultsFolder, plan: RunPlan) -> Analysis:
    """Analyse what is on disk and write ``analysis.json``.

    :raises ResultsError: no trial was measured.
    :raises StorageError: it could not be written.
    """
    found = read_json(folder.path / PLAN)
    context = RunContext(
        scenario=mask_scenario(plan.scenario),
        environment=read_json(folder.path / ENVIRONMENT),
        command=found.get("command"),
        plan_hash=plan.sha256,
        planned_trials=len(plan.trials),
    )
    analysis = analyze_run(folder.contents.trials, folder.contents.requests, context)
    folder.write(ANALYSIS, encoding.dumps(analysis, indent=2) + "\n")
    return analysis
