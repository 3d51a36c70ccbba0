"""A report on a terminal: tables that fit 80 columns, colour only where there is a terminal."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from specbench.records import Gate
from specbench.report.report import Report, Section, Table, count_gates

NAME_WIDTH = 16
"""Least width of the first column, so that short tables line up."""
STATUS_STYLE = {"pass": "green", "warn": "yellow", "fail": "bold red", "n/a": "dim"}


def print_report(report: Report, console: Console) -> None:
    """Print the whole report; what is no terminal gets no padding at the ends of lines."""
    if console.is_terminal:
        console.print(render_report(report))
        return
    with console.capture() as captured:
        console.print(render_report(report))
    console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def render_report(report: Report) -> RenderableType:
    """The report as one renderable."""
    parts: list[RenderableType] = [Text(""), _title(report)]
    parts += [Text(alert, style="bold red" if report.verdict == "INVALID" else "yellow") for alert in report.alerts]
    parts += [_pairs(report.facts), Text("")]
    for section in report.sections:
        parts.extend(_section(section))
    parts += [_gates(report.gates), Text(""), _pairs(report.definitions, "dim")]
    return Group(*parts)


def _title(report: Report) -> Text:
    style = "bold red" if report.verdict == "INVALID" else "bold"
    return Text.assemble((report.title, style), "  ", report.headline)


def _pairs(pairs: tuple[tuple[str, str], ...], style: str = "") -> RichTable:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(style=style, overflow="fold")
    for name, text in pairs:
        grid.add_row(escape(name), escape(text))
    return grid


def _section(section: Section) -> list[RenderableType]:
    title: list[RenderableType] = [Text(section.title, style="bold underline")] if section.title else []
    return [*title, *(_table(table) for table in section.tables)]


def _table(table: Table) -> RenderableType:
    rich = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    rich.add_column(Text(table.heading, style="bold not dim"), min_width=NAME_WIDTH, no_wrap=True)
    for column in range(1, len(table.header)):
        words = table.is_words(column)
        rich.add_column(escape(table.header[column]), justify="left" if words else "right", no_wrap=not words)
    for name, *cells in table.texts():
        rich.add_row(f"  {escape(name)}", *(escape(cell) for cell in cells))
    note: list[RenderableType] = [Text(f"  {table.note}")] if table.note else []
    return Group(rich, *note, Text(""))


def _gates(gates: tuple[Gate, ...]) -> RenderableType:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for gate in gates:
        status = Text(gate.status, style=STATUS_STYLE.get(gate.status, ""))
        grid.add_row(status, escape(gate.name), escape(gate.detail))
    return Group(Text.assemble(("Gates", "bold"), f"  {count_gates(gates)}"), Padding(grid, (0, 0, 0, 2)))
