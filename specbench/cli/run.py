"""``specbench run``: one configuration, measured once or ``measure.repeats`` times."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.options import (
    Json,
    SaveOutputs,
    SavePrompts,
    Scenario,
    Variant,
    out_option,
    resume_option,
    set_option,
)
from specbench.cli.run_execution import Job, build_tracers, measure
from specbench.cli.run_planning import Options, plan_from
from specbench.cli.session_folder import KEPT, NOT_STARTED, interrupted, resumable
from specbench.cli.session_output import show_result
from specbench.errors import InputError, InvalidMeasurementError
from specbench.measure.environment import command_line, describe_environment
from specbench.measure.results_folder import REPORT, ResultsFolder
from specbench.measure.session import RunIdentity, conclude, require_same_run, start_folder
from specbench.report.formats import markdown
from specbench.report.report import build_report

COMMAND = "run"


def run_command(
    scenario: Scenario = None,
    variant: Variant = None,
    overrides: Annotated[list[str] | None, set_option()] = None,
    out: Annotated[Path | None, out_option("run")] = None,
    resume: Annotated[Path | None, resume_option("run")] = None,
    json: Json = False,
    profile: Annotated[str, typer.Option(metavar="nvtx|torch|off", help="Mark ranges for a profiler.")] = "off",
    steps: Annotated[
        str | None,
        typer.Option(metavar="A-B", help="Profile these steps only, counted from warm-up's first."),
    ] = None,
    save_outputs: SaveOutputs = False,
    save_prompts: SavePrompts = False,
) -> None:
    """Measure one configuration and print throughput, latency, acceptance, time per step and gates.

    Results go to a folder: scenario.yaml, environment.json, plan.json, trials.jsonl, requests.jsonl, analysis.json,
    report.md. Exit codes: 0 done, 2 wrong input, 3 invalid measurement, 4 the engine failed, 130 interrupted.
    """
    options = Options(scenario, overrides or [], variant, out, resume, json, profile, steps, save_outputs, save_prompts)
    job = prepare(options)
    existed = out is not None and os.path.exists(out)
    path = open_path(job)
    with resumable(COMMAND, path, "trials that were complete are kept"), ResultsFolder(path) as folder:
        try:
            status = measure(job, folder)
        except InputError:
            if resume is None:
                folder.discard_unmeasured(keep_folder=existed)
            raise
        if status == "interrupted" and not folder.contents.trials:
            raise interrupted(COMMAND, path, NOT_STARTED)
        analysis = conclude(folder, job.plan)
        report = build_report(analysis)
        folder.write(REPORT, markdown.render_report(report))
    show_result(analysis, report, path, as_json=json)
    if not analysis.is_valid:
        failed = "; ".join(f"{gate.name}: {gate.detail}" for gate in analysis.gates if gate.status == "fail")
        raise InvalidMeasurementError(f"INVALID: the figures may not be used: {failed}", where=str(path))
    if status == "interrupted":
        raise interrupted(COMMAND, path, KEPT)


def prepare(options: Options) -> Job:
    """Load, check and plan, before anything is written or loaded.

    :raises InputError: whatever is wrong with the scenario or the flags.
    """
    resolved, plan = plan_from(options)
    tracer, recorder = build_tracers(options, resolved)
    return Job(options, resolved, plan, describe_environment(), tracer, recorder)


def open_path(job: Job) -> Path:
    """The folder to measure into: a new one, or the one to resume.

    :raises ResultsError: it cannot be written, or belongs to another plan or machine.
    """
    if job.options.resume is not None:
        require_same_run(job.options.resume, job.plan, job.environment)
        return job.options.resume
    name = job.resolved.scenario.name or "run"
    identity = RunIdentity(name, command_line(), datetime.now(timezone.utc))
    return start_folder(job.plan, job.environment, identity, job.options.out)
