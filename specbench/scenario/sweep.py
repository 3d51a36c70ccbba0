"""From the sweep of a scenario to its points, each with what it changes in the file before any default is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from specbench.errors import ScenarioError
from specbench.scenario.axes import (
    DRAFT_LEN,
    DRAFTER,
    NO_DRAFTER,
    VARIANT,
    Axis,
    is_void_without_drafter,
    list_axes,
)
from specbench.scenario.loader import ScenarioFile
from specbench.scenario.overrides import Override
from specbench.scenario.places import dotted, shorten
from specbench.scenario.variants import variant_overrides
from specbench.scenario.windows import KV_LEN_KEY
from specbench.scenario.yaml12 import to_plain

_Pair = tuple[Axis, Any]
"""An axis and one of its values."""


@dataclass(frozen=True)
class SweepPoint:
    """One combination of values.

    :param coordinates: scenario key in full -> value, ``variant`` among them; empty where nothing is swept.
    :param overrides: what it changes, the variant's changes first.
    """

    coordinates: dict[str, Any]
    overrides: tuple[Override, ...]

    @property
    def name(self) -> str:
        """``workload.concurrency=4, workload.osl=64``."""
        return ", ".join(f"{key}={value}" for key, value in self.coordinates.items())


def expand_sweep(file: ScenarioFile) -> list[SweepPoint]:
    """The points of the file's sweep, the first axis varying slowest; one point without coordinates where it has none.
    Each of them at every context length of ``measure.windows``. What is crossed with the drafter none and means
    nothing to it (K above all) makes one point, not one for each value.

    :raises ScenarioError: an axis sets what a swept variant sets, so that one of the two would be void.
    """
    points = _distinct(_combine(file))
    windows = file.base.measure.windows
    return points if windows is None else [_window(point, n) for point in points for n in windows.kv_len]


def merged_points(file: ScenarioFile) -> list[str]:
    """What the drafter none makes of lists that mean nothing to it, in words; empty where there are none of them."""
    axes = list_axes(file.base.sweep)
    plain = any(axis.key == DRAFTER and NO_DRAFTER in axis.values for axis in axes)
    void = [axis.key for axis in axes if is_void_without_drafter(axis.key)]
    if not plain or not void:
        return []
    combined = _combine(file)
    points = len(_distinct(combined))
    merged = f": {points} points instead of {len(combined)}" if points < len(combined) else ""
    return [f"the drafter none drafts nothing: its K is 0, and {', '.join(void)} is not varied for it{merged}"]


def _distinct(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Each point once, where it comes first."""
    found: dict[str, SweepPoint] = {}
    for point in points:
        found.setdefault(repr(sorted(point.coordinates.items())), point)
    return list(found.values())


def _combine(file: ScenarioFile) -> list[SweepPoint]:
    """Every combination of the axes' values; those of the drafter none may be equal."""
    axes = list_axes(file.base.sweep)
    in_step = [axis for axis in axes if axis.in_step]
    groups: list[list[tuple[_Pair, ...]]] = []
    groups += [[((axis, value),) for value in axis.values] for axis in axes if not axis.in_step]
    if in_step:
        rows = zip(*(axis.values for axis in in_step), strict=True)
        groups.append([tuple(zip(in_step, row, strict=True)) for row in rows])
    combined = [[pair for group in combination for pair in group] for combination in product(*groups)]
    return [_point(file, _without_speculation(pairs)) for pairs in combined]


def _window(point: SweepPoint, kv_len: int) -> SweepPoint:
    """The point at one of its context lengths."""
    override = Override(tuple(KV_LEN_KEY.split(".")), [kv_len], KV_LEN_KEY)
    return SweepPoint({**point.coordinates, KV_LEN_KEY: kv_len}, (*point.overrides, override))


def refuse_void(overrides: Sequence[Override], point: SweepPoint, who: str) -> None:
    """Refuse changes on top of a point that would undo it.

    :param who: whose changes they are, for the message.
    :raises ScenarioError: names the key and the axis.
    """
    for override in overrides:
        for swept in point.overrides:
            if override.meets(swept):
                raise ScenarioError(
                    f"{who} sets {dotted(override.path)}, which the sweep varies: its points would be the same",
                    where=override.place,
                    hint="drop it from one of the two; several --candidate compare several values with one baseline",
                )


def _without_speculation(pairs: Sequence[_Pair]) -> Sequence[_Pair]:
    """``pairs``; beside the drafter none its K, 0 whatever a list says, and nothing else that shapes drafts."""
    if not any(axis.key == DRAFTER and value == NO_DRAFTER for axis, value in pairs):
        return pairs
    kept = [pair for pair in pairs if pair[0].key == DRAFT_LEN or not is_void_without_drafter(pair[0].key)]
    return [(axis, 0 if axis.key == DRAFT_LEN else value) for axis, value in kept]


def _point(file: ScenarioFile, pairs: Sequence[_Pair]) -> SweepPoint:
    variants = [pair for pair in pairs if pair[0].key == VARIANT]
    others = [change for axis, value in pairs if axis.key != VARIANT for change in _overrides(file, axis, value)]
    changes = [change for axis, value in variants for change in _variant_changes(file, axis, value)]
    coordinates = {axis.key: to_plain(value) for axis, value in pairs}
    if variants:
        refuse_void(changes, SweepPoint({}, tuple(others)), f"the variant {shorten(repr(variants[0][1]))}")
    return SweepPoint(coordinates, (*changes, *others))


def _overrides(file: ScenarioFile, axis: Axis, value: Any) -> list[Override]:
    """What one value changes. The drafter none leaves nothing of the scenario's drafter, and commits a token a step."""
    override = _override(file, axis, value)
    if axis.key != DRAFTER or value != NO_DRAFTER:
        return [override]
    changes = [Override(("drafter",), NO_DRAFTER, override.place)]
    if isinstance(file.base.acceptance.length, float):
        changes.append(Override(("acceptance", "length"), 1.0, override.place))
    return changes


def _override(file: ScenarioFile, axis: Axis, value: Any) -> Override:
    plain = to_plain(value)
    place = f"{file.base.places.of(axis.place)} ({dotted(axis.place)}: {shorten(str(plain))})"
    return Override(tuple(axis.key.split(".")), plain, place)


def _variant_changes(file: ScenarioFile, axis: Axis, value: str) -> list[Override]:
    return variant_overrides(value, file.base, flag=f"{file.base.places.of(axis.place)} ({dotted(axis.place)})")
