"""A report to paste into a pull request: the answer first, the evidence folded below it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from specbench.records import Analysis, Gate
from specbench.report.layout import Block, Facts, Prose, Report, Section, Table, count_gates
from specbench.report.report import build_report


def render(analysis: Analysis) -> str:
    """The analysis as GitHub-flavoured Markdown."""
    return render_report(build_report(analysis))


def render_several(runs: Sequence[tuple[str, Analysis]]) -> str:
    """Several results, one after the other, each under the name of its run."""
    return "\n---\n\n".join(f"## {_plain(name)}\n\n{render(analysis)}" for name, analysis in runs)


def render_report(report: Report) -> str:
    """A report as GitHub-flavoured Markdown, with a newline at its end."""
    blocks = [f"### specbench {_plain(report.title)}", f"**{_plain(report.headline)}**"]
    if report.defects:
        # GitHub shows such a quotation in red.
        blocks.append("\n".join(["> [!CAUTION]", *(f"> - **{_plain(defect)}**" for defect in report.defects)]))
    blocks += [f"> **{_plain(alert)}**" for alert in report.alerts]
    for section in report.sections:
        blocks.extend(_section(section))
    if report.gates:
        blocks.append(_gates(report.gates))
    if report.command:
        blocks.append(_fenced(report.command))
    blocks.append(_folded("Environment", _list(report.environment)))
    blocks.append(_folded("Definitions", _list(report.definitions)))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _section(section: Section) -> list[str]:
    blocks = [_block(block) for block in section.blocks]
    headline = [f"**{_plain(section.headline)}**"] if section.headline else []
    if section.folded or section.is_detail:
        summary = ": ".join(text for text in (section.title, section.headline) if text)
        return [_folded(summary, "\n\n".join(block for block in blocks if block))]
    return [*([f"#### {_plain(section.title)}"] if section.title else []), *headline, *blocks]


def _block(block: Block) -> str:
    if isinstance(block, Table):
        return _folded(block.title, _table(block)) if block.folded else _titled_table(block)
    if isinstance(block, Facts):
        if block.folded:
            return _folded(block.title, _list(block.pairs))
        title = f"{_plain(block.title)}\n\n" if block.title else ""
        return f"{title}{_list(block.pairs)}"
    if isinstance(block, Prose):
        lines = (f"**{_plain(line)}**" if block.tone == "bad" else _plain(line) for line in block.lines)
        return "\n".join(f"- {line}" for line in lines)
    return _gates(block.gates)


def _gates(gates: Sequence[Gate]) -> str:
    rows = [(gate.status, gate.name, gate.detail) for gate in gates]
    return _folded(f"Gates: {count_gates(gates)}", _grid(("status", "gate", "figure"), (True, True, True), rows))


def _titled_table(table: Table) -> str:
    return f"{_plain(table.heading)}\n\n{_table(table)}" if table.is_titled_apart else _table(table)


def _table(table: Table) -> str:
    header = table.header if table.is_titled_apart else (table.heading, *table.header[1:])
    words = [table.is_words(column) for column in range(len(header))]
    words[0] = words[0] or not table.is_titled_apart
    note = f"\n\n{_plain(table.note)}" if table.note else ""
    return f"{_grid(header, words, table.texts())}{note}"


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
    return re.sub(r"([\\`*_|~\[\]])", r"\\\1", text)
