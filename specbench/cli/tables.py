"""Printing for people and for programs: a table on a terminal, aligned plain lines elsewhere, or JSON alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specbench.engine.optimizations.defects import KNOWN_DEFECT

if TYPE_CHECKING:
    from rich.console import Console

NARROWEST = 64
"""Columns that every table can be folded or split into without cutting a number."""
STYLES = {"ok": "green", "warn": "yellow", "missing": "red", KNOWN_DEFECT: "bold red"}
"""Colours of status words on a terminal."""


def print_json(value: Any) -> None:
    """Write ``value`` to stdout as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_comment(line: str) -> None:
    """Write a line of text as a comment of YAML, in red on a terminal."""
    if not sys.stdout.isatty():
        print(f"# {line}")
        return
    from rich.text import Text

    open_console().print(Text(f"# {line}", style="bold red"), soft_wrap=True)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write ``rows`` under ``headers``; rich is imported for a terminal only."""
    if sys.stdout.isatty():
        _print_rich(headers, rows)
        return
    widths = [max(len(line[column]) for line in (headers, *rows)) for column in range(len(headers))]
    for line in (headers, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_rich(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, header in enumerate(headers):
        # Names stay whole, so that they can be copied.
        table.add_column(header, overflow="fold", no_wrap=column == 0)
    for row in rows:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    open_console().print(table)


def open_console() -> Console:
    """A console on stdout for tables. Imports rich.

    It is :data:`NARROWEST` columns wide at least: in less, rich would cut digits off without a sign, and a wrapped line
    is only ugly.
    A closed pipe is left to ``app.main``, where rich would end the process with a code of its own.
    """
    from rich.console import Console

    class TableConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    console = TableConsole(highlight=False)
    console.width = max(console.width, NARROWEST)
    return console
