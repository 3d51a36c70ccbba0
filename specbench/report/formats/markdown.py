"""A report to paste into a pull request: the answer first, the evidence folded below it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from specbench.records import Analysis
from specbench.report.report import Report, Section, Table, build_report, count_gates


def render(analysis: Analysis) -> str:
    """The analysis as GitHub-flavoured Markdown."""
    return render_report(build_report(analysis))


def render_report(report: Report) -> str:
    """A report as GitHub-flavoured Markdown, with a newline at its end."""
    blocks = [f"### specbench {_plain(report.title)}", _headline(report)]
    blocks += [f"> **{_plain(alert)}**" for alert in report.alerts]
    blocks.append(_list(report.facts))
    for section in report.sections:
        blocks.extend(_section(section))
    rows = [(gate.status, gate.name, gate.detail) for gate in report.gates]
    gates = _grid(("status", "gate", "figure"), (True, True, True), rows)
    blocks.append(_folded(f"Gates: {count_gates(report.gates)}", gates))
    if report.command:
        blocks.append(_fenced(report.command))
    blocks.append(_folded("Environment", _list(report.environment)))
    blocks.append(_folded("Definitions", _list(report.definitions)))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _headline(report: Report) -> str:
    prefix = "" if report.verdict == "valid" else f"{report.verdict}: "
    return f"**{_plain(prefix + report.headline)}**"


def _section(section: Section) -> list[str]:
    title = [f"#### {_plain(section.title)}"] if section.title else []
    folded = [table for table in section.tables if table.title == "Ranges"]
    shown = [table for table in section.tables if table.title != "Ranges"]
    return [
        *title,
        *(_table(table) for table in shown),
        *(_folded(table.title, _table_rows(table)) for table in folded),
    ]


def _table(table: Table) -> str:
    note = f"\n\n{_plain(table.note)}" if table.note else ""
    return f"{_table_rows(table)}{note}"


def _table_rows(table: Table) -> str:
    header = (table.heading, *table.header[1:])
    words = [column == 0 or table.is_words(column) for column in range(len(header))]
    return _grid(header, words, table.texts())


def _grid(header: Sequence[str], words: Sequence[bool], rows: Iterable[Sequence[str]]) -> str:
    rules = [":--" if left else "--:" for left in words]
    lines = [[_plain(cell) for cell in line] for line in (header, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rules, *lines[1:]))


def _list(pairs: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- {_plain(name)}: {_plain(text)}" for name, text in pairs)


def _folded(summary: str, body: str) -> str:
    # GitHub renders Markdown inside <details> only with an empty line after the summary.
    return f"<details><summary>{_plain(summary)}</summary>\n\n{body}\n\n</details>" if body else ""


def _fenced(code: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{code}\n{fence}"


def _plain(text: str) -> str:
    """Text that Markdown and HTML leave as it is, on one line."""
    text = " ".join(text.split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_|\[\]])", r"\\\1", text)
