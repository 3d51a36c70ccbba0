"""What drafting takes of a step, said beside what it brings."""

from __future__ import annotations

from dataclasses import replace

from specbench.records import RangeStats
from specbench.report.point_tables import drafting_share, point_tables
from tests.report.sample import POINT

STEPS = RangeStats(200, 20_000.0, 19_000.0, 25_000.0)


def with_ranges(**ranges: RangeStats):
    return replace(POINT, ranges=ranges)


def notes(point) -> str:
    return "\n".join(table.note for table in point_tables(point))


def test_the_share_is_the_drafts_part_of_the_devices_steps() -> None:
    point = with_ranges(draft=RangeStats(200, 3_400.0, 3_000.0, 9_000.0), device_step=STEPS)
    assert drafting_share(point) == 0.17
    assert "length: 2.173 tokens a step; drafting takes 17.0% of the device's time" in notes(point)


def test_a_range_that_was_not_seen_in_every_step_says_nothing() -> None:
    replayed = with_ranges(draft=RangeStats(3, 3_400.0, 3_000.0, 9_000.0), device_step=STEPS)
    for point in (replayed, with_ranges(device_step=STEPS), with_ranges(draft=STEPS)):
        assert drafting_share(point) is None
        assert "drafting takes" not in notes(point)
