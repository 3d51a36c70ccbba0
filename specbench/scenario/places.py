"""Where each scenario value came from, and how several problems become one message."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.errors import InputError, ScenarioError, UnknownNameError, nearest_hint
from specbench.scenario.yaml12 import KeyPath

MAX_SHOWN = 60
MAX_ISSUES = 20


@dataclass
class Places:
    """Key path -> the text that names its place: ``x.yaml:4``, ``--set workload.isl``, ``variant 'plain'``.

    :param root: the place of whatever has none of its own (a default, a missing key).
    """

    # Two scenarios that say the same are equal wherever they were written.
    root: str = field(compare=False)
    by_path: dict[KeyPath, str] = field(default_factory=dict, compare=False)

    def of(self, path: KeyPath) -> str:
        """The place of ``path``, or of the nearest key above it."""
        for length in range(len(path), 0, -1):
            place = self.by_path.get(path[:length])
            if place is not None:
                return place
        return self.root

    def replace(self, path: KeyPath, place: str, *, keeping: Sequence[str] = ()) -> None:
        """``path`` and all below it now come from ``place``, but for the keys ``keeping`` right below it."""
        for old in [p for p in self.by_path if p[: len(path)] == path]:
            if not any(old[: len(path) + 1] == (*path, key) for key in keeping):
                del self.by_path[old]
        self.by_path[path] = place

    def copy(self) -> Places:
        """An independent copy."""
        return Places(self.root, dict(self.by_path))


@dataclass(frozen=True)
class Issue:
    """One thing that is wrong.

    :param path: the key, or ``()`` for the file as a whole.
    :param error: the class to raise when this is the only issue.
    """

    path: KeyPath
    what: str
    hint: str | None = None
    error: type[InputError] = ScenarioError

    @classmethod
    def at(cls, key: str, what: str, hint: str | None = None) -> Issue:
        """Of a ``key`` in full, as ``workload.isl``."""
        return cls(tuple(key.split(".")), what, hint)

    @classmethod
    def unknown(cls, path: KeyPath, kind: str, name: str, known: Iterable[str], extra: tuple[str, ...] = ()) -> Issue:
        """Of a ``name`` that is none of the ``known`` ones; ``extra``: allowed as well, and said first."""
        names = [*extra, *sorted(known)]
        what = f"unknown {kind} {shorten(repr(name))}; allowed: {', '.join(names)}"
        return cls(path, what, nearest_hint(name, names), UnknownNameError)


def raise_issues(issues: Sequence[Issue], places: Places, heading: str) -> None:
    """Raise one error that holds every issue; do nothing when there is none.

    :param heading: what was being read, for the first line of a message with several issues.
    :raises InputError: a :class:`ScenarioError`, or the class of the single issue.
    """
    issues = list(dict.fromkeys(issues))
    if not issues:
        return
    if len(issues) == 1:
        issue = issues[0]
        raise issue.error(issue.what, where=describe_place(issue.path, places), hint=issue.hint)
    raise ScenarioError(f"{len(issues)} problems\n" + "\n".join(_lines(issues, places)), where=heading)


def _lines(issues: Sequence[Issue], places: Places) -> Iterable[str]:
    for issue in issues[:MAX_ISSUES]:
        hint = f" ({issue.hint})" if issue.hint else ""
        yield f"  {describe_place(issue.path, places)}: {issue.what}{hint}"
    if len(issues) > MAX_ISSUES:
        yield f"  and {len(issues) - MAX_ISSUES} more"


def describe_place(path: KeyPath, places: Places) -> str:
    """``x.yaml:4: workload.isl``, or ``--set workload.isl`` where the place names the key itself."""
    place, key = places.of(path), dotted(path)
    if not key or place.endswith(f" {key}"):
        return place
    return f"{place}: {key}"


def dotted(path: KeyPath) -> str:
    """``("workload", "isl", 0)`` -> ``workload.isl[0]``, with unprintable keys escaped."""
    text = ""
    for part in path:
        if isinstance(part, str):
            name = part if part.isprintable() else repr(part)[1:-1]
            text += ("." if text else "") + shorten(name)
        else:
            text += f"[{part}]"
    return text


def describe_value(value: Any) -> str:
    """``value`` as an error names it: what it is and what kind of thing that is."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return f"{str(value).lower()} (true or false)"
    if isinstance(value, str):
        return f"{shorten(repr(value))} (text)"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return f"a list, {shorten(_list_words(value))}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} (not a finite number)"
    return shorten(repr(value))


def _list_words(values: Iterable[Any]) -> str:
    """``[1, null, 'x']``: null as a scenario writes it."""
    return f"[{', '.join('null' if value is None else repr(value) for value in values)}]"


def shorten(text: str) -> str:
    """``text``, cut in the middle when long."""
    half = (MAX_SHOWN - 3) // 2
    return text if len(text) <= MAX_SHOWN else f"{text[:half]}...{text[-half:]}"
