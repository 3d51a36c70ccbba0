"""Files of one JSON object a line, which a kill may leave with a torn end."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from specbench import encoding
from specbench.errors import ResultsError

_Record = TypeVar("_Record")


@dataclass(frozen=True)
class Lines(Generic[_Record]):
    """What a file holds: ``records`` of its whole lines ``texts``, and a ``torn`` end, empty where there is none."""

    records: list[_Record]
    texts: list[str]
    torn: str


def read_lines(path: Path, kind: type[_Record]) -> Lines[_Record]:
    """Every whole line of a file as a record of type ``kind``; the file is left as it is.

    :raises ResultsError: a line is damaged, or of a newer schema.
    """
    texts, torn = _split_lines(path)
    return Lines([_parse_line(kind, text, f"{path}:{number}") for number, text in enumerate(texts, 1)], texts, torn)


def _split_lines(path: Path) -> tuple[list[str], str]:
    """Whole lines of a file, and what follows the last newline (or a last line that is no JSON)."""
    if not path.exists():
        return [], ""
    text = path.read_bytes().decode("utf-8", errors="replace")
    *lines, torn = text.split("\n")
    if not torn and lines and not _is_json(lines[-1]):
        torn = lines.pop()
    return lines, torn


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _parse_line(kind: type[_Record], line: str, where: str) -> _Record:
    """One line as a record of type ``kind``.

    :raises ResultsError: it is damaged, or of a newer schema.
    """
    try:
        data = json.loads(line)
    except ValueError as error:
        raise ResultsError(
            f"the line is damaged: {error}",
            where=where,
            hint="this is not what an interrupted run leaves: restore the file",
        ) from error
    return encoding.from_json(kind, data, where)


def set_aside(path: Path, whole: Sequence[str], torn: Sequence[str]) -> None:
    """Move ``torn`` lines to ``<name>.torn``, then leave only ``whole`` ones."""
    with path.with_name(path.name + ".torn").open("a", encoding="utf-8") as aside:
        aside.writelines(line + "\n" for line in torn)
        aside.flush()
        os.fsync(aside.fileno())
    kept = "".join(line + "\n" for line in whole).encode("utf-8")
    if path.read_bytes().startswith(kept):
        os.truncate(path, len(kept))
        return
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(kept)
    os.replace(temporary, path)
