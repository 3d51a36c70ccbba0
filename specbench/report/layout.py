"""What a report is made of, whatever format shows it: quantities with units, tables, facts, sentences, gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specbench.records import Gate

NOT_MEASURED = "not measured"
MISSING = "-"
NUM_SHOWN_SECTIONS = 6
"""With more points or comparisons than this, a terminal shows the table of all of them alone."""


@dataclass(frozen=True)
class Quantity:
    """One number with its unit; ``value`` None was not measured. ``signed`` shows a plus as well."""

    value: float | None
    unit: str = ""
    decimals: int | None = None
    signed: bool = False

    @property
    def number(self) -> str:
        """The number alone: given decimals, or about four figures."""
        if self.value is None:
            return MISSING
        size = abs(self.value)
        about_four = 1 if size >= 100 else 2 if size >= 1 else 3
        decimals = about_four if self.decimals is None else self.decimals
        return f"{self.value:{'+' if self.signed else ''},.{decimals}f}"

    @property
    def text(self) -> str:
        """Number and unit."""
        if self.value is None:
            return NOT_MEASURED
        return f"{self.number} {self.unit}".rstrip()


@dataclass(frozen=True)
class Span:
    """An interval, both ends with a sign unless not ``signed``; an end that is None was not computed."""

    low: float | None
    high: float | None
    decimals: int
    signed: bool = True

    @property
    def number(self) -> str:
        """``+0.95 to +1.52``."""
        if self.low is None or self.high is None:
            return MISSING
        form = f"{'+' if self.signed else ''},.{self.decimals}f"
        return f"{self.low:{form}} to {self.high:{form}}"


@dataclass(frozen=True)
class Word:
    """A word with a colour: ``good``, ``bad``, ``warn``, ``calm`` or none."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Judged:
    """Figures and their mark, coloured as a :class:`Word` is, in a column of numbers: it is never folded."""

    text: str
    tone: str = ""


Cell = Quantity | Span | Word | Judged | str


def cell_text(cell: Cell) -> str:
    """A cell without its unit."""
    if isinstance(cell, str):
        return cell
    return cell.text if isinstance(cell, Word | Judged) else cell.number


@dataclass(frozen=True)
class Table:
    """Rows under a header. The first ``num_keys`` columns name the row; ``unit`` holds for every quantity.

    Without a heading of its own (``header[0]`` empty) the first column carries the title. ``folded`` tables are
    evidence: Markdown and HTML fold them.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    unit: str = ""
    note: str = ""
    num_keys: int = 1
    folded: bool = False

    @property
    def heading(self) -> str:
        """Title and unit."""
        return f"{self.title} [{self.unit}]" if self.unit else self.title

    @property
    def is_titled_apart(self) -> bool:
        """True when the title stands above the table, since the first column has a heading of its own."""
        return bool(self.header[0])

    def texts(self) -> list[list[str]]:
        """Cells as text; the unit is the table's."""
        return [[cell_text(cell) for cell in row] for row in self.rows]

    def is_words(self, column: int) -> bool:
        """True for a column without a number."""
        return all(isinstance(row[column], str | Word) for row in self.rows)


@dataclass(frozen=True)
class Facts:
    """Names and what is to be said of each, a line apiece."""

    pairs: tuple[tuple[str, str], ...]
    title: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Prose:
    """Sentences, a line apiece; ``tone`` as that of a :class:`Word`."""

    lines: tuple[str, ...]
    tone: str = ""


@dataclass(frozen=True)
class GateList:
    """Gates, most serious first. ``brief``: a terminal shows those alone that are to be read."""

    gates: tuple[Gate, ...]
    brief: bool = False


Block = Table | Facts | Prose | GateList


@dataclass(frozen=True)
class Section:
    """Everything about one point, one comparison, or all of them together.

    :param headline: the answer in one line, coloured by ``tone``.
    :param anchor: what its plots are filed under (``comparison-0``, ``point-3``, ``overview``).
    :param is_detail: left out on a terminal and folded elsewhere, where it would bury the rest.
    :param folded: evidence as a whole.
    """

    title: str
    blocks: tuple[Block, ...]
    headline: str = ""
    tone: str = ""
    anchor: str = ""
    is_detail: bool = False
    folded: bool = False


@dataclass(frozen=True)
class Report:
    """One result, ready to be rendered.

    :param headline: the answer in one line, with the label of the content.
    :param verdict: ``valid``, ``interrupted``, ``INVALID`` or (of a selftest) ``FAIL``; ``alerts`` says why, most
        serious first.
    :param tone: colour of the headline.
    :param defects: known defects that stood, a line each; before every alert, and in red whatever the verdict.
    """

    title: str
    headline: str
    label: str
    verdict: str
    alerts: tuple[str, ...]
    sections: tuple[Section, ...]
    gates: tuple[Gate, ...]
    environment: tuple[tuple[str, str], ...]
    command: str | None = None
    definitions: tuple[tuple[str, str], ...] = field(default=())
    tone: str = ""
    defects: tuple[str, ...] = ()

    @property
    def is_unusable(self) -> bool:
        """True for verdicts that are shouted: INVALID, FAIL."""
        return self.verdict.isupper()


GATE_ORDER = ("fail", "warn", "pass", "n/a")


def sort_gates(gates: Sequence[Gate]) -> tuple[Gate, ...]:
    """Most serious first, else in their own order."""
    return tuple(sorted(gates, key=lambda gate: GATE_ORDER.index(gate.status)))


def count_gates(gates: Sequence[Gate]) -> str:
    """``2 warn, 9 pass, 3 n/a``: only what occurs."""
    counts = ((status, sum(gate.status == status for gate in gates)) for status in GATE_ORDER)
    return ", ".join(f"{count} {status}" for status, count in counts if count)
