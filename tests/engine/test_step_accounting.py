"""Draft counts by hand, and against a recount under hypothesis."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specbench.engine.step_accounting import count_drafts


def test_a_rejection_ends_eligibility_and_stays_open() -> None:
    counts = count_drafts(4, num_drafted=[4], num_committed=[3], num_kept=[3])
    assert counts.opened == (1, 1, 1, 1)
    assert counts.eligible == (1, 1, 1, 0)
    assert counts.drafted == (1, 1, 1, 1)
    assert counts.accepted == (1, 1, 0, 0)


def test_an_end_inside_a_draft_is_no_rejection() -> None:
    counts = count_drafts(4, num_drafted=[4], num_committed=[5], num_kept=[2])
    assert counts.opened == counts.eligible == counts.drafted == counts.accepted == (1, 1, 0, 0)


def test_a_miss_of_the_drafter_is_eligible_and_not_drafted() -> None:
    counts = count_drafts(2, num_drafted=[0, 1], num_committed=[1, 2], num_kept=[1, 2])
    assert counts.drafted == (1, 0)
    assert counts.eligible == (2, 1)
    assert counts.accepted == (1, 0)


@given(st.data(), st.integers(0, 5))
def test_counts_are_ordered_and_sum_up(data: st.DataObject, draft_len: int) -> None:
    drafted = data.draw(st.lists(st.integers(0, draft_len), min_size=1, max_size=6))
    committed = [data.draw(st.integers(1, count + 1)) for count in drafted]
    kept = [data.draw(st.integers(1, count)) for count in committed]
    counts = count_drafts(draft_len, drafted, committed, kept)
    for opened, eligible, proposed, accepted in zip(*counts, strict=True):
        assert accepted <= min(proposed, eligible)
        assert eligible <= opened <= len(drafted)
    # Every kept token is an accepted draft token, or the target's own at the end of a step that was not cut.
    own = sum(k == c for k, c in zip(kept, committed, strict=True))
    assert sum(counts.accepted) + own == sum(kept)
