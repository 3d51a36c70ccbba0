"""A report on a terminal: tables that fit its width, colour only where there is a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from specbench.records import Gate
from specbench.report.layout import (
    Block,
    Cell,
    Facts,
    GateList,
    Judged,
    Prose,
    Report,
    Section,
    Table,
    Word,
    cell_text,
    count_gates,
)

NAME_WIDTH = 16
"""Least width of the first column, so that short tables line up."""
GAP = 2
WORD_WIDTH = 16
"""A column of words may be folded to this before a table is split."""
STATUS_STYLE = {"pass": "green", "warn": "yellow", "fail": "bold red", "n/a": "dim"}
TONE_STYLE = {"good": "green", "bad": "bold red", "warn": "yellow", "calm": "cyan"}


def print_report(report: Report, console: Console) -> None:
    """Print the whole report; what is no terminal gets no padding at the ends of lines."""
    if console.is_terminal:
        console.print(render_report(report, console.width))
        return
    with console.capture() as captured:
        console.print(render_report(report, console.width))
    console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def render_report(report: Report, width: int = 80) -> RenderableType:
    """The report as one renderable whose tables fit ``width`` columns."""
    parts: list[RenderableType] = [Text(""), _title(report)]
    parts += [Text(defect, style="bold red") for defect in report.defects]
    parts += [Text(alert, style="bold red" if report.is_unusable else "yellow") for alert in report.alerts]
    shown = [section for section in report.sections if not section.is_detail]
    if shown and shown[0].blocks and not isinstance(shown[0].blocks[0], Facts):
        parts.append(Text(""))
    for section in shown:
        parts.extend(_section(section, width))
    if left_out := sum(section.is_detail for section in report.sections):
        more = "one section more is" if left_out == 1 else f"{left_out} sections more are"
        parts += [Text(f"{more} in the Markdown and HTML reports", style="dim"), Text("")]
    if report.gates:
        parts += [_gates(GateList(report.gates)), Text("")]
    parts.append(_pairs(report.definitions, "dim"))
    return Group(*parts)


def _title(report: Report) -> Text:
    style = TONE_STYLE.get(report.tone, "bold")
    return Text.assemble((report.title, "bold red" if report.is_unusable or report.defects else "bold"), "  ").append(
        report.headline, style if report.tone else ""
    )


def _pairs(pairs: tuple[tuple[str, str], ...], style: str = "") -> RichTable:
    grid = RichTable.grid(padding=(0, GAP))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(style=style, overflow="fold")
    for name, text in pairs:
        grid.add_row(escape(name), escape(text))
    return grid


def _section(section: Section, width: int) -> Iterator[RenderableType]:
    if section.title:
        yield Text(section.title, style="bold underline")
    if section.headline:
        yield Text(section.headline, style=TONE_STYLE.get(section.tone, "bold"))
    for block in section.blocks:
        yield from _block(block, width)


def _block(block: Block, width: int) -> Iterator[RenderableType]:
    if isinstance(block, Table):
        yield from (_table(part) for part in fit(block, width))
    elif isinstance(block, Facts):
        if block.title:
            yield Text(block.title, style="bold")
        yield Group(Padding(_pairs(block.pairs), (0, 0, 0, GAP if block.title else 0)), Text(""))
    elif isinstance(block, Prose):
        yield Group(_bullets(block), Text(""))
    else:
        yield Group(_gates(block), Text(""))


def _bullets(prose: Prose) -> RichTable:
    grid = RichTable.grid(padding=(0, 1))
    for line in prose.lines:
        grid.add_row("-", Text(line, style=TONE_STYLE.get(prose.tone, "")))
    return grid


def _table(table: Table) -> RenderableType:
    apart = table.is_titled_apart
    rich = RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    for column, name in enumerate(table.header):
        words = table.is_words(column)
        header = Text(f"  {name}" if apart else table.heading, style="" if apart else "bold not dim")
        if column == 0:
            width = 0 if apart else NAME_WIDTH
            rich.add_column(header, min_width=width, no_wrap=not apart or not words, overflow="fold")
        else:
            rich.add_column(escape(name), justify="left" if words else "right", no_wrap=not words, overflow="fold")
    for first, *cells in table.rows:
        rich.add_row(Padding(_cell(first), (0, 0, 0, GAP)), *(_cell(cell) for cell in cells))
    title: list[RenderableType] = [Text(table.heading, style="bold")] if apart else []
    note: list[RenderableType] = [Padding(Text(table.note), (0, 0, 0, GAP))] if table.note else []
    return Group(*title, rich, *note, Text(""))


def _cell(cell: Cell) -> Text:
    return Text(cell_text(cell), style=TONE_STYLE.get(cell.tone, "") if isinstance(cell, Word | Judged) else "")


def fit(table: Table, width: int) -> list[Table]:
    """The table, or where its numbers would not fit, several that repeat the columns that name the row."""
    widths = _least_widths(table)
    if not table.is_titled_apart and sum(widths) + GAP * (len(widths) - 1) > width:
        table = replace(table, header=(" ", *table.header[1:]))  # its title, above it, takes no column's room
        widths = _least_widths(table)
    keys = list(range(table.num_keys))
    groups: list[list[int]] = [[]]
    used = start = sum(widths[column] + GAP for column in keys)
    for column in range(table.num_keys, len(table.header)):
        if groups[-1] and used + widths[column] > width:
            groups.append([])
            used = start
        groups[-1].append(column)
        used += widths[column] + GAP
    parts = [_columns(table, [*keys, *group]) for group in groups]
    return [replace(part, note=table.note if part is parts[-1] else "") for part in parts]


def _least_widths(table: Table) -> list[int]:
    """What each column needs: numbers whole, words folded, the first column with its indent."""
    columns: Sequence[Sequence[str]] = list(zip(table.header, *table.texts(), strict=True))
    widths = [max(map(len, column)) for column in columns]
    widths = [min(size, WORD_WIDTH) if table.is_words(i) else size for i, size in enumerate(widths)]
    if table.is_titled_apart:
        return [widths[0] + GAP, *widths[1:]]
    return [max(NAME_WIDTH, len(table.heading), max(map(len, columns[0])) + GAP), *widths[1:]]


def _columns(table: Table, columns: Sequence[int]) -> Table:
    return replace(
        table,
        header=tuple(table.header[column] for column in columns),
        rows=tuple(tuple(row[column] for column in columns) for row in table.rows),
    )


def _gates(block: GateList) -> RenderableType:
    gates: Sequence[Gate] = [gate for gate in block.gates if not block.brief or gate.status in ("fail", "warn")]
    grid = RichTable.grid(padding=(0, GAP))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for gate in gates:
        status = Text(gate.status, style=STATUS_STYLE.get(gate.status, ""))
        grid.add_row(status, escape(gate.name), escape(gate.detail))
    return Group(Text.assemble(("Gates", "bold"), f"  {count_gates(block.gates)}"), Padding(grid, (0, 0, 0, GAP)))
