"""What ``specbench ab`` is asked to do: its flags, as the scenario's keys and as the conditions of ``--fail-on``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from specbench.cli.session_folder import Options, name_comparison
from specbench.errors import ScenarioError, nearest_hint
from specbench.records import CANDIDATE, INVALID, Comparison
from specbench.scenario.units import parse_duration, parse_percent

SLOWER = "SLOWER"
INCONCLUSIVE = "INCONCLUSIVE"
WITHIN_MARGIN = ("EQUIVALENT", "FASTER BUT NEGLIGIBLE", "SLOWER BUT NEGLIGIBLE")
DESIGNS = ("auto", "mirrored", "runs")

FAIL_ON: dict[str, Callable[[Comparison], bool]] = {
    "slower": lambda comparison: comparison.verdict == SLOWER,
    "not-equivalent": lambda comparison: comparison.verdict not in (*WITHIN_MARGIN, INVALID),
    "inconclusive": lambda comparison: comparison.verdict == INCONCLUSIVE,
}
"""Condition -> whether one comparison meets it. ``slower`` is the verdict SLOWER alone: SLOWER BUT NEGLIGIBLE is within
the margin. ``not-equivalent`` is met by FASTER as by SLOWER, and by INCONCLUSIVE: equivalence was not shown. A guard
against slowdowns that lets FASTER pass is ``slower,inconclusive``. INVALID ends the command with its own code."""


@dataclass(frozen=True)
class Settings:
    """Flags of ``ab`` that are short for ``measure.*`` keys; None was not given."""

    margin: str | None = None
    budget: str | None = None
    processes: int | None = None
    looks: int | None = None
    anytime: bool = False
    design: str | None = None

    def flags(self) -> dict[str, str | int | bool]:
        """Flag -> value, of those that were given."""
        named: dict[str, str | int | bool | None] = {
            "--margin": self.margin,
            "--budget": self.budget,
            "--processes": self.processes,
            "--looks": self.looks,
            "--anytime": self.anytime or None,
            "--design": self.design,
        }
        return {flag: value for flag, value in named.items() if value is not None}

    def overrides(self) -> list[str]:
        """The same as ``key=value`` texts; they go behind ``--set``, so that they win.

        :raises ScenarioError: a value that the key cannot have.
        """
        for flag, value in self.flags().items():
            _check(flag, value)
        return [f"measure.{flag.removeprefix('--')}={str(value).lower()}" for flag, value in self.flags().items()]


def _check(flag: str, value: str | int | bool) -> None:
    """Refuse a wrong value under the name that was typed; what is left is the schema's to find."""
    try:
        if flag == "--margin" and parse_percent(str(value)) <= 0:
            raise ValueError("a percentage above 0%")
        if flag == "--budget" and parse_duration(str(value)) <= 0:
            raise ValueError("a duration above 0")
        if flag in ("--processes", "--looks") and int(value) < 1:
            raise ValueError("a number from 1")
        if flag == "--design" and value not in DESIGNS:
            raise ValueError(", ".join(DESIGNS))
    except ValueError as error:
        raise ScenarioError(f"found {value!r}; allowed: {error}", where=flag) from None


@dataclass(frozen=True)
class AbOptions:
    """The command line of ``ab``, parsed.

    :param baseline: None with ``baseline_ref`` stands for the scenario as it is.
    :param fail_on: keys of :data:`FAIL_ON`.
    """

    shared: Options
    baseline: str | None
    candidates: list[str]
    baseline_ref: str | None
    settings: Settings
    each: bool
    pairs: bool
    fail_on: tuple[str, ...]


def parse_fail_on(texts: Sequence[str]) -> tuple[str, ...]:
    """``slower,inconclusive`` -> the conditions, each once.

    :raises ScenarioError: one that does not exist.
    """
    names = [name.strip() for text in texts for name in text.split(",")]
    for name in names:
        if name not in FAIL_ON:
            raise ScenarioError(
                f"found {name!r}; allowed, with commas between them: {', '.join(FAIL_ON)}",
                where="--fail-on",
                hint=nearest_hint(name, FAIL_ON),
            )
    return tuple(dict.fromkeys(names))


def require_arms(options: AbOptions) -> None:
    """Refuse a comparison that lacks its baseline, or flags that do not go together.

    :raises ScenarioError: names the flag.
    """
    shared = options.shared
    if options.pairs and not options.each:
        raise ScenarioError("adds to --each, which is not given", where="--pairs", hint="--each --pairs")
    if shared.scenario is None or options.baseline is not None or options.baseline_ref is not None:
        return
    raise ScenarioError(
        "no baseline is given, so there is nothing to compare with",
        where=shared.where,
        hint=f"{shared.where} {shared.scenario} --baseline off, or a variant, or key=value",
    )


def typed_flags(options: dict[str, object]) -> tuple[str, ...]:
    """The flags among ``options`` that were given: those with a value."""
    return tuple(flag for flag, value in options.items() if value)


def met_conditions(names: Iterable[str], comparisons: Sequence[Comparison]) -> list[str]:
    """``slower: on at workload.concurrency=4 is SLOWER``: every condition that holds, with what met it.

    ``--each`` adds comparisons that explain a candidate; only the candidates themselves are judged.
    """
    judged = [comparison for comparison in comparisons if comparison.role == CANDIDATE]
    lines = []
    for name in names:
        met = [comparison for comparison in judged if FAIL_ON[name](comparison)]
        if met:
            found = ", ".join(f"{name_comparison(c.candidate, c.point)} is {c.headline}" for c in met)
            lines.append(f"{name}: {found}")
    return lines
