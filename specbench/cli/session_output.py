"""What commands that measure leave: reports in the folder, the result on stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.cli.run_planning import say
from specbench.measure.results_folder import REPORT, ResultsFolder
from specbench.records import Analysis

if TYPE_CHECKING:
    from specbench.report.layout import Report

HTML = "report.html"
POINTS = "points.csv"


def write_reports(path: Path, analysis: Analysis) -> Report:
    """``report.md`` and ``report.html``; for a sweep ``points.csv`` as well.

    :return: what they show.
    :raises StorageError: they could not be written.
    """
    from specbench.report.report import build_report

    report = build_report(analysis)
    write_report(path, report, analysis)
    if analysis.kind == "sweep":
        from specbench.report.formats import csv

        ResultsFolder(path).write(POINTS, csv.render(analysis))
    return report


def write_report(path: Path, report: Report, analysis: Analysis) -> None:
    """``report.md`` as ``report`` has it, and ``report.html`` with the plots of ``analysis``.

    :raises StorageError: they could not be written.
    """
    from specbench.report.formats import html, markdown

    folder = ResultsFolder(path)
    folder.write(REPORT, markdown.render_report(report))
    folder.write(HTML, html.render_report(report, analysis))


def show_result(analysis: Analysis, report: Report, path: Path, *, as_json: bool) -> None:
    """Print the result on stdout: JSON and nothing else, or tables and where everything is.

    :param report: what was built from ``analysis``.
    """
    if as_json:
        from specbench.report.formats import json as json_format

        sys.stdout.write(json_format.render(analysis))
        say(f"results: {path}")
        return
    from specbench.cli.tables import open_console
    from specbench.report.console import print_report

    console = open_console()
    print_report(report, console)
    console.print(f"\nresults: {path}", markup=False, soft_wrap=True)
