"""``device: sim`` as a user types it: nothing that it prints or writes goes without SIMULATED."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.registry import SIM_PRESETS

Cli = Callable[..., Any]
SCENARIO = """
name: simulated
model: tiny
acceptance: {mode: forced, length: 1.0}
workload: {kind: random_tokens, num_requests: 4, isl: 8, osl: 6, concurrency: 2}
engine: {device: sim, sim: {base_us: 1500, us_per_row: 1, us_per_kv_token: 0.1, us_per_copy: 1, bytes_per_us: 6.4e4}}
measure: {warmup_requests: 1, period_steps: 2, quads_per_segment: 1, max_units: 2, looks: 1}
"""
LABEL = "SIMULATED, forced acceptance"


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A scenario file in a folder of its own, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "sim.yaml"
    path.write_text(SCENARIO)
    return str(path)


def test_every_report_of_a_run_says_simulated(scenario: str, cli: Cli) -> None:
    outcome = cli("run", scenario, "--out", "out")
    assert outcome.code == 0, outcome.stderr
    assert LABEL in outcome.stdout
    assert "SIMULATED: no device was measured and no token computed" in outcome.stdout
    for format_ in ("markdown", "html", "csv", "json"):
        assert LABEL in cli("export", "out", "--format", format_).stdout, format_
    for format_ in ("markdown", "html"):
        assert "its times are declared (base" in cli("export", "out", "--format", format_).stdout.replace("\\_", "_")
    assert LABEL in Path("out/report.md").read_text()
    analysis = json.loads(Path("out/analysis.json").read_text())
    assert analysis["label"] == LABEL
    assert analysis["subject"]["engine"]["device_times"]["base_us"] == 1500
    assert analysis["subject"]["weights"] == "none"
    assert {gate["name"] for gate in analysis["gates"]} >= {"declared times"}
    trials = [json.loads(line) for line in Path("out/trials.jsonl").read_text().splitlines()]
    assert {trial["label"] for trial in trials} == {LABEL}


def test_a_preset_is_named_with_its_numbers(scenario: str, cli: Cli) -> None:
    outcome = cli("run", scenario, "--set", "engine.sim=h100-0.6b", "--out", "out")
    assert outcome.code == 0, outcome.stderr
    assert "(h100-0.6b: base_us 355.8" in " ".join(outcome.stdout.split())


def test_every_report_of_a_comparison_says_simulated(scenario: str, cli: Cli) -> None:
    outcome = cli("ab", scenario, "--baseline", "sampling_params=refill", "--out", "out")
    assert outcome.code == 0, outcome.stderr
    assert LABEL in outcome.stdout
    (comparison,) = json.loads(Path("out/analysis.json").read_text())["comparisons"]
    assert (comparison["design"], comparison["label"], comparison["tokens_identical"]) == ("mirrored", LABEL, True)
    assert any(line.startswith("SIMULATED: the device's times are declared") for line in comparison["in_words"])
    for format_ in ("markdown", "html", "csv", "json"):
        assert LABEL in cli("export", "out", "--format", format_).stdout, format_


def test_every_report_of_a_sweep_says_simulated(scenario: str, cli: Cli) -> None:
    outcome = cli("sweep", scenario, "--set", "sweep.concurrency=1,2", "--out", "out")
    assert outcome.code == 0, outcome.stderr
    assert LABEL in outcome.stdout
    assert len(json.loads(Path("out/analysis.json").read_text())["points"]) == 2


def test_a_run_is_repeatable_and_resumed(scenario: str, cli: Cli) -> None:
    assert cli("run", scenario, "--set", "measure.repeats=2", "--out", "out").code == 0
    gates = {gate["name"]: gate for gate in json.loads(Path("out/analysis.json").read_text())["gates"]}
    assert gates["repeatable"]["status"] == "pass"
    assert cli("run", "--resume", "out").code == 0


def test_the_check_says_what_will_not_be_there(scenario: str, cli: Cli) -> None:
    outcome = cli("check", scenario, "--set", "model=llama-3.1-8b")
    assert outcome.code == 0, outcome.stderr
    assert "# SIMULATED: device times are declared (engine.sim), and nothing is computed" in outcome.stdout
    assert "no weights, no KV cache; the books of" in outcome.stdout
    assert "weights: none are loaded" in outcome.stdout


def test_strict_acceptance_is_refused_with_the_fix(scenario: str, cli: Cli) -> None:
    outcome = cli("run", scenario, "--set", "acceptance=strict")
    assert outcome.code == 2
    assert "--set acceptance" in outcome.stderr
    assert "allowed on device sim: forced" in outcome.stderr
    assert "acceptance: {mode: forced, length: 1.0}" in outcome.stderr


def test_presets_are_listed_with_their_numbers_and_sources(cli: Cli) -> None:
    outcome = cli("list", "sim_presets")
    assert outcome.code == 0
    for name in SIM_PRESETS:
        assert name in outcome.stdout
    assert "us_per_kv_token" in outcome.stdout
    assert "published peaks of one NVIDIA H100 SXM" in outcome.stdout
    rows = json.loads(cli("list", "sim_presets", "--json").stdout)
    assert [row["name"] for row in rows] == list(SIM_PRESETS)
    assert all(row["base_us"] > 0 and row["source"] for row in rows)
    assert "sim" in cli("list", "devices").stdout
