"""One HTML file with plots inside: no script, no network, readable in dark and in light and on a telephone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from specbench.records import Analysis
from specbench.report.figures import Figure, draw_figures
from specbench.report.layout import Facts, GateList, Judged, Prose, Report, Table, Word, cell_text, count_gates
from specbench.report.report import build_report

TEMPLATE = "report.html.j2"
NUM_OPEN_SECTIONS = 4
"""With more sections than this, all but the first lines of each are folded."""


def render(analysis: Analysis) -> str:
    """The analysis as one HTML page, with a newline at its end."""
    return render_report(build_report(analysis), analysis)


def render_report(report: Report, analysis: Analysis) -> str:
    """A report as one page, with the plots of the analysis that it was built from."""
    return _page([_document(0, "", report, analysis)])


def render_several(runs: Sequence[tuple[str, Analysis]]) -> str:
    """Several results on one page, each under the name of its run."""
    return _page([_document(i, name, build_report(analysis), analysis) for i, (name, analysis) in enumerate(runs)])


def _page(documents: Sequence[dict[str, Any]]) -> str:
    titles = [document["report"].title for document in documents]
    return _template().render(documents=documents, title=titles[0] if len(titles) == 1 else f"{len(titles)} results")


def _document(number: int, name: str, report: Report, analysis: Analysis) -> dict[str, Any]:
    figures = {
        anchor: [(figure.caption, "broad" if figure.is_broad else "", _drawn(figure)) for figure in found]
        for anchor, found in draw_figures(analysis).items()
    }
    titled = sum(bool(section.title and section.anchor) for section in report.sections)
    return {
        "name": name,
        "prefix": f"r{number}-",
        "report": report,
        "figures": figures,
        "fold": titled > NUM_OPEN_SECTIONS,
    }


def _drawn(figure: Figure) -> list[Markup]:
    # Built by report.svg, which escapes every word it is given.
    return [Markup(drawing) for drawing in figure.drawings]


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(cell=cell_text, count_gates=count_gates, tone=_tone)
    environment.tests.update({"a_table": _is(Table), "facts": _is(Facts), "prose": _is(Prose), "gates": _is(GateList)})
    source = resources.files("specbench.report.formats").joinpath(TEMPLATE).read_text(encoding="utf-8")
    return environment.from_string(source)


def _is(kind: type) -> Any:
    return lambda value: isinstance(value, kind)


def _tone(cell: Any) -> str:
    return cell.tone if isinstance(cell, Word | Judged) else ""
