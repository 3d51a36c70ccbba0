"""Opening the folder of a new or a resumed command, and closing that of a run with an analysis."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
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
from specbench.measure.results_folder import (
    ANALYSIS,
    ARMS,
    ENVIRONMENT,
    PLAN,
    QUESTION,
    SCENARIO,
    ResultsFolder,
    create_folder,
    folder_name,
)
from specbench.records import SCHEMA_VERSION, Analysis
from specbench.scenario.masking import mask_scenario
from specbench.scenario.plan import Question, RunPlan
from specbench.scenario.plan_io import question_from_json
from specbench.scenario.yaml12 import dump_yaml

DEFAULT_PARENT = Path("results")
ABSENT = "absent"
MAX_CHANGES = 4


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
    folder = _create(identity, plan.sha256, plan.scenario, environment, out)
    described = {
        "schema_version": SCHEMA_VERSION,
        "kind": "run",
        "plan_hash": plan.sha256,
        **_origin(identity),
        "num_trials": len(plan.trials),
        "warmup_requests": plan.warmup_requests,
        "points": plan.points,
        "trials": plan.trials,
    }
    folder.write(PLAN, encoding.dumps(described, indent=2) + "\n")
    return folder.path


def start_question(
    question: Question,
    environment: Mapping[str, Any],
    identity: RunIdentity,
    out: Path | None,
    *,
    notes: Mapping[str, Any] | None = None,
) -> Path:
    """Create the folder of a new ``ab``, ``sweep`` or ``selftest``; its plan follows once it is calibrated.

    :param question: secrets in its scenarios masked already, so that its hash is that of what is written.
    :param notes: what a resumed command has to know beyond the question, as the commit of ``--baseline-ref``.
    :raises ResultsError: it cannot be created or written.
    """
    folder = _create(identity, question.sha256, question.scenario, environment, out)
    described = {
        "schema_version": SCHEMA_VERSION,
        "question_hash": question.sha256,
        **_origin(identity),
        **(notes or {}),
        **encoding.to_json(question),
    }
    folder.write(QUESTION, encoding.dumps(described, indent=2) + "\n")
    return folder.path


def _create(
    identity: RunIdentity,
    sha256: str,
    scenario: Mapping[str, Any],
    environment: Mapping[str, Any],
    out: Path | None,
) -> ResultsFolder:
    name = folder_name(identity.name, sha256, identity.started)
    folder = ResultsFolder(create_folder(out, DEFAULT_PARENT, name))
    folder.write(SCENARIO, dump_yaml(mask_scenario(scenario)))
    folder.write(ENVIRONMENT, encoding.dumps(environment, indent=2) + "\n")
    return folder


def _origin(identity: RunIdentity) -> dict[str, Any]:
    return {
        "command": identity.command,
        "started_utc": iso_utc(identity.started),
        "specbench": specbench.__version__,
    }


def read_plan(path: Path) -> dict[str, Any]:
    """``plan.json`` of a folder that is to be resumed.

    :raises ResultsError: this is not a folder that a run left.
    """
    if not os.path.isdir(path):
        raise ResultsError("there is no such folder", where=f"--resume {path}")
    return encoding.read_object(path / PLAN)


def read_question(path: Path) -> tuple[Question, dict[str, Any]]:
    """The question of a folder that is to be resumed, and everything that ``question.json`` holds.

    :raises ResultsError: this is not a folder that ``ab``, ``sweep`` or ``selftest`` left, or it was changed since.
    """
    if not os.path.isdir(path):
        raise ResultsError("there is no such folder", where=f"--resume {path}")
    found = encoding.read_object(path / QUESTION)
    question = question_from_json(found, str(path / QUESTION))
    if found.get("question_hash") != question.sha256:
        raise ResultsError(
            "the file was changed after the command began, so what was measured answers another question",
            where=str(path / QUESTION),
            hint="start a new one",
        )
    return question, found


def require_same_question(path: Path, asked: Question) -> None:
    """Refuse to go on with another question.

    :raises ResultsError: names what differs.
    """
    question, found = read_question(path)
    if question.sha256 != asked.sha256:
        raise ResultsError(
            f"the folder holds another question: {'; '.join(list_changes(question, asked))}",
            where=f"--resume {path}",
            hint=f"the scenario and flags that it began with: {found.get('command')}",
        )


def require_same_machine(path: Path, environment: Mapping[str, Any]) -> None:
    """Refuse to go on elsewhere than the folder began.

    :raises ResultsError: names what differs.
    """
    _refuse(path, differences(encoding.read_object(path / ENVIRONMENT), environment))


def list_changes(before: Question, after: Question) -> list[str]:
    """``scenario.workload.osl: 16 -> 8``: the first few places where two questions differ."""
    if before.kind != after.kind:
        return [f"it is of {before.kind}, not of {after.kind}"]
    old, new = (dict(_leaves(encoding.to_json(question))) for question in (before, after))
    changed = [key for key in {**old, **new} if old.get(key, ABSENT) != new.get(key, ABSENT)]
    # The scenario says best what was changed; settings, points and comparisons follow from it, or from the arms.
    for part in ("scenario.", "settings.", "points", "comparisons", ""):
        keys = [key for key in changed if key.startswith(part)]
        if keys:
            shown = [f"{key}: {old.get(key, ABSENT)!s} -> {new.get(key, ABSENT)!s}" for key in keys[:MAX_CHANGES]]
            return [*shown, f"and {len(keys) - MAX_CHANGES} more"] if len(keys) > MAX_CHANGES else shown
    return []


def _leaves(data: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from _leaves(value, f"{place}.{key}" if place else str(key))
    elif isinstance(data, (list, tuple)) and data and not all(isinstance(item, (int, float, str)) for item in data):
        for index, value in enumerate(data):
            yield from _leaves(value, f"{place}[{index}]")
    else:
        yield place, data


def require_same_run(path: Path, plan: RunPlan, environment: Mapping[str, Any]) -> None:
    """Refuse to finish a run with another plan, or on another machine or build.

    :raises ResultsError: names what differs.
    """
    found = read_plan(path)
    kind = found.get("kind", plan.kind)
    if kind != plan.kind:
        raise ResultsError(
            f"the folder is of {kind}, not of {plan.kind}",
            where=f"--resume {path}",
            hint=f"specbench {kind} --resume {path}",
        )
    if found.get("plan_hash") != plan.sha256:
        raise ResultsError(
            f"the folder was planned as {str(found.get('plan_hash'))[:8]}, and what is asked for is {plan.sha256[:8]}",
            where=f"--resume {path}",
            hint=f"the scenario and flags that it began with: {found.get('command')}",
        )
    require_same_machine(path, environment)


def _refuse(path: Path, changed: list[str]) -> None:
    if changed:
        raise ResultsError(
            f"the run began elsewhere ({'; '.join(changed)}), so its figures would be of two machines or builds",
            where=f"--resume {path}",
            hint="go on where it began, or start a new run",
        )


def join(
    folder: ResultsFolder, environment: Mapping[str, Any], fingerprint: str | None, point: int | None = None
) -> None:
    """Check what is known once the engine is up, before anything is measured: threads, builds, weights.

    ``environment.json`` is that of the first start; a later one is kept beside it as ``environment-2.json`` and so on.

    :param environment: with what :func:`~specbench.measure.environment.describe_torch` says.
    :param fingerprint: of the weights that were loaded; None: not known.
    :param point: compare them with those of this point's trials alone: points may have models of their own.
    :raises ResultsError: trials in the folder were measured with something else; names what differs.
    :raises StorageError: it could not be written.
    """
    first = encoding.read_object(folder.path / ENVIRONMENT)
    changed = differences(first, environment)
    mine = [trial for trial in folder.contents.trials if point in (None, trial.point)]
    for found in (trial.subject.get("fingerprint") for trial in mine):
        if found is not None and found != fingerprint:
            changed.append(f"weights: {str(found)[:12]} -> {str(fingerprint)[:12]}")
            break
    _refuse(folder.path, changed)
    if "torch" not in first:  # this is the first start, or that one never got as far as an engine
        name, described = ENVIRONMENT, {**first, "torch": environment["torch"]}
    elif folder.contents.trials:
        name, described = _next_name(folder.path, ENVIRONMENT), dict(environment)
    else:
        return  # the start before measured nothing that this one could differ from
    folder.write(name, encoding.dumps(described, indent=2) + "\n")


def join_process(folder: ResultsFolder, point_index: int, described: Mapping[str, Any]) -> None:
    """The same for an arm in a process of its own, whose build, interpreter and weights ``arms.json`` keeps by point.

    :param folder: entered.
    :param described: what :meth:`~specbench.measure.remote.RemoteSubject.identify` says.
    :raises ResultsError: trials of this point were measured with something else; names what differs.
    :raises StorageError: it could not be written.
    """
    path = folder.path / ARMS
    known = encoding.read_object(path).get("arms") if path.exists() else {}
    if not isinstance(known, dict):
        raise ResultsError("arms is damaged", where=str(path))
    before, now = known.get(str(point_index)), encoding.to_json(described)
    if before == now:
        return
    if before is not None and any(trial.point == point_index for trial in folder.contents.trials):
        old, new = dict(_leaves(before)), dict(_leaves(now))
        keys = [key for key in {**old, **new} if old.get(key, ABSENT) != new.get(key, ABSENT)]
        shown = [f"{key}: {_short(old.get(key, ABSENT))} -> {_short(new.get(key, ABSENT))}" for key in keys]
        _refuse(folder.path, [f"the process of point {point_index}: {', '.join(shown)}"])
    arms = {**known, str(point_index): now}
    folder.write(ARMS, encoding.dumps({"schema_version": SCHEMA_VERSION, "arms": arms}, indent=2) + "\n")


def _short(value: Any) -> str:
    """A hash by its beginning, anything else in full."""
    text = str(value)
    return text[:12] if re.fullmatch("[0-9a-f]{13,}", text) else text


def _next_name(path: Path, name: str) -> str:
    """``environment-2.json``, or the first of its kind that is not taken."""
    stem, suffix = Path(name).stem, Path(name).suffix
    number = 2
    while (path / f"{stem}-{number}{suffix}").exists():
        number += 1
    return f"{stem}-{number}{suffix}"


def read_context(path: Path, plan: RunPlan, begun: Mapping[str, Any]) -> RunContext:
    """What an analysis says beyond its trials.

    :param begun: the file of the folder that keeps the command.
    :raises ResultsError: ``environment.json`` is damaged.
    """
    return RunContext(
        scenario=mask_scenario(plan.scenario),
        environment=encoding.read_object(path / ENVIRONMENT),
        command=begun.get("command"),
        plan_hash=plan.sha256,
        planned_trials=len(plan.trials),
    )


def conclude(folder: ResultsFolder, plan: RunPlan) -> Analysis:
    """Analyse what is on disk and write ``analysis.json``.

    :raises ResultsError: no trial was measured.
    :raises StorageError: it could not be written.
    """
    context = read_context(folder.path, plan, encoding.read_object(folder.path / PLAN))
    analysis = analyze_run(folder.contents.trials, folder.contents.requests, context)
    folder.write(ANALYSIS, encoding.dumps(analysis, indent=2) + "\n")
    return analysis
