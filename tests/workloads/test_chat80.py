"""The shipped prompts: complete, varied, and nobody else's."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from specbench.errors import WorkloadError
from specbench.workloads import mt_bench
from specbench.workloads.base import WorkloadSettings, build_workload
from specbench.workloads.chat80 import DATA_FILE
from specbench.workloads.tokenizer import Tokenizer

CATEGORIES = ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """The rows of the data file."""
    return [json.loads(line) for line in DATA_FILE.read_text(encoding="utf-8").splitlines()]


def test_there_are_ten_two_turn_prompts_in_each_of_eight_categories(rows: list[dict[str, Any]]) -> None:
    assert list(Counter(row["category"] for row in rows).items()) == [(name, 10) for name in CATEGORIES]
    assert [row["question_id"] for row in rows] == [f"c80-{number:03d}" for number in range(1, 81)]
    assert all(set(row) == {"question_id", "category", "turns"} and len(row["turns"]) == 2 for row in rows)


def test_no_text_is_used_twice_and_lengths_vary(rows: list[dict[str, Any]]) -> None:
    texts = [turn for row in rows for turn in row["turns"]]
    assert len(set(texts)) == 160
    lengths = sorted(map(len, texts))
    assert lengths[0] >= 60
    assert lengths[-1] > 1000
    assert lengths[144] > 2 * lengths[16]
    passages = [len(row["turns"][0]) for row in rows if row["category"] == "extraction"]
    assert min(passages) > 450


def test_the_text_is_clean(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        for turn in row["turns"]:
            assert turn == turn.strip()
            assert not re.search(r"[^\x20-\x7e\n]|<\|| \n", turn), row["question_id"]


def word_runs(text: str, length: int = 8) -> set[tuple[str, ...]]:
    """All runs of ``length`` words."""
    words = re.findall(r"[a-z0-9']+", text.lower())
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}


def test_nothing_is_taken_from_mt_bench(rows: list[dict[str, Any]]) -> None:
    file = mt_bench.pulled_file()
    if not file.is_file():
        pytest.skip("MT-Bench is not in the cache; run: specbench pull mt-bench")
    theirs = {
        run for question in mt_bench.read_questions(file) for turn in question.turns or () for run in word_runs(turn)
    }
    assert len(theirs) > 1000
    assert not [row["question_id"] for row in rows for turn in row["turns"] if word_runs(turn) & theirs]


def test_eight_conversations_cover_all_categories(byte_tokenizer: Tokenizer) -> None:
    settings = WorkloadSettings("chat80", num_requests=16, osl=64)
    workload = build_workload(settings, vocab_size=512, tokenizer=byte_tokenizer)
    chosen = workload.conversations()
    assert [conversation.category for conversation in chosen] == CATEGORIES
    assert [conversation.conversation_id for conversation in chosen][:2] == ["c80-001", "c80-011"]
    assert {conversation.output_len for conversation in chosen} == {64}


def test_a_path_is_refused(byte_tokenizer: Tokenizer) -> None:
    with pytest.raises(WorkloadError) as caught:
        build_workload(WorkloadSettings("chat80", path="x.jsonl"), vocab_size=512, tokenizer=byte_tokenizer)
    assert caught.value.where == "workload.path"
