"""Counting requests without a tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from specbench.errors import UnknownNameError, WorkloadError
from specbench.scenario.estimate import count_requests
from specbench.workloads.base import WorkloadSettings


@pytest.mark.parametrize(
    ("settings", "requests"),
    [
        (WorkloadSettings("chat80"), 160),
        (WorkloadSettings("chat80", turns=1), 80),
        (WorkloadSettings("chat80", categories=("math", "stem")), 40),
        (WorkloadSettings("chat80", num_requests=7), 7),
        (WorkloadSettings("random_tokens", num_requests=5), 5),
    ],
)
def test_requests_are_turns(settings: WorkloadSettings, requests: int) -> None:
    assert count_requests(settings) == requests


def test_a_prompt_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n{"turns": ["b", "c", "d"]}\n')
    assert count_requests(WorkloadSettings("prompts", path=str(path))) == 4
    path.write_text('{"promt": "a"}\n')
    with pytest.raises(WorkloadError, match="'prompt'"):
        count_requests(WorkloadSettings("prompts", path=str(path)))


def test_a_category_that_the_file_lacks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "category": "code"}\n')
    with pytest.raises(UnknownNameError, match="did you mean 'code'"):
        count_requests(WorkloadSettings("prompts", path=str(path), categories=("cod",)))
