"""Labels of what is simulated, the gate on declared times, and how much host work a simulated device hides."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_subject import make_run, open_folder

import specbench
from specbench.cli.app import main
from specbench.engine.input_preparation import InputPreparation
from specbench.measure.analysis import RunContext, analyze_run
from specbench.measure.executor import execute
from specbench.measure.labels import join_label, split_label, strongest
from specbench.measure.simulation_gate import gate_simulation
from specbench.records import Point, TrialRecord

HOST_MS = 3.0
SCENARIO = """
name: simulated
model: tiny
acceptance: {mode: forced, length: 1.0}
workload: {kind: random_tokens, num_requests: 2, isl: 8, osl: 24, concurrency: 2}
engine: {device: sim, sim: {base_us: %s, us_per_row: 0, us_per_kv_token: 0, us_per_copy: 0, bytes_per_us: 1.0e6}}
measure: {warmup_requests: 0}
"""


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["natural"], "natural"),
        (["natural", "forced acceptance"], "forced acceptance"),
        (["replayed acceptance", "synthetic input"], "replayed acceptance"),
        (["SIMULATED, forced acceptance", "forced acceptance"], "SIMULATED, forced acceptance"),
        (["natural", "synthetic input, synthetic cache"], "synthetic input, synthetic cache"),
        (["something else"], "something else"),
    ],
)
def test_one_label_for_several(labels: list[str], expected: str) -> None:
    assert strongest(labels) == expected
    assert strongest(reversed(labels)) == expected


def test_a_label_is_made_of_parts() -> None:
    label = join_label("forced acceptance", simulated=True, synthetic_cache=True)
    assert label == "SIMULATED, forced acceptance, synthetic cache"
    assert split_label(label) == ["SIMULATED", "forced acceptance", "synthetic cache"]


def _trial(tmp_path: Path, **changes: Any) -> TrialRecord:
    with open_folder(tmp_path) as folder:
        execute(make_run(folder))
        (trial,) = folder.contents.trials
    return replace(trial, **changes)


def _counted(trial: TrialRecord, overrun_us: float) -> TrialRecord:
    counters = {"launches": 50, "declared_us": 10_000.0, "overruns": int(overrun_us > 0), "overrun_us": overrun_us}
    return replace(trial, subject={**trial.subject, "device_counters": counters})


@pytest.mark.parametrize(("overrun_us", "status"), [(0.0, "pass"), (90.0, "pass"), (110.0, "warn")])
def test_times_that_are_not_kept_are_doubted(tmp_path: Path, overrun_us: float, status: str) -> None:
    trial = _trial(tmp_path)
    gate = gate_simulation([trial, _counted(trial, overrun_us)])
    assert gate.status == status
    assert "of 50 launches ended later than declared" in gate.detail
    analysis = analyze_run([_counted(trial, overrun_us)], [], RunContext())
    assert gate in analysis.gates


def test_a_device_that_is_none_is_not_judged(tmp_path: Path) -> None:
    assert gate_simulation([_trial(tmp_path)]).status == "n/a"


def test_content_under_a_composed_label_is_judged_by_its_parts(tmp_path: Path) -> None:
    trial = _trial(tmp_path, label="SIMULATED, forced acceptance")
    gates = {gate.name: gate for gate in analyze_run([trial], [], RunContext()).gates}
    assert gates["content"].status == "warn"
    assert gates["repetition loops"].detail == "content is not judged under forced acceptance"


def _measure(folder: Path, monkeypatch: pytest.MonkeyPatch, base_us: float, *settings: str) -> Point:
    """A run whose host preparation takes :data:`HOST_MS` a step."""
    prepare = InputPreparation.prepare

    def slow(self: InputPreparation, *arguments: Any) -> Any:
        time.sleep(HOST_MS / 1e3)
        return prepare(self, *arguments)

    monkeypatch.setattr(InputPreparation, "prepare", slow)
    scenario = folder / "x.yaml"
    scenario.write_text(SCENARIO % base_us)
    assert main(["run", str(scenario), "--out", str(folder / "out"), *settings]) == 0
    return specbench.load_results(folder / "out").analysis.points[0]


@pytest.mark.slow
def test_a_device_that_takes_longer_hides_the_hosts_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = _measure(tmp_path, monkeypatch, 30_000)
    assert point.host_total_ms is not None
    assert point.host_exposed_ms is not None
    assert point.host_total_ms > HOST_MS
    assert point.host_exposed_ms < 0.6 * point.host_total_ms  # the first step's is not hidden
    assert point.device_ms == pytest.approx(30, rel=0.5)
    assert point.step_ms is not None
    assert 30 * 0.95 < point.step_ms < 2 * 30


@pytest.mark.slow
def test_a_device_that_takes_less_leaves_the_hosts_work_exposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = _measure(tmp_path, monkeypatch, 300)
    assert point.host_total_ms is not None
    assert point.host_exposed_ms is not None
    assert point.host_exposed_ms > 0.5 * point.host_total_ms > 0.5 * HOST_MS


@pytest.mark.slow
def test_without_overlap_nothing_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = _measure(tmp_path, monkeypatch, 10_000, "--set", "optimizations.overlap=off")
    assert point.host_total_ms is not None
    assert point.host_exposed_ms is not None
    assert point.host_exposed_ms > 0.6 * point.host_total_ms > 0.6 * HOST_MS
