"""JSON Lines as people hand them over: every mistake is a :class:`WorkloadError` that names file and line.

Accepted: UTF-8 with or without a byte order mark, blank lines, Windows line ends. Keys nobody asks for are
left alone, since data sets carry references, sources and the like.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from specbench.errors import WorkloadError

MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_ID_LENGTH = 200
MAX_SHOWN = 40  # characters of a value in an error message
MAX_KEYS_SHOWN = 12
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Row:
    """One line's object; the getters check types and say where a value is wrong."""

    path: Path
    line: int
    values: Mapping[str, object]

    def error(self, what: str, *, hint: str | None = None) -> WorkloadError:
        """Return the error for something wrong in this row."""
        return WorkloadError(what, where=f"{self.path}:{self.line}", hint=hint)

    def describe_keys(self) -> str:
        """Name the keys this row has, for an error message."""
        keys = [repr(key[:MAX_SHOWN]) for key in list(self.values)[:MAX_KEYS_SHOWN]]
        more = ", ..." if len(self.values) > MAX_KEYS_SHOWN else ""
        return f"found the keys {', '.join(keys)}{more}" if keys else "found no keys"

    def text(self, key: str) -> str:
        """Return the text under ``key``."""
        return self.as_text(self.values.get(key), key)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the list of texts under ``key``, at least one."""
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self.error(f"{key!r} must be a list of texts, found {describe(value)}")
        if not value:
            raise self.error(f"{key!r} is an empty list")
        return tuple(self.as_text(text, f"{key}[{index}]") for index, text in enumerate(value))

    def as_text(self, value: object, name: str) -> str:
        """Return ``value`` if it is text that a tokenizer can take and that says something."""
        if not isinstance(value, str):
            raise self.error(f"{name!r} must be text, found {describe(value)}")
        if not value.strip():
            raise self.error(f"{name!r} is blank")
        if not is_encodable(value):
            raise self.error(f"{name!r} has half a surrogate pair, which is no text")
        return value

    def identifier(self, *keys: str) -> str | None:
        """Return the first of ``keys`` that is there, a text or an integer, as text; None without any."""
        key = next((key for key in keys if self.values.get(key) is not None), None)
        if key is None:
            return None
        value = self.values[key]
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        text = self.as_text(value, key)
        if len(text) > MAX_ID_LENGTH:
            raise self.error(f"{key!r} has {len(text)} characters; an id may have {MAX_ID_LENGTH}")
        return text

    def count(self, key: str) -> int | None:
        """Return the positive integer under ``key``, or None where there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(f"{key!r} must be a positive integer, found {describe(value)}")
        return value


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the objects of a JSON Lines file, with their line numbers.

    :raises WorkloadError: no such file, no rows in it, or a line that is not a JSON object.
    """
    empty = True
    try:
        with path.open("rb") as handle:
            number = 0
            while raw := handle.readline(MAX_LINE_BYTES + 1):
                number += 1
                raw = raw.removeprefix(_BYTE_ORDER_MARK) if number == 1 else raw
                if raw.strip():
                    empty = False
                    yield Row(path, number, _parse(raw, f"{path}:{number}"))
    except FileNotFoundError as error:
        raise WorkloadError("no such file", where=str(path), hint="check workload.path") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise WorkloadError(f"cannot read this file: {reason}", where=str(path)) from error
    if empty:
        raise WorkloadError("the file is empty", where=str(path), hint='one JSON object a line: {"prompt": "..."}')


def _parse(raw: bytes, where: str) -> Mapping[str, object]:
    if len(raw) > MAX_LINE_BYTES:
        raise WorkloadError(
            f"the line is longer than {MAX_LINE_BYTES // 2**20} MiB",
            where=where,
            hint="one JSON object a line",
        )
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise WorkloadError(f"not UTF-8 (byte {error.start + 1} of the line)", where=where) from error
    except json.JSONDecodeError as error:
        hint = "one object a line, not one list over the whole file" if raw.lstrip()[:1] == b"[" else None
        raise WorkloadError(f"not JSON: {error.msg} at column {error.colno}", where=where, hint=hint) from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, endless nesting
        raise WorkloadError(f"not usable JSON: {error}", where=where) from error
    if not isinstance(value, dict):
        raise WorkloadError(f"expected a JSON object, found {describe(value)}", where=where)
    return value


def is_encodable(text: str) -> bool:
    """False for text with half a surrogate pair (JSON and YAML can spell one), which no tokenizer takes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def describe(value: object) -> str:
    """Name a JSON value for an error message: kind, and the value where it is short."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {value}" if abs(value) < 10**15 else "a very large number"
    if isinstance(value, str):
        return f"the text {value[:MAX_SHOWN]!r}" + ("..." if len(value) > MAX_SHOWN else "")
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "an object"
