"""``specbench export``: results that are there already, in another format."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from specbench.errors import InputError, ResultsError, StorageError
from specbench.measure.results_folder import PLAN, QUESTION, SELFTEST, TRIALS
from specbench.registry import FORMATS
from specbench.report.exporting import render_runs
from specbench.report.reading import ANALYSIS, read_analysis

SUFFIXES = {".csv": "csv", ".md": "markdown", ".json": "json", ".html": "html"}
"""What a file's name says about its format."""
OWN_FILES = (ANALYSIS, TRIALS, PLAN, QUESTION)
"""A folder with one of these holds results."""
REPORT_STEM = "report"
REPORTS = ("markdown", "html")
"""Formats that are read as a page."""


def export_command(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN...", help="Results folders, or analysis.json files.", show_default=False),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="csv, markdown, json or html; else by the name of -o."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there; else, or with -, to stdout.")
    ] = None,
) -> None:
    """Render results again, as CSV, Markdown, JSON or HTML.

    Several results go into one file: CSV rows with a column that names the run, Markdown and HTML one after the other,
    a JSON list. -o replaces a file of that name, but of what a results folder holds only report.*; a pipe or a device
    is written to.
    """
    if not runs:
        raise InputError("no results were named", where="specbench export", hint="specbench export results/NAME")
    name = choose_format(format_, output)
    FORMATS.require(name, where="--format")
    if output is not None and not is_stream(output):
        require_harmless(output)
    text = render(name, runs)
    if output is None or is_stdout(output):
        sys.stdout.write(text)
    else:
        write(output, text)
        print(f"wrote {output}", file=sys.stderr)


def render(name: str, runs: Sequence[Path]) -> str:
    """The results in the format ``name``; of a selftest, the report that it left.

    :raises ResultsError: not results, or a selftest among others.
    """
    selftests = [path for path in runs if os.path.isfile(results_folder(path) / SELFTEST)]
    if not selftests or name not in REPORTS:
        return render_runs(name, [(run_name(path), read_analysis(path)) for path in runs])
    if len(runs) > 1:
        raise ResultsError(
            "a selftest has a report of its own, which is not joined with others",
            where=str(selftests[0]),
            hint=f"specbench export {selftests[0]} --format {name}",
        )
    return render_selftest(runs[0], name)


def render_selftest(path: Path, name: str) -> str:
    """The report of a selftest's folder."""
    from specbench import encoding
    from specbench.cli.selftest_report import build_selftest_report
    from specbench.measure.selftest import SelfTest
    from specbench.report.formats import html, markdown

    file = results_folder(path) / SELFTEST
    analysis = read_analysis(path)
    selftest = encoding.from_json(SelfTest, encoding.read_object(file), str(file))
    report = build_selftest_report(selftest, analysis)
    return html.render_report(report, analysis) if name == "html" else markdown.render_report(report)


def results_folder(path: Path) -> Path:
    """The folder of a result that is named by it, or by the ``analysis.json`` in it."""
    return path.parent if os.path.isfile(path) else path


def choose_format(name: str | None, output: Path | None) -> str:
    """The format that was asked for, or the one that the file's name says.

    :raises InputError: neither says one.
    """
    if name is not None:
        return name
    if output is not None and output.suffix.lower() in SUFFIXES:
        return SUFFIXES[output.suffix.lower()]
    raise InputError(
        "which format is not said",
        where="specbench export",
        hint=f"--format {'|'.join(FORMATS)}, or -o with a name that ends in {', '.join(SUFFIXES)}",
    )


def run_name(path: Path) -> str:
    """What a run is called where there are several: its folder."""
    return results_folder(path).resolve().name


def is_stdout(output: Path) -> bool:
    """True for ``-`` and for every other name of what stdout goes to, as ``/dev/stdout``."""
    if str(output) == "-":
        return True
    try:
        return os.path.samestat(output.stat(), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):  # no such file, or a stdout without a descriptor
        return False


def is_stream(output: Path) -> bool:
    """True for what is written to and never replaced: stdout, pipes, devices.

    It is asked by the name as given: ``/dev/stdout`` resolves to a name that no file has.
    """
    return is_stdout(output) or (os.path.exists(output) and not os.path.isfile(output) and not os.path.isdir(output))


def require_harmless(output: Path) -> None:
    """Refuse to write over what was measured.

    :raises ResultsError: the file lies in a results folder and is no report, is a folder, or its folder is not there.
    """
    if os.path.isdir(output):
        raise ResultsError("is a folder", where=f"-o {output}", hint=f"-o {output / 'report.html'}")
    folder = output.resolve().parent
    if not os.path.isdir(folder):
        raise ResultsError("its folder is not there", where=f"-o {output}", hint=f"mkdir -p {output.parent}")
    holds_results = any(os.path.isfile(folder / name) for name in OWN_FILES)
    if holds_results and output.resolve().stem != REPORT_STEM:
        raise ResultsError(
            "lies in a results folder, whose files are what was measured",
            where=f"-o {output}",
            hint=f"{output.parent / REPORT_STEM}{output.suffix or '.html'}, or a name elsewhere",
        )


def write(output: Path, text: str) -> None:
    """Write whole or not at all: an old file of that name stays until the new one is there. Pipes and devices get the
    text as it comes.

    :raises StorageError: it could not be written.
    """
    temporary = None
    try:
        if is_stream(output):
            with open(os.open(output, os.O_WRONLY), "w", encoding="utf-8", newline="") as stream:
                stream.write(text)
            return
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", newline="", dir=output.resolve().parent, prefix=f".{output.name}-", delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(output.resolve())
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise StorageError(f"could not be written: {error.strerror}", where=f"-o {output}") from error
