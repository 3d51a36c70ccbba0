"""Seeded random prompts: what each request depends on, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.errors import WorkloadError
from specbench.workloads.base import Conversation, WorkloadSettings, build_workload
from specbench.workloads.tokenizer import Tokenizer


def requests(tokenizer: Tokenizer | None = None, vocab_size: int = 1000, **settings: Any) -> list[Conversation]:
    """Build and read the workload."""
    workload = build_workload(WorkloadSettings("random_tokens", **settings), vocab_size=vocab_size, tokenizer=tokenizer)
    assert workload.label == "synthetic input"
    return workload.conversations()


def test_ids_are_the_same_on_every_machine_and_numpy() -> None:
    first, second = requests(isl=6, num_requests=2, seed=3)
    assert first.prompt_token_ids == (933, 543, 750, 619, 65, 740)
    assert second.prompt_token_ids == (515, 571, 85, 285, 394, 488)


@given(
    count=st.integers(1, 12),
    more=st.integers(1, 12),
    seed=st.integers(0, 2**64),
    isl=st.integers(1, 50) | st.tuples(st.integers(1, 20), st.integers(20, 50)),
    osl=st.integers(1, 50) | st.tuples(st.integers(1, 20), st.integers(20, 50)),
)
def test_a_request_does_not_depend_on_how_many_there_are(count: int, more: int, seed: int, isl: Any, osl: Any) -> None:
    few = requests(num_requests=count, seed=seed, isl=isl, osl=osl)
    many = requests(num_requests=count + more, seed=seed, isl=isl, osl=osl)
    assert many[:count] == few
    assert len(many) == count + more


def test_a_longer_prompt_begins_with_the_shorter() -> None:
    (short,), (long,) = requests(isl=10, num_requests=1), requests(isl=500, num_requests=1)
    assert long.prompt_token_ids is not None
    assert long.prompt_token_ids[:10] == short.prompt_token_ids


def test_the_seed_changes_ids_and_lengths() -> None:
    one, two = requests(seed=1, isl=(1, 500), osl=(1, 500)), requests(seed=2, isl=(1, 500), osl=(1, 500))
    assert one[0].prompt_token_ids != two[0].prompt_token_ids
    assert [c.output_len for c in one] != [c.output_len for c in two]


def test_sixteen_requests_unless_told_otherwise() -> None:
    chosen = requests(isl=100, osl=20)
    assert len(chosen) == 16
    assert all(len(c.prompt_token_ids or ()) == 100 and c.output_len == 20 and c.num_turns == 1 for c in chosen)


def test_ranges_reach_both_ends_and_are_drawn_independently() -> None:
    chosen = requests(num_requests=200, isl=(3, 5), osl=(7, 9))
    lengths = [(len(c.prompt_token_ids or ()), c.output_len) for c in chosen]
    assert set(lengths) == {(i, o) for i in (3, 4, 5) for o in (7, 8, 9)}


def test_ids_are_uniform_over_the_vocabulary() -> None:
    (request,) = requests(num_requests=1, isl=20_000, vocab_size=50)
    counts = [(request.prompt_token_ids or ()).count(token_id) for token_id in range(50)]
    chi_square = sum((count - 400) ** 2 / 400 for count in counts)
    assert sum(counts) == 20_000
    assert 20 < chi_square < 90  # 49 degrees of freedom; both ends beyond one in a thousand


def test_special_tokens_and_padding_of_the_embedding_are_left_out(tiny_tokenizer: Tokenizer) -> None:
    padded = tiny_tokenizer.vocab_size + 500
    chosen = requests(tiny_tokenizer, vocab_size=padded, num_requests=4, isl=5000)
    used = {token_id for request in chosen for token_id in request.prompt_token_ids or ()}
    assert used == set(range(tiny_tokenizer.vocab_size)) - tiny_tokenizer.special_token_ids


def test_a_vocabulary_of_special_tokens_only_is_refused(byte_tokenizer: Tokenizer) -> None:
    with pytest.raises(WorkloadError, match="no ordinary ids"):
        requests(byte_tokenizer, vocab_size=3)


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"path": "x"}, "workload.path"),
        ({"categories": ("math",)}, "workload.categories"),
        ({"shuffle": True}, "workload.shuffle"),
        ({"system_prompt": "x"}, "workload.system_prompt"),
        ({"turns": 2}, "workload.turns"),
    ],
)
def test_settings_it_has_no_use_for_are_refused_not_dropped(settings: dict[str, Any], where: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        requests(**settings)
    assert caught.value.where == where
