"""Decode windows from a synthetic cache, as ``run``, ``sweep`` and ``ab`` measure them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import specbench
from specbench.cli.app import main

SCENARIO = """
name: windows
model: random:tiny
acceptance: {mode: forced, length: 1.0}
workload: {kind: random_tokens, concurrency: 3}
engine: {device: cpu, dtype: float32, num_threads: 1}
measure: {warmup_requests: 1, windows: {kv_len: [40, 72], steps: 12}, period_steps: 2, max_units: 2, looks: 1}
"""
TIMES = "{base_us: 20000, us_per_row: 0, us_per_kv_token: 10, us_per_copy: 0, bytes_per_us: 1e6}"
SIM = f"engine={{device: sim, sim: {TIMES}}}"


def measured(folder: Path, command: str, *settings: str) -> Any:
    scenario = folder / "x.yaml"
    scenario.write_text(SCENARIO)
    changes = [part for setting in settings for part in ("--set", setting)]
    assert main([command, str(scenario), "--out", str(folder / "out"), *changes]) == 0
    return specbench.load_results(folder / "out")


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_a_run_times_full_batches_at_each_context_length(
    tmp_path: Path, overlap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measured(tmp_path, "run", f"optimizations.overlap={overlap}", "measure.repeats=2")
    analysis = found.analysis
    assert analysis.label == "forced acceptance, synthetic cache"
    assert "forced acceptance, synthetic cache" in capsys.readouterr().out
    assert [point.axes for point in analysis.points] == [{"measure.windows.kv_len": n} for n in (40, 72)]
    for point, kv_len in zip(analysis.points, (40, 72), strict=True):
        assert (point.trials, point.steps, point.committed_tokens) == (2, 24, 2 * 12 * 3)
        assert (point.mean_active_requests, point.full_batch_steps) == (3.0, 24)
        assert point.mean_isl == kv_len
        assert (point.ttft_ms, point.e2e_ms, point.requests_per_s) == (None, None, None)
        assert point.itl_ms is not None
        assert (point.output_tokens_per_s or 0) > 0
    gates = {gate.name: gate for gate in analysis.gates}
    assert [gates[name].status for name in ("complete", "requests", "token counts", "repeatable")] == ["pass"] * 4


def test_the_timed_steps_have_no_context_and_begin_at_the_given_length(tmp_path: Path) -> None:
    """On a device that declares its times, a step's time tells how many cached tokens it read."""
    found = measured(tmp_path, "run", SIM, "optimizations.overlap=off")
    assert found.analysis.label == "SIMULATED, forced acceptance, synthetic cache"
    for point, kv_len in zip(found.analysis.points, (40, 72), strict=True):
        # Two steps before the timed ones: they read kv_len + 2 tokens on, three requests at 10 us each.
        read = [3 * (kv_len + 2 + step) for step in range(12)]
        expected_ms = (20_000 + 10 * sum(read) / len(read)) / 1e3
        assert point.device_ms is not None
        assert point.device_ms > expected_ms * 0.999
    trials = [json.loads(line) for line in (tmp_path / "out" / "trials.jsonl").read_text().splitlines()]
    for trial, kv_len in zip(trials, (40, 72), strict=True):
        columns = trial["steps"]
        spans = zip(columns["device_start_ns"], columns["device_end_ns"], strict=True)
        late_ns = [end - start - 1000 * (20_000 + 30 * (kv_len + 2 + step)) for step, (start, end) in enumerate(spans)]
        assert min(late_ns) == 0  # a step may end late, and one of twelve does not


def test_a_sweep_has_a_point_for_each(tmp_path: Path) -> None:
    found = measured(tmp_path, "sweep", "sweep.concurrency=1,2")
    axes = [tuple(point.axes.values()) for point in found.analysis.points]
    assert axes == [(1, 40), (1, 72), (2, 40), (2, 72)]
    assert [point.committed_tokens for point in found.analysis.points] == [12, 12, 24, 24]
    assert found.analysis.label == "forced acceptance, synthetic cache"


def compared(folder: Path, candidate: str, *settings: str) -> Any:
    scenario = folder / "x.yaml"
    scenario.write_text(SCENARIO)
    arms = ["--baseline", "sampling_params=refill", "--candidate", candidate]
    changes = [part for setting in settings for part in ("--set", setting)]
    assert main(["ab", str(scenario), *arms, "--out", str(folder / "out"), *changes]) == 0
    return specbench.load_results(folder / "out")


def test_mirrored_segments_begin_from_the_cache(tmp_path: Path) -> None:
    found = compared(tmp_path, "sampling_params=signature")
    assert [item.point for item in found.analysis.comparisons] == [{"measure.windows.kv_len": n} for n in (40, 72)]
    for item in found.analysis.comparisons:
        assert (item.design, item.tokens_identical) == ("mirrored", True)
        assert item.label == "forced acceptance, synthetic cache"
        gates = {gate.name: gate.status for gate in item.gates}
        assert gates["same steps"] == "pass"


def test_whole_runs_are_windows(tmp_path: Path) -> None:
    found = compared(tmp_path, "sampling_params=refill,engine.tokens_per_block=16", "measure.windows.kv_len=40")
    (item,) = found.analysis.comparisons
    assert item.design == "runs"
    assert item.n_units == 2
    # Each arm's two runs of a unit commit 12 steps of three requests each.
    assert {unit.baseline_tokens for unit in item.units} == {72}
