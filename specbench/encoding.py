"""Records as JSON and back: dictionaries, lists and scalars, with a schema version that readers check.

NaN and infinity have no place in a result file: :func:`dumps` raises on them instead of writing what no
reader accepts.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from specbench.errors import ResultsError
from specbench.records import SCHEMA_VERSION, StepTable

_Record = TypeVar("_Record")


def to_json(record: Any) -> Any:
    """Return ``record`` as dictionaries, lists and scalars; field names lose a trailing underscore."""
    if isinstance(record, StepTable):
        return record.columns
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {f.name.rstrip("_"): to_json(getattr(record, f.name)) for f in dataclasses.fields(record)}
    if isinstance(record, Mapping):
        return {str(key): to_json(value) for key, value in record.items()}
    if isinstance(record, Sequence) and not isinstance(record, str):
        return record if _is_flat(record) else [to_json(item) for item in record]
    return record


def dumps(record: Any, *, indent: int | None = None) -> str:
    """Return ``record`` as JSON text: one line, or indented.

    :raises ValueError: a NaN or an infinity is in it, which is a bug in whoever made the record.
    """
    separators = (",", ":") if indent is None else None
    return json.dumps(to_json(record), indent=indent, separators=separators, allow_nan=False, ensure_ascii=False)


def _is_flat(values: Sequence[Any]) -> bool:
    return isinstance(values, list) and all(type(value) in (int, float, str) for value in values)


def from_json(kind: type[_Record], data: Any, where: str = "result") -> _Record:
    """Build a ``kind`` from :func:`to_json`'s form. Unknown keys are ignored.

    :raises ResultsError: a newer schema, a missing key, or a value of the wrong shape.
    """
    if isinstance(data, Mapping):
        check_schema_version(data, where)
    return typing.cast(_Record, _decode(kind, data, where))


def read_object(
    path: Path, *, missing: str = "there is no such file; is this a results folder?", hint: str | None = None
) -> dict[str, Any]:
    """One JSON object of a results folder; NaN and infinity, which no JSON has, are damage.

    :param missing: what to say where there is no such file; ``hint`` what to try then.
    :raises ResultsError: it is not there, damaged, or of a newer schema.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse, parse_float=_parse_finite)
    except FileNotFoundError:
        raise ResultsError(missing, where=str(path), hint=hint) from None
    except (OSError, ValueError) as error:
        raise ResultsError(f"cannot be read: {error}", where=str(path)) from error
    if not isinstance(data, dict):
        raise ResultsError("holds no JSON object", where=str(path))
    check_schema_version(data, str(path))
    return data


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON, so the file is damaged")


def _parse_finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def check_schema_version(data: Mapping[str, Any], where: str) -> None:
    """Refuse what a newer specbench wrote."""
    version = data.get("schema_version", SCHEMA_VERSION)
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise ResultsError(
            f"schema_version {version!r} is newer than this specbench reads ({SCHEMA_VERSION})",
            where=where,
            hint="upgrade specbench: pip install --upgrade specbench",
        )


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode(kind: Any, data: Any, where: str) -> Any:
    if kind is Any:
        return data
    if kind is StepTable:
        return StepTable(_mapping(data, where))
    if dataclasses.is_dataclass(kind):
        return _decode_record(typing.cast(type, kind), _mapping(data, where), where)
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _decode_union(typing.get_args(kind), data, where)
    if origin is dict:
        inner = typing.get_args(kind)[1]
        if inner is Any:
            return _mapping(data, where)
        return {key: _decode(inner, value, f"{where}.{key}") for key, value in _mapping(data, where).items()}
    if origin is list:
        inner, items = typing.get_args(kind)[0], _items(data, where)
        if inner in (int, float, str, bool):
            return items  # thousands of plain numbers
        return [_decode(inner, item, f"{where}[{i}]") for i, item in enumerate(items)]
    if origin is tuple:  # of any length and one kind
        inner = typing.get_args(kind)[0]
        return tuple(_decode(inner, item, f"{where}[{i}]") for i, item in enumerate(_items(data, where)))
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if isinstance(kind, type) and not isinstance(data, kind):
        raise ResultsError(f"expected {kind.__name__}, found {data!r}", where=where)
    return data


def _decode_union(kinds: tuple[Any, ...], data: Any, where: str) -> Any:
    """``data`` as it is where its type is one of ``kinds``, else as the first of them that is built the same way."""
    if data is None or type(data) in kinds:
        return data
    known = [kind for kind in kinds if kind is not type(None)]
    alike = [kind for kind in known if typing.get_origin(kind) is type(data)]
    return _decode((alike or known)[0], data, where)


def _decode_record(kind: type, data: Mapping[str, Any], where: str) -> Any:
    values = {}
    for item in dataclasses.fields(kind):
        key = item.name.rstrip("_")
        if key in data:
            values[item.name] = _decode(_hints(kind)[item.name], data[key], f"{where}.{key}")
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise ResultsError(f"key {key!r} is missing", where=where)
    return kind(**values)


def _mapping(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ResultsError(f"expected an object, found {type(data).__name__}", where=where)
    return data


def _items(data: Any, where: str) -> list[Any]:
    if data is None:  # what had nothing in it was written as null once
        return []
    if not isinstance(data, list):
        raise ResultsError(f"expected a list, found {type(data).__name__}", where=where)
    return data
