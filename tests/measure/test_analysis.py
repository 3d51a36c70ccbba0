"""Everything after trials.jsonl is pure: it re-runs from the files and gives the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_subject import DEVICE_NS, STEP_NS, FakeClock, FakeSubject, make_plan, make_run, open_folder

from specbench import encoding
from specbench.errors import ResultsError
from specbench.measure.analysis import DRAFTER_SETTINGS, RunContext, analyze_run, drafting_of
from specbench.measure.executor import execute
from specbench.measure.results_folder import ResultsFolder
from specbench.measure.subject import Capabilities
from specbench.records import Analysis, Point


def point_of(path: Path, **changes: object) -> Point:
    with open_folder(path) as folder:
        execute(make_run(folder, **changes))  # type: ignore[arg-type]
        return analyze_run(folder.contents.trials, folder.contents.requests, RunContext()).points[0]


def test_analysis_from_disk_equals_analysis_in_memory(tmp_path: Path) -> None:
    with open_folder(tmp_path) as folder:
        execute(make_run(folder, make_plan(repeats=2)))
        live = analyze_run(folder.contents.trials, folder.contents.requests, RunContext())
    with ResultsFolder(tmp_path) as folder:
        read = analyze_run(folder.contents.trials, folder.contents.requests, RunContext())
    assert encoding.dumps(read) == encoding.dumps(live)
    assert encoding.from_json(Analysis, json.loads(encoding.dumps(live))) == live


def test_point_by_hand(tmp_path: Path) -> None:
    # Concurrency 2, three conversations of one turn, five tokens each: 1 + 2 + 2.
    # Steps: two context; two generation x2; then c2 alone: context, generation x2.
    point = point_of(tmp_path, turns=[1, 1, 1])
    wall_ns = 6 * STEP_NS - 200_000
    assert (point.steps, point.requests, point.committed_tokens) == (6, 3, 15)
    assert point.wall_s == wall_ns / 1e9
    assert point.output_tokens_per_s == pytest.approx(15 / wall_ns * 1e9)
    # Full: the two generation steps of both; the first fill is ramp, c2 alone is tail.
    assert point.full_batch_steps == 2
    assert point.full_batch_tokens_per_s == pytest.approx(8 / (2 * STEP_NS) * 1e9)
    assert point.tokens_per_s_per_user == pytest.approx((point.full_batch_tokens_per_s or 0) / 2)
    assert point.mean_active_requests == 2.0
    assert point.acceptance_length == 2.0
    assert point.conditional_acceptance == [1.0, 0.0]
    assert point.joint_acceptance == [1.0, 0.0]
    assert point.acceptance_counts["accepted"] == [6, 0]
    assert point.step_ms == pytest.approx(wall_ns / 6 / 1e6)
    assert point.device_ms == DEVICE_NS / 1e6
    assert point.host_exposed_ms == pytest.approx((6 * 350_000 - 200_000) / 6 / 1e6)  # the last update is outside
    assert point.other_idle_ms == pytest.approx(0.0)
    assert point.host_total_ms == point.host_exposed_ms
    assert point.mean_isl == 3.0
    assert point.mean_osl == 5.0
    assert point.ttft_ms is not None
    assert point.ttft_ms.p50 == 1.15
    assert point.itl_ms is not None
    assert point.itl_ms.p50 == 1.35
    assert point.tpot_ms is not None
    assert point.tpot_ms.p99 == pytest.approx(2 * 1.35 / 4)
    assert point.ranges["schedule"].calls == 6
    assert point.ranges["schedule"].mean_us == 100.0


def test_what_a_subject_cannot_tell_is_null(tmp_path: Path) -> None:
    blind = FakeSubject(FakeClock(), capabilities=Capabilities(True, False, False, False))
    point = point_of(tmp_path, subject=blind)
    assert (point.device_ms, point.host_exposed_ms, point.other_idle_ms, point.tokens_sha256) == (None,) * 4
    assert point.step_ms is not None
    text = encoding.dumps(point)
    assert '"device_ms":null' in text
    assert "NaN" not in text


def test_latency_percentiles_are_null_when_nothing_ended(tmp_path: Path) -> None:
    point = point_of(tmp_path, turns=[1], timeout_s=0.0)
    assert (point.e2e_ms, point.tpot_ms, point.itl_ms) == (None, None, None)
    assert point.ttft_ms is not None
    assert point.status == "timeout"


def test_a_point_tells_what_its_engine_drafted_with(tmp_path: Path) -> None:
    point = point_of(tmp_path)
    assert (point.draft_model, point.tree, point.min_ngram, point.max_ngram) == (None, {}, None, None)
    with open_folder(tmp_path / "more") as folder:
        execute(make_run(folder))
        (trial,) = folder.contents.trials
    tree = {"top_k": 4, "depth": 4, "num_nodes": 12}
    settings = {"name": "ngram+eagle3", "model": None, "tree": tree, "min_ngram": 2, "max_ngram": 5}
    told = replace(trial, subject={"engine": {"drafter": settings}, "draft_model": "smollm2-135m-eagle3"})
    expected = {"draft_model": "smollm2-135m-eagle3", "tree": tree, "min_ngram": 2, "max_ngram": 5}
    assert drafting_of(told) == expected
    alone = {**settings, "name": "eagle3", "model": "/heads/mine", "tree": None}  # a device that loads no head
    given = {"draft_model": "/heads/mine", "tree": {}, "min_ngram": None, "max_ngram": None}
    assert drafting_of(replace(trial, subject={"engine": {"drafter": alone}})) == given
    failed = replace(trial, subject={}, axes={**trial.axes, DRAFTER_SETTINGS: alone})  # before there was an engine
    assert drafting_of(failed) == given


def test_one_attempt_a_trial(tmp_path: Path) -> None:
    with open_folder(tmp_path) as folder:
        execute(make_run(folder))
        (trial,), requests = folder.contents.trials, folder.contents.requests
    cut = replace(trial, status="interrupted", committed_tokens=1)
    again = [replace(request, attempt=1) for request in requests]
    after = analyze_run([cut, replace(trial, attempt=1)], [*requests, *again], RunContext())
    assert (after.points[0].requests, after.points[0].committed_tokens) == (len(requests), trial.committed_tokens)
    before = analyze_run([trial, replace(cut, attempt=1)], [*requests, *again], RunContext())
    assert before.points[0].committed_tokens == trial.committed_tokens


def test_no_trial_is_an_error() -> None:
    with pytest.raises(ResultsError, match="no trial"):
        analyze_run([], [], RunContext())


def test_missing_trials_make_the_status(tmp_path: Path) -> None:
    with open_folder(tmp_path) as folder:
        execute(make_run(folder))
        analysis = analyze_run(folder.contents.trials, folder.contents.requests, RunContext(planned_trials=3))
    assert analysis.status == "interrupted"


def test_the_strongest_label_wins(tmp_path: Path) -> None:
    with open_folder(tmp_path) as folder:
        execute(make_run(folder, make_plan(repeats=2)))
        first, second = folder.contents.trials
        analysis = analyze_run([first, replace(second, label="forced acceptance")], [], RunContext())
    assert analysis.label == "forced acceptance"


def test_a_trial_line_without_a_key_names_it() -> None:
    with pytest.raises(ResultsError, match=r"analysis.points\[0\]: key 'variant' is missing"):
        encoding.from_json(Analysis, {"kind": "run", "label": "natural", "scenario": {}, "environment": {},
                                      "points": [{"point": 0}], "gates": []}, "analysis")  # fmt: skip


@pytest.mark.parametrize("data", [{"kind": 3}, {"kind": "run", "label": "x", "scenario": []}])
def test_values_of_the_wrong_shape_are_refused(data: dict[str, object]) -> None:
    with pytest.raises(ResultsError, match="expected"):
        encoding.from_json(Analysis, data, "analysis")


def test_nan_is_never_written(tmp_path: Path) -> None:
    point = point_of(tmp_path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        encoding.dumps(replace(point, step_ms=float("nan")))
