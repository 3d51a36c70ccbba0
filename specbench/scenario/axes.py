"""The axes of a sweep: which keys it varies, over which values, crossed or in step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specbench.scenario.drafter_use import NO_DRAFTER, has_use
from specbench.scenario.masking import mask
from specbench.scenario.measure_schema import Sweep
from specbench.scenario.yaml12 import KeyPath, to_plain

VARIANT = "variant"
"""Axis whose values are variants; it stands beside scenario keys in ``grid`` and ``zip``."""
CONCURRENCY, DRAFTER, DRAFT_LEN = "workload.concurrency", "drafter.name", "drafter.draft_len"
SHORT_KEYS = {
    "concurrency": CONCURRENCY,
    "drafter": DRAFTER,
    "draft_len": DRAFT_LEN,
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


def is_void_for(name: Any, key: str) -> bool:
    """True for a key that means nothing to the drafter ``name``; where nobody drafts, also how many are accepted."""
    if key == "acceptance.length":
        return bool(name == NO_DRAFTER)
    section, _, rest = key.partition(".")
    return section == "drafter" and bool(rest) and not has_use(name, rest.partition(".")[0])


def drafter_name(value: Any) -> Any:
    """The name in a value of the axis of drafters: a name, or a mapping with keys of ``drafter``."""
    return value.get("name") if isinstance(value, dict) else value


def label_of(value: Any) -> Any:
    """What a swept value is called in results: a mapping by its name and what it adds, any other by itself.

    ``{name: eagle3, tree: {top_k: 2}}`` -> ``eagle3 {tree: {top_k: 2}}``.
    """
    plain = to_plain(value)
    if not isinstance(plain, dict):
        return plain
    added = {key: below for key, below in plain.items() if key != "name"}
    name = str(plain.get("name"))
    return mask(f"{name} {_flow(added)}" if added else name)


def _flow(value: Any) -> str:
    """A value as YAML writes it on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_flow(below)}' for key, below in value.items())}}}"
    return "null" if value is None else str(value)


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
