"""Changes on top of a scenario's data: ``--set a.b=c`` and the key paths of variants.

A mapping is merged into what is there; any other value replaces it. ``model=tiny`` over a section replaces it, as the
shorthand does in a file, but for the keys that the section declares as kept (``workload=random_tokens`` keeps its
concurrency). Naming another drafter, in any form, keeps of the scenario's what that drafter has a use for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from specbench.errors import ScenarioError, nearest_hint
from specbench.registry import OPTIMIZATIONS
from specbench.scenario.diagnosis import all_keys, field_at, known_keys, section_model
from specbench.scenario.drafter_use import NO_DRAFTER, is_superseded
from specbench.scenario.places import Places, dotted, shorten
from specbench.scenario.schema import Scenario
from specbench.scenario.section import Section
from specbench.scenario.yaml12 import KeyPath, YamlError, read_yaml

_OPENING, _CLOSING, _QUOTES = "[{(", "]})", "\"'"
_WHOLE = (("drafter", "runtime_draft_len"),)
"""Mappings that are one value: an override replaces them."""


@dataclass(frozen=True)
class Override:
    """``value`` for the key at ``path``; ``place`` names it in messages."""

    path: KeyPath
    value: Any
    place: str

    def meets(self, other: Override) -> bool:
        """True where both set the same key, or one of them a section that holds the other's."""
        return any(_overlap(mine, theirs) for mine, _ in self.leaves() for theirs, _ in other.leaves())

    def leaves(self) -> Iterator[tuple[KeyPath, Any]]:
        """The keys that it sets, each with its value: a mapping is merged into what is there, key by key."""
        yield from _leaves(self.path, self.value)

    def replacement_of(self, earlier: Override) -> KeyPath | None:
        """The first key by which this one replaces something that ``earlier`` set to another value; None: by none."""
        for mine, value in self.leaves():
            shorthand = _shorthand_of(mine, value)
            kept = [(*mine, key) for key in shorthand.kept] if shorthand else []
            for theirs, before in earlier.leaves():
                named = _shorthand_of(theirs, before)
                key = (*theirs, named.shorthand or "") if named else theirs
                if len(key) > 1 and key[0] == "drafter" and is_superseded(mine, value, str(key[1])):
                    return mine
                stays = any(key[: len(whole)] == whole for whole in kept)
                if _overlap(mine, key) and value != before and not stays:
                    return mine
        return None


def _leaves(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, dict) and value and path not in _WHOLE:
        for key, below in value.items():
            yield from _leaves((*path, key), below)
    else:
        yield path, value


def _overlap(one: KeyPath, other: KeyPath) -> bool:
    length = min(len(one), len(other))
    return one[:length] == other[:length]


def _shorthand_of(path: KeyPath, value: Any) -> type[Section] | None:
    """The section that the text ``value`` stands for as a whole, if it is one."""
    section = section_model(str(path[0])) if len(path) == 1 and isinstance(value, str) else None
    if section is not None and issubclass(section, Section) and section.shorthand is not None:
        return section
    return None


