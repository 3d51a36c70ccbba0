"""How the CPU backend divides generation requests among kernel calls."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specbench.engine.attention.placement import split_requests

CALL_CELLS = 300


def split(lens, places):
    requests = np.argsort(places)
    return split_requests(requests, np.array(places), np.array(lens), CALL_CELLS)


def cells(parts, lens, places):
    """Cells all calls compute on, a call's own cost included."""
    total = 0
    for part in parts:
        at = [places[request] for request in part]
        total += (max(at) - min(at) + 1) * max(lens[request] for request in part) + CALL_CELLS
    return total


def members(parts):
    return [sorted(part.tolist()) for part in parts]


def test_equal_lengths_share_one_call():
    assert members(split([100] * 16, list(range(16)))) == [list(range(16))]


def test_a_little_waste_is_cheaper_than_a_call():
    assert members(split([90, 100, 110, 95], [0, 1, 2, 3])) == [[0, 1, 2, 3]]


def test_one_long_request_gets_a_call_of_its_own():
    lens = [100] * 16
    lens[5] = 4000
    assert sorted(members(split(lens, list(range(16))))) == [[n for n in range(16) if n != 5], [5]]


def test_a_wide_gap_between_places_is_not_computed_on():
    assert sorted(members(split([200] * 4, [0, 1, 14, 15]))) == [[0, 1], [2, 3]]


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 40)), min_size=1, max_size=12, unique_by=lambda t: t[1]))
def test_every_request_is_in_one_call_and_splitting_never_costs_more(found):
    lens, places = [length for length, _ in found], [place for _, place in found]
    parts = split(lens, places)
    assert sorted(request for part in members(parts) for request in part) == list(range(len(lens)))
    together = [np.argsort(places)]
    assert cells(parts, lens, places) <= cells(together, lens, places)
