"""``specbench run``: one configuration, measured once or ``measure.repeats`` times."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench import encoding
from specbench.errors import InputError, InterruptedRunError, InvalidMeasurementError, ScenarioError
from specbench.measure.clock import SystemClock
from specbench.measure.environment import command_line, describe_environment, describe_torch
from specbench.measure.interruption import StopSignal
from specbench.measure.results_folder import ENVIRONMENT, REPORT, SCENARIO, ResultsFolder
from specbench.measure.session import RunIdentity, conclude, read_plan, require_same_run, start_folder
from specbench.records import Analysis
from specbench.report.formats import json as json_format
from specbench.report.formats import markdown
from specbench.scenario.loader import load_scenario
from specbench.scenario.planner import BASE, RunPlan, plan_run
from specbench.scenario.resolve import ResolvedScenario, resolve
from specbench.scenario.units import parse_duration

if TYPE_CHECKING:
    from specbench.device.tracing import RangeRecorder, Tracer
    from specbench.engine.models.loading import LoadedModel
    from specbench.measure.executor import Load
    from specbench.measure.subject import BuiltinSubject


@dataclass(frozen=True)
class Options:
    """The command line, parsed. ``scenario`` is None only with ``resume``."""

    scenario: str | None
    overrides: list[str]
    variant: str | None
    out: Path | None
    resume: Path | None
    json: bool
    profile: str
    steps: str | None
    save_outputs: bool
    save_prompts: bool


@dataclass(frozen=True)
class Job:
    """Everything that is known before the engine is built."""

    options: Options
    resolved: ResolvedScenario
    plan: RunPlan
    environment: dict[str, Any]
    tracer: Tracer
    recorder: RangeRecorder


def run_command(
    scenario: Annotated[
        str | None,
        typer.Argument(help="The scenario file; may be left out with --resume.", show_default=False),
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(metavar="V", help="A variant of the scenario, off, on, or key=value,key=value."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key, as workload.concurrency=4. Repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of this run, new or empty; else a new one in results/."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Finish an interrupted run in its folder, to the same plan."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print analysis.json and nothing else on stdout.")] = False,
    profile: Annotated[str, typer.Option(metavar="nvtx|torch|off", help="Mark ranges for a profiler.")] = "off",
    steps: Annotated[
        str | None,
        typer.Option(metavar="A-B", help="Profile these steps only, counted from warm-up's first."),
    ] = None,
    save_outputs: Annotated[
        bool, typer.Option("--save-outputs", help="Keep output text and token ids in requests.jsonl.")
    ] = False,
    save_prompts: Annotated[
        bool, typer.Option("--save-prompts", help="Keep prompt text and token ids in requests.jsonl.")
    ] = False,
) -> None:
    """Measure one configuration and print throughput, latency, acceptance, time per step and gates.

    Results go to a folder: scenario.yaml, environment.json, plan.json, trials.jsonl, requests.jsonl, analysis.json,
    report.md. Exit codes: 0 done, 2 wrong input, 3 invalid measurement, 4 the engine failed, 130 interrupted.
    """
    options = Options(scenario, overrides or [], variant, out, resume, json, profile, steps, save_outputs, save_prompts)
    job = prepare(options)
    path = open_path(job)
    with resumable(path), ResultsFolder(path) as folder:
        try:
            status = measure(job, folder)
        except InputError:
            folder.discard_unmeasured()
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


def plan_from(options: Options) -> tuple[ResolvedScenario, RunPlan]:
    """Load, check and plan, before anything is written or loaded.

    :raises InputError: whatever is wrong with the scenario or the flags.
    """
    if options.out is not None and options.resume is not None:
        raise ScenarioError("--out and --resume exclude each other", where="specbench run")
    if options.scenario is not None:
        resolved = resolve(load_scenario(options.scenario, options.overrides, options.variant))
        return resolved, plan_run(resolved, options.variant or BASE)
    if options.resume is None:
        hint = "specbench run scenarios/quickstart.yaml"
        raise ScenarioError("no scenario is given", where="specbench run", hint=hint)
    if options.overrides or options.variant is not None:
        raise ScenarioError("--set and --variant need the scenario they change", where="specbench run --resume")
    points = read_plan(options.resume).get("points") or [{}]
    resolved = resolve(load_scenario(options.resume / SCENARIO))
    return resolved, plan_run(resolved, points[0].get("variant", BASE))


def open_path(job: Job) -> Path:
    """The folder to measure into: a new one, or the one to resume.

    :raises ResultsError: it cannot be written, or belongs to another plan or machine.
    """
    if job.options.resume is not None:
        require_same_run(job.options.resume, job.plan, job.environment)
        return job.options.resume
    name = job.resolved.scenario.name or "run"
    identity = RunIdentity(name, command_line(), datetime.now(timezone.utc))
    return start_folder(job.plan, job.resolved.to_yaml(), job.environment, identity, job.options.out)


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


def measure(job: Job, folder: ResultsFolder) -> str:
    """Build the engine, run the plan, take the engine down; return ``complete`` or ``interrupted``."""
    from specbench.profiling.ranges import finish_tracer

    if all(folder.is_done(trial.trial) for trial in job.plan.trials):
        return "complete"
    subject, loaded = build_subject(job)
    try:
        environment = {**job.environment, "torch": describe_torch()}
        folder.write(ENVIRONMENT, encoding.dumps(environment, indent=2) + "\n")
        return execute_plan(job, folder, subject, loaded)
    finally:
        subject.close()
        line = finish_tracer(job.tracer, folder.path)
        if line:
            say(line)


def execute_plan(job: Job, folder: ResultsFolder, subject: BuiltinSubject, loaded: LoadedModel) -> str:
    """Measure what the folder lacks, Ctrl-C caught from the warm-up on."""
    from specbench.cli.progress import make_progress
    from specbench.measure.executor import Observers, Run, execute
    from specbench.measure.recording import Kept

    load, decode = build_load(job.resolved, job.plan, loaded)
    with StopSignal() as stop:
        return execute(
            Run(
                plan=job.plan,
                subject=subject,
                load=load,
                folder=folder,
                clock=SystemClock(),
                stop=stop,
                axes=name_axes(job.resolved),
                kept=Kept(job.options.save_outputs, job.options.save_prompts, decode),
                profile=job.options.profile,
                observers=Observers(announce=say, progress=make_progress),
            )
        )


def build_tracers(options: Options, resolved: ResolvedScenario) -> tuple[Tracer, RangeRecorder]:
    """The tracer of the engine, and the recorder inside it that the report reads."""
    from specbench.device.tracing import RangeRecorder
    from specbench.profiling.ranges import build_tracer
    from specbench.profiling.window import ProfileWindow

    wanted = options.steps or resolved.scenario.measure.steps
    window = None if wanted is None else ProfileWindow.parse(wanted)
    recorder = RangeRecorder()
    return build_tracer(options.profile, recorder, window), recorder


def build_subject(job: Job) -> tuple[BuiltinSubject, LoadedModel]:
    """Load the model and build the engine. This is where torch is imported."""
    start = time.monotonic()
    say(f"loading {job.resolved.engine.model.source}")
    from specbench.measure.subject import BuiltinSubject
    from specbench.profiling.ranges import attach_device

    subject, loaded = BuiltinSubject.build(job.resolved.engine, job.tracer, job.recorder)
    attach_device(job.tracer, subject.engine.device)
    say(f"loaded {loaded.source} in {time.monotonic() - start:.1f} s")
    return subject, loaded


def build_load(resolved: ResolvedScenario, plan: RunPlan, loaded: LoadedModel) -> tuple[Load, Any]:
    """The requests of each trial, checked against the engine's limits; and the decoder of their text."""
    from specbench.measure.executor import Load
    from specbench.measure.load import ContentSource, WarmUpSource, base_params, build_content, require_fit

    scenario = resolved.scenario
    content = build_content(scenario, loaded.config.vocab_size, loaded.directory)

    def source(seed: int) -> ContentSource:
        return ContentSource(content, base_params(scenario, content.tokenizer, seed))

    require_fit(source(scenario.sampling.seed), resolved.engine.max_seq_len)
    timeout = scenario.measure.timeout
    load = Load(
        source=source,
        warmup=(lambda seed: WarmUpSource(source(seed), plan.warmup_requests)) if plan.warmup_requests else None,
        concurrency=scenario.workload.concurrency,
        label=content.label,
        note=content.note,
        timeout_s=None if timeout is None else parse_duration(timeout),
    )
    return load, content.tokenizer.decode if content.tokenizer else None


def name_axes(resolved: ResolvedScenario) -> dict[str, Any]:
    """What the point is called by, beyond the plan's own axes."""
    scenario, engine = resolved.scenario, resolved.engine
    length = scenario.acceptance.length
    return {
        "model": scenario.model.source,
        "drafter": scenario.drafter.name,
        "acceptance": scenario.acceptance.mode if length is None else f"{scenario.acceptance.mode} {length}",
        "workload": scenario.workload.kind,
        "max_batch_size": engine.max_batch_size,
    }


def show(analysis: Analysis, path: Path, options: Options) -> None:
    """Print the result on stdout: JSON and nothing else, or tables."""
    if options.json:
        sys.stdout.write(json_format.render(analysis))
        say(f"results: {path}")
        return
    from rich.console import Console

    from specbench.report.console import print_report
    from specbench.report.report import build_report

    console = Console(highlight=False)
    print_report(build_report(analysis), console)
    console.print(f"\nresults: {path}", markup=False, soft_wrap=True)


def say(line: str) -> None:
    """One line on stderr."""
    print(line, file=sys.stderr, flush=True)
