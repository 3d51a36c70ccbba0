"""What is wrong with the sweep of a scenario by itself: keys, lists, values, and how many points they make."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce

from pydantic import ValidationError

from specbench.engine.optimizations.base import load_toggle
from specbench.errors import InputError, nearest_hint
from specbench.registry import OPTIMIZATIONS
from specbench.scenario.axes import DRAFTER, VARIANT, Axis, label_of, list_axes
from specbench.scenario.diagnosis import all_keys, diagnose, moved_key, section_model
from specbench.scenario.places import Issue, describe_value, dotted
from specbench.scenario.plan import SET_APART
from specbench.scenario.schema import Scenario
from specbench.scenario.variants import variant_overrides
from specbench.scenario.yaml12 import KeyPath

MAX_POINTS = 10_000
_TABLES = ("drafter.runtime_draft_len",)
"""Keys that hold a table, which has no place in a list of values: a variant says it."""
_WITH_TREE = "{name: eagle3, tree: {top_k: 8, depth: 6, num_nodes: 32}}"
_AS_DRAFTERS = {
    "drafter": "sweep.drafter",
    "drafter.tree": f"sweep.drafter: [none, eagle3, {_WITH_TREE}], or a key of it, such as drafter.tree.depth",
}
"""Sections that go as values of the axis of drafters."""


def find_sweep_conflicts(scenario: Scenario) -> Iterator[Issue]:
    """Every conflict, in the order of the axes."""
    axes = list_axes(scenario.sweep)
    if not axes:
        return
    yield from _keys(axes)
    yield from _repetitions(axes)
    in_step = {axis.key: len(axis.values) for axis in axes if axis.in_step}
    if len(set(in_step.values())) > 1:
        lengths = ", ".join(f"{key}: {length}" for key, length in in_step.items())
        yield Issue(("sweep", "zip"), f"lists of unequal length ({lengths}) cannot go in step")
    for axis in axes:
        yield from _values(axis, scenario)
    num_points = count_points(axes)
    if num_points > MAX_POINTS:
        yield Issue(("sweep",), f"makes {num_points} points; allowed: {MAX_POINTS} or fewer", "shorter lists")


def count_points(axes: list[Axis]) -> int:
    """Points that ``axes`` make: those in step count once."""
    crossed = [len(axis.values) for axis in axes if not axis.in_step]
    in_step = [len(axis.values) for axis in axes if axis.in_step][:1]
    return math.prod([*crossed, *in_step])


def swept_keys() -> list[str]:
    """Every key that may be swept, ``variant`` included."""
    plain = [key for key in all_keys() if key.partition(".")[0] not in SET_APART and key not in _TABLES]
    return [*plain, *(f"optimizations.{name}" for name in OPTIMIZATIONS), VARIANT]


def _keys(axes: list[Axis]) -> Iterator[Issue]:
    known = swept_keys()
    for axis in axes:
        if axis.key not in known:
            tables = "sweep variant, with a variant for each table"
            hint = tables if axis.key in _TABLES else _AS_DRAFTERS.get(axis.key) or moved_key(axis.key)
            hint = hint or nearest_hint(axis.key, known)
            yield Issue(axis.place, "is no scenario key that can be swept", hint)


def _repetitions(axes: list[Axis]) -> Iterator[Issue]:
    first: dict[str, Axis] = {}
    for axis in axes:
        earlier = first.setdefault(axis.key, axis)
        if earlier is not axis:
            yield Issue(axis.place, f"{dotted(earlier.place)} sweeps {axis.key} as well", "drop one of the two")
        if not axis.in_step and len({repr(label_of(value)) for value in axis.values}) < len(axis.values):
            yield Issue(axis.place, "holds a value twice, which makes points that are the same")


def _values(axis: Axis, scenario: Scenario) -> Iterator[Issue]:
    """Each swept value by the schema of the key it is for."""
    section, _, key = axis.key.partition(".")
    for index, value in enumerate(axis.values):
        place = (*axis.place, index)
        if axis.key == VARIANT:
            yield from _variant(place, value, scenario)
        elif section == "optimizations" and key in OPTIMIZATIONS:
            variants = load_toggle(key).variants
            if value not in variants:
                what = f"found {describe_value(value)}; allowed: {', '.join(variants)}"
                yield Issue(place, what, nearest_hint(str(value), variants))
        elif axis.key in swept_keys():
            yield from _no_value(place, value, axis)
            if isinstance(value, dict) and axis.key == DRAFTER:
                yield from _drafter(place, value, list_axes(scenario.sweep))
            elif value is not None and not isinstance(value, dict):
                yield from _refused(place, section, reduce(_nest, reversed(key.split(".")), value))


def _nest(value: object, name: str) -> object:
    return {name: value}


def _refused(place: KeyPath, section: str, value: object) -> Iterator[Issue]:
    """What the schema of ``section`` says of ``value``, with the limits that it names."""
    model = section_model(section)
    try:
        if model is not None:
            model.model_validate(value)
    except ValidationError as error:
        for issue in diagnose(error, section=(section,)):
            yield Issue(place, issue.what, issue.hint)


def _no_value(place: KeyPath, value: object, axis: Axis) -> Iterator[Issue]:
    """What a list of values may not hold."""
    if value is None:
        hint = f"sweep variants: sweep.grid.variant={axis.key}=null,{axis.key}=VALUE"
        if axis.key.startswith("drafter."):
            hint = f"mappings in sweep.drafter, such as {{name: eagle3, {axis.key.removeprefix('drafter.')}: null}}"
        yield Issue(place, f"found {describe_value(value)}; allowed: a value", hint)
    elif isinstance(value, dict) and axis.key != DRAFTER:
        yield Issue(place, "found a mapping; allowed: a value, mappings in sweep.drafter alone", f"[{_WITH_TREE}]")


def _drafter(place: KeyPath, value: dict[str, object], axes: list[Axis]) -> Iterator[Issue]:
    """A drafter given as a mapping: its own keys, and lists that would undo them."""
    if "name" not in value:
        yield Issue(place, "found a mapping without a name; allowed: a name, or a mapping with one", _WITH_TREE)
        return
    yield from _refused(place, "drafter", value)
    for axis in axes:
        section, _, rest = axis.key.partition(".")
        if section == "drafter" and axis.key != DRAFTER and rest.partition(".")[0] in value:
            what = f"sets {rest.partition('.')[0]}, and {dotted(axis.place)} varies {axis.key}"
            yield Issue(place, what, "drop one of the two")


def _variant(place: tuple[str | int, ...], value: object, scenario: Scenario) -> Iterator[Issue]:
    if not isinstance(value, str):
        yield Issue(place, f"found {describe_value(value)}; allowed: a variant", "off, on, a name, or 'key=value'")
        return
    try:
        variant_overrides(value, scenario)
    except InputError as error:
        yield Issue(place, f"{describe_value(value)}: {error.what}", error.hint)
