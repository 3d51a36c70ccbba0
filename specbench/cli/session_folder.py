"""What ``ab``, ``sweep`` and ``selftest`` have in common: the question, its folder, and how they end.

``run`` ends on Ctrl-C as they do.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from specbench.cli.options import require_source
from specbench.errors import InputError, InterruptedRunError, InvalidMeasurementError, ResultsError, ScenarioError
from specbench.measure.environment import command_line, describe_environment
from specbench.measure.results_folder import ResultsFolder
from specbench.measure.session import (
    RunIdentity,
    read_question,
    require_same_machine,
    require_same_question,
    start_question,
)
from specbench.records import INVALID, Analysis
from specbench.scenario.plan import Question

NOT_STARTED = "nothing was measured yet"
KEPT = "what was measured is kept"


@dataclass(frozen=True)
class Options:
    """The part of a command line that these commands share.

    :param command: ``ab``, ``sweep`` or ``selftest``.
    :param given: flags that shape the question, as typed; they need the scenario that they change.
    """

    command: str
    scenario: str | None
    overrides: list[str]
    out: Path | None
    resume: Path | None
    json: bool
    save_outputs: bool = False
    save_prompts: bool = False
    given: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The command, for messages."""
        return f"specbench {self.command}"


@dataclass(frozen=True)
class Opened:
    """A folder to measure into. ``existed``: it was there before this command."""

    path: Path
    question: Question
    existed: bool


def require_consistent(options: Options, *, needs_scenario: bool = True) -> None:
    """Refuse flags that contradict one another.

    :raises ScenarioError: names them.
    """
    if needs_scenario or options.resume is not None:
        require_source(options.where, options.scenario, options.out, options.resume)
    if options.scenario is not None or options.resume is None:
        return
    flags = [*(["--set"] if options.overrides else []), *options.given]
    if flags and needs_scenario:
        raise ScenarioError(
            f"{' and '.join(flags)} need{'s' if len(flags) == 1 else ''} the scenario",
            where=f"{options.where} --resume",
            hint=f"{options.where} --resume {options.resume}, which asks what it began with, or the scenario as well",
        )


def open_question(
    options: Options, ask: Callable[[], Question] | None, notes: Mapping[str, Any] | None = None
) -> Opened:
    """The folder to measure into: a new one, or the one to resume.

    :param ask: builds the question from the command line; None: it is the one in the folder.
    :raises InputError: the question is wrong, or the folder belongs to another one or another machine.
    """
    if options.resume is None:
        assert ask is not None, "a new command needs a question"
        question = ask()
        identity = RunIdentity(_name(question), command_line(), datetime.now(timezone.utc))
        existed = options.out is not None and os.path.exists(options.out)
        path = start_question(question, describe_environment(), identity, options.out, notes=notes)
        return Opened(path, question, existed)
    found, _ = read_question(options.resume)
    if found.kind != options.command:
        raise ResultsError(
            f"the folder is of {found.kind}, not of {options.command}",
            where=f"--resume {options.resume}",
            hint=f"specbench {found.kind} --resume {options.resume}",
        )
    if ask is not None:
        require_same_question(options.resume, ask())
    require_same_machine(options.resume, describe_environment())
    return Opened(options.resume, found, True)


def _name(question: Question) -> str:
    return str(question.scenario.get("name") or question.kind)


@contextmanager
def measuring(options: Options, opened: Opened) -> Iterator[None]:
    """Around everything that measures: wrong input takes back what a new command wrote, Ctrl-C says how to go on."""
    try:
        with resumable(options.command, opened.path, "what was complete is kept"):
            yield
    except InputError:
        if options.resume is None:
            ResultsFolder(opened.path).discard_unmeasured(keep_folder=opened.existed)
        raise


@contextmanager
def resumable(command: str, path: Path, kept: str) -> Iterator[None]:
    """Say how to go on when Ctrl-C strikes outside a measured window."""
    try:
        yield
    except KeyboardInterrupt:
        raise interrupted(command, path, kept) from None


def interrupted(command: str, path: Path, kept: str) -> InterruptedRunError:
    """The error that says how to go on."""
    again = shlex.join(["specbench", command, "--resume", str(path)])
    return InterruptedRunError(f"interrupted; {kept} in {path}", hint=f"{again}, to finish it")


def finish(options: Options, path: Path, analysis: Analysis, status: str) -> None:
    """Turn what was found into the command's end. INVALID comes before an interruption.

    :raises InvalidMeasurementError: figures may not be used.
    :raises InterruptedRunError: the user stopped it.
    """
    reasons = list_invalid(analysis)
    if reasons:
        raise InvalidMeasurementError(f"INVALID: {'; '.join(reasons)}", where=str(path))
    if status == "interrupted":
        raise interrupted(options.command, path, KEPT)


def list_invalid(analysis: Analysis) -> list[str]:
    """Why figures may not be used, gates of the whole first; empty where they may."""
    told = {gate.name for comparison in analysis.comparisons for gate in comparison.gates if gate.status == "fail"}
    reasons = [f"{g.name}: {g.detail}" for g in analysis.gates if g.status == "fail" and g.name not in told]
    for comparison in analysis.comparisons:
        if comparison.verdict == INVALID:
            why = ", ".join(comparison.reasons) or "no reason is known"
            reasons.append(f"{name_comparison(comparison.candidate, comparison.point)}: {why}")
    return reasons


def name_comparison(candidate: str, point: Mapping[str, Any]) -> str:
    """``on at workload.concurrency=4``."""
    place = ", ".join(f"{key}={value}" for key, value in point.items())
    return f"{candidate} at {place}" if place else candidate
