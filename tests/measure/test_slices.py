"""A segment's stretch of the workload, round and round."""

from __future__ import annotations

import pytest
from fake_subject import FakeSource

from specbench.measure.slices import EndlessSource, SliceSource


def test_an_endless_source_goes_on_where_the_workload_ends() -> None:
    source = EndlessSource(FakeSource([2, 1, 3], seed=5), first=1)
    assert [source.turns_of(conversation) for conversation in range(5)] == [1, 3, 2, 1, 3]
    planned = [source.build(conversation, 0, ()) for conversation in range(5)]
    assert [request.request_id for request in planned] == ["c1/t0", "c2/t0", "c0/t0~2", "c1/t0~2", "c2/t0~2"]
    assert [request.conversation for request in planned] == [0, 1, 2, 3, 4]
    assert [list(request.prompt_token_ids) for request in planned[:1]] == [[1, 0, 1]]
    assert planned[3].prompt_token_ids == planned[0].prompt_token_ids


def test_a_later_round_draws_anew_and_alike_wherever_it_begins() -> None:
    near, far = EndlessSource(FakeSource([1, 1], seed=5), first=1), EndlessSource(FakeSource([1, 1], seed=5), first=3)
    seeds = [near.build(conversation, 0, ()).params.seed for conversation in range(5)]
    assert seeds[0] == 5
    assert seeds[1] == seeds[2]  # c0 and c1 of the second round; the workload's own seeds are equal here
    assert len({seeds[0], seeds[1], seeds[3]}) == 3
    assert [far.build(conversation, 0, ()).params.seed for conversation in range(3)] == seeds[2:]
    assert far.build(0, 0, ()).request_id == near.build(2, 0, ()).request_id == "c1/t0~2"


def test_later_turns_are_built_from_the_answers() -> None:
    inner = FakeSource([1, 2])
    request = EndlessSource(inner, first=3).build(0, 1, [[7, 9]])
    assert (request.request_id, list(request.prompt_token_ids)) == ("c1/t1~2", [1, 1, 9])
    assert inner.built == [(1, 1, (2,))]


@pytest.mark.parametrize(("first", "turns"), [(0, [2, 1]), (2, [3, 2]), (5, [3, 2])])
def test_a_slice_has_all_turns_of_its_conversations(first: int, turns: list[int]) -> None:
    source = SliceSource(FakeSource([2, 1, 3]), first, 2)
    assert list(source.num_turns) == turns
    assert source.build(1, 0, ()).conversation == 1


def test_a_slice_may_be_longer_than_the_workload() -> None:
    source = SliceSource(FakeSource([1, 2]), 1, 5)
    assert source.num_turns == [2, 1, 2, 1, 2]
    ids = {source.build(conversation, 0, ()).request_id for conversation in range(5)}
    assert len(ids) == 5