def parse_override(text: str, *, flag: str = "--set") -> Override:
    """Read ``key=value``. The value is YAML; ``1,2,4`` is a list where the key takes one.

    :raises ScenarioError: no ``=``, an empty key, or a value that YAML cannot read.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ScenarioError(
            f"{shorten(repr(text))} is not key=value", where=flag, hint=f"{flag} workload.concurrency=4"
        )
    path = parse_key(key, where=f"{flag} {shorten(key)}")
    return Override(path, parse_value(value, path, where=f"{flag} {dotted(path)}"), f"{flag} {dotted(path)}")


def parse_key(key: str, *, where: str) -> KeyPath:
    """``workload.isl`` -> ("workload", "isl"). Batch sizes of runtime_draft_len are whole numbers."""
    parts: list[str | int] = [part.strip() for part in key.split(".")]
    if not all(parts):
        raise ScenarioError(f"{shorten(repr(key))} has an empty part between its dots", where=where)
    if tuple(parts[:2]) in _WHOLE and len(parts) == 3 and str(parts[2]).isdecimal() and len(str(parts[2])) < 10:
        parts[2] = int(parts[2])
    if tuple(parts[:2]) in (("sweep", "grid"), ("sweep", "zip")) and len(parts) > 2:
        parts[2:] = [".".join(str(part) for part in parts[2:])]
    return tuple(parts)


def parse_value(text: str, path: KeyPath, *, where: str) -> Any:
    """The value that ``text`` stands for at ``path``.

    :raises ScenarioError: YAML cannot read it.
    """
    pieces = split_commas(text)
    if len(pieces) > 1 and takes_list(path):
        return [parse_value(piece, (), where=where) for piece in pieces if piece.strip()]
    try:
        return read_yaml(text).data
    except YamlError as error:
        raise ScenarioError(
            f"the value {shorten(repr(text))} cannot be read: {error.problem}", where=where, hint="put it in quotes"
        ) from None


def split_commas(text: str) -> list[str]:
    """``text`` at its commas, those inside brackets or quotes left alone."""
    pieces, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in _QUOTES and (not pieces[-1].strip() or depth):
            quote = char
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth = max(depth - 1, 0)
        if char == "," and depth == 0 and not quote:
            pieces.append("")
        else:
            pieces[-1] += char
    return pieces


def takes_list(path: KeyPath) -> bool:
    """True where the schema takes a list at ``path``."""
    if path[:2] in (("sweep", "grid"), ("sweep", "zip")) and len(path) == 3:
        return True
    info = field_at(path)
    return info is not None and any(get_origin(item) is tuple for item in _flatten(info.annotation))


def _flatten(annotation: Any) -> list[Any]:
    return [annotation, *(leaf for item in get_args(annotation) for leaf in _flatten(item))]


def expand_shorthand(data: dict[str | int, Any]) -> None:
    """Turn ``model: tiny`` into ``model: {source: tiny}``, so that overrides can reach inside. In place."""
    for key in Scenario.model_fields:
        section = section_model(key)
        if section is None or not issubclass(section, Section):
            continue
        if section.shorthand and isinstance(data.get(key), str):
            data[key] = {section.shorthand: data[key]}
        elif key in data and data[key] is None:
            del data[key]


def apply_overrides(data: dict[str | int, Any], places: Places, overrides: Sequence[Override]) -> None:
    """Apply ``overrides`` in order, in place; later ones win.

    :raises ScenarioError: a key leads through a value that is not a mapping, or exists nowhere.
    """
    named_before = _drafter_of(data).get("name", NO_DRAFTER)
    for override in overrides:
        _require_known(override)
        _set(data, places, override)
        expand_shorthand(data)
    _drop_superseded(_drafter_of(data), named_before, overrides)


def _drafter_of(data: dict[str | int, Any]) -> dict[str, Any]:
    """The section ``drafter`` of ``data``; an empty one where it holds none."""
    found = data.get("drafter")
    return found if isinstance(found, dict) else {}


def _drop_superseded(drafter: dict[str, Any], named_before: Any, overrides: Sequence[Override]) -> None:
    """Drop what the scenario said of a drafter that ``overrides`` have changed; what they say themselves stays."""
    paths = [path for override in overrides for path, _ in override.leaves()]
    own = {str(path[1]) for path in paths if path[0] == "drafter" and len(path) > 1}
    superseding: list[tuple[KeyPath, Any]] = []
    if (name := drafter.get("name", NO_DRAFTER)) != named_before:
        superseding.append((("drafter", "name"), name))
    if "tree" in own:
        superseding.append((("drafter", "tree"), drafter.get("tree")))
    for key in [key for key in drafter if key not in own]:
        if any(is_superseded(path, value, key) for path, value in superseding):
            del drafter[key]


def _require_known(override: Override) -> None:
    """Refuse a path that starts nowhere, with the whole key as the hint; deeper faults are the schema's to name."""
    first = str(override.path[0])
    if first in Scenario.model_fields:
        return
    keys = list(all_keys())
    name = dotted(override.path)
    written = [*keys, *(f"optimizations.{toggle}" for toggle in OPTIMIZATIONS)]
    ends = [key for key in written if key.rsplit(".", 1)[-1] == str(override.path[-1])]
    hint = f"did you mean {' or '.join(ends)}?" if ends else nearest_hint(name, [*keys, *known_keys(())])
    raise ScenarioError(
        f"no such key; top-level keys: {', '.join(Scenario.model_fields)}", where=override.place, hint=hint
    )


def _with_kept(override: Override, before: Any) -> Any:
    """The value to store: a shorthand text takes along what its section keeps."""
    section = _shorthand_of(override.path, override.value)
    if section is None or not isinstance(before, dict):
        return override.value
    kept = {key: before[key] for key in section.kept if key in before}
    return {section.shorthand or "": override.value, **kept}


def _set(data: dict[str | int, Any], places: Places, override: Override) -> None:
    target: Any = data
    for depth, part in enumerate(override.path[:-1]):
        if target.get(part) is None:
            target[part] = {}
            places.replace(override.path[: depth + 1], override.place)
        target = target[part]
        if not isinstance(target, dict):
            raise ScenarioError(
                f"{dotted(override.path[: depth + 1])} holds no keys, so {dotted(override.path)} does not exist",
                where=override.place,
            )
    last = override.path[-1]
    if isinstance(override.value, dict) and isinstance(target.get(last), dict) and override.path not in _WHOLE:
        for key, value in override.value.items():
            _set(data, places, Override((*override.path, key), value, override.place))
        return
    target[last] = _with_kept(override, target.get(last))
    shorthand = _shorthand_of(override.path, override.value)
    places.replace(override.path, override.place, keeping=shorthand.kept if shorthand else ())
