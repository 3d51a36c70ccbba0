"""The break-even map of a sweep as sentences, tables and lines to be drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specbench.records import DOES_NOT_PAY, NOT_CLEAR, NOT_COMPARED, PAYS, BreakEven, BreakEvenCell, BreakEvenLine
from specbench.report.layout import MISSING, Block, Cell, Judged, Prose, Quantity, Table
from specbench.report.sweep_plots import SpeedupLine, SpeedupMark
from specbench.report.words import confidence_words, plural, point_words, short_keys, tree_words, value_words

MARKS = {PAYS: "+", DOES_NOT_PAY: "-", NOT_CLEAR: "?", NOT_COMPARED: ""}
TONES = {PAYS: "good", DOES_NOT_PAY: "bad", NOT_CLEAR: "warn", NOT_COMPARED: ""}


def break_even_blocks(found: BreakEven | None) -> tuple[Block, ...]:
    """The answers, the map and its acceptance lengths; or why there is no map."""
    if found is None:
        return ()
    if found.missing is not None:
        return (Prose((found.missing,)),)
    lines = found.lines
    answers = [f"{name_line(line)}: {line.answer}" for line in lines]
    unclear = any(cell.verdict == NOT_CLEAR for line in lines for cell in line.cells)
    more = ["What is not clear takes more rounds: --set measure.repeats=N"] if unclear else []
    return (
        Prose((*answers, *more)),
        _table("Speedup over no speculation, by concurrency", lines, speedup_cell, _note(found)),
        _table("Acceptance length, by concurrency", lines, lambda c: Quantity(c.acceptance_length, decimals=3), ""),
    )


def name_line(line: BreakEvenLine) -> str:
    """``eagle3, K = 4, a tree of 12 nodes (...)``, and what else tells it from the others."""
    parts = (line.drafter, f"K = {line.draft_len}", tree_words(line.tree), point_words(line.axes))
    return ", ".join(part for part in parts if part)


def speedup_cell(cell: BreakEvenCell) -> Cell:
    """``1.32 [1.25, 1.40] +``."""
    if cell.speedup_pct is None:
        return Judged(MISSING)
    return Judged(f"{_ratio_words(cell)} {MARKS[cell.verdict]}", TONES[cell.verdict])


def draw_lines(found: BreakEven) -> list[SpeedupLine]:
    """Speedup against concurrency, for the plot; lines and cells without a figure are left out."""
    lines = []
    for line in found.lines:
        marks = [
            SpeedupMark(
                cell.concurrency,
                _ratio(cell.speedup_pct),
                None if cell.ci_low_pct is None else _ratio(cell.ci_low_pct),
                None if cell.ci_high_pct is None else _ratio(cell.ci_high_pct),
                f"{_ratio_words(cell)}, {cell.verdict}",
                cell.verdict in (PAYS, DOES_NOT_PAY),
            )
            for cell in line.cells
            if cell.speedup_pct is not None
        ]
        if marks:
            lines.append(SpeedupLine(name_line(line), marks))
    return lines


def _ratio(percent: float) -> float:
    return 1 + percent / 100


def _ratio_words(cell: BreakEvenCell) -> str:
    assert cell.speedup_pct is not None
    speedup = f"{_ratio(cell.speedup_pct):.2f}"
    if cell.ci_low_pct is None or cell.ci_high_pct is None:
        return speedup
    return f"{speedup} [{_ratio(cell.ci_low_pct):.2f}, {_ratio(cell.ci_high_pct):.2f}]"


def _table(title: str, lines: Sequence[BreakEvenLine], show: Callable[[BreakEvenCell], Cell], note: str) -> Table:
    """A row a drafter and K, a column a concurrency."""
    concurrencies = sorted({cell.concurrency for line in lines for cell in line.cells})
    axes = short_keys(key for line in lines for key in line.axes)
    rows: list[tuple[Cell, ...]] = []
    for line in lines:
        cells = {cell.concurrency: show(cell) for cell in line.cells}
        own = [value_words(line.axes[key]) if key in line.axes else "" for key in axes]
        names: list[Cell] = [line.drafter, Quantity(line.draft_len, decimals=0), *own]
        rows.append((*names, *(cells.get(concurrency, Judged(MISSING)) for concurrency in concurrencies)))
    header = ("drafter", "K", *axes.values(), *(f"{concurrency:,}" for concurrency in concurrencies))
    return Table(title, header, tuple(rows), note=note, num_keys=2 + len(axes))


def _note(found: BreakEven) -> str:
    cells = [cell for line in found.lines for cell in line.cells]
    rounds = sorted({cell.rounds for cell in cells if cell.rounds})
    counts = (
        f"{rounds[0]} to {plural(rounds[-1], 'round')}" if len(rounds) > 1 else plural(max(rounds, default=0), "round")
    )
    level = confidence_words(found.confidence)
    known = [cell.tokens_identical for cell in cells if cell.tokens_identical is not None]
    tokens = f"; tokens are those of no speculation in {sum(known)} of {plural(len(known), 'cell')}" if known else ""
    together = f"{level} for all {plural(len(cells), 'cell')} together (Holm)"
    return (
        "marks: + pays, - does not, ? not clear; output throughput as a multiple of that of the drafter none at the "
        f"same concurrency; t intervals over {counts}, paired by round, {together}; for these requests, in this "
        f"process{tokens}"
    )
