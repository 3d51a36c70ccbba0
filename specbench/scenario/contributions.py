"""``--each``: what every key in which a candidate differs contributes, alone and when it alone is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from specbench.errors import InputError
from specbench.records import ALL_BUT, ALONE, PAIR, Difference
from specbench.scenario.conflicts import find_conflicts
from specbench.scenario.differences import list_following
from specbench.scenario.places import raise_issues
from specbench.scenario.plan import TOGGLES
from specbench.scenario.schema import Scenario
from specbench.scenario.toggle_conflicts import complete_optimizations

_WHOLE_SECTIONS = ("model", "drafter", "acceptance", "process")
"""Sections whose keys mean nothing without one another."""

Check = Callable[[Scenario], object]


@dataclass(frozen=True)
class Part:
    """Keys that are switched together.

    :param keys: in full, or the name of a whole section.
    """

    keys: tuple[str, ...]

    @property
    def name(self) -> str:
        """``sampling_params``, ``engine.max_num_tokens``, ``drafter, acceptance``."""
        return ", ".join(key.removeprefix(TOGGLES) for key in self.keys)


@dataclass(frozen=True)
class Arm:
    """A configuration that was put together: what it is called, and its scenario with defaults open."""

    name: str
    scenario: Scenario


@dataclass(frozen=True)
class Contribution:
    """One comparison that says what a part is worth."""

    role: str
    baseline: Arm
    candidate: Arm


def list_parts(baseline: Scenario, candidate: Scenario, differences: Sequence[Difference], check: Check) -> list[Part]:
    """The parts in which two arms differ, each of which can stand alone and be left out alone.

    Toggles go one by one, keys of the engine too; a section whose keys mean nothing apart goes whole. What cannot stand
    by itself (acceptance of 2.4 tokens a step without a drafter) goes together with whatever else cannot.

    :param differences: of the arms once resolved; keys that follow others are no parts.
    :param check: raises :class:`InputError` where a combination cannot be.
    """
    following = list_following(differences)
    keys = [difference.key for difference in differences if difference.key not in following]
    parts = [Part((key,)) for key in dict.fromkeys(_whole(key) for key in keys)]
    apart: list[Part] = []
    tied: list[Part] = []
    for part in parts:
        stands = _holds(combine(baseline, candidate, [part]), check)
        others = [other for other in parts if other is not part]
        stands = stands and _holds(combine(baseline, candidate, others), check)
        (apart if stands else tied).append(part)
    return [*apart, *([Part(tuple(key for part in tied for key in part.keys))] if tied else [])]


def list_contributions(baseline: Arm, candidate: Arm, parts: Sequence[Part], *, pairs: bool) -> list[Contribution]:
    """Every part alone, with ``pairs`` any two of three or more, and all but each part; nothing where there is one."""
    if len(parts) < 2:
        return []
    found = [Contribution(ALONE, baseline, _with(baseline, candidate, [part])) for part in parts]
    if pairs and len(parts) > 2:
        found += [Contribution(PAIR, baseline, _with(baseline, candidate, pair)) for pair in combinations(parts, 2)]
    for part in parts:
        others = [other for other in parts if other is not part]
        without = Arm(f"{candidate.name} - {part.name}", combine(baseline.scenario, candidate.scenario, others))
        found.append(Contribution(ALL_BUT, without, candidate))
    return found


def combine(baseline: Scenario, candidate: Scenario, parts: Iterable[Part]) -> Scenario:
    """``baseline`` with the ``candidate``'s values of ``parts``; unchecked, its defaults open."""
    data: dict[str, Any] = {key: getattr(baseline, key) for key in type(baseline).model_fields}
    toggles, data["optimizations"] = (
        complete_optimizations(arm.optimizations, arm.model.source, arm.engine.device) for arm in (candidate, baseline)
    )
    for key in (key for part in parts for key in part.keys):
        section, _, name = key.partition(".")
        if section == "optimizations":
            # A toggle that the candidate does not have is one that its model has no use for.
            kept = {other: value for other, value in data[section].items() if other != name}
            data[section] = {**kept, name: toggles[name]} if name in toggles else kept
        elif name:
            value = getattr(getattr(candidate, section), name)
            data[section] = data[section].model_copy(update={name: value})
        else:
            data[section] = getattr(candidate, section)
    combined: Scenario = baseline.model_copy(update=data)
    return combined.with_places(candidate.places)


def _with(baseline: Arm, candidate: Arm, parts: Sequence[Part]) -> Arm:
    name = " + ".join([baseline.name, *(part.name for part in parts)])
    return Arm(name, combine(baseline.scenario, candidate.scenario, parts))


def _whole(key: str) -> str:
    section = key.partition(".")[0]
    return section if section in _WHOLE_SECTIONS else key


def _holds(scenario: Scenario, check: Check) -> bool:
    try:
        raise_issues(find_conflicts(scenario), scenario.places, scenario.places.root)
        check(scenario)
    except InputError:
        return False
    return True
