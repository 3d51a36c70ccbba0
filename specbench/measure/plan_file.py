"""The plan of a folder, and whether the folder may be gone on with: by this machine, this build, these files."""

from __future__ import annotations

from pathlib import Path

from specbench import encoding
from specbench.errors import ResultsError
from specbench.measure.arms import OpenArm
from specbench.measure.environment import describe_environment, describe_torch
from specbench.measure.looks_file import read_looks
from specbench.measure.remote import RemoteSubject
from specbench.measure.results_folder import ENVIRONMENT, PLAN, TRIALS, ResultsFolder
from specbench.measure.session import join, join_process
from specbench.measure.subject import BuiltinSubject
from specbench.records import SCHEMA_VERSION
from specbench.scenario.plan import RunPlan
from specbench.scenario.plan_io import plan_from_json


def require_whole(folder: ResultsFolder) -> None:
    """Refuse a folder that lacks a file which must be there, by what others in it say.

    :raises ResultsError: names it.
    """
    missing = None
    if folder.contents.trials and not (folder.path / PLAN).exists():
        missing, why = PLAN, "trials were measured to it"
    elif not folder.contents.trials and read_looks(folder.path):
        missing, why = TRIALS, "looks were taken at what it held"
    if missing:
        raise ResultsError(
            f"{missing} is missing or empty, though {why}",
            where=str(folder.path),
            hint="restore it, or start a new comparison",
        )


def read_plan_file(path: Path) -> RunPlan:
    """The plan of a folder.

    :raises ResultsError: it is damaged.
    """
    return plan_from_json(encoding.read_object(path), str(path))


def write_plan_file(folder: ResultsFolder, plan: RunPlan) -> None:
    """Write ``plan.json``, with its hash, before anything is measured to it."""
    described = {"schema_version": SCHEMA_VERSION, "plan_hash": plan.sha256, **encoding.to_json(plan)}
    folder.write(PLAN, encoding.dumps(described) + "\n")


def join_arm(folder: ResultsFolder, arm: OpenArm) -> None:
    """Write down threads and builds, and refuse to go on with others than the folder began with."""
    if isinstance(arm.subject, BuiltinSubject):
        # Nothing was measured yet: what the folder says of the machine was seen by this very command.
        begun = folder.contents.trials
        here = describe_environment() if begun else encoding.read_object(folder.path / ENVIRONMENT)
        environment = {**here, "torch": describe_torch(arm.subject.num_threads)}
        join(folder, environment, arm.fingerprint, arm.point.index)
    elif isinstance(arm.subject, RemoteSubject):
        join_process(folder, arm.point.index, arm.subject.identify())
