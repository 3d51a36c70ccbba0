"""From a file, overrides and a variant to a :class:`Scenario`, or to one error that lists what is wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specbench.errors import ScenarioError, nearest_hint
from specbench.registry import OPTIMIZATIONS
from specbench.scenario.conflicts import find_conflicts
from specbench.scenario.diagnosis import diagnose
from specbench.scenario.masking import NAMES_OF_FILES
from specbench.scenario.overrides import Override, apply_overrides, expand_shorthand, parse_override
from specbench.scenario.places import Places, describe_value, dotted, raise_issues
from specbench.scenario.schema import Scenario
from specbench.scenario.variants import naming, variant_overrides
from specbench.scenario.yaml12 import MAX_BYTES, YamlError, read_yaml, to_plain


def load_scenario(
    path: str | Path,
    overrides: Sequence[str] = (),
    variant: str | None = None,
    *,
    allow_shadowed: bool = False,
) -> Scenario:
    """Read, change and check a scenario. ``overrides`` change the file, ``variant`` goes on top of them.

    :param overrides: ``key=value`` texts, as after ``--set``.
    :param variant: a variant, as after ``--variant``.
    :param allow_shadowed: let the variant replace a key that ``overrides`` set (another arm may still use it).
    :raises ScenarioError: anything that is wrong, several problems in one message.
    :raises InputError: a single problem of another class, such as a device this machine lacks.
    """
    return open_scenario(path, overrides).with_variant(variant, allow_shadowed=allow_shadowed)


@dataclass(frozen=True)
class ScenarioFile:
    """A scenario file that was read once, to be changed many times: by points of a sweep, by arms.

    :param base: as it stands, ``overrides`` applied; ``data`` the same before defaults.
    """

    path: Path
    base: Scenario
    data: dict[str | int, Any]
    overrides: tuple[Override, ...]

    def with_variant(self, variant: str | None, *, allow_shadowed: bool = False) -> Scenario:
        """The scenario with a variant on top, if there is one; see :func:`load_scenario`.

        :raises InputError: no such variant, or what is wrong with it.
        """
        if variant is None:
            return self.base
        changes = variant_overrides(variant, self.base)
        if not allow_shadowed:
            _refuse_shadowed(self.overrides, changes, variant)
        with naming(variant):
            return self.changed(changes)

    def named_variant(self, name: str) -> Scenario:
        """A variant that the scenario names, applied, whatever of ``overrides`` it replaces.

        :raises InputError: what is wrong with it.
        """
        with naming(name, "variant"):
            return self.changed(variant_overrides(name, self.base))

    def changed(self, overrides: Sequence[Override], *, drop: Sequence[str] = ()) -> Scenario:
        """The scenario with ``overrides`` on top, checked, its defaults still open.

        :param drop: top-level keys to leave out.
        :raises InputError: what is wrong then.
        """
        data: dict[str | int, Any] = to_plain({key: value for key, value in self.data.items() if key not in drop})
        places = self.base.places.copy()
        apply_overrides(data, places, overrides)
        return _validate(data, places, self.path)


def open_scenario(path: str | Path, overrides: Sequence[str] = ()) -> ScenarioFile:
    """Read a scenario file, apply ``key=value`` texts and check it.

    :raises InputError: anything that is wrong.
    """
    path = Path(path)
    data, places = _read_mapping(path)
    expand_shorthand(data)
    changes = [parse_override(text) for text in overrides]
    apply_overrides(data, places, changes)
    return ScenarioFile(path, _validate(data, places, path), data, tuple(changes))


def read_scenario_text(path: Path) -> str:
    """The file as text.

    :raises ScenarioError: it is missing, a folder, too large, binary or not UTF-8.
    """
    if os.path.isdir(path):
        raise ScenarioError("is a folder, not a scenario file", where=str(path), hint=_files_hint(path))
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ScenarioError(
            f"cannot be read: {reason}", where=_printable(str(path)), hint=_missing_hint(path)
        ) from None
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ScenarioError("is UTF-16 text", where=str(path), hint="save it as UTF-8")
    if b"\0" in raw:
        raise ScenarioError("is a binary file, not YAML", where=str(path))
    if len(raw) > MAX_BYTES:
        raise ScenarioError(f"larger than {MAX_BYTES // 1024} KiB, which no scenario needs to be", where=str(path))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        where = f"{path}:{line}"
        raise ScenarioError(
            f"byte 0x{raw[error.start]:02x} is not UTF-8", where=where, hint="save it as UTF-8"
        ) from None


def _read_mapping(path: Path) -> tuple[dict[str | int, Any], Places]:
    try:
        document = read_yaml(read_scenario_text(path))
    except YamlError as error:
        raise ScenarioError(error.problem, where=f"{path}:{error.line}") from None
    if document.data is None:
        raise ScenarioError("is empty", where=str(path), hint="start from scenarios/quickstart.yaml")
    if not isinstance(document.data, dict):
        raise ScenarioError(
            f"found {describe_value(document.data)}; allowed: a mapping with keys of "
            f"{', '.join(Scenario.model_fields)}",
            where=f"{path}:1",
        )
    by_path = {key: f"{path}:{line}" for key, line in document.lines.items() if key}
    return document.data, Places(str(path), by_path)


def _validate(data: dict[str | int, Any], places: Places, path: Path) -> Scenario:
    complete: dict[str | int, Any] = to_plain(data)
    complete.setdefault("name", None)
    if complete["name"] is None:
        complete["name"] = _name_from(path)
    for key in NAMES_OF_FILES:
        _locate(complete, key, path.parent)
    aliases = {name: f"optimizations.{name}" for name in OPTIMIZATIONS}
    try:
        scenario = Scenario.model_validate(complete)
    except ValidationError as error:
        raise_issues(diagnose(error, aliases=aliases), places, str(path))
        raise
    scenario.with_places(places)
    raise_issues(find_conflicts(scenario), places, str(path))
    return scenario


def _locate(data: dict[str | int, Any], key: tuple[str, str], folder: Path) -> None:
    """Rewrite a relative file name that stands beside the scenario so that it holds from the current folder."""
    section = data.get(key[0])
    name = section.get(key[1]) if isinstance(section, dict) else None
    if not isinstance(name, str) or not name or os.path.isabs(name):
        return
    beside = os.path.normpath(os.path.join(folder, name))
    if not isinstance(section, dict) or not os.path.exists(beside):
        return
    inside = os.path.relpath(beside)
    section[key[1]] = os.path.abspath(beside) if inside.startswith("..") else inside


def _name_from(path: Path) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).lstrip("._-")[:64]
    return cleaned or "scenario"


def _refuse_shadowed(changes: Sequence[Override], variant: Sequence[Override], name: str) -> None:
    for change in changes:
        for override in variant:
            if (replaced := override.replacement_of(change)) is not None:
                raise ScenarioError(
                    f"has no effect: the variant {name!r} sets {dotted(replaced)} as well",
                    where=change.place,
                    hint="drop one of the two",
                )


def _missing_hint(path: Path) -> str | None:
    for candidate in (path.with_suffix(".yaml"), Path("scenarios") / f"{path.stem}.yaml"):
        if candidate != path and os.path.isfile(candidate):
            return str(candidate)
    return _files_hint(path.parent, path.name)


def _files_hint(folder: Path, name: str | None = None) -> str | None:
    try:
        names = sorted(entry for entry in os.listdir(folder) if entry.endswith((".yaml", ".yml")))
    except (OSError, ValueError):
        return None
    if name is not None:
        return nearest_hint(name, names)
    return f"one of its files: {', '.join(names[:5])}" if names else None


def _printable(text: str) -> str:
    return text if text.isprintable() else repr(text)
