"""``ab --baseline-ref REV``: the commit checked out for the baseline, and both arms named as variants of the scenario.

The question, and with it the plan, name the checkout by a path that stays the same for a commit, so that a resumed
command asks the same thing: a link in the cache directory, which leads to the checkout while the command runs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.cli.ab_planning import AbOptions
from specbench.downloads import cache_directory
from specbench.errors import InputError, ResultsError, ScenarioError
from specbench.measure.session import read_question
from specbench.scenario.loader import load_scenario
from specbench.scenario.places import dotted
from specbench.scenario.schema import Scenario
from specbench.scenario.variants import ON, variant_overrides
from specbench.scenario.yaml12 import to_plain

NOTE = "baseline_ref"
NAME_LENGTH = 40


@dataclass(frozen=True)
class Arms:
    """Variants to compare. ``overrides`` add those among them that the scenario does not have itself."""

    baseline: str
    candidates: tuple[str, ...]
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkout:
    """A commit at a path: ``revision`` as it was asked for, ``commit`` in full."""

    revision: str
    commit: str
    path: Path

    @property
    def note(self) -> dict[str, str]:
        """What a resumed command has to know."""
        return {"revision": self.revision, "commit": self.commit, "path": str(self.path)}


def check_out(options: AbOptions, stack: ExitStack) -> Checkout | None:
    """The baseline's commit, checked out for as long as ``stack`` lives; None where there is none.

    :raises InputError: no such commit, or the folder that is resumed began with another one.
    :raises EngineError: git failed.
    """
    known = _known(options)
    if known is None and options.baseline_ref is None:
        return None
    from specbench.measure.worktree import open_worktree

    revision = str(known["revision"] if known else options.baseline_ref)
    worktree = stack.enter_context(open_worktree(str(known["commit"]) if known else revision))
    path = Path(known["path"]) if known else cache_directory().absolute() / "worktrees" / worktree.revision[:12]
    stack.enter_context(_linked(path, worktree.path))
    return Checkout(revision, worktree.revision, path)


def _known(options: AbOptions) -> dict[str, Any] | None:
    """What the folder that is resumed says of its baseline's commit.

    :raises ResultsError: the command line says something else.
    """
    resume = options.shared.resume
    if resume is None:
        return None
    note = read_question(resume)[1].get(NOTE)
    if note is None:
        return None
    if not isinstance(note, dict) or not {"revision", "commit", "path"} <= set(note):
        raise ResultsError(f"{NOTE} is damaged", where=f"--resume {resume}")
    if options.shared.scenario is not None and options.baseline_ref != note["revision"]:
        asked = f"--baseline-ref {options.baseline_ref}" if options.baseline_ref else "without it"
        raise ResultsError(
            f"the folder began with --baseline-ref {note['revision']}, and what is asked for is {asked}",
            where=f"--resume {resume}",
            hint=f"specbench ab --resume {resume}, which takes the commit that it began with",
        )
    return note


@contextmanager
def _linked(path: Path, target: Path) -> Iterator[None]:
    """``path`` leads to ``target`` inside the block. What a killed command left there goes, its checkout as well.

    :raises InputError: another process has it, or it cannot be written.
    """
    with _owned(path):
        _link(path, target)
        try:
            yield
        finally:
            with suppress(OSError):
                if os.readlink(path) == str(target):
                    path.unlink()


@contextmanager
def _owned(path: Path) -> Iterator[None]:
    """Hold the lock beside ``path``, which the system takes from a process that dies, in whatever way."""
    from filelock import FileLock, Timeout

    lock = FileLock(path.with_name(f"{path.name}.lock"), timeout=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise InputError(
            "another specbench measures against this commit",
            where=str(path),
            hint="wait for it to end: two measurements at a time disturb each other",
        ) from None
    except NotImplementedError as error:
        raise _unusable(path, str(error)) from error
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    try:
        yield
    finally:
        lock.release()


def _link(path: Path, target: Path) -> None:
    """Have ``path``, which is ours alone, lead to ``target``."""
    from specbench.measure.worktree import remove_left_behind

    try:
        if path.is_symlink():
            remove_left_behind(Path(os.readlink(path)))
            path.unlink()
        path.symlink_to(target, target_is_directory=True)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error


def _unusable(path: Path, why: str) -> InputError:
    return InputError(
        f"the commit cannot be linked here: {why}",
        where=str(path),
        hint="SPECBENCH_CACHE names the cache directory, a folder that you may write to",
    )


def name_arms(options: AbOptions, checkout: Checkout | None) -> Arms:
    """The variants that the command line means.

    Without ``--baseline-ref`` they are as typed. With it every arm gets a process of its own, the baseline's with the
    commit, and a variant's name that says which it is; the arms differ in nothing else unless it is asked for.

    :raises ScenarioError: a variant that does not exist.
    """
    if checkout is None:
        assert options.baseline is not None, "checked with the flags"
        return Arms(options.baseline, tuple(options.candidates) or (ON,))
    assert options.shared.scenario is not None
    scenario = load_scenario(options.shared.scenario, options.shared.overrides)
    taken: dict[str, Any] = dict.fromkeys(scenario.variants)
    asked = options.baseline
    baseline = _unused(_name(f"{asked}-at-{checkout.revision}" if asked else checkout.revision), taken)
    process: dict[str, Any] = {"worktree": str(checkout.path)}
    named = {baseline: {**_changes(scenario, asked, "--baseline"), "process": process}}
    candidates: list[str | None] = [*options.candidates] or [asked]
    for candidate in candidates:
        name = _unused(_name(f"{candidate}-here" if candidate else "here"), {**taken, **named})
        named[name] = {**_changes(scenario, candidate, "--candidate"), "process": {}}
    overrides = tuple(f"variants.{name}={json.dumps(changes)}" for name, changes in named.items())
    return Arms(baseline, tuple(name for name in named if name != baseline), overrides)


def _changes(scenario: Scenario, variant: str | None, flag: str) -> dict[str, Any]:
    """What a variant changes in the scenario, key in full -> value; nothing for the scenario as it stands."""
    if variant is None:
        return {}
    overrides = variant_overrides(variant, scenario, flag=flag)
    for override in overrides:
        if override.path[0] == "process":
            raise ScenarioError(
                "sets process, as --baseline-ref does", where=override.place, hint="drop one of the two"
            )
    return {dotted(override.path): to_plain(override.value) for override in overrides}


def _name(text: str) -> str:
    """``off-at-main``: what was typed as a variant may be called."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")
    return plain[:NAME_LENGTH].rstrip("-_") or "arm"


def _unused(name: str, taken: Mapping[str, Any]) -> str:
    numbered = (name, *(f"{name}-{number}" for number in range(2, 1000)))
    return next(candidate for candidate in numbered if candidate not in taken)
