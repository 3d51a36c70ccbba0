"""Replayed acceptance from end to end: what one run accepted is committed again, whatever drafts are proposed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from whole_chain import collect_nothing

from specbench.cli.app import main

LABEL = "replayed acceptance"
SCENARIO = """
name: replayed
model: random:tiny
drafter: {name: ngram, draft_len: 4, max_ngram: 2}
workload: {kind: random_tokens, num_requests: 4, isl: 24, osl: 16, concurrency: 2}
sampling: {temperature: 0.3, seed: 1}
engine: {device: cpu, dtype: bfloat16, num_threads: 1}
measure: {warmup_requests: 1, segment_requests: 4, max_units: 2, looks: 1}
"""
REPORTS = ("report.md", "report.html", "analysis.json")


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A scenario file in a folder of its own, which is the current one."""
    monkeypatch.chdir(tmp_path)
    collect_nothing(monkeypatch)
    Path("replayed.yaml").write_text(SCENARIO)
    return "replayed.yaml"


def lines(folder: str, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, name).read_text().splitlines()]


def lengths(folder: str, arm: str | None = None) -> dict[tuple[str, int], list[int]]:
    """Request and segment -> what its steps committed, in the trials of an arm."""
    found: dict[tuple[str, int], list[int]] = {}
    for trial in lines(folder, "trials.jsonl"):
        if trial["arm"] != arm:
            continue
        for request in lines(folder, "requests.jsonl"):
            if (request["trial"], request["attempt"]) == (trial["trial"], trial["attempt"]):
                key = (request["request_id"], trial["segment"])
                assert found.setdefault(key, request["accepted_lengths"]) == request["accepted_lengths"]
    return found


def require_label(folder: str, printed: str) -> None:
    for name in REPORTS:
        assert LABEL in Path(folder, name).read_text(), name
    assert LABEL in printed
    assert {trial["label"] for trial in lines(folder, "trials.jsonl")} == {LABEL}


def test_a_run_is_replayed_by_another(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", scenario, "--out", "recorded"]) == 0
    assert max(max(found, default=0) for found in lengths("recorded").values()) > 1  # a draft was accepted
    assert LABEL not in capsys.readouterr().out
    replay = ["--set", "acceptance.mode=replay", "--set", "acceptance.source=recorded"]
    assert main(["run", scenario, *replay, "--out", "again"]) == 0
    printed = capsys.readouterr().out
    assert LABEL in printed
    assert LABEL in Path("again/report.md").read_text()
    assert lengths("again") == lengths("recorded")
    # Another seed draws other tokens; as many are committed in every step.
    assert main(["run", scenario, *replay, "--set", "sampling.seed=9", "--out", "other"]) == 0
    assert lengths("other") == lengths("recorded")
    hashes = {lines(folder, "trials.jsonl")[0]["tokens_sha256"] for folder in ("recorded", "other")}
    assert len(hashes) == 2


def test_draft_lengths_are_compared_on_equal_tokens(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A longer draft costs more and commits no more: what is left is what it costs."""
    arms = ["--baseline", "drafter.draft_len=4", "--candidate", "drafter.draft_len=7"]
    flags = ["--set", "acceptance.mode=replay", "--out", "out"]
    assert main(["ab", scenario, *arms, *flags]) == 0
    require_label("out", capsys.readouterr().out)
    (found,) = json.loads(Path("out/analysis.json").read_text())["comparisons"]
    assert (found["design"], found["metric"], found["label"]) == ("runs", "time", LABEL)
    assert all(unit["baseline_tokens"] == unit["candidate_tokens"] > 0 for unit in found["units"])
    assert found["decomposition"]["tokens_per_step"] == pytest.approx(0.0, abs=1e-12)
    assert found["acceptance_length"]["baseline"] == pytest.approx(found["acceptance_length"]["candidate"])
    baseline, candidate = lengths("out", "A"), lengths("out", "B")
    assert baseline == candidate
    assert max(max(steps, default=0) for steps in baseline.values()) > 1
    (tokens,) = [gate for gate in found["gates"] if gate["name"] == "tokens"]
    assert tokens["status"] == "pass", tokens
