"""The part of ``specbench run`` that builds the engine, measures, and takes the engine down."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specbench.cli.run_planning import Options, say
from specbench.measure.clock import SystemClock
from specbench.measure.environment import describe_torch
from specbench.measure.interruption import StopSignal
from specbench.measure.results_folder import ResultsFolder
from specbench.measure.session import join
from specbench.scenario.plan import RunPlan
from specbench.scenario.resolve import ResolvedScenario
from specbench.scenario.units import parse_duration
from specbench.scenario.windows import at_kv_len

if TYPE_CHECKING:
    from specbench.device.tracing import RangeRecorder, Tracer
    from specbench.engine.models.loading import LoadedModel
    from specbench.measure.driver import RequestSource
    from specbench.measure.executor import Load, Window
    from specbench.measure.subject import BuiltinSubject
    from specbench.scenario.schema import Scenario


@dataclass(frozen=True)
class Job:
    """Everything that is known before the engine is built."""

    options: Options
    resolved: ResolvedScenario
    plan: RunPlan
    environment: dict[str, Any]
    tracer: Tracer
    recorder: RangeRecorder


def measure(job: Job, folder: ResultsFolder) -> str:
    """Build the engine, run the plan, take the engine down; return ``complete`` or ``interrupted``."""
    if all(folder.is_done(trial.trial) for trial in job.plan.trials):
        return "complete"
    subject, loaded = build_subject(job)
    try:
        join(folder, {**job.environment, "torch": describe_torch(subject.num_threads)}, loaded.fingerprint)
        status = execute_plan(job, folder, subject, loaded)
    except BaseException:
        try:
            take_down(job, folder, subject)
        except Exception as error:  # the one that is on its way says what went wrong first
            say(f"after that, while closing: {error}")
        raise
    take_down(job, folder, subject)
    return status


def take_down(job: Job, folder: ResultsFolder, subject: BuiltinSubject) -> None:
    """Release the engine, then write the trace, if there is one, and say where it is."""
    from specbench.profiling.ranges import finish_tracer

    try:
        subject.close()
    finally:
        line = finish_tracer(job.tracer, folder.path)
        if line:
            say(line)


def execute_plan(job: Job, folder: ResultsFolder, subject: BuiltinSubject, loaded: LoadedModel) -> str:
    """Measure what the folder lacks, Ctrl-C caught from the warm-up on."""
    from specbench.cli.progress import make_progress
    from specbench.measure.arms import describe_axes
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
                axes=describe_axes(job.resolved),
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


def build_windows(scenario: Scenario, loaded: LoadedModel) -> tuple[Window, ...]:
    """What fills the cache for each point of ``measure.windows``; empty without."""
    from specbench.measure.executor import Window
    from specbench.measure.load import ContentSource, base_params, build_content

    windows = scenario.measure.windows
    if windows is None:
        return ()

    def window(kv_len: int) -> Window:
        content = build_content(at_kv_len(scenario, kv_len), loaded.config.vocab_size, loaded.directory)
        return Window(
            lambda seed: ContentSource(content, base_params(scenario, content.tokenizer, seed)), windows.steps
        )

    return tuple(window(kv_len) for kv_len in windows.kv_len)


def build_load(resolved: ResolvedScenario, plan: RunPlan, loaded: LoadedModel) -> tuple[Load, Any]:
    """The requests of each trial, checked against the engine's limits; and the decoder of their text."""
    from specbench.measure.executor import Load
    from specbench.measure.load import ContentSource, WarmUpSource, base_params, build_content, require_fit
    from specbench.measure.replay import replay_recorded

    scenario = resolved.scenario
    content = build_content(scenario, loaded.config.vocab_size, loaded.directory)

    def own(seed: int) -> ContentSource:
        return ContentSource(content, base_params(scenario, content.tokenizer, seed))

    def warm_up(seed: int) -> RequestSource:
        return replay_recorded(scenario.acceptance, WarmUpSource(own(seed), plan.warmup_requests), warm_up=True)

    require_fit(own(scenario.sampling.seed), resolved.engine.max_seq_len)
    windows = build_windows(scenario, loaded)
    timeout = scenario.measure.timeout
    load = Load(
        source=lambda seed: replay_recorded(scenario.acceptance, own(seed)),
        warmup=warm_up if plan.warmup_requests else None,
        concurrency=scenario.workload.concurrency,
        label=content.label,
        note=content.note,
        timeout_s=None if timeout is None else parse_duration(timeout),
        windows=windows,
    )
    return load, content.tokenizer.decode if content.tokenizer else None
