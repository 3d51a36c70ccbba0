"""``specbench run``: one configuration, measured once or ``measure.repeats`` times."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
from specbench.cli.run_planning import Options, plan_from, say
from specbench.errors import InputError, InterruptedRunError, InvalidMeasurementError
from specbench.measure.environment import command_line, describe_environment
from specbench.measure.results_folder import REPORT, ResultsFolder
from specbench.measure.session import RunIdentity, conclude, require_same_run, start_folder
from specbench.records import Analysis
from specbench.report.formats import json as json_format
from specbench.report.formats import markdown


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
    existed = out is not None and out.exists()
    path = open_path(job)
    with resumable(path), ResultsFolder(path) as folder:
        try:
            status = measure(job, folder)
        except InputError:
            if resume is None:
                folder.discard_unmeasured(keep_folder=existed)
            raise
        if status == "interrupted" and not folder.contents.trials:
            raise _interrupted(path, "nothing was measured yet")
        analysis = conclude(folder, job.plan)
        folder.write(REPORT, markdown.render(analysis))
    show(analysis, path, options)
    if not analysis.is_valid:
        failed = "; ".join(f"{gate.name}: {gate.detail}" for gate in analysis.gates if gate.status == "fail")
        raise InvalidMeasurementError(f"INVALID: the figures may not be used: {failed}", where=str(path))
    if status == "interrupted":
        raise _interrupted(path, "what was measured is kept")


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


@contextmanager
def resumable(path: Path) -> Iterator[None]:
    """Say how to go on when Ctrl-C strikes outside a measured window."""
    try:
        yield
    except KeyboardInterrupt:
        raise _interrupted(path, "trials that were complete are kept") from None


def _interrupted(path: Path, kept: str) -> InterruptedRunError:
    command = shlex.join(["specbench", "run", "--resume", str(path)])
    return InterruptedRunError(f"interrupted; {kept} in {path}", hint=f"{command}, to finish it")


def show(analysis: Analysis, path: Path, options: Options) -> None:
    """Print the result on stdout: JSON and nothing else, or tables."""
    if options.json:
        sys.stdout.write(json_format.render(analysis))
        say(f"results: {path}")
        return
    from specbench.cli.tables import open_console
    from specbench.report.console import print_report
    from specbench.report.report import build_report

    console = open_console()
    print_report(build_report(analysis), console)
    console.print(f"\nresults: {path}", markup=False, soft_wrap=True)
