"""``specbench pull``: which fetcher is called, with what, and what is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import ModelNotFoundError
from specbench.workloads import mt_bench

Cli = Callable[..., Any]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Fetchers that only take notes."""
    from specbench.engine.models import pull

    noted: list[tuple[str, bool]] = []

    def pull_model(name: str, progress: Callable[[str], None], *, force: bool = False) -> Path:
        noted.append((name, force))
        progress(f"fetching {name}")
        return Path("/cache/model")

    def pull_questions(progress: Callable[[str], None], force: bool = False) -> Path:
        noted.append(("questions", force))
        progress("fetching questions")
        return Path("/cache/question.jsonl")

    monkeypatch.setattr(pull, "pull_model", pull_model)
    monkeypatch.setattr(mt_bench, "pull", pull_questions)
    return noted


def test_a_preset_is_pulled(cli: Cli, calls: list[tuple[str, bool]]) -> None:
    outcome = cli("pull", "smollm2-135m")
    assert calls == [("smollm2-135m", False)]
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, "/cache/model\n", "fetching smollm2-135m\n")


def test_mt_bench_is_pulled(cli: Cli, calls: list[tuple[str, bool]]) -> None:
    outcome = cli("pull", "mt-bench", "--force", "--json")
    assert calls == [("questions", True)]
    found = json.loads(outcome.stdout)
    assert (found["name"], found["path"]) == ("mt-bench", "/cache/question.jsonl")
    assert found["seconds"] >= 0


def test_an_unknown_name_has_the_nearest_and_fetches_nothing(cli: Cli, calls: list[tuple[str, bool]]) -> None:
    outcome = cli("pull", "smollm2-135")
    assert (outcome.code, outcome.stdout, calls) == (2, "", [])
    assert "unknown download 'smollm2-135'" in outcome.stderr
    assert "did you mean 'smollm2-135m'?" in outcome.stderr


def test_a_failed_pull_is_one_message(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> Path:
        raise ModelNotFoundError("no source could give it", hint="a network")

    monkeypatch.setattr(mt_bench, "pull", refuse)
    outcome = cli("pull", "mt-bench")
    assert (outcome.code, outcome.stderr) == (2, "error: no source could give it\n  try: a network\n")


def test_a_model_without_weights_is_refused(cli: Cli) -> None:
    outcome = cli("pull", "tiny")
    assert outcome.code == 2
    assert "no published weights" in outcome.stderr
