"""Which conversations of a set are used, in which order, and with what they are completed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.errors import UnknownNameError, WorkloadError
from specbench.workloads.base import Conversation, WorkloadSettings
from specbench.workloads.chat_template import Message
from specbench.workloads.text import select


def make_set(**turns_by_category: list[int]) -> list[Conversation]:
    """Conversations named ``<category><index>`` with the given numbers of turns."""
    return [
        Conversation(f"{category}{index}", category, tuple("ask" for _ in range(turns)), None, None, 0)
        for category, counts in turns_by_category.items()
        for index, turns in enumerate(counts)
    ]


def ids(conversations: list[Conversation]) -> list[str]:
    """Their names."""
    return [conversation.conversation_id for conversation in conversations]


TWO_EACH = make_set(a=[2, 2, 2], b=[2, 2], c=[2])


def test_categories_take_turns_in_order_of_appearance() -> None:
    assert ids(select(TWO_EACH, WorkloadSettings("x"))) == ["a0", "b0", "c0", "a1", "b1", "a2"]


def test_num_requests_counts_turns_and_cuts_the_last_conversation() -> None:
    chosen = select(TWO_EACH, WorkloadSettings("x", num_requests=5))
    assert ids(chosen) == ["a0", "b0", "c0"]
    assert [conversation.num_turns for conversation in chosen] == [2, 2, 1]


def test_more_requests_than_the_set_has_start_it_again_with_new_ids_and_seeds() -> None:
    chosen = select(TWO_EACH, WorkloadSettings("x", num_requests=27))
    assert ids(chosen)[5:8] == ["a2", "a0#2", "b0#2"]
    assert ids(chosen)[-2:] == ["a0#3", "b0#3"]
    seeds = {conversation.request_seed(0) for conversation in chosen}
    assert len(seeds) == len(chosen)


@given(
    sizes=st.dictionaries(st.sampled_from("abcde"), st.lists(st.integers(1, 4), min_size=1, max_size=6), min_size=1),
    num_requests=st.integers(1, 60),
    turns=st.none() | st.integers(1, 4),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**63),
)
def test_any_selection_is_exact_unique_repeatable_and_a_prefix_of_a_longer_one(
    sizes: dict[str, list[int]], num_requests: int, turns: int | None, shuffle: bool, seed: int
) -> None:
    whole = make_set(**sizes)
    if turns is not None and turns > max(c.num_turns for c in whole):
        turns = None
    settings = WorkloadSettings("x", num_requests=num_requests, turns=turns, shuffle=shuffle, seed=seed)
    chosen = select(whole, settings)
    assert sum(conversation.num_turns for conversation in chosen) == num_requests
    assert len(set(ids(chosen))) == len(chosen)
    assert chosen == select(whole, settings)
    longer = WorkloadSettings("x", num_requests=num_requests + 1, turns=turns, shuffle=shuffle, seed=seed)
    assert ids(select(whole, longer))[: len(chosen)] == ids(chosen)
    assert all(conversation.seed == seed for conversation in chosen)


@given(st.integers(1, 30), st.booleans(), st.integers(0, 1000))
def test_a_short_run_is_balanced_over_equal_categories(count: int, shuffle: bool, seed: int) -> None:
    whole = make_set(a=[1] * 8, b=[1] * 8, c=[1] * 8, d=[1] * 8)
    chosen = select(whole, WorkloadSettings("x", num_requests=count, shuffle=shuffle, seed=seed))
    numbers = Counter(conversation.category for conversation in chosen)
    assert max(numbers.values()) - min(numbers[name] for name in "abcd") <= 1


def test_the_shuffle_follows_the_seed_and_keeps_the_set() -> None:
    whole = make_set(a=[1] * 20)
    first = ids(select(whole, WorkloadSettings("x", shuffle=True, seed=1)))
    second = ids(select(whole, WorkloadSettings("x", shuffle=True, seed=2)))
    assert first != second
    assert first != ids(whole)
    assert sorted(first) == sorted(second) == sorted(ids(whole))


def test_a_shuffle_does_not_depend_on_what_else_is_in_the_set() -> None:
    whole = make_set(a=[1] * 20)
    settings = WorkloadSettings("x", shuffle=True, seed=4)
    without_one = ids(select(whole[:7] + whole[8:], settings))
    assert without_one == [name for name in ids(select(whole, settings)) if name != "a7"]


def test_categories_filter_and_an_unknown_one_names_the_nearest() -> None:
    assert ids(select(TWO_EACH, WorkloadSettings("x", categories=("c", "b")))) == ["b0", "c0", "b1"]
    with pytest.raises(UnknownNameError, match="did you mean 'coding'") as caught:
        select(make_set(coding=[1], math=[1]), WorkloadSettings("x", categories=("math", "codng")))
    assert caught.value.where == "workload.categories"


def test_turns_cuts_longer_conversations_and_leaves_shorter_ones() -> None:
    chosen = select(make_set(a=[4, 1, 2]), WorkloadSettings("x", turns=2))
    assert [conversation.num_turns for conversation in chosen] == [2, 1, 2]
    with pytest.raises(WorkloadError, match="no conversation has more than 4"):
        select(make_set(a=[4, 1]), WorkloadSettings("x", turns=5))


def test_a_system_prompt_is_put_where_there_is_none() -> None:
    own = Conversation("own", "a", ("hi",), None, None, 0, (Message("system", "mine"), Message("user", "u")))
    none = Conversation("none", "a", ("hi",), None, None, 0, (Message("user", "u"),))
    chosen = select([own, none], WorkloadSettings("x", system_prompt="theirs"))
    assert chosen[0].history == own.history
    assert chosen[1].history == (Message("system", "theirs"), Message("user", "u"))


def test_osl_fills_in_only_where_the_data_has_no_length() -> None:
    fixed = Conversation("fixed", "a", ("hi",), None, 9, 0)
    chosen = select([fixed, *make_set(b=[1] * 40)], WorkloadSettings("x", osl=(16, 32), seed=3))
    lengths = {conversation.conversation_id: conversation.output_len for conversation in chosen}
    assert lengths.pop("fixed") == 9
    assert len(set(lengths.values())) > 5
    assert all(length is not None and 16 <= length <= 32 for length in lengths.values())
    fewer = select(make_set(b=[1] * 40), WorkloadSettings("x", osl=(16, 32), seed=3, num_requests=4))
    assert all(lengths[c.conversation_id] == c.output_len for c in fewer)
