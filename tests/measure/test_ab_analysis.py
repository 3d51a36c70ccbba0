"""From the lines of ``ab`` and ``sweep`` to analysis.json, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ab_sample import (
    Costs,
    Machine,
    make_comparison,
    make_plan,
    make_point,
    make_requests,
    measure_trials,
    run_looks,
)

from specbench import encoding
from specbench.errors import InputError, ResultsError
from specbench.measure.ab_analysis import analyze_ab
from specbench.measure.analysis import RunContext
from specbench.measure.results_folder import ResultsFolder
from specbench.measure.so_far import describe_so_far
from specbench.measure.sweep_analysis import analyze_sweep
from specbench.records import Analysis, Gate, LookRecord, StepTable, TrialRecord
from specbench.scenario.enumeration import enumerate_sweep
from specbench.scenario.plan import RUNS, RunPlan, Trial

DESIGNS = ["mirrored", RUNS]
CANDIDATE = Costs(device_us=700.0, prepare_us=100.0, populate_us=5.0, idle_us=40.0)


def noisy(seed: int = 0, sd: float = 0.005) -> Callable[[Trial, int, str], float]:
    rng = np.random.default_rng(seed)
    return lambda _trial, _period, _arm: float(np.exp(sd * rng.standard_normal()))


def analyzed(plan: RunPlan, trials: Sequence[TrialRecord], status: str = "complete") -> Analysis:
    measured, looks = run_looks(plan, trials)
    return analyze_ab(plan, measured, make_requests(measured), looks, RunContext(command="specbench ab x"), status)


def gate(analysis: Analysis, name: str) -> Gate:
    (found,) = [item for item in analysis.gates if item.name == name]
    return found


@pytest.mark.parametrize("design", DESIGNS)
def test_points_have_the_figures_of_their_arm(design: str) -> None:
    plan = make_plan(design, 4)
    analysis = analyzed(plan, measure_trials(plan, Machine(Costs(), CANDIDATE)))
    assert analysis.kind == "ab"
    assert [point.variant for point in analysis.points] == ["off", "on"]
    for point, costs in zip(analysis.points, (Costs(), CANDIDATE), strict=True):
        assert point.step_ms == pytest.approx(costs.step_us / 1000)
        assert point.device_ms == pytest.approx(costs.device_us / 1000)
        assert point.host_exposed_ms == pytest.approx(costs.prepare_us / 1000)
        assert point.other_idle_ms == pytest.approx(costs.idle_us / 1000)
        assert point.output_tokens_per_s == pytest.approx(8 / costs.step_us * 1e6)
        assert point.ranges["populate_sampling_params"].mean_us == pytest.approx(costs.populate_us)
        assert point.acceptance_length == 2.0
        assert (point.ttft_ms is None) == (design == "mirrored")  # requests of a pass were served by both arms
    assert analysis.points[0].steps == analysis.points[1].steps
    assert encoding.from_json(Analysis, json.loads(encoding.dumps(analysis))) == analysis


def test_a_shared_baseline_is_pooled_over_its_comparisons() -> None:
    points = [make_point(0, "off"), make_point(1, "on"), make_point(2, "fast")]
    comparisons = [make_comparison(0), make_comparison(1, candidate=2)]
    plan = make_plan(units=4, comparisons=comparisons, points=points)
    analysis = analyzed(plan, measure_trials(plan, Machine(factors=noisy())))
    assert [point.variant for point in analysis.points] == ["off", "on", "fast"]
    assert analysis.points[0].steps == analysis.points[1].steps + analysis.points[2].steps


def test_gates_of_the_whole_are_the_worst_of_its_comparisons() -> None:
    comparisons = [make_comparison(0, RUNS), make_comparison(1, RUNS)]
    plan = make_plan(units=4, comparisons=comparisons)
    trials = measure_trials(plan, Machine(factors=noisy()))
    spoiled = [replace(t, tokens_sha256="x") if t.comparison == 1 and t.arm == "B" else t for t in trials]
    analysis = analyzed(plan, spoiled)
    assert gate(analysis, "tokens").status == "fail"
    assert gate(analysis, "tokens").detail.startswith("on (comparison 1): tokens differ")
    assert [item.verdict == "INVALID" for item in analysis.comparisons] == [False, True]
    assert not analysis.is_valid
    assert analyzed(plan, trials).is_valid
    assert len({item.name for item in analysis.gates}) == len(analysis.gates)


def test_an_interrupted_command_says_so() -> None:
    plan = make_plan(RUNS, 8)
    trials = measure_trials(plan, Machine(factors=noisy()))[:10]
    analysis = analyze_ab(plan, trials, [], [], RunContext(), "interrupted")
    assert analysis.status == "interrupted"
    assert gate(analysis, "complete").status == "warn"
    assert "8 trials count, 2 of blocks that were cut are kept" in gate(analysis, "complete").detail
    assert analysis.comparisons[0].n_units == 2
    with pytest.raises(ResultsError, match="no trial"):
        analyze_ab(plan, [], [], [], RunContext())


def test_a_trial_that_failed_is_named() -> None:
    plan = make_plan(RUNS, 2)
    trials = measure_trials(plan)
    failed = replace(trials[2], status="failed", error="out of memory")
    only = analyze_ab(plan, [*trials[:2], failed], [], [], RunContext())
    assert gate(only, "complete").status == "fail"
    assert "trial 2 failed: out of memory" in gate(only, "complete").detail
    assert only.comparisons[0].n_units == 0


def test_a_plan_that_compares_nothing_is_refused() -> None:
    plan = replace(make_plan(RUNS, 2), settings=None)
    with pytest.raises(InputError, match="compares nothing"):
        analyze_ab(plan, measure_trials(make_plan(RUNS, 2)), [], [], RunContext())


def test_files_give_what_memory_gave(tmp_path: Path) -> None:
    plan = make_plan(units=8)
    measured, looks = run_looks(plan, measure_trials(plan, Machine(Costs(), CANDIDATE, noisy())))
    requests = make_requests(measured)
    with ResultsFolder(tmp_path) as folder:
        for trial in measured:
            folder.append(trial, [request for request in requests if request.trial == trial.trial])
    with ResultsFolder(tmp_path) as folder:
        read = folder.contents
    live = analyze_ab(plan, measured, requests, looks, RunContext())
    assert encoding.dumps(analyze_ab(plan, read.trials, read.requests, looks, RunContext())) == encoding.dumps(live)


# Sweeps


def sweep(points: int = 3, rounds: int = 2) -> tuple[RunPlan, list[TrialRecord]]:
    """Throughput falls by 1% from round to round; more concurrent points are faster."""
    coordinates = [{"workload.concurrency": 2**i} for i in range(points)]
    plan = RunPlan(
        points=tuple(make_point(i, "base", **coordinates[i]) for i in range(points)),
        trials=enumerate_sweep(points, rounds, 3, [0] * points),
        warmup_requests=0,
        scenario={"name": "sample"},
        kind="sweep",
    )
    lines = []
    for trial in plan.trials:
        one = make_plan(RUNS, 1, points=list(plan.points[:2]))
        (line, *_) = measure_trials(one, Machine(Costs(device_us=800.0 * 1.01**trial.segment)))
        point = plan.points[trial.point]
        lines.append(
            replace(
                line,
                trial=trial.trial,
                point=trial.point,
                segment=trial.segment,
                seed=trial.seed,
                arm=None,
                comparison=None,
                variant=point.variant,
                tokens_sha256=f"point {trial.point}",
                axes={**line.axes, **point.axes},
                planned_requests=4,
            )
        )
    return plan, lines


def test_points_of_a_sweep_in_plan_order() -> None:
    plan, trials = sweep()
    analysis = analyze_sweep(plan, trials, make_requests(trials), RunContext())
    assert (analysis.kind, analysis.status) == ("sweep", "complete")
    assert [point.point for point in analysis.points] == [0, 1, 2]
    assert [point.axes for point in analysis.points] == [{"workload.concurrency": 2**i} for i in range(3)]
    assert [point.trials for point in analysis.points] == [2, 2, 2]
    assert gate(analysis, "points").status == "pass"
    assert gate(analysis, "interleaving").status == "pass"
    assert "2 rounds of 3 points" in gate(analysis, "interleaving").detail
    assert "-0.79%" in gate(analysis, "interleaving").detail
    assert gate(analysis, "repeatable").status == "pass"
    assert encoding.from_json(Analysis, json.loads(encoding.dumps(analysis))) == analysis


def test_rounds_that_differ_in_tokens_fail() -> None:
    plan, trials = sweep()
    trials[-1] = replace(trials[-1], tokens_sha256="other")
    assert gate(analyze_sweep(plan, trials, make_requests(trials), RunContext()), "repeatable").status == "fail"


def test_a_failed_point_is_recorded_and_the_rest_stands() -> None:
    plan, trials = sweep()
    first = next(i for i, trial in enumerate(trials) if trial.point == 1)
    failed = replace(
        trials[first], status="failed", error="the KV cache does not fit", steps=StepTable({}), wall_ns=0,
        committed_tokens=0, ranges={}, device_busy=None,
    )  # fmt: skip
    lines = [failed if i == first else t for i, t in enumerate(trials) if t.point != 1 or i == first]
    analysis = analyze_sweep(plan, lines, make_requests(lines), RunContext())
    assert [point.status for point in analysis.points] == ["complete", "failed", "complete"]
    assert analysis.points[1].error == "the KV cache does not fit"
    assert analysis.points[1].axes == {"workload.concurrency": 2}
    assert analysis.status == "complete"
    assert gate(analysis, "points").status == "warn"
    assert "1 of 3 points failed; point 1: the KV cache" in gate(analysis, "points").detail
    alone = analyze_sweep(plan, [failed], [], RunContext())
    assert gate(alone, "points").status == "fail"
    assert alone.status == "interrupted"


def test_batch_sizes_that_each_point_has_captured_are_kept_by_point() -> None:
    plan, trials = sweep(points=3)

    def told(sizes: list[list[int]]) -> Analysis:
        """Each engine captured once under a variant of ``capture_params``, and again under another."""
        sets = [{"real_params": {"batch_sizes": found}, "leak": {"batch_sizes": found[:1]}} for found in sizes]
        by_point = [{**trials[0].subject, "captured_steps": {"sets": found}} for found in sets]
        return analyze_sweep(plan, [replace(t, subject=by_point[t.point]) for t in trials], [], RunContext())

    assert told([[1], [1, 2], [1, 2, 4]]).subject["captured_batch_sizes"] == {"0": [1], "1": [1, 2], "2": [1, 2, 4]}
    assert "captured_steps" in told([[1], [1, 2], [1, 2, 4]]).subject
    assert "captured_batch_sizes" not in told([[1, 2]] * 3).subject
    assert "captured_batch_sizes" not in analyze_sweep(plan, trials, [], RunContext()).subject


@pytest.mark.parametrize("exactness", ["bit-identical", "known-defect"])
def test_progress_calls_a_known_defect_neither_faster_nor_slower(exactness: str) -> None:
    plan = make_plan(exactness=exactness)
    trials = measure_trials(plan)

    def said(verdict: str) -> str | None:
        look = LookRecord(0, 1, 20, False, verdict, 0.1, 0.05, 0.15, True)
        return describe_so_far(plan, 0, trials, [look]).verdict

    for verdict in ("FASTER", "SLOWER", "EQUIVALENT"):
        assert said(verdict) == ("KNOWN DEFECT" if exactness == "known-defect" else verdict)
    assert said("INCONCLUSIVE") == "INCONCLUSIVE"  # it is not settled yet
    assert describe_so_far(plan, 0, trials, []).verdict is None


def test_a_drift_between_rounds_warns() -> None:
    plan, trials = sweep()
    slow = [replace(t, output_tokens_per_s=(t.output_tokens_per_s or 0) * 0.8**t.segment) for t in trials]
    assert gate(analyze_sweep(plan, slow, make_requests(slow), RunContext()), "interleaving").status == "warn"
    plan, trials = sweep(rounds=1)
    assert gate(analyze_sweep(plan, trials, make_requests(trials), RunContext()), "interleaving").status == "n/a"


def test_an_interrupted_sweep() -> None:
    plan, trials = sweep()
    analysis = analyze_sweep(plan, trials[:4], make_requests(trials[:4]), RunContext())
    assert analysis.status == "interrupted"
    with pytest.raises(ResultsError, match="no trial"):
        analyze_sweep(plan, [], [], RunContext())
