"""What a report of comparisons says, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from comparison_sample import (
    AB,
    AB_INVALID,
    AB_MIXED,
    AB_SWEEP,
    BREAK_EVEN,
    EACH,
    FASTER,
    INCONCLUSIVE,
    INTERRUPTED,
    INVALID_ARM,
    MAP,
    NGRAM,
    NO_MAP,
    OUTPUT_CHANGED,
    SIMULATED,
    SWEEP,
)
from sample import POINT

from specbench.records import Analysis, Difference, Gate, RangeEffect
from specbench.report.break_even import break_even_blocks
from specbench.report.comparison import comparison_blocks, evidence, tokens_words, verdict_line
from specbench.report.comparison_summary import pays_table, summary_table
from specbench.report.facts import setup_facts
from specbench.report.formats import csv, html, markdown
from specbench.report.layout import Block, Facts, Judged, Prose, Table, cell_text
from specbench.report.report import build_report
from specbench.report.sweep import sweep_headline, wide_table
from specbench.report.words import duration_words, effect_decimals, p_words, percent, plural, point_words, short_keys


def table(blocks: Sequence[Block], title: str) -> Table:
    return next(block for block in blocks if isinstance(block, Table) and block.title.startswith(title))


def facts(blocks: Sequence[Block]) -> dict[str, str]:
    return {name: words for block in blocks if isinstance(block, Facts) for name, words in block.pairs}


def blocks_of(analysis: Analysis) -> list[Block]:
    return [block for section in build_report(analysis).sections for block in section.blocks]


@pytest.mark.parametrize(
    ("comparison", "line"),
    [
        (FASTER, "FASTER: +1.23% (95% interval +0.95% to +1.52%), margin 0.5%"),
        (INCONCLUSIVE, "INCONCLUSIVE: +0.31% (95% interval -0.22% to +0.84%), margin 0.5%"),
        (INVALID_ARM, "INVALID: no claim; measured: +1.23% (95% interval +0.95% to +1.52%)"),
        (OUTPUT_CHANGED, "OUTPUT CHANGED: FASTER: +45.3% (95% interval +38.9% to +52.0%), margin 0.5%"),
        (
            INTERRUPTED.comparisons[0],
            "INCONCLUSIVE: +0.700% (interval not computed), margin 0.5%",
        ),
        (replace(FASTER, speedup_pct=None), "FASTER: no effect was computed, margin 0.5%"),
        (
            replace(FASTER, confidence=0.975, alpha=0.025),
            "FASTER: +1.23% (97.5% interval +0.95% to +1.52%), margin 0.5%",
        ),
        (replace(FASTER, alpha=0.01), "FASTER: +1.23% (99% interval +0.95% to +1.52%), margin 0.5%"),
    ],
)
def test_the_verdict_line(comparison: object, line: str) -> None:
    assert verdict_line(comparison) == line  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bounds", "decimals"),
    [
        ((0.95, 1.52), 2),
        ((38.9, 51.9), 1),
        ((-80.0, 400.0), 1),
        ((0.0101, 0.0349), 3),
        ((0.004, 1.2), 3),  # an end that is not 0 does not read as 0
        ((0.00001, 1.2), 4),
        ((None, None), 2),
        ((0.412,), 3),
    ],
)
def test_digits_follow_the_interval(bounds: tuple[float | None, ...], decimals: int) -> None:
    assert effect_decimals(*bounds) == decimals


def test_figures_in_words() -> None:
    assert [p_words(p) for p in (0.0499, 0.00004, 1.0, None)] == ["0.0499", "< 0.0001", "1", "not computed"]
    assert percent(None) == "not computed"
    assert [plural(1, "process"), plural(4, "process"), plural(1024, "unit")] == [
        "1 process",
        "4 processes",
        "1,024 units",
    ]
    assert short_keys(["a.b", "c.b", "c.d"]) == {"a.b": "a.b", "c.b": "c.b", "c.d": "d"}


def test_the_answer_and_every_difference_come_first() -> None:
    report = build_report(
        replace(AB, comparisons=[replace(FASTER, differences=[*FASTER.differences, *NGRAM.differences])])
    )
    assert report.headline == "FASTER: +1.23% (95% interval +0.95% to +1.52%), margin 0.5%; natural"
    first = report.sections[0].blocks
    assert [type(block) for block in first] == [Prose, Table, Table, Facts]
    assert first[0] == Prose(tuple(FASTER.in_words))
    assert [row[0] for row in table(first, "What differs").texts()] == [
        "optimizations.sampling_params", "drafter.name", "drafter.draft_len",
    ]  # fmt: skip
    assert table(first, "What differs").texts()[0] == [
        "optimizations.sampling_params", "refill", "signature", "bit-identical, step-preserving",
    ]  # fmt: skip


def test_a_comparison_says_how_it_was_measured() -> None:
    said = facts(comparison_blocks(NGRAM))
    assert said["design"] == "runs: drafter.name changes shapes"
    assert said["units"] == "8 units of 8 planned, in 4 processes, 114.0 s; 4.2 a minute"
    assert said["speaks of"] == "4 fresh processes"
    assert said["content"] == "natural, tokens differ"
    said = facts(comparison_blocks(replace(INCONCLUSIVE, alpha=0.0125, p_holm=0.48)))
    assert said["could see"] == "an effect of 0.770% or more; the margin needs about 212 units in all"
    assert said["decided at"] == "look 5 of 5; alpha 0.0125 after correction"
    assert said["p of no effect"] == "0.24, Holm 0.48"
    assert said["sign test"] == "38 units up, 2 down, p < 0.0001"
    assert said["noise"] == "sd 0.652% a unit, 1 outlier (kept), lag-1 +0.08 (limit 0.32)"
    assert said["not computed"] == "device: what the device executes is not known here"
    apart = replace(FASTER, second_line={**FASTER.second_line, "sums_disagree": True})
    assert "units are not alike" in facts(comparison_blocks(apart))["ratio of sums"]


def test_tokens_in_words() -> None:
    assert tokens_words(FASTER).startswith("identical (bit-identical")
    assert tokens_words(INVALID_ARM).startswith(
        "differ: first in request c3/t0 at output token 17: id 1234 in the baseline, id 4321 in the candidate; "
        "logit margin 0.0312"
    )
    assert "the end in the candidate" in tokens_words(NGRAM)
    assert tokens_words(replace(FASTER, tokens_identical=None, token_rule="")) == "not compared"
    assert tokens_words(replace(FASTER, tokens_identical=False, token_rule="")) == "differ"


def test_parts_add_up_to_the_sum_that_is_shown() -> None:
    shown = table(comparison_blocks(FASTER), "Where it comes from").texts()
    *parts, whole = [float(row[1]) for row in shown]
    assert whole == pytest.approx(sum(parts), abs=0.002)
    assert whole == pytest.approx(1.227, abs=0.001)  # 100 ln(1.012345)
    assert shown[-1][2] == "+0.947 to +1.507"  # the interval of the effect, in log points
    assert shown[0][2] == "-"  # not computed is no interval


def test_ranges_have_their_own_effects() -> None:
    rows = table(comparison_blocks(FASTER), "Ranges").texts()
    assert rows[0] == ["prepare_inputs", "512.3", "316.5", "-38.2", "-40.0 to -36.4", "8.1"]
    assert rows[2][0] == "device_step (device)"


def test_next_to_none_of_a_range_in_the_baseline_has_no_change_in_older_results_either() -> None:
    draft = RangeEffect(42_429.33, None, None, 37.76, 16_057.5, 0.1, "device")
    rows = table(comparison_blocks(replace(FASTER, ranges={"draft": draft})), "Ranges").texts()
    assert rows == [["draft (device)", "37.76", "16,057.5", "-", "-", "0.1"]]
    more = replace(draft, baseline_us=160.6, delta_pct=9898.4)
    rows = table(comparison_blocks(replace(FASTER, ranges={"draft": more})), "Ranges").texts()
    assert rows[0][3] == "+9,898.40"


def test_nothing_differs_between_equal_arms() -> None:
    equal = replace(FASTER, differences=[], role="A/A")
    assert Prose(("Nothing differs between the arms.",)) in comparison_blocks(equal)
    assert build_report(replace(AB, comparisons=[equal, equal])).sections[2].title == "A/A: on against off"


def test_several_comparisons_begin_with_a_table_and_the_pooled_effect() -> None:
    report = build_report(AB_SWEEP)
    assert report.headline == "3 FASTER, 1 INCONCLUSIVE of 4 comparisons; pooled +1.10% (+0.91% to +1.29%); natural"
    overview = report.sections[0].blocks
    rows = table(overview, "Comparisons").texts()
    assert rows[0] == ["1", "on", "+0.21", "-0.11 to +0.53", "INCONCLUSIVE", "0.19"]
    said = facts(overview)
    assert said["these 4 points"] == "+1.10% (95% interval +0.91% to +1.29%)"
    assert said["points like them"] == "+1.1% (95% interval -0.1% to +2.4%)"
    assert said["heterogeneity"].startswith("Cochran's Q 31.20, p < 0.0001, 89%")
    assert said["sign test"] == "4 points up, 0 down, p 0.125"
    titles = [section.title for section in report.sections if section.anchor.startswith("comparison-")]
    assert titles == [f"on against off, concurrency {n}" for n in (1, 2, 4, 8)]
    lone = replace(AB_SWEEP.pooled[0], heterogeneity=None, not_computed={"heterogeneity": "one point"})
    said = facts(build_report(replace(AB_SWEEP, pooled=[lone])).sections[0].blocks)
    assert (said["heterogeneity"], said["not computed"]) == ("not computed", "heterogeneity: one point")


def test_the_summary_names_what_tells_comparisons_apart() -> None:
    assert summary_table(AB_MIXED.comparisons).header[:2] == ("candidate", "baseline")
    swapped = [replace(FASTER, role="swapped"), FASTER]
    assert summary_table(swapped).header[:2] == ("candidate", "role")


def test_what_pays_best_first_by_role() -> None:
    overview = build_report(EACH).sections[0].blocks
    assert [row[0] for row in table(overview, "Comparisons").texts()] == ["on"]  # the whole candidate
    pays = table(overview, "What pays")
    assert [row[:3] for row in pays.texts()] == [
        ["overlap: off -> on", "alone", "+0.95"],
        ["sampling_params: refill -> signature", "alone", "+0.31"],
        ["sampling_params: refill -> signature", "all but", "+0.28"],
        ["overlap: off -> on", "all but", "-0.92"],
        ["sampling_params: refill -> signature, overlap: off -> on", "pair", "+1.22"],
    ]
    assert pays.header[-1] == "p Holm"
    unknown = replace(EACH.comparisons[1], speedup_pct=None)
    assert pays_table([unknown, EACH.comparisons[2]]).texts()[-1][2] == "-"  # not computed comes last


def test_invalid_says_why_before_any_figure() -> None:
    report = build_report(AB_INVALID)
    assert (report.verdict, report.tone) == ("INVALID", "bad")
    assert report.alerts == ("INVALID: tokens differ where they may not: request c3/t0, output token 17",)
    mixed = build_report(AB_MIXED)
    assert mixed.alerts[0].startswith("INVALID: on against off: tokens differ")
    assert mixed.headline.startswith("1 INVALID, ")
    first = next(section for section in mixed.sections if section.anchor == "comparison-2").blocks[0]
    assert first == Prose(tuple(INVALID_ARM.reasons), "bad")
    silent = replace(AB, comparisons=[replace(INVALID_ARM, reasons=[])])
    assert build_report(silent).alerts == ("INVALID: no reason was recorded",)


def test_gates_are_listed_once() -> None:
    whole = [Gate("complete", "pass", "all"), Gate("tokens", "fail", "the worst of all comparisons")]
    single = build_report(replace(AB_INVALID, gates=whole))
    assert [gate.name for gate in single.gates].count("tokens") == 1
    assert [gate.status for gate in single.gates] == ["fail", "warn", "pass", "pass", "n/a"]
    assert len(single.alerts) == 1  # the reason, and not its gate again
    several = build_report(replace(AB_MIXED, gates=whole))
    assert several.gates == (whole[1], whole[0])


def test_what_differs_is_in_no_line_of_the_setup() -> None:
    assert "drafter" in dict(setup_facts(AB))
    assert "drafter" not in dict(setup_facts(replace(AB, comparisons=[NGRAM])))
    assert "concurrency" not in dict(setup_facts(AB_SWEEP))["workload"]
    assert "overlap" not in dict(setup_facts(EACH))["engine"]
    model = Difference("model.source", "a", "b", "changes-output", False)
    assert "model" not in dict(setup_facts(replace(AB, comparisons=[replace(FASTER, differences=[model])])))


def test_the_label_is_in_every_headline() -> None:
    for analysis in (SIMULATED, replace(SWEEP, label="SIMULATED")):
        assert "SIMULATED" in build_report(analysis).headline


def test_arms_are_shown_as_points_too() -> None:
    arms = [POINT, replace(POINT, point=1, variant="on", output_tokens_per_s=130.0)]
    section = build_report(replace(AB, points=arms)).sections[-1]
    assert (section.title, section.folded, section.is_detail) == ("What the arms reached", True, True)
    assert [row[0] for row in table(section.blocks, "Arms").texts()] == ["base", "on"]


def test_a_sweep_in_one_table_with_what_failed() -> None:
    report = build_report(SWEEP)
    assert report.headline == "9 points, 1 failed; highest: 320.0 tok/s at concurrency 8, draft_len 4; natural"
    overview = report.sections[0].blocks
    points = table(overview, "Points")
    assert points.header[:4] == ("concurrency", "draft_len", "tok/s", "per user")
    assert points.texts()[-1] == ["8", "8", *["-"] * 8]
    assert table(overview, "Not measured").texts() == [
        ["concurrency 8, draft_len 8", "the KV cache needs 9.1 GiB and 7.8 GiB are free: lower engine.max_batch_size"]
    ]
    sections = [section for section in report.sections if section.anchor.startswith("point-")]
    assert len(sections) == 8  # what failed has none
    assert all(section.is_detail for section in sections)
    few = build_report(replace(SWEEP, points=SWEEP.points[:3]))
    assert not any(section.is_detail for section in few.sections)
    none = build_report(replace(SWEEP, points=SWEEP.points[-1:]))
    assert none.headline == "1 point, 1 failed; nothing was measured; natural"


def test_variants_of_a_sweep_have_a_column() -> None:
    points = [replace(SWEEP.points[0], variant="on"), replace(SWEEP.points[0], variant="off")]
    assert wide_table(points).header[0] == "variant"
    bare = [replace(POINT, axes={}), replace(POINT, axes={}, concurrency=8)]
    assert wide_table(bare).header[:2] == ("concurrency", "draft_len")


def test_a_checkout_is_named_by_its_folder_and_never_by_its_place() -> None:
    place = "/home/someone/.cache/specbench/worktrees/89abcdef0123"
    own = [Difference("process.worktree", place, None, "numerically-equivalent", False)]
    analysis = replace(AB, comparisons=[replace(NGRAM, differences=own)])
    row = table(blocks_of(analysis), "What differs").rows[0]
    assert row[:3] == ("process.worktree", "89abcdef0123", "none: 0.1.0, git 0123456789ab with changes")
    for render in (markdown.render, html.render):
        assert "/home/someone" not in render(analysis)
    process = {
        "imported_from": f"{place}/specbench",
        "specbench": "0.2.0",
        "git": {"revision": "89abcdef0123" + "4" * 28},
    }
    told = replace(analysis, subject={**AB.subject, "process": process})
    assert table(blocks_of(told), "What differs").rows[0][1] == "89abcdef0123, 0.2.0, git 89abcdef0123"
    unknown = replace(analysis, environment={})
    assert table(blocks_of(unknown), "What differs").rows[0][2] == "null"


def test_what_to_make_of_several_candidates_comes_before_the_setup() -> None:
    first, second = replace(FASTER, in_words=["of both", "of it"]), replace(FASTER, index=1, candidate="y")
    analysis = replace(AB, comparisons=[first, replace(second, in_words=["of both"])])
    overview, setup, *rest = build_report(analysis).sections
    assert overview.blocks[0] == Prose(("on against off: of it", "of both"))
    assert setup.title == "Setup"
    assert not any(isinstance(block, Prose) for section in rest for block in section.blocks)
    many = replace(AB, comparisons=[replace(first, index=index) for index in range(22)])
    overview, setup, *rest = build_report(many).sections
    assert not any(isinstance(block, Prose) for block in overview.blocks)
    assert all(Prose(("of both", "of it")) in section.blocks for section in rest)


def test_a_p_value_that_looks_leave_unknown_is_no_certainty() -> None:
    assert dict(evidence(replace(FASTER, p_value=1.0)).pairs)["p of no effect"] == "> 0.5"
    assert dict(evidence(replace(FASTER, p_value=1.0, p_holm=1.0)).pairs)["p of no effect"] == "> 0.5"
    assert dict(evidence(replace(FASTER, p_value=0.4, p_holm=1.0)).pairs)["p of no effect"] == "0.4, Holm 1"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.001, "1 ms"),
        (0.0004, "0.4 ms"),
        (42.04, "42.0 s"),
        (210, "3.5 min"),
        (9000, "2.5 hours"),
        (4e5, "4.6 days"),
        (4e9, "46,296.3 days"),
    ],
)
def test_durations_have_the_unit_that_fits(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words


def test_large_coordinates_have_separators() -> None:
    assert point_words({"workload.isl": 2048, "workload.shuffle": True}) == "isl 2,048, shuffle true"


def test_requests_that_both_arms_served_are_counted_for_neither() -> None:
    points = [replace(POINT, point=index) for index in (0, 1, 2)]
    mirrored = replace(FASTER, baseline_index=0, candidate_index=1)
    runs = replace(FASTER, index=1, design="runs", baseline_index=0, candidate_index=2)
    rows = csv.rows(replace(AB, points=points, comparisons=[mirrored, runs]))[:3]
    # The baseline was measured in whole runs as well, and those are what its point tells of.
    assert [row["requests"] for row in rows] == [160, None, 160]
    assert [row["prompt_tokens"] for row in rows] == [21123, None, 21123]
    assert [row["steps"] for row in rows] == [8123] * 3


def test_the_highest_point_of_a_sweep_is_told_with_the_spread_of_its_trials() -> None:
    trials = ([100.0, 104.0], [103.0, 107.0], [1200.0, 1201.0])
    points = [
        replace(POINT, point=index, axes={"workload.concurrency": index}, output_tokens_per_s=sum(found) / 2)
        for index, found in enumerate(trials)
    ]
    points = [replace(point, trial_tokens_per_s=found) for point, found in zip(points, trials, strict=True)]
    alone = sweep_headline(replace(SWEEP, points=points))
    assert "; highest: 1,200.5 tok/s (trials 1,200.0 to 1,201.0) at concurrency 2; " in alone
    close = sweep_headline(replace(SWEEP, points=points[:2]))
    place = "105.0 tok/s (trials 103.0 to 107.0) at concurrency 1"
    assert f"; among the highest: {place}, not told from 1 point more by its trials; " in close
    found = wide_table(points)
    assert found.header[1:3] == ("tok/s", "trials")
    assert [row[2] for row in found.texts()] == ["100.0 to 104.0", "103.0 to 107.0", "1,200.0 to 1,201.0"]
    assert "trials" not in wide_table([replace(POINT, trial_tokens_per_s=[1.0])]).header


def test_a_break_even_map_is_a_table_of_drafters_by_concurrency() -> None:
    report = build_report(BREAK_EVEN)
    answers, speedups, lengths = report.sections[0].blocks[:3]
    assert isinstance(answers, Prose)
    assert answers.lines[1] == "ngram, K = 4: stops paying between 1 and 4"
    assert answers.lines[-1] == "What is not clear takes more rounds: --set measure.repeats=N"
    assert isinstance(speedups, Table)
    assert speedups.header == ("drafter", "K", "1", "4", "16")
    assert [cell_text(cell) for cell in speedups.rows[0]] == [
        "ngram", "2", "1.21 [1.15, 1.27] +", "1.05 [0.97, 1.13] ?", "0.86 [0.81, 0.91] -",
    ]  # fmt: skip
    assert [cell_text(row[-1]) for row in speedups.rows] == [
        "0.86 [0.81, 0.91] -",
        "0.70 [0.66, 0.74] -",
        "1.40 ?",
        "-",
    ]
    assert [cell.tone for cell in speedups.rows[0][2:] if isinstance(cell, Judged)] == ["good", "warn", "bad"]
    assert "t intervals over 5 rounds, paired by round, 95% for all 12 cells together (Holm)" in speedups.note
    assert "tokens are those of no speculation in 8 of 11 cells" in speedups.note
    assert isinstance(lengths, Table)
    assert [cell_text(cell) for cell in lengths.rows[3]] == ["eagle3", "4", "1.890", "1.860", "-"]


def test_lines_that_differ_in_another_axis_name_it() -> None:
    lines = [replace(line, axes={"workload.isl": isl}) for line, isl in zip(MAP.lines, (64, 64, 512, 512), strict=True)]
    answers, speedups, *_ = break_even_blocks(replace(MAP, lines=lines))
    assert isinstance(answers, Prose)
    assert answers.lines[2].startswith("ngram+eagle3, K = 4, isl 512: ")
    assert isinstance(speedups, Table)
    assert (speedups.header[:3], speedups.num_keys) == (("drafter", "K", "isl"), 3)


def test_a_sweep_without_a_map_says_how_to_get_one() -> None:
    first = build_report(NO_MAP).sections[0].blocks[0]
    assert first == Prose(("No break-even map: every point speculates.",))
    assert break_even_blocks(None) == ()
