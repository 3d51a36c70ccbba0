"""``looks.jsonl``: what was seen when a comparison was looked at, on disk before anything follows from it."""

from __future__ import annotations

import os
from pathlib import Path

from specbench import encoding
from specbench.measure.json_lines import read_lines, set_aside
from specbench.measure.results_folder import not_stored
from specbench.records import LookRecord

LOOKS = "looks.jsonl"


def read_looks(folder: Path) -> list[LookRecord]:
    """The looks of a folder in order; a torn last line is set aside: the look is taken again, from the same units.

    :raises ResultsError: a line is damaged, or of a newer schema.
    """
    path = folder / LOOKS
    found = read_lines(path, LookRecord)
    if found.torn:
        set_aside(path, found.texts, [found.torn])
    return found.records


def append_look(folder: Path, look: LookRecord) -> None:
    """Write one look and sync it.

    :raises StorageError: it could not be written.
    """
    path = folder / LOOKS
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(encoding.dumps(look) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise not_stored(path, error) from error
