"""``specbench sweep``: the figures of every point of a scenario's sweep, rounds interleaved."""

from __future__ import annotations

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
from specbench.cli.run_planning import say
from specbench.cli.session_folder import (
    NOT_STARTED,
    Opened,
    Options,
    finish,
    interrupted,
    measuring,
    open_question,
    require_consistent,
)
from specbench.errors import EngineError, ScenarioError
from specbench.measure.conclusion import conclude_question
from specbench.records import FAILED, Analysis
from specbench.scenario.plan import Question

EXECUTORS = ("local",)


def sweep_command(
    scenario: Scenario = None,
    variant: Variant = None,
    overrides: Annotated[list[str] | None, set_option("Change a key, as sweep.concurrency=1,2,4. Repeatable.")] = None,
    executor: Annotated[str, typer.Option(metavar="local", help="Where points are measured.")] = "local",
    out: Annotated[Path | None, out_option("sweep")] = None,
    resume: Annotated[Path | None, resume_option("sweep")] = None,
    json: Json = False,
    save_outputs: SaveOutputs = False,
    save_prompts: SavePrompts = False,
) -> None:
    """Measure every point of the scenario's sweep and print a table of them.

    Points come from the lists of `sweep` in the scenario: concurrency, drafter, draft_len, isl, osl and grid crossed,
    zip in step. measure.repeats is the number of rounds; each round visits all points in an order of its own, so that a
    machine that drifts is not read as a trend. A point that cannot fit in memory is refused before anything starts; one
    that fails while it runs is recorded, and the rest is measured.

    With the drafter none among the points the result says up to which concurrency speculation pays, for each drafter
    and K: --set sweep.drafter=none,ngram --set sweep.draft_len=2,4 --set sweep.concurrency=1,4,16. It has no K, and so
    one point for each concurrency.

    Exit codes: 0 done (failed points are listed), 2 wrong input, 3 invalid measurement, 4 every point failed, 130
    interrupted. The folder gets report.md, report.html and points.csv.
    """
    given = ("--variant",) if variant is not None else ()
    options = Options("sweep", scenario, overrides or [], out, resume, json, save_outputs, save_prompts, given)
    if executor not in EXECUTORS:
        raise ScenarioError(f"found {executor!r}; allowed: {', '.join(EXECUTORS)}", where="--executor")
    require_consistent(options)
    opened = open_question(options, None if scenario is None else lambda: _ask(options, variant))
    status = measure_sweep(options, opened)
    analysis = conclude_question(opened.path, status)
    if analysis is None:
        raise interrupted(options.command, opened.path, NOT_STARTED)
    _end(options, opened.path, analysis, status)


def _ask(options: Options, variant: str | None) -> Question:
    from specbench.scenario.questions import ask_sweep

    assert options.scenario is not None
    return ask_sweep(options.scenario, options.overrides, variant)


def measure_sweep(options: Options, opened: Opened) -> str:
    """Measure what the folder lacks; return ``complete`` or ``interrupted``."""
    from specbench.cli.sweep_progress import make_sweep_observer
    from specbench.measure.interruption import StopSignal
    from specbench.measure.recording import Kept
    from specbench.measure.results_folder import TRIALS
    from specbench.measure.sweep_session import run_sweep

    question = opened.question
    planned, measured = len(question.points) * question.repeats, count_measured(opened.path / TRIALS)
    observer = make_sweep_observer(question.points, planned, measured)
    observer.announce(describe_size(question, measured))
    for note in question.notes:
        observer.announce(note)
    with measuring(options, opened), StopSignal() as stop:
        try:
            return run_sweep(opened.path, observer, stop, Kept(options.save_outputs, options.save_prompts))
        finally:
            observer.finish()


def count_measured(path: Path) -> int:
    """Trials in a file, which may not exist yet, that are not measured again; another attempt of one counts no more."""
    from specbench.measure.json_lines import read_lines
    from specbench.records import COMPLETE, TrialRecord

    return len({trial.trial for trial in read_lines(path, TrialRecord).records if trial.status in COMPLETE})


def describe_size(question: Question, measured: int) -> str:
    """``8 points, 2 rounds: 16 trials``: what will be done, before it begins."""
    points, rounds = len(question.points), question.repeats
    text = f"{_count(points, 'point')}, {_count(rounds, 'round')}: {_count(points * rounds, 'trial')}"
    return f"{text}, {measured} of them measured before" if measured else text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _end(options: Options, path: Path, analysis: Analysis, status: str) -> None:
    """Show, then name what failed.

    :raises EngineError: every point failed.
    """
    from specbench.cli.session_output import show_result, write_reports

    report = write_reports(path, analysis)
    show_result(analysis, report, path, as_json=options.json)
    failed = list_failed(analysis)
    for line in failed:
        say(f"FAILED: {line}")
    if failed and len(failed) == len(analysis.points):
        raise EngineError(f"all {_count(len(failed), 'point')} failed: {failed[0]}", where=str(path))
    finish(options, path, analysis, status)
    if failed:
        say(f"{len(failed)} of {_count(len(analysis.points), 'point')} failed; the rest was measured")


def list_failed(analysis: Analysis) -> list[str]:
    """Each failed point with its reason."""
    lines = []
    for point in analysis.points:
        if point.status == FAILED:
            place = " ".join(f"{key}={value}" for key, value in point.axes.items()) or point.variant
            lines.append(f"{place}: {' '.join((point.error or 'no reason is known').split())}")
    return lines
