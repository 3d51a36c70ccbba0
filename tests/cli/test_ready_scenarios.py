"""Every scenario that is shipped runs, as printed in the README, here on the smallest model."""

from __future__ import annotations

import json
import subprocess
import sys
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


def test_a_narrow_terminal_keeps_every_digit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert run(ROOT / "scenarios" / "random_tokens.yaml", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    header = next(line for line in printed.splitlines() if line.startswith("Latency"))
    assert header.split()[-5:] == ["mean", "p50", "p90", "p95", "p99"]


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    small = " ".join(f"--set {change}" for change in SMALL)
    command = f"{sys.executable} -m specbench run scenarios/random_tokens.yaml {small} --out {tmp_path}/out"
    shell = f"set -o pipefail; {command} 2>/dev/null | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.md").is_file()
