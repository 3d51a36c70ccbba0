"""The axes of a sweep: which keys it varies, over which values, crossed or in step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specbench.scenario.schema import Sweep
from specbench.scenario.yaml12 import KeyPath

VARIANT = "variant"
"""Axis whose values are variants; it stands beside scenario keys in ``grid`` and ``zip``."""
SHORT_KEYS = {
    "concurrency": "workload.concurrency",
    "draft_len": "drafter.draft_len",
    "isl": "workload.isl",
    "osl": "workload.osl",
}


@dataclass(frozen=True)
class Axis:
    """One swept key.

    :param key: in full, as ``workload.osl``.
    :param place: where the scenario holds its list, as ("sweep", "osl").
    :param in_step: one of ``zip``, which goes with the others there.
    """

    key: str
    values: tuple[Any, ...]
    place: KeyPath
    in_step: bool = False


def list_axes(sweep: Sweep) -> list[Axis]:
    """The axes of ``sweep``: the short lists, those of ``grid`` as written, then those of ``zip``."""
    short = [
        Axis(key, values, ("sweep", name))
        for name, key in SHORT_KEYS.items()
        if (values := getattr(sweep, name)) is not None
    ]
    crossed = [Axis(key, values, ("sweep", "grid", key)) for key, values in sweep.grid.items()]
    in_step = [Axis(key, values, ("sweep", "zip", key), in_step=True) for key, values in sweep.zip.items()]
    return [*short, *crossed, *in_step]
