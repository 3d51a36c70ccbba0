"""What every registered workload keeps, third parties' included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specbench.registry import WORKLOADS
from specbench.workloads.base import Conversation, ConversationPrompter, Workload, WorkloadSettings, build_workload
from specbench.workloads.tokenizer import Tokenizer

VOCAB_SIZE = 512


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    """Rows that every kind with a path can read."""
    rows = [
        {"question_id": i, "id": i, "category": f"c{i % 3}", "turns": [f"first {i}", f"then {i}"]} for i in range(12)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def build(kind: str, data_file: Path, num_requests: int, seed: int = 0) -> Workload:
    """A workload of ``kind``, with a path where it takes one."""
    path = str(data_file) if kind in ("mt_bench", "prompts") else None
    settings = WorkloadSettings(kind, path=path, num_requests=num_requests, isl=(4, 40), osl=(3, 9), seed=seed)
    return build_workload(settings, vocab_size=VOCAB_SIZE, tokenizer=Tokenizer.byte_level(VOCAB_SIZE))


@pytest.mark.parametrize("kind", sorted(WORKLOADS))
def test_every_workload_keeps_the_rules(kind: str, data_file: Path) -> None:
    workload = build(kind, data_file, num_requests=7)
    chosen = workload.conversations()
    assert workload.kind == kind
    assert workload.label == "synthetic input"
    assert sum(c.num_turns for c in chosen) == 7
    assert chosen == build(kind, data_file, num_requests=7).conversations()
    assert [c.conversation_id for c in build(kind, data_file, num_requests=9).conversations()][: len(chosen)] == [
        c.conversation_id for c in chosen
    ]
    requests = [(c.request_id(turn), c.request_seed(turn)) for c in chosen for turn in range(c.num_turns)]
    assert len({name for name, _ in requests}) == len({seed for _, seed in requests}) == 7
    other = build(kind, data_file, num_requests=7, seed=1).conversations()
    assert not {seed for _, seed in requests} & {c.request_seed(0) for c in other}


@pytest.mark.parametrize("kind", sorted(WORKLOADS))
def test_every_turn_of_every_workload_becomes_ids_of_the_model(kind: str, data_file: Path) -> None:
    prompter = ConversationPrompter(Tokenizer.byte_level(VOCAB_SIZE))

    def check(conversation: Conversation) -> None:
        answers: list[list[int]] = []
        for turn in range(conversation.num_turns):
            prompt = prompter.prompt_for(conversation, turn, answers)
            assert prompt == prompter.prompt_for(conversation, turn, answers)
            assert prompt
            assert all(0 <= token_id < VOCAB_SIZE for token_id in prompt)
            answers.append([300, 77, 511, 200])  # ids no text gives: a random model answers with any

    for conversation in build(kind, data_file, num_requests=40).conversations():
        assert conversation.output_len is not None
        assert 3 <= conversation.output_len <= 9
        check(conversation)
