"""Results as pandas frames."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from comparison_sample import AB_SWEEP, BREAK_EVEN, FASTER, MAP, SWEEP
from sample import ANALYSIS

import specbench
from specbench import encoding
from specbench.errors import ResultsError
from specbench.records import RequestRecord
from specbench.report.formats import json as json_format

REQUEST = RequestRecord(
    trial=0,
    request_id="c0/t0",
    category="math",
    prompt_tokens=3,
    output_tokens=2,
    output_sha256="",
    finish_reason="stop",
    ttft_ms=1.5,
    e2e_ms=None,
    accepted_lengths=[2],
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "analysis.json").write_text(json_format.render(ANALYSIS))
    (tmp_path / "requests.jsonl").write_text(encoding.dumps(REQUEST) + "\n" + encoding.dumps(REQUEST) + '\n{"torn')
    trial = {"trial": 0, "status": "complete", "evidence": {"gc_ms": 0.5}, "steps": {"step": [1, 2]}, "ranges": {}}
    (tmp_path / "trials.jsonl").write_text(json.dumps(trial) + "\n")
    return tmp_path


def test_frames(folder: Path) -> None:
    found = specbench.load_results(folder)
    assert found.analysis == ANALYSIS
    assert found.points.loc[0, "output_tokens_per_s"] == 123.2146
    assert found.points.loc[0, "ttft_ms_p95"] == 120.7
    assert len(found.requests) == 2  # the torn line does not count
    assert found.requests.loc[1, "ttft_ms"] == 1.5
    assert found.trials.loc[0, "evidence.gc_ms"] == 0.5
    assert "steps" not in found.trials
    assert found.comparisons.empty
    assert found.units.empty


def test_comparisons_units_and_ranges_have_frames(tmp_path: Path) -> None:
    (tmp_path / "analysis.json").write_text(json_format.render(AB_SWEEP))
    found = specbench.load_results(tmp_path)
    assert found.comparisons["speedup_pct"].tolist() == [0.21, 0.94, 1.23, 2.05]
    assert found.comparisons["workload.concurrency"].tolist() == [1, 2, 4, 8]
    assert found.comparisons["step_log_points"].notna().all()
    assert found.units.groupby("comparison").size().tolist() == [24] * 4
    assert found.units.loc[0, "d_pct"] == AB_SWEEP.comparisons[0].units[0].d_pct
    ranges = found.ranges.set_index(["comparison", "range"])
    assert ranges.loc[(0, "prepare_inputs"), "delta_pct"] == FASTER.ranges["prepare_inputs"].delta_pct


def test_points_of_a_sweep_have_a_column_a_coordinate(tmp_path: Path) -> None:
    (tmp_path / "analysis.json").write_text(json_format.render(SWEEP))
    points = specbench.load_results(tmp_path).points
    by_place = points.set_index(["workload.concurrency", "drafter.draft_len"])
    assert by_place.loc[(8, 4), "output_tokens_per_s"] == points["output_tokens_per_s"].max()
    assert points["error"].notna().sum() == 1


def test_results_are_shown_in_one_line(folder: Path) -> None:
    shown = repr(specbench.load_results(folder))
    assert shown.startswith("<Results of run ")
    assert "points: 1, comparisons: 0, trials: " in shown
    assert len(shown) < 150


def test_the_analysis_file_is_as_good_as_its_folder(folder: Path) -> None:
    assert len(specbench.load_results(str(folder / "analysis.json")).requests) == 2


def test_a_folder_without_results(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"analysis\.json: there is no such file"):
        specbench.load_results(tmp_path)


def test_a_damaged_line_is_named(folder: Path) -> None:
    (folder / "trials.jsonl").write_text('{"trial": 0}\n{oops\n{"trial": 2}\n')
    with pytest.raises(ResultsError, match=r"trials\.jsonl:2"):
        specbench.load_results(folder)


def test_a_newer_result_is_refused(folder: Path) -> None:
    newer = {**json.loads((folder / "analysis.json").read_text()), "schema_version": 99}
    (folder / "analysis.json").write_text(json.dumps(newer))
    with pytest.raises(ResultsError, match="upgrade specbench"):
        specbench.load_results(folder)


def test_importing_specbench_loads_no_pandas() -> None:
    import subprocess

    code = "import specbench, sys; print('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_a_break_even_map_has_a_row_a_cell(tmp_path: Path) -> None:
    (tmp_path / "analysis.json").write_text(json_format.render(BREAK_EVEN))
    found = specbench.load_results(tmp_path).break_even
    assert len(found) == sum(len(line.cells) for line in MAP.lines)
    by_place = found.set_index(["drafter", "draft_len", "concurrency"])
    assert by_place.loc[("ngram", 4, 16), "verdict"] == "does not pay"
    assert by_place.loc[("ngram+eagle3", 4, 1), "speedup_pct"] == MAP.lines[2].cells[0].speedup_pct
    (tmp_path / "analysis.json").write_text(json_format.render(SWEEP))
    assert specbench.load_results(tmp_path).break_even.empty
