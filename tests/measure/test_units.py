"""Units from blocks of trials, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ab_sample import Costs, Machine, make_comparison, make_plan, measure_trials

from specbench.errors import ResultsError
from specbench.measure.unit_table import THROUGHPUT, TIME, UnitTable
from specbench.measure.units import gather_units, select_blocks
from specbench.scenario.plan import RUNS, RunPlan

SLOWER = Machine(candidate=Costs(device_us=900.0, prepare_us=120.0, populate_us=5.0))


def units_of(plan: RunPlan, machine: Machine | None = None) -> UnitTable:
    blocks = select_blocks(plan, measure_trials(plan, machine))[0]
    return gather_units(blocks, plan.comparisons[0].design)


def test_a_mirrored_unit_is_a_quad_over_both_passes() -> None:
    units = units_of(make_plan(units=6), SLOWER)
    assert len(units) == 6
    # Four periods of four steps in each arm.
    assert units.baseline.time_ns.tolist() == [16 * 1_000_000] * 6
    assert units.candidate.time_ns.tolist() == [16 * 1_070_000] * 6
    assert units.baseline.tokens.tolist() == [16 * 8] * 6
    assert units.baseline.steps.tolist() == [16] * 6
    assert units.segment.tolist() == [0, 0, 1, 1, 2, 2]
    parts = {name: values[0] / 16_000 for name, values in units.candidate.parts_ns.items()}
    assert parts == {"device": 900.0, "host_total": 120.0, "host_exposed": 120.0, "other_idle": 50.0}
    assert units.candidate.ranges_ns["populate_sampling_params"][0] == 16 * 5_000
    assert units.baseline.acceptance_length == 2.0
    assert units.pair(TIME).log_ratios == pytest.approx(np.log(1000 / 1070))


def test_guards_and_gaps_are_in_no_figure() -> None:
    few, many = units_of(make_plan(units=2, guard_steps=0)), units_of(make_plan(units=2, guard_steps=5))
    assert few.baseline.time_ns.tolist() == many.baseline.time_ns.tolist()
    assert few.baseline.parts_ns["device"].tolist() == many.baseline.parts_ns["device"].tolist()
    assert few.baseline.step_ns.tolist() == many.baseline.step_ns.tolist()


def test_four_runs_are_a_unit() -> None:
    plan = make_plan(RUNS, 3)
    units = units_of(plan, SLOWER)
    assert len(units) == 3
    assert units.baseline.time_ns.tolist() == [2 * 8 * 1_000_000] * 3
    first = [trial.arm for trial in plan.trials if trial.pass_ == 0]
    assert units.starts_with_baseline.tolist() == [arm == "A" for arm in first]
    assert units.start_s.tolist() == [0.0, 4.0, 8.0]


def test_steps_tile_the_time_of_their_unit() -> None:
    units = units_of(make_plan(units=4), SLOWER)
    for arm in (units.baseline, units.candidate):
        assert np.bincount(arm.step_unit, arm.step_ns).tolist() == arm.time_ns.tolist()
    kept = units.take(np.array([False, True, False, True]))
    assert np.bincount(kept.candidate.step_unit, kept.candidate.step_ns).tolist() == kept.candidate.time_ns.tolist()
    assert kept.segment.tolist() == [0, 1]


def test_what_the_device_does_not_tell_is_left_out() -> None:
    units = units_of(make_plan(units=2), Machine(has_device_time=False))
    assert not units.has_parts
    assert units.has_steps


def test_an_interrupted_block_counts_once() -> None:
    plan = make_plan(units=4)
    trials = measure_trials(plan)
    cut = replace(trials[3], status="interrupted", wall_ns=1)
    again = [replace(trial, attempt=1) for trial in trials[2:4]]
    blocks = select_blocks(plan, [*trials[:3], cut, *again])[0]
    assert [[trial.attempt for trial in block.trials] for block in blocks] == [[0, 0], [1, 1]]
    # A later attempt of a block that was whole is kept on disk, and not counted.
    twice = select_blocks(plan, [*trials, *again])[0]
    assert [[trial.attempt for trial in block.trials] for block in twice] == [[0, 0], [0, 0]]
    # Passes of two attempts make no unit.
    assert len(select_blocks(plan, [*trials[:3], again[1]])[0]) == 1


def test_a_quad_that_lacks_a_period_is_left_out() -> None:
    plan = make_plan(units=4)
    trials = measure_trials(plan)
    trials[1] = replace(trials[1], periods=trials[1].periods[:-1])
    units = gather_units(select_blocks(plan, trials)[0], "mirrored")
    assert units.segment.tolist() == [0, 1, 1]


def test_periods_beyond_the_steps_are_an_error() -> None:
    plan = make_plan(units=2)
    trials = measure_trials(plan)
    trials[0] = replace(trials[0], periods=[replace(p, num_steps=1000) for p in trials[0].periods])
    with pytest.raises(ResultsError, match="trial 0 has periods beyond"):
        gather_units(select_blocks(plan, trials)[0], "mirrored")


def test_throughput_counts_tokens() -> None:
    units = units_of(make_plan(RUNS, 2), Machine(candidate=Costs(tokens=12)))
    assert units.pair(TIME).log_ratios.tolist() == [0.0, 0.0]
    assert units.pair(THROUGHPUT).log_ratios == pytest.approx(np.log(1.5))
    assert not units.equal_tokens


def test_each_comparison_has_its_own_units() -> None:
    comparisons = [make_comparison(0), make_comparison(1, RUNS, role="alone")]
    plan = make_plan(units=4, comparisons=comparisons)
    blocks = select_blocks(plan, measure_trials(plan))
    assert [len(found[0].trials) for found in blocks.values()] == [2, 4]
    assert select_blocks(plan, measure_trials(plan), only=1)[0] == []


def test_nothing_measured_is_an_empty_table() -> None:
    units = gather_units([], "mirrored")
    assert len(units) == 0
    assert units.baseline.tokens_per_s is None
    assert units.baseline.acceptance_length is None
