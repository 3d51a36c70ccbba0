"""From pydantic's errors to issues that say what was found, what is allowed, and the nearest valid name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from specbench.errors import nearest_hint
from specbench.scenario.fields import ALLOWED
from specbench.scenario.places import Issue, describe_value, dotted
from specbench.scenario.schema import Scenario
from specbench.scenario.yaml12 import KeyPath

_NAME_RULE = "letters, digits, dot, dash and underscore, starting with a letter or digit, at most 64"

_ALLOWED_BY_TYPE = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "string_pattern_mismatch": _NAME_RULE,
    "dict_type": "a mapping, key: value",
    "tuple_type": "a list",
    "model_attributes_type": "a mapping, key: value",
}
_TOGGLES_NOW = {"engine.overlap": "overlap"}
"""Keys that scenarios had before their choice became a toggle's."""
_LIMITS = {"greater_than_equal": ("ge", "{:g} or more"), "less_than_equal": ("le", "{} or less")}


def diagnose(error: ValidationError, *, aliases: Mapping[str, str] | None = None, section: KeyPath = ()) -> list[Issue]:
    """One issue for each of pydantic's errors.

    :param section: what was validated, where that was not a whole scenario.
    :param aliases: further names an unknown top-level key may be close to, and what to write for them.
    """
    return [_issue(dict(item), aliases or {}, section) for item in error.errors(include_url=False)]


def field_at(path: KeyPath) -> Any:
    """The pydantic field at ``path``, or None where the schema has no such key."""
    model: type[BaseModel] | None = Scenario
    info = None
    for part in path:
        info = model.model_fields.get(str(part)) if model is not None else None
        if info is None:
            return None
        model = _model_in(info.annotation)
    return info


def section_model(name: str) -> type[BaseModel] | None:
    """The model of a top-level section, or None where ``name`` is none."""
    info = Scenario.model_fields.get(name)
    return _model_in(info.annotation) if info is not None else None


def known_keys(path: KeyPath) -> list[str]:
    """Keys of the section at ``path``; empty where there is no section."""
    if not path:
        return list(Scenario.model_fields)
    info = field_at(path)
    model = _model_in(info.annotation) if info is not None else None
    return list(model.model_fields) if model is not None else []


def all_keys(path: KeyPath = ()) -> Iterator[str]:
    """Every dotted key of the schema, sections left out."""
    for key in known_keys(path):
        below = (*path, key)
        if known_keys(below):
            yield from all_keys(below)
        else:
            yield dotted(below)


def moved_key(key: str) -> str | None:
    """Where what ``key`` once set is set now; None for every other key."""
    return f"optimizations.{_TOGGLES_NOW[key]}" if key in _TOGGLES_NOW else None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        # In Python 3.10 dict[str, int] counts as a type.
        if get_origin(candidate) is None and isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _issue(item: dict[str, Any], aliases: Mapping[str, str], section: KeyPath) -> Issue:
    path: KeyPath = (*section, *item["loc"])
    kind, value = item["type"], item["input"]
    if kind in ("extra_forbidden", "invalid_key"):
        return _moved(path, value) if moved_key(dotted(path)) else _unknown_key(path, aliases)
    if kind == "missing":
        return Issue(path, "is missing, and has no default")
    is_key = bool(path) and path[-1] == "[key]"
    path = path[:-1] if is_key else path
    found = "key " + describe_value(path[-1]) if is_key else describe_value(value)
    what = f"found {found}; allowed: {_allowed(item, path)}"
    return Issue(path, what, _value_hint(item, path))


def _moved(path: KeyPath, value: Any) -> Issue:
    name = _TOGGLES_NOW[dotted(path)]
    what = f"is a toggle now: optimizations.{name}"
    if value in ("on", "off"):
        hint = f"write optimizations: {{{name}: {value}}}; after a flag or in a variant, optimizations.{name}={value}"
        return Issue(path, what, hint)
    return Issue(path, what, "drop it: a toggle that is not named has its production variant on the device")


def _unknown_key(path: KeyPath, aliases: Mapping[str, str]) -> Issue:
    section, key = path[:-1], str(path[-1])
    known = known_keys(section)
    where = f"in {dotted(section)}" if section else "at the top level"
    elsewhere = [full for full in all_keys() if full.rsplit(".", 1)[-1] == key]
    hint = f"did you mean {' or '.join(elsewhere)}?" if elsewhere else nearest_hint(key, known)
    if not section and key in aliases:
        hint = f"write {aliases[key]}"
    return Issue(path, f"no such key {where}; allowed: {', '.join(known)}", hint)


def _allowed(item: dict[str, Any], path: KeyPath) -> str:
    kind, context = item["type"], item.get("ctx") or {}
    if kind == ALLOWED:
        return str(context["allowed"])
    if kind == "literal_error":
        return str(context["expected"]).replace("'", "").replace(" or ", ", ")
    if kind in _LIMITS:
        name, form = _LIMITS[kind]
        return form.format(context[name])
    if kind == "model_type":
        return _section_form(path)
    return _ALLOWED_BY_TYPE.get(kind, str(item["msg"]))


def _section_form(path: KeyPath) -> str:
    info = field_at(path)
    section = _model_in(info.annotation) if info is not None else Scenario
    if section is None:
        return "a mapping, key: value"
    form = f"a mapping with keys of {', '.join(section.model_fields)}"
    shorthand = getattr(section, "shorthand", None)
    return f"text, short for {{{shorthand}: ...}}, or {form}" if shorthand else form


def _value_hint(item: dict[str, Any], path: KeyPath) -> str | None:
    kind, value = item["type"], item["input"]
    if kind == "literal_error" and isinstance(value, str):
        return nearest_hint(value, [part.strip() for part in _allowed(item, path).split(",")])
    if kind == "string_type" and not isinstance(value, (list, dict)) and value is not None:
        return "put it in quotes"
    return None
