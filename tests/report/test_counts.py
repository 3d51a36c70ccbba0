"""Counts of toggles in a report: a step, of the variant that stood, where the arms differ."""

from __future__ import annotations

from dataclasses import replace

import pytest
from comparison_sample import FASTER
from sample import POINT

from specbench.records import ToggleCounts, VariantCounts
from specbench.report.counts import comparison_counts, point_counts

REFILL = VariantCounts(640, {"appends": 46080, "copies": 3840, "hits": 0})
SIGNATURE = VariantCounts(640, {"hits": 633, "copies": 30, "bytes": 1})
STAGING: ToggleCounts = {"block_staging": {"full": VariantCounts(640, {"bytes": 640 * 33_554_432})}}


def test_a_point_has_a_row_a_toggle() -> None:
    table = point_counts(replace(POINT, counters={"sampling_params": {"refill": REFILL}, **STAGING}))
    assert table is not None
    assert table.texts() == [
        ["sampling_params", "refill", "72 appends, 6 copies, 0 hits"],
        ["block_staging", "full", "33,554,432 bytes"],
    ]
    assert table.folded


@pytest.mark.parametrize("counters", [{}, {"sampling_params": {"refill": replace(REFILL, steps=0)}}])
def test_without_counts_there_is_no_table(counters: ToggleCounts) -> None:
    assert point_counts(replace(POINT, counters=counters)) is None


def test_a_comparison_has_a_row_a_counter_of_the_toggles_that_differ() -> None:
    arms = {
        "baseline": {**STAGING, "sampling_params": {"refill": REFILL}},
        "candidate": {**STAGING, "sampling_params": {"signature": SIGNATURE}},
    }
    table = comparison_counts(replace(FASTER, counters=arms))
    assert table is not None
    assert table.texts() == [
        ["sampling_params: appends", "72", "-"],
        ["sampling_params: copies", "6", "0.047"],
        ["sampling_params: hits", "0", "0.989"],
        ["sampling_params: bytes", "-", "0.002"],
    ]


def test_an_arm_that_tells_nothing_has_dashes() -> None:
    counters = {"candidate": {"sampling_params": {"signature": SIGNATURE}}}
    table = comparison_counts(replace(FASTER, counters=counters))
    assert table is not None
    assert [row[1] for row in table.texts()] == ["-"] * 3


@pytest.mark.parametrize("arms", [{}, {"baseline": {"a": {"b": REFILL}}, "candidate": {"a": {"b": REFILL}}}])
def test_equal_variants_are_no_news(arms: dict[str, ToggleCounts]) -> None:
    assert comparison_counts(replace(FASTER, counters=arms)) is None


@pytest.mark.parametrize(
    ("count", "steps", "text"),
    [(0, 3, "0"), (6, 3, "2"), (1, 3, "0.333"), (1000, 3, "333.3"), (1, 100_000, "0.00001"), (10, 3, "3.333")],
)
def test_what_is_not_0_does_not_read_as_0(count: int, steps: int, text: str) -> None:
    table = point_counts(replace(POINT, counters={"a": {"b": VariantCounts(steps, {"copies": count})}}))
    assert table is not None
    assert table.texts()[0][2] == f"{text} copies"
