"""Every format, compared with a file that was read by a person; and what the formats promise."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console
from sample import ANALYSIS, BARE, INVALID, POINT

from specbench import encoding
from specbench.records import Analysis, Gate
from specbench.registry import FORMATS
from specbench.report.console import print_report
from specbench.report.formats import csv as csv_format
from specbench.report.formats import json as json_format
from specbench.report.formats import markdown
from specbench.report.report import Quantity, build_report

Golden = Callable[[str, str], None]
SAMPLES = {"run": ANALYSIS, "invalid": INVALID, "bare": BARE}


def on_console(analysis: Analysis, width: int) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False, color_system=None)
    print_report(build_report(analysis), console)
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", SAMPLES)
def test_console(golden: Golden, name: str, width: int) -> None:
    text = on_console(SAMPLES[name], width)
    assert max(map(len, text.splitlines())) <= width
    golden(f"{name}-{width}.txt", text)


@pytest.mark.parametrize("name", SAMPLES)
def test_markdown(golden: Golden, name: str) -> None:
    golden(f"{name}.md", markdown.render(SAMPLES[name]))


@pytest.mark.parametrize("name", SAMPLES)
def test_csv(golden: Golden, name: str) -> None:
    golden(f"{name}.csv", csv_format.render(SAMPLES[name]))


def test_json(golden: Golden) -> None:
    golden("run.json", json_format.render(ANALYSIS))


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_every_registered_format_renders_every_result(kind: str, name: str) -> None:
    text = FORMATS.load(kind)(SAMPLES[name])
    assert text.endswith("\n")
    assert SAMPLES[name].label in text  # the content label is on every report
    assert re.search(r"\bnan\b", text, re.IGNORECASE) is None
    assert "None" not in text


@pytest.mark.parametrize("name", SAMPLES)
def test_json_comes_back_as_it_was(name: str) -> None:
    text = json_format.render(SAMPLES[name])
    assert encoding.from_json(Analysis, json.loads(text)) == SAMPLES[name]


def test_csv_has_one_row_a_point_and_stable_columns() -> None:
    two = replace(ANALYSIS, points=[POINT, replace(POINT, point=1, concurrency=8, ttft_ms=None)])
    rows = list(csv.DictReader(io.StringIO(csv_format.render(two))))
    assert [row["concurrency"] for row in rows] == ["4", "8"]
    assert [row["ttft_ms_p90"] for row in rows] == ["90.04", ""]  # not measured is empty, not 0
    assert rows[0]["conditional_acceptance"] == "0.5512;0.6033;0.7101;"
    assert list(rows[0]) == csv_format.columns()
    assert csv_format.render(BARE).splitlines()[0] == csv_format.render(ANALYSIS).splitlines()[0]


def test_markdown_leaves_nothing_for_the_renderer_to_mistake() -> None:
    nasty = replace(
        ANALYSIS,
        scenario={"name": "a|b <script>`x`"},
        gates=[Gate("requests", "fail", "prompt [0] | says </details>\nand *more*")],
        command="specbench run 'a```b'",
    )
    text = markdown.render(nasty)
    assert "<script>" not in text
    assert text.count("</details>") == text.count("<details>")
    assert r"a\|b &lt;script&gt;\`x\`" in text
    row = next(line for line in text.splitlines() if line.startswith("| fail"))
    assert row == r"| fail | requests | prompt \[0\] \| says &lt;/details&gt; and \*more\* |"
    assert "````sh\nspecbench run 'a```b'\n````" in text


def test_markdown_puts_the_answer_first_and_folds_the_rest() -> None:
    lines = markdown.render(ANALYSIS).splitlines()
    assert lines[0] == "### specbench run: quickstart"
    assert lines[2] == "**123.2 tok/s at concurrency 4, acceptance length 2.17; natural**"
    summaries = [line for line in lines if line.startswith("<details>")]
    assert [line.split("summary>")[1].split("<")[0] for line in summaries] == [
        "Ranges", "Gates: 2 warn, 2 pass, 1 n/a", "Environment", "Definitions",
    ]  # fmt: skip
    for position, line in enumerate(lines):
        if line.startswith("<details>"):
            assert lines[position + 1] == ""  # without it GitHub shows the table as text


def test_an_invalid_result_says_so_first() -> None:
    assert markdown.render(INVALID).splitlines()[2].startswith("**INVALID: ")
    assert "INVALID: requests: 1 of 160 failed" in on_console(INVALID, 200)


def test_several_points_have_a_section_each() -> None:
    two = replace(ANALYSIS, points=[POINT, replace(POINT, point=1, concurrency=8)])
    text = markdown.render(two)
    assert "#### base, concurrency 4, K = 4" in text
    assert "#### base, concurrency 8, K = 4" in text
    assert "(first of 2 points)" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.01234, "0.012"),
        (1.234, "1.23"),
        (99.99, "99.99"),
        (100.04, "100.0"),
        (12345.6, "12,345.6"),
        (0, "0.000"),
        (None, "-"),
    ],
)
def test_quantities_keep_about_four_figures(value: float | None, text: str) -> None:
    assert Quantity(value).number == text


def test_a_quantity_without_a_value_says_so() -> None:
    assert Quantity(None, "tok/s").text == "not measured"
    assert Quantity(3.0, "tok/s", 1).text == "3.0 tok/s"
