"""Every format, compared with a file that was read by a person; and what the formats promise."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from comparison_sample import AB, BREAK_EVEN, COMPARED, DRAFTER, FASTER, MAP, SWEEP
from rich.console import Console
from sample import ANALYSIS, BARE, INVALID, POINT, TREE

from specbench import encoding, load_results
from specbench.records import Analysis, Gate, Point
from specbench.registry import FORMATS
from specbench.report.console import fit, print_report
from specbench.report.facts import setup_facts
from specbench.report.formats import csv as csv_format
from specbench.report.formats import json as json_format
from specbench.report.formats import markdown
from specbench.report.layout import Quantity, Span, Table
from specbench.report.point_tables import point_tables
from specbench.report.report import build_report
from specbench.report.sweep import wide_table

Golden = Callable[[str, str], None]
RUNS = {"run": ANALYSIS, "tree": TREE, "invalid": INVALID, "bare": BARE}
SAMPLES = {**RUNS, **COMPARED}
BY_BATCH = replace(POINT, runtime_draft_len={"2": 4, "8": 1})


def on_console(analysis: Analysis, width: int) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False, color_system=None)
    print_report(build_report(analysis), console)
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", RUNS)
def test_console(golden: Golden, name: str, width: int) -> None:
    golden(f"{name}-{width}.txt", on_console(SAMPLES[name], width))


@pytest.mark.parametrize("name", COMPARED)
def test_console_of_comparisons_and_sweeps(golden: Golden, name: str) -> None:
    golden(f"{name}-80.txt", on_console(SAMPLES[name], 80))


@pytest.mark.parametrize("width", [56, 64, 80, 120])
@pytest.mark.parametrize("name", SAMPLES)
def test_no_line_is_longer_than_the_terminal_and_no_number_is_cut(name: str, width: int) -> None:
    text = on_console(SAMPLES[name], width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    wide = set(re.findall(r"\d[\d.,]*\d", on_console(SAMPLES[name], 400)))
    assert wide <= set(re.findall(r"\d[\d.,]*\d", text))


@pytest.mark.parametrize("name", SAMPLES)
def test_markdown(golden: Golden, name: str) -> None:
    golden(f"{name}.md", markdown.render(SAMPLES[name]))


@pytest.mark.parametrize("name", [*RUNS, "ab", "ab-mixed", "sweep", "break-even"])
def test_csv(golden: Golden, name: str) -> None:
    golden(f"{name}.csv", csv_format.render(SAMPLES[name]))


def test_json(golden: Golden) -> None:
    golden("run.json", json_format.render(ANALYSIS))


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_every_registered_format_renders_every_result(kind: str, name: str) -> None:
    text = FORMATS.load(kind)(SAMPLES[name])
    assert text.endswith("\n")
    assert re.search(r"\bnan\b", text, re.IGNORECASE) is None
    assert "None" not in text
    if kind != "csv" or SAMPLES[name].points or SAMPLES[name].comparisons:
        assert SAMPLES[name].label in text  # the content label is on every report


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
    assert len(set(csv_format.columns())) == len(csv_format.columns())
    headers = {csv_format.render(analysis).splitlines()[0] for analysis in SAMPLES.values()}
    assert len(headers) == 1  # so that files can be joined


def test_csv_and_frames_tell_heads_and_trees_apart(tmp_path: Path) -> None:
    tree = TREE.points[0]
    several = replace(TREE, points=[tree, replace(tree, point=1, draft_model="/heads/mine", tree={})])
    first, second = csv.DictReader(io.StringIO(csv_format.render(several)))
    assert json.loads(first["tree"]) == {"top_k": 4, "depth": 4, "num_nodes": 12}
    assert (second["tree"], second["draft_model"]) == ("", "/heads/mine")
    (tmp_path / "analysis.json").write_text(json_format.render(several))
    frame = load_results(tmp_path).points
    assert frame["draft_model"].tolist() == ["smollm2-135m-eagle3", "/heads/mine"]
    assert frame["tree"].tolist() == [first["tree"], ""]


SPECULATING = [
    ("eagle3", "smollm2-135m-eagle3", {"top_k": 4, "depth": 4, "num_nodes": 12}, None),
    ("eagle3", "/heads/mine", {}, None),
    ("ngram+mtp", "smollm2-135m-mtp", {}, (2, 5)),
    ("none", None, {}, None),
]


def drafting_points() -> list[Point]:
    return [
        replace(
            POINT, point=i, variant=f"v{i}", drafter=name, draft_model=head, tree=tree, min_ngram=low, max_ngram=high
        )
        for i, (name, head, tree, lookup) in enumerate(SPECULATING)
        for low, high in [lookup or (None, None)]
    ]


@pytest.mark.parametrize("kind", ["ab", "sweep"])
def test_the_setup_of_several_drafters_names_their_heads_trees_and_lookups(kind: str) -> None:
    sample = {"ab": AB, "sweep": SWEEP}[kind]
    differs = replace(DRAFTER, baseline="none", candidate="eagle3")
    compared = [replace(item, differences=[differs]) for item in sample.comparisons]
    axes = [{"drafter.name": point.drafter} for point in drafting_points()] if kind == "sweep" else [{}] * 4
    points = [replace(point, axes=own) for point, own in zip(drafting_points(), axes, strict=True)]
    analysis = replace(sample, comparisons=compared, points=points)
    assert dict(setup_facts(analysis))["drafter"] == (
        "eagle3, smollm2-135m-eagle3, a tree of 12 nodes (top_k 4, depth 4); eagle3, /heads/mine; "
        "ngram+mtp, smollm2-135m-mtp, looks up 2 to 5 tokens"
    )


def test_the_setup_of_one_drafter_names_the_head_that_was_found() -> None:
    scenario = {"drafter": {"name": "eagle3", "draft_len": 4, "tree": TREE.points[0].tree, "model": None}}
    told = dict(setup_facts(replace(SWEEP, scenario=scenario, points=TREE.points)))["drafter"]
    assert told == "eagle3, smollm2-135m-eagle3, K = 4, a tree of 12 nodes (top_k 4, depth 4)"
    mine = replace(TREE.points[0], point=1, draft_model="/heads/mine", axes={"drafter.model": "/heads/mine"})
    told = dict(setup_facts(replace(SWEEP, scenario=scenario, points=[*TREE.points, mine])))["drafter"]
    assert told == (
        "eagle3, K = 4, a tree of 12 nodes (top_k 4, depth 4); "
        "eagle3, smollm2-135m-eagle3, a tree of 12 nodes (top_k 4, depth 4); "
        "eagle3, /heads/mine, a tree of 12 nodes (top_k 4, depth 4)"
    )


def test_the_table_of_arms_tells_trees_and_heads_apart_where_they_differ() -> None:
    table = wide_table(drafting_points())
    assert table.header[:5] == ("variant", "concurrency", "draft_len", "draft_model", "tree")
    assert [row[3:5] for row in table.texts()] == [
        ["smollm2-135m-eagle3", "12 nodes (top_k 4, depth 4)"],
        ["/heads/mine", ""],
        ["smollm2-135m-mtp", ""],
        ["", ""],
    ]
    assert wide_table([POINT, replace(POINT, point=1)]).header[:2] == ("concurrency", "draft_len")


def test_a_break_even_line_names_its_tree_and_its_row_the_head() -> None:
    tree = TREE.points[0].tree
    lines = [*MAP.lines[:3], replace(MAP.lines[3], tree=tree, draft_model="smollm2-135m-eagle3")]
    analysis = replace(BREAK_EVEN, break_even=replace(MAP, lines=lines))
    assert "eagle3, K = 4, a tree of 12 nodes (top_k 4, depth 4): " in on_console(analysis, 200)
    rows = [row for row in csv_format.rows(analysis) if row["row"] == "break-even" and row["drafter"] == "eagle3"]
    assert json.loads(rows[0]["tree"]) == tree
    assert rows[0]["draft_model"] == "smollm2-135m-eagle3"


def test_a_length_below_the_joint_rates_says_why_and_another_does_not() -> None:
    why = "1 + the joint rates come to 4.000: a request's last step ends at its output cap or stop token"
    point = TREE.points[0]
    for shown, told in ((point, True), (replace(point, acceptance_length=4.0), False), (POINT, False)):
        notes = "".join(table.note for table in point_tables(shown))
        assert (why in notes) is told
        assert "above a step's K" not in notes
    by_batch = replace(point, runtime_draft_len={"2": 4, "8": 1})
    assert "nor are those above a step's K" in "".join(table.note for table in point_tables(by_batch))


def test_csv_has_one_row_a_comparison_after_the_points() -> None:
    both = replace(COMPARED["ab-mixed"], points=[POINT])
    rows = list(csv.DictReader(io.StringIO(csv_format.render(both))))
    assert [row["row"] for row in rows] == ["point", *["comparison"] * 4]
    assert [row["verdict"] for row in rows] == ["", "INVALID", "INCONCLUSIVE", "FASTER", "FASTER"]
    assert rows[0]["speedup_pct"] == rows[1]["output_tokens_per_s"] == ""
    assert rows[1]["reasons"].startswith("tokens differ")
    assert json.loads(rows[3]["differences"]) == {"drafter.name": ["none", "ngram"], "drafter.draft_len": [0, 4]}
    parts = [float(rows[1][f"{name}_log_points"] or 0) for name in csv_format.PARTS]
    assert sum(parts) == pytest.approx(sum(FASTER.decomposition.values()))


@pytest.mark.parametrize("name", [*RUNS, "sweep", "ab", "ab-mixed", "ab-invalid"])
def test_csv_says_of_every_row_whether_it_is_valid(name: str) -> None:
    analysis = SAMPLES[name]
    for row in csv.DictReader(io.StringIO(csv_format.render(analysis))):
        if row["row"] == "comparison":
            assert (row["validity"] == "INVALID") == (row["verdict"] == "INVALID")
        else:
            assert row["validity"] == ("valid" if analysis.is_valid else "INVALID")


def test_csv_of_arms_condemns_those_of_invalid_comparisons_and_all_where_the_whole_failed() -> None:
    first, second = AB.comparisons[0], COMPARED["ab-invalid"].comparisons[0]
    points = [replace(POINT, point=index) for index in range(4)]
    failed = [Gate(second.gates[0].name, "fail", "of the second comparison")]
    both = replace(
        AB, points=points, gates=failed,
        comparisons=[
            replace(first, baseline_index=0, candidate_index=1, gates=second.gates),
            replace(second, baseline_index=2, candidate_index=3),
        ],
    )  # fmt: skip

    def validity(analysis: Analysis) -> list[str]:
        return [row["validity"] for row in csv.DictReader(io.StringIO(csv_format.render(analysis)))]

    assert validity(both) == ["valid", "valid", "INVALID", "INVALID", "valid", "INVALID"]
    whole = replace(both, gates=[Gate("complete", "fail", "nothing counts")])
    assert validity(whole)[:4] == ["INVALID"] * 4


def test_csv_has_k_by_batch_size() -> None:
    rows = csv.DictReader(io.StringIO(csv_format.render(replace(ANALYSIS, points=[BY_BATCH, POINT]))))
    assert [row["runtime_draft_len"] for row in rows] == ['{"2": 4, "8": 1}', ""]


def test_k_by_batch_size_is_written_out_and_not_its_largest() -> None:
    words = "4 up to batch 2, 1 up to batch 8"
    run = replace(ANALYSIS, points=[BY_BATCH])
    assert f"ngram, K = {words}, strict" in markdown.render(run).replace("\\", "")
    two = wide_table([BY_BATCH, replace(POINT, point=1)])
    assert [row[:2] for row in two.rows] == [(Quantity(4, decimals=0), words), (Quantity(4, decimals=0),) * 2]
    drafter = {"name": "ngram", "draft_len": 4, "runtime_draft_len": {8: 1, 2: 4}}
    told = replace(AB, scenario={**AB.scenario, "drafter": drafter})
    assert dict(setup_facts(told))["drafter"] == f"ngram, K = {words}, strict acceptance"


def test_csv_keeps_the_coordinates_of_a_sweep() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_format.render(SWEEP))))
    assert json.loads(rows[1]["axes"]) == {"workload.concurrency": 2, "drafter.draft_len": 2}
    assert [row["status"] for row in rows].count("failed") == 1
    assert rows[-1]["error"].startswith("the KV cache")
    compared = csv.DictReader(io.StringIO(csv_format.render(COMPARED["ab-sweep"])))
    assert [json.loads(row["axes"])["workload.concurrency"] for row in compared] == [1, 2, 4, 8]


def test_csv_has_one_row_a_cell_of_a_break_even_map() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_format.render(COMPARED["break-even"]))))
    assert [row["row"] for row in rows] == ["point"] * 15 + ["break-even"] * 12
    cells = rows[15:]
    assert [(row["drafter"], row["draft_len"], row["concurrency"]) for row in cells[2:4]] == [
        ("ngram", "2", "16"),
        ("ngram", "4", "1"),
    ]
    assert [row["verdict"] for row in cells[:3]] == ["pays", "not clear", "does not pay"]
    assert float(cells[0]["ci_low_pct"]) < float(cells[0]["speedup_pct"]) < float(cells[0]["ci_high_pct"])
    assert (cells[0]["n_units"], cells[0]["baseline"], cells[0]["acceptance_length"]) == ("5", "none", "1.89")
    assert (cells[-1]["verdict"], cells[-1]["speedup_pct"], cells[-1]["n_units"]) == ("not compared", "", "0")
    for row in cells[:-1]:
        point, baseline = rows[int(row["point"])], next(r for r in rows if r["concurrency"] == row["concurrency"])
        assert point["output_tokens_per_s"] == row["candidate_tokens_per_s"]
        assert baseline["drafter"] == "none"
        assert baseline["output_tokens_per_s"] == row["baseline_tokens_per_s"]


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
        "Ranges", "Counted by toggles", "Gates: 2 warn, 2 pass, 1 n/a", "Environment", "Definitions",
    ]  # fmt: skip
    for position, line in enumerate(lines):
        if line.startswith("<details>"):
            assert lines[position + 1] == ""  # without it GitHub shows the table as text


def test_many_sections_are_folded_with_their_verdict() -> None:
    many = [replace(FASTER, index=i, point={"workload.concurrency": i}) for i in range(7)]
    text = markdown.render(replace(COMPARED["ab"], comparisons=many))
    assert "<details><summary>on against off, concurrency 3: FASTER: +1.23% (95% interval" in text
    assert text.count("</details>") == text.count("<details>")
    assert "7 sections more are in the Markdown and HTML reports" in on_console(
        replace(COMPARED["ab"], comparisons=many), 80
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_markdown_tables_have_as_many_cells_in_every_row(name: str) -> None:
    cells = [len(re.split(r"(?<!\\)\|", line)) for line in markdown.render(SAMPLES[name]).splitlines()]
    for before, after in pairwise(cells):
        assert 1 in (before, after) or before == after


def test_an_invalid_result_says_so_first() -> None:
    assert markdown.render(INVALID).splitlines()[2].startswith("**INVALID: ")
    assert "INVALID: requests: 1 of 160 failed" in on_console(INVALID, 200)


def test_several_points_have_a_section_each() -> None:
    two = replace(ANALYSIS, points=[POINT, replace(POINT, point=1, concurrency=8)])
    text = markdown.render(two)
    assert "#### concurrency 4, draft\\_len 4" in text
    assert "#### concurrency 8, draft\\_len 4" in text
    assert "(first of 2 points)" in text


def test_a_table_too_wide_for_the_terminal_is_split_and_its_rows_are_named_again() -> None:
    header = ("", "words", *(f"position {i}" for i in range(12)))
    row = ("conditional", "some words", *(Quantity(i / 2, decimals=3) for i in range(12)))
    parts = fit(Table("Rates", header, (row,), num_keys=2, note="a note"), 64)
    assert len(parts) > 2
    assert [name for part in parts for name in part.header[2:]] == list(header[2:])
    assert all(part.rows[0][:2] == row[:2] for part in parts)
    assert [part.note for part in parts] == [""] * (len(parts) - 1) + ["a note"]
    assert fit(Table("Rates", header, (row,)), 400) == [Table("Rates", header, (row,))]


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
    assert Quantity(3.0, decimals=1, signed=True).number == "+3.0"
    assert (Span(-1.0, 2.0, 1).number, Span(None, 2.0, 1).number) == ("-1.0 to +2.0", "-")
