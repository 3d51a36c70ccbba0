"""Every scenario that is shipped runs, as printed in the README, here on the smallest model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specbench.cli.app import main

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))
SMALL = ["model=random:tiny", "workload.num_requests=3", "workload.osl=8", "workload.concurrency=2"]


def run(scenario: Path, out: Path, *arguments: str) -> int:
    small = [argument for change in SMALL for argument in ("--set", change)]
    return main(["run", str(scenario), *small, *arguments, "--out", str(out)])


def test_there_are_scenarios() -> None:
    assert {path.stem for path in SCENARIOS} >= {"quickstart", "random_tokens", "ngram"}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_a_ready_scenario_runs(scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(scenario, tmp_path / "out") == 0, capsys.readouterr().err
    (point,) = json.loads((tmp_path / "out" / "analysis.json").read_text())["points"]
    assert point["requests"] == 3
    assert 3 <= point["committed_tokens"] <= 24


@pytest.mark.parametrize("scenario", ["quickstart", "ngram"])
def test_the_plain_variant_runs_without_speculation(scenario: str, tmp_path: Path) -> None:
    assert run(ROOT / "scenarios" / f"{scenario}.yaml", tmp_path / "out", "--variant", "plain") == 0
    (point,) = json.loads((tmp_path / "out" / "analysis.json").read_text())["points"]
    assert point["variant"] == "plain"
    assert point["acceptance_length"] == 1.0
