"""From the sweep of a scenario to its points, each with what it changes in the file before any default is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from specbench.errors import ScenarioError
from specbench.scenario.axes import VARIANT, Axis, list_axes
from specbench.scenario.loader import ScenarioFile
from specbench.scenario.overrides import Override
from specbench.scenario.places import dotted, shorten
from specbench.scenario.variants import variant_overrides
from specbench.scenario.windows import KV_LEN_KEY
from specbench.scenario.yaml12 import to_plain


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
    Each of them at every context length of ``measure.windows``.

    :raises ScenarioError: an axis sets what a swept variant sets, so that one of the two would be void.
    """
    axes = list_axes(file.base.sweep)
    in_step = [axis for axis in axes if axis.in_step]
    groups: list[list[tuple[tuple[Axis, Any], ...]]] = []
    groups += [[((axis, value),) for value in axis.values] for axis in axes if not axis.in_step]
    if in_step:
        rows = zip(*(axis.values for axis in in_step), strict=True)
        groups.append([tuple(zip(in_step, row, strict=True)) for row in rows])
    points = [_point(file, [pair for group in combination for pair in group]) for combination in product(*groups)]
    windows = file.base.measure.windows
    return points if windows is None else [_window(point, n) for point in points for n in windows.kv_len]


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


def _point(file: ScenarioFile, pairs: Sequence[tuple[Axis, Any]]) -> SweepPoint:
    variants = [pair for pair in pairs if pair[0].key == VARIANT]
    others = [_override(file, axis, value) for axis, value in pairs if axis.key != VARIANT]
    changes = [change for axis, value in variants for change in _variant_changes(file, axis, value)]
    coordinates = {axis.key: to_plain(value) for axis, value in pairs}
    if variants:
        refuse_void(changes, SweepPoint({}, tuple(others)), f"the variant {shorten(repr(variants[0][1]))}")
    return SweepPoint(coordinates, (*changes, *others))


def _override(file: ScenarioFile, axis: Axis, value: Any) -> Override:
    plain = to_plain(value)
    place = f"{file.base.places.of(axis.place)} ({dotted(axis.place)}: {shorten(str(plain))})"
    return Override(tuple(axis.key.split(".")), plain, place)


def _variant_changes(file: ScenarioFile, axis: Axis, value: str) -> list[Override]:
    return variant_overrides(value, file.base, flag=f"{file.base.places.of(axis.place)} ({dotted(axis.place)})")
