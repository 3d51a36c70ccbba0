"""From the sweep of a scenario to its points, each with what it changes in the file before any default is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from specbench.errors import ScenarioError
from specbench.scenario.axes import (
    DRAFT_LEN,
    DRAFTER,
    VARIANT,
    Axis,
    drafter_name,
    is_void_for,
    label_of,
    list_axes,
)
from specbench.scenario.drafter_use import NO_DRAFTER
from specbench.scenario.loader import ScenarioFile
from specbench.scenario.overrides import Override, apply_overrides
from specbench.scenario.places import Places, dotted, shorten
from specbench.scenario.schema import Tree
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
    Each of them at every context length of ``measure.windows``. What is crossed with a drafter that has no use for it
    (K with none, a head with a lookup) makes one point, not one for each value; so does K with a tree: it is its depth.

    :raises ScenarioError: an axis sets what a swept variant sets, so that one of the two would be void.
    """
    points = _distinct(_combine(file))
    windows = file.base.measure.windows
    return points if windows is None else [_window(point, n) for point in points for n in windows.kv_len]


def merged_points(file: ScenarioFile) -> list[str]:
    """What swept drafters make of lists that mean nothing to them, in words; empty where there are none of them."""
    axes = list_axes(file.base.sweep)
    drafters = [(axis, value) for axis in axes if axis.key == DRAFTER for value in axis.values]
    lines = [line for drafter in drafters for line in _not_varied(file, drafter, axes)]
    if not lines:
        return []
    combined = _combine(file)
    points = len(_distinct(combined))
    merged = f": {points} points instead of {len(combined)}" if points < len(combined) else ""
    return [*lines[:-1], f"{lines[-1]}{merged}"]


def _not_varied(file: ScenarioFile, drafter: _Pair, axes: Sequence[Axis]) -> Iterator[str]:
    """What is not varied for one drafter of the sweep, and why."""
    name, label = drafter_name(drafter[1]), label_of(drafter[1])
    void = [axis.key for axis in axes if axis.key != DRAFTER and is_void_for(name, axis.key)]
    if void and name == NO_DRAFTER:
        yield f"the drafter none drafts nothing: its K is 0, and {', '.join(void)} is not varied for it"
    elif void:
        yield f"{', '.join(void)} is not varied for {label}, which has no use for it"
    if name != NO_DRAFTER and any(axis.key == DRAFT_LEN for axis in axes) and _tree_depth(file, [drafter]) is not None:
        yield f"{DRAFT_LEN} is not varied for {label}: K is the depth of its tree"


def _distinct(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Each point once, where it comes first."""
    found: dict[str, SweepPoint] = {}
    for point in points:
        found.setdefault(repr(sorted(point.coordinates.items())), point)
    return list(found.values())


def _combine(file: ScenarioFile) -> list[SweepPoint]:
    """Every combination of the axes' values; those of a drafter that has no use for an axis may be equal."""
    axes = list_axes(file.base.sweep)
    in_step = [axis for axis in axes if axis.in_step]
    groups: list[list[tuple[_Pair, ...]]] = []
    groups += [[((axis, value),) for value in axis.values] for axis in axes if not axis.in_step]
    if in_step:
        rows = zip(*(axis.values for axis in in_step), strict=True)
        groups.append([tuple(zip(in_step, row, strict=True)) for row in rows])
    combined = [[pair for group in combination for pair in group] for combination in product(*groups)]
    return [_point(file, _meaningful(file, pairs)) for pairs in combined]


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


def _meaningful(file: ScenarioFile, pairs: Sequence[_Pair]) -> Sequence[_Pair]:
    """``pairs`` without those that a drafter among them has no use for; its K is 0 for none, and a tree's depth."""
    drafter = next((value for axis, value in pairs if axis.key == DRAFTER), None)
    if drafter is None:
        return pairs
    name = drafter_name(drafter)
    kept = [pair for pair in pairs if pair[0].key in (DRAFTER, DRAFT_LEN) or not is_void_for(name, pair[0].key)]
    if not any(axis.key == DRAFT_LEN for axis, _ in kept):
        return kept
    draft_len = 0 if name == NO_DRAFTER else _tree_depth(file, kept)
    return [(axis, draft_len if axis.key == DRAFT_LEN and draft_len is not None else value) for axis, value in kept]


def _tree_depth(file: ScenarioFile, pairs: Sequence[_Pair]) -> int | None:
    """Depth of the tree that the drafter of a point drafts, K aside; None where its drafts do not branch."""
    data: dict[str | int, Any] = to_plain({"drafter": file.data.get("drafter", {})})
    shaping = [(axis, value) for axis, value in pairs if axis.key.startswith("drafter.") and axis.key != DRAFT_LEN]
    apply_overrides(data, Places(""), [change for axis, value in shaping for change in _overrides(file, axis, value)])
    tree = data["drafter"].get("tree")
    return tree.get("depth", Tree.model_fields["depth"].default) if isinstance(tree, dict) else None


def _point(file: ScenarioFile, pairs: Sequence[_Pair]) -> SweepPoint:
    variants = [pair for pair in pairs if pair[0].key == VARIANT]
    others = [change for axis, value in pairs if axis.key != VARIANT for change in _overrides(file, axis, value)]
    changes = [change for axis, value in variants for change in _variant_changes(file, axis, value)]
    coordinates = {axis.key: label_of(value) for axis, value in pairs}
    if variants:
        refuse_void(changes, SweepPoint({}, tuple(others)), f"the variant {shorten(repr(variants[0][1]))}")
    return SweepPoint(coordinates, (*changes, *others))


def _overrides(file: ScenarioFile, axis: Axis, value: Any) -> list[Override]:
    """What one value changes. The drafter none leaves nothing of the scenario's drafter, and commits a token a step."""
    override = _override(file, axis, value)
    if axis.key != DRAFTER or drafter_name(value) != NO_DRAFTER:
        return [override]
    changes = [Override(("drafter",), NO_DRAFTER, override.place)]
    if isinstance(file.base.acceptance.length, float):
        changes.append(Override(("acceptance", "length"), 1.0, override.place))
    return changes


def _override(file: ScenarioFile, axis: Axis, value: Any) -> Override:
    plain = to_plain(value)
    place = f"{file.base.places.of(axis.place)} ({dotted(axis.place)}: {shorten(str(label_of(plain)))})"
    return Override(("drafter",) if isinstance(plain, dict) else tuple(axis.key.split(".")), plain, place)


def _variant_changes(file: ScenarioFile, axis: Axis, value: str) -> list[Override]:
    return variant_overrides(value, file.base, flag=f"{file.base.places.of(axis.place)} ({dotted(axis.place)})")
