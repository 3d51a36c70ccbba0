"""From trial lines to verdicts: effects, looks, corrections, decomposition, words."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from ab_sample import (
    TOGGLE,
    Costs,
    Factors,
    Machine,
    make_comparison,
    make_plan,
    make_point,
    measure_trials,
    run_from_log_ratios,
    run_looks,
    swap_labels,
)

from specbench import encoding
from specbench.measure.comparing import compare, compare_studies, due_look, take_look
from specbench.measure.findings import Study
from specbench.measure.looks import has_ended, pooled_families, stops_early
from specbench.measure.unit_table import ArmUnits, UnitTable
from specbench.measure.wording import say_where_it_comes_from
from specbench.records import Comparison, Effect, LookRecord, TrialRecord
from specbench.scenario.plan import RUNS, RunPlan, Trial
from specbench.stats.estimate import estimate_units
from specbench.stats.multiplicity import holm
from specbench.stats.pooled import pool_points

DESIGNS = ["mirrored", RUNS]


def noise(sd: float, seed: int = 0) -> Factors:
    """Every period, and every run, is that much faster or slower."""
    rng = np.random.default_rng(seed)
    return lambda _trial, _period, _arm: float(np.exp(sd * rng.standard_normal()))


def compared(plan: RunPlan, trials: Sequence[TrialRecord], **changes: object) -> Comparison:
    measured, looks = run_looks(plan, trials)
    return compare(plan, measured, [], looks, **changes)[0][0]  # type: ignore[arg-type]


def log_points(percent: float | None) -> float:
    assert percent is not None
    return float(np.log1p(percent / 100))


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize(("device_us", "verdict"), [(760.0, "FASTER"), (840.0, "SLOWER")])
def test_a_known_effect_is_found_and_covered(design: str, device_us: float, verdict: str) -> None:
    plan = make_plan(design, 20)
    comparison = compared(plan, measure_trials(plan, Machine(Costs(), Costs(device_us=device_us), noise(0.004))))
    truth = np.log(1000 / (200 + device_us))
    assert comparison.verdict == verdict
    assert log_points(comparison.ci_low_pct) < truth < log_points(comparison.ci_high_pct)
    assert comparison.decomposition["device"] == pytest.approx(truth, abs=0.004)
    assert any("device time" in line for line in comparison.in_words)
    assert encoding.from_json(Comparison, json.loads(encoding.dumps(comparison))) == comparison


@pytest.mark.parametrize("design", DESIGNS)
def test_no_effect_is_equivalent_and_nothing_else(design: str) -> None:
    plan = make_plan(design, 20)
    comparison = compared(plan, measure_trials(plan, Machine(factors=noise(0.002))))
    assert comparison.verdict == "EQUIVALENT"
    assert comparison.mde_pct is not None
    assert 0 < comparison.mde_pct < 0.5
    assert comparison.units_needed is None


@pytest.mark.parametrize("design", DESIGNS)
def test_swapped_labels_flip_every_sign_exactly(design: str) -> None:
    plan = make_plan(design, 8, num_looks=1)
    trials = measure_trials(plan, Machine(Costs(), Costs(device_us=780.0, populate_us=3.0), noise(0.01)))
    there, back = compared(plan, trials), compared(plan, swap_labels(trials))
    assert there.verdict == "FASTER"
    assert back.verdict == "SLOWER"
    assert [-log_points(unit.d_pct) for unit in back.units] == pytest.approx(
        [log_points(unit.d_pct) for unit in there.units], abs=1e-14
    )
    assert log_points(back.ci_low_pct) == pytest.approx(-log_points(there.ci_high_pct), abs=1e-14)
    assert {name: -value for name, value in back.decomposition.items()} == pytest.approx(there.decomposition)
    assert (back.p_value, back.mde_pct) == pytest.approx((there.p_value, there.mde_pct))
    assert back.second_line["sign_positive"] == there.second_line["sign_negative"]


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize("known", [True, False])
def test_the_parts_add_up_to_the_mean(design: str, processes: int, known: bool) -> None:
    plan = make_plan(design, 16, processes=processes, stop_early=False, exactness="changes-output")
    costs = Costs(device_us=750.0, prepare_us=170.0, idle_us=55.0, tokens=9)
    machine = Machine(Costs(), costs, noise(0.02), has_device_time=known)
    comparison = compared(plan, measure_trials(plan, machine))
    expected = {"device", "host_exposed", "other_idle"} if known else {"step"}
    assert set(comparison.decomposition) == {"tokens_per_step", *expected}
    assert sum(comparison.decomposition.values()) == pytest.approx(log_points(comparison.speedup_pct), abs=1e-12)
    assert comparison.decomposition["tokens_per_step"] == pytest.approx(np.log(9 / 8), abs=1e-12)
    assert comparison.decomposition_pct["tokens_per_step"].ci_low_pct is None  # equal in every unit: no noise to see


def test_a_range_has_its_own_effect_and_words_where_it_is_hidden() -> None:
    plan = make_plan(units=20)
    # The device is the longer one: the host prepares the next step while it runs.
    trials = measure_trials(plan, Machine(Costs(), Costs(populate_us=6.0), noise(0.001)))
    hidden = [_hide_preparation(trial) for trial in trials]
    for lines, word, part in ((trials, "exposed", "100%"), (hidden, "hidden", "0%")):
        comparison = compared(plan, lines)
        assert comparison.verdict == "EQUIVALENT"
        effect = comparison.ranges["populate_sampling_params"]
        assert effect.ci_low_pct is not None
        assert effect.ci_high_pct is not None
        assert effect.ci_low_pct < -80.0 < effect.ci_high_pct
        assert effect.baseline_us == pytest.approx(30, rel=0.01)
        assert effect.share_pct == pytest.approx(3, rel=0.01)
        (line,) = [line for line in comparison.in_words if "populate_sampling_params" in line]
        assert "24.0 µs a step less" in line
        assert "30.0 µs of a step of 1.000 ms (3.00%)" in line
        told = " ".join(comparison.in_words)
        assert f"{word} (the device idles during {part}" in told
        assert ("no gain is expected from less of it" in told) is (word == "hidden")
        assert ("at most 3.09%" in line) is (word == "exposed")


def _hide_preparation(trial: TrialRecord) -> TrialRecord:
    """The device is busy during every step of the trial."""
    assert trial.device_busy is not None
    steps = trial.steps.columns
    busy = replace(trial.device_busy, start_ns=list(steps["host_start_ns"]), end_ns=list(steps["output_ns"]))
    return replace(trial, device_busy=busy)


def test_a_range_that_only_one_arm_has() -> None:
    plan = make_plan(units=8)
    comparison = compared(plan, measure_trials(plan, Machine(Costs(), Costs(populate_us=0.0), noise(0.01))))
    gone = comparison.ranges["populate_sampling_params"]
    assert (gone.delta_pct, gone.candidate_us) == (-100.0, 0.0)
    plan = make_plan(units=8)
    comparison = compared(plan, measure_trials(plan, Machine(Costs(populate_us=0.0), Costs(), noise(0.01))))
    new = comparison.ranges["populate_sampling_params"]
    assert (new.delta_pct, new.baseline_us) == (None, 0.0)


@pytest.mark.parametrize(("before_us", "has_change"), [(0.29, False), (0.31, True)])
def test_next_to_none_of_a_range_is_nothing_to_change_from(before_us: float, has_change: bool) -> None:
    plan = make_plan(units=8)
    comparison = compared(plan, measure_trials(plan, Machine(Costs(populate_us=before_us), Costs(), noise(0.0))))
    effect = comparison.ranges["populate_sampling_params"]
    assert effect.baseline_us == pytest.approx(before_us, rel=0.01)
    assert effect.candidate_us == pytest.approx(30.0, rel=0.01)
    assert (effect.delta_pct is not None) is has_change


def test_a_part_beyond_the_whole_is_told_by_what_the_others_leave() -> None:
    plan = make_plan(RUNS, 8)
    comparison = compared(plan, measure_trials(plan, Machine(Costs(), Costs(500.0, 100.0), noise(0.01))))
    (line,) = say_where_it_comes_from(comparison)
    assert re.fullmatch(r"Most of the difference is device time: \+[0-9.]+ of \+[0-9.]+ log points \(\d+%\)\.", line)
    parts = {"tokens_per_step": 0.63603, "device": -0.31843}
    clear = dict.fromkeys(parts, Effect(1.0, 0.5, 1.5))
    beyond = replace(comparison, decomposition=parts, decomposition_pct=clear)
    (line,) = say_where_it_comes_from(beyond)
    leave = "+63.603 log points, of which the other parts leave +31.760"
    assert line == f"Most of the difference is tokens committed a step: {leave}."
    swapped = replace(beyond, decomposition={name: -value for name, value in parts.items()}, verdict="SLOWER")
    (line,) = say_where_it_comes_from(swapped)
    assert "-63.603 log points, of which the other parts leave -31.760" in line


# Looks


def test_looks_stop_at_a_clear_effect_and_not_before() -> None:
    plan = make_plan(RUNS, 20)
    rng = np.random.default_rng(3)
    _, looks = run_looks(plan, run_from_log_ratios(plan, 0.004 * rng.standard_normal(20) + 0.05))
    assert [(look.units, look.verdict, look.settled) for look in looks] == [
        (4, "INCONCLUSIVE", False),
        (8, "FASTER", True),
    ]
    _, looks = run_looks(plan, run_from_log_ratios(plan, 0.05 * rng.standard_normal(20)))
    assert [look.units for look in looks] == [4, 8, 12, 16, 20]
    assert [look.is_last for look in looks] == [False] * 4 + [True]


def test_looks_are_due_at_planned_units_and_once() -> None:
    plan = make_plan(RUNS, 20)
    assert [n for n in range(1, 21) if due_look(plan, 0, n, [])] == list(range(4, 21))
    seen = LookRecord(0, 1, 5, False, "INCONCLUSIVE", 0.0, None, None, False)
    assert [n for n in range(1, 21) if due_look(plan, 0, n, [seen])] == list(range(8, 21))
    assert not due_look(plan, 0, 20, [replace(seen, is_last=True)])
    assert not due_look(plan, 0, 20, [replace(seen, settled=True)])
    assert due_look(plan, 0, 8, [replace(seen, comparison=1, settled=True)])


def test_without_early_stops_there_is_one_look() -> None:
    plan = make_plan(RUNS, 20, stop_early=False)
    measured, looks = run_looks(plan, run_from_log_ratios(plan, 0.05 + 0.001 * np.arange(20)))
    assert [(look.units, look.is_last) for look in looks] == [(20, True)]
    assert len(measured) == 80
    assert compare(plan, measured, [], looks)[0][0].bound == "look 1 of 1"


def test_a_resumed_command_takes_the_same_looks() -> None:
    plan = make_plan(units=40)
    trials = measure_trials(plan, Machine(factors=noise(0.03)))
    measured, looks = run_looks(plan, trials)
    assert len(looks) > 2
    # Killed in the middle of the last block, which is then measured again; the looks so far are on disk.
    cut = replace(measured[-1], status="interrupted", wall_ns=5)
    again = [*measured[:-1], cut, *(replace(trial, attempt=1) for trial in measured[-2:])]
    assert take_look(plan, 0, again, looks[:-1]) == looks[-1]
    there, back = compare(plan, measured, [], looks), compare(plan, again, [], looks)
    assert there[0][0].units == back[0][0].units
    assert there[0][0].ci_low_pct == back[0][0].ci_low_pct


def test_units_beyond_the_deciding_look_do_not_count() -> None:
    plan = make_plan(RUNS, 20)
    trials = run_from_log_ratios(plan, [0.05, 0.051, 0.049, 0.05] * 2 + [-0.4] * 12)
    measured, looks = run_looks(plan, trials)
    assert looks[-1].settled
    assert compare(plan, trials, [], looks)[0][0].units == compare(plan, measured, [], looks)[0][0].units


def test_a_budget_that_ends_spends_what_is_left() -> None:
    plan = make_plan(RUNS, 20)
    values = 0.004 * np.random.default_rng(1).standard_normal(20) + 0.009
    measured, looks = run_looks(plan, run_from_log_ratios(plan, values), budget_blocks=6)
    assert [(look.units, look.is_last, look.reason) for look in looks] == [(4, False, "planned"), (6, True, "budget")]
    comparison = compare(plan, measured, [], looks)[0][0]
    assert comparison.n_units == 6
    assert any("budget was over after 6 of 20 planned units" in line for line in comparison.in_words)
    # The look that saw the very units before takes its place: nothing was decided by it.
    measured, looks = run_looks(plan, run_from_log_ratios(plan, values), budget_blocks=4)
    assert [look.units for look in looks] == [4, 4]
    assert looks[0].low is None or looks[1].low is not None
    assert compare(plan, measured, [], looks)[0][0].bound == "look 1 of 1"


def test_a_budget_without_units() -> None:
    plan = make_plan(RUNS, 20)
    look = take_look(plan, 0, [], [], is_last=True, reason="budget")
    assert (look.units, look.verdict, look.low, look.settled) == (0, "INCONCLUSIVE", None, False)
    one = take_look(plan, 0, run_from_log_ratios(plan, [0.1] * 20)[:4], [], is_last=True, reason="budget")
    assert (one.units, one.verdict, one.low) == (1, "INCONCLUSIVE", None)
    comparison = compare(plan, [], [], [look])[0][0]
    assert (comparison.verdict, comparison.n_units, comparison.speedup_pct) == ("INCONCLUSIVE", 0, None)
    assert comparison.not_computed["interval"] == "no unit was measured"


def test_an_interruption_spends_nothing() -> None:
    plan = make_plan(RUNS, 20)
    values = 0.004 * np.random.default_rng(2).standard_normal(20) + 0.05
    trials = run_from_log_ratios(plan, values)
    early = compare(plan, trials[:12], [], [], "interrupted")[0][0]
    assert (early.verdict, early.ci_low_pct, early.n_units) == ("INCONCLUSIVE", None, 3)
    assert early.speedup_pct == pytest.approx(100 * np.expm1(values[:3].mean()))
    assert "No look was taken, so nothing may be claimed yet; --resume goes on." in early.in_words
    look = take_look(plan, 0, trials[:16], [])
    later = compare(plan, trials[:24], [], [look], "interrupted")[0][0]
    assert (later.verdict, later.n_units) == (look.verdict, 4)
    assert any("this is what look 1 saw, at 4 units; --resume" in line for line in later.in_words)


def test_anytime_looks_after_every_block() -> None:
    plan = make_plan(RUNS, 60, anytime=True)
    values = 0.004 * np.random.default_rng(4).standard_normal(60) + 0.02
    measured, looks = run_looks(plan, run_from_log_ratios(plan, values))
    assert [look.units for look in looks] == list(range(2, looks[-1].units + 1))
    comparison = compare(plan, measured, [], looks)[0][0]
    assert (comparison.verdict, comparison.bound) == ("FASTER", "any time")
    assert comparison.ci_low_pct is not None
    assert comparison.p_value is not None
    assert (comparison.ci_low_pct > 0) == (comparison.p_value < 0.05)


# Processes


def process_values(effects: Sequence[float], units: int, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    return [effect + 0.001 * rng.standard_normal() for effect in effects for _ in range(units)]


def test_processes_are_looked_at_whole_and_the_interval_covers_new_ones() -> None:
    plan = make_plan(RUNS, 60, processes=6)
    effects = [0.02, -0.01, 0.015, 0.0, -0.02, 0.01]
    measured, looks = run_looks(plan, run_from_log_ratios(plan, process_values(effects, 10)))
    assert [look.units for look in looks] == [4, 5, 6]
    comparison = compare(plan, measured, [], looks)[0][0]
    assert (comparison.n_units, comparison.n_processes) == (60, 6)
    assert comparison.scope == "6 fresh processes"
    assert comparison.verdict == "INCONCLUSIVE"
    width = log_points(comparison.ci_high_pct) - log_points(comparison.ci_low_pct)
    assert width > 2 * np.std(effects, ddof=1) / np.sqrt(6)
    assert not any("One process" in line for line in comparison.in_words)


def test_few_processes_are_told_as_such() -> None:
    plan = make_plan(RUNS, 20, processes=2)
    comparison = compared(plan, run_from_log_ratios(plan, process_values([0.02, 0.02], 10)))
    assert (comparison.scope, comparison.bound) == ("these 2 processes only", "look 1 of 1")
    single = make_plan(RUNS, 20)
    alone = compared(single, run_from_log_ratios(single, process_values([0.02], 20)))
    assert alone.scope == "this process only"
    assert any(line.startswith("One process was measured") for line in alone.in_words)


def test_a_resumed_process_is_told_as_several_starts() -> None:
    plan = make_plan(RUNS, 20)
    trials = run_from_log_ratios(plan, process_values([0.02], 20))
    resumed = [replace(trial, start=int(trial.trial >= 8) + int(trial.trial >= 20)) for trial in trials]
    found = compared(plan, resumed)
    assert found.scope == f"these {2 if found.n_units <= 5 else 3} starts of one process only"
    text = "\n".join(found.in_words)
    assert "starts of the process (resumed)" in text
    assert "One process was measured" not in text
    several = make_plan(RUNS, 16, processes=4)
    trials = run_from_log_ratios(several, process_values([0.02] * 4, 4))
    plain = compared(several, trials)
    again = compared(several, [replace(t, start=1) if t.trial == 63 or t.process == 2 else t for t in trials])
    assert not any("resumed" in line for line in plain.in_words)
    assert any("Measured in 5 starts of 4 processes (resumed)" in line for line in again.in_words)
    assert again.scope == plain.scope == "4 fresh processes"


def test_a_budget_that_ends_inside_a_process() -> None:
    plan = make_plan(RUNS, 60, processes=6)
    trials = run_from_log_ratios(plan, process_values([0.02, 0.021, 0.02, 0.019, 0.02, 0.02], 10))
    measured, looks = run_looks(plan, trials, budget_blocks=25)
    assert [(look.units, look.reason) for look in looks] == [(3, "budget")]
    assert compare(plan, measured, [], looks)[0][0].n_units == 25
    measured, looks = run_looks(plan, trials, budget_blocks=21)
    assert looks[-1].units == 2  # one unit has no noise to show: its process does not count
    assert compare(plan, measured, [], looks)[0][0].n_units == 20
    _, looks = run_looks(plan, trials, budget_blocks=5)
    assert (looks[-1].units, looks[-1].verdict) == (1, "FASTER")


# Many comparisons


def many(count: int, design: str = RUNS, **settings: object) -> RunPlan:
    points = [make_point(0, "off"), *(make_point(i + 1, f"v{i}") for i in range(count))]
    comparisons = [make_comparison(i, design, candidate=i + 1) for i in range(count)]
    return make_plan(units=20, comparisons=comparisons, points=points, **settings)  # type: ignore[arg-type]


def test_holm_corrects_across_comparisons() -> None:
    plan = many(4, num_looks=1, margin=1e-6)
    rng = np.random.default_rng(11)
    base = rng.standard_normal(20)
    base = (base - base.mean()) / base.std(ddof=1)
    # t statistics of 6, 2.4, 2.2 and 0.5 on 19 degrees of freedom.
    by_comparison = [0.01 * (base + t / np.sqrt(20)) for t in (6.0, 2.4, 2.2, 0.5)]
    trials = [t for i, values in enumerate(by_comparison) for t in run_from_log_ratios(plan, values, i)]
    measured, looks = run_looks(plan, trials)
    found = compare(plan, measured, [], looks)[0]
    assert [item.verdict for item in found] == ["FASTER", "INCONCLUSIVE", "INCONCLUSIVE", "INCONCLUSIVE"]
    assert [item.p_holm for item in found] == holm([item.p_value for item in found])
    assert all(item.p_value is not None and item.p_value < 0.05 for item in found[:3])
    assert found[0].alpha == pytest.approx(0.05 / 4)
    assert found[1].alpha == pytest.approx(0.05 / 3)
    assert any("4 comparisons (Holm)" in line for line in found[1].in_words)
    for item in found:
        assert item.p_holm is not None
        assert (item.ci_low_pct or -1) * (item.ci_high_pct or 1) < 0 or item.p_holm <= 0.05


def test_looks_at_many_are_stricter_than_at_one() -> None:
    values = 0.004 * np.random.default_rng(5).standard_normal(20) + 0.0085
    one, five = many(1, margin=1e-6), many(5, margin=1e-6)
    bounds = [take_look(plan, 0, run_from_log_ratios(plan, values)[:64], []) for plan in (one, five)]
    assert bounds[0].low is not None
    assert bounds[1].low is not None
    assert bounds[1].low < bounds[0].low


def test_a_settled_comparison_stops_and_others_go_on() -> None:
    plan = many(2)
    rng = np.random.default_rng(6)
    clear = run_from_log_ratios(plan, 0.002 * rng.standard_normal(20) + 0.05, 0)
    noisy = run_from_log_ratios(plan, 0.05 * rng.standard_normal(20), 1)
    measured, looks = run_looks(plan, [*clear, *noisy])
    found = compare(plan, measured, [], looks)[0]
    assert found[0].n_units < 20
    assert found[1].n_units == 20
    assert found[0].planned_units == 20


def sweep_plan(points: int, **settings: object) -> RunPlan:
    coordinates = [{"workload.concurrency": 2**i} for i in range(points)]
    plan_points = [
        make_point(2 * i + arm, ("off", "on")[arm], **coordinates[i]) for i in range(points) for arm in (0, 1)
    ]
    comparisons = [make_comparison(i, RUNS, baseline=2 * i, candidate=2 * i + 1) for i in range(points)]
    chosen = {"num_looks": 1, **settings}
    return make_plan(units=10, comparisons=comparisons, points=plan_points, **chosen)  # type: ignore[arg-type]


@pytest.mark.parametrize("anytime", [False, True])
def test_points_that_are_pooled_do_not_stop_early(anytime: bool) -> None:
    plan = sweep_plan(3, num_looks=5, anytime=anytime)
    rng = np.random.default_rng(12)
    values = [0.05 + 0.002 * rng.standard_normal(10) for _ in range(3)]
    trials = [trial for i in range(3) for trial in run_from_log_ratios(plan, values[i], i)]
    measured, looks = run_looks(plan, trials)
    assert not stops_early(plan)
    assert sorted((look.comparison, look.units, look.is_last) for look in looks) == [(i, 10, True) for i in range(3)]
    comparisons, (pooled,) = compare(plan, measured, [], looks)
    assert [(item.n_units, item.bound) for item in comparisons] == [(10, "look 1 of 1")] * 3
    expected = pool_points([estimate_units(part) for part in values]).interval
    assert expected is not None
    assert log_points(pooled.these_points.ci_low_pct) == pytest.approx(expected.low, abs=1e-8)
    # A settled look is no end here, a last one is.
    settled = LookRecord(1, 1, 4, False, "FASTER", 0.05, 0.04, 0.06, True)
    assert not has_ended(plan, 1, [settled])
    assert has_ended(plan, 1, [replace(settled, is_last=True)])
    assert not has_ended(plan, 0, [replace(settled, is_last=True)])
    assert due_look(plan, 1, 10, [settled])
    assert not due_look(plan, 1, 9, [settled])


def test_what_is_not_pooled_stops_early() -> None:
    assert stops_early(sweep_plan(1))
    assert stops_early(many(4))
    assert not stops_early(many(4, stop_early=False))
    assert pooled_families(many(4)) == {}
    assert pooled_families(sweep_plan(3)) == {("off", "on"): [0, 1, 2]}
    roles = replace(sweep_plan(3), comparisons=tuple(replace(c, role="alone") for c in sweep_plan(3).comparisons))
    assert stops_early(roles)
    assert has_ended(many(2), 0, [LookRecord(0, 1, 4, False, "FASTER", 0.05, 0.04, 0.06, True)])


def test_a_pooled_effect_has_no_interval_before_its_look() -> None:
    plan = sweep_plan(2)
    rng = np.random.default_rng(13)
    trials = [t for i in range(2) for t in run_from_log_ratios(plan, 0.01 * rng.standard_normal(10), i)]
    (pooled,) = compare(plan, trials[:12] + trials[40:52], [], [], "interrupted")[1]
    assert pooled.these_points.delta_pct is not None
    assert (pooled.these_points.ci_low_pct, pooled.in_general.ci_high_pct) == (None, None)
    assert "one look too many" in pooled.not_computed["interval"]


def test_intervals_and_effects_beyond_all_sense_are_not_computed() -> None:
    """Two points: a t on one degree of freedom. Five units: the first look."""
    plan = sweep_plan(2)
    rng = np.random.default_rng(14)
    trials = [t for i in range(2) for t in run_from_log_ratios(plan, i + 0.001 * rng.standard_normal(10), i)]
    measured, looks = run_looks(plan, trials)
    (pooled,) = compare(plan, measured, [], looks)[1]
    assert pooled.these_points.ci_low_pct is not None
    assert (pooled.in_general.ci_low_pct, pooled.in_general.ci_high_pct) == (None, None)
    assert "factor of ten" in pooled.not_computed["general_interval"]
    single = make_plan(RUNS, 10)
    values = 0.08 * rng.standard_normal(10)
    early = run_from_log_ratios(single, values)[:8]
    look = take_look(single, 0, early, [])
    found = compare(single, early, [], [look])[0][0]
    assert (found.ci_low_pct, found.ci_high_pct, found.mde_pct) == (None, None, None)
    assert {"interval", "mde"} <= set(found.not_computed)
    assert all(part.ci_low_pct is None or abs(part.ci_low_pct) <= 900 for part in found.decomposition_pct.values())


def test_points_of_a_sweep_are_pooled_with_equal_weights() -> None:
    plan = sweep_plan(4)
    rng = np.random.default_rng(8)
    values = [0.01 * (i + 1) + 0.002 * rng.standard_normal(10) for i in range(4)]
    trials = [trial for i in range(4) for trial in run_from_log_ratios(plan, values[i], i)]
    measured, looks = run_looks(plan, trials)
    comparisons, (pooled,) = compare(plan, measured, [], looks)
    assert [item.point for item in comparisons] == [{"workload.concurrency": 2**i} for i in range(4)]
    assert (pooled.baseline, pooled.candidate, pooled.n_points) == ("off", "on", 4)
    assert log_points(pooled.these_points.delta_pct) == pytest.approx(np.mean(values), abs=1e-8)
    assert (pooled.in_general.ci_low_pct or 0) < (pooled.these_points.ci_low_pct or 0)
    assert pooled.heterogeneity is not None
    assert pooled.heterogeneity["p_value"] < 1e-6
    assert (pooled.sign_positive, pooled.sign_negative) == (4, 0)


def test_an_invalid_point_is_not_pooled() -> None:
    plan = sweep_plan(3)
    trials = [trial for i in range(3) for trial in run_from_log_ratios(plan, [0.01 + 0.001 * j for j in range(10)], i)]
    trials = [replace(t, tokens_sha256="x") if t.comparison == 1 and t.arm == "B" else t for t in trials]
    measured, looks = run_looks(plan, trials)
    _, (pooled,) = compare(plan, measured, [], looks)
    assert pooled.n_points == 2
    assert pooled.not_computed["points"].startswith("1 of 3")
    assert compare(sweep_plan(1), [], [], [])[1] == []


# Words and speed


def test_what_else_is_said() -> None:
    injected = {"B": {"kind": "delay", "us": 300}}
    plan = make_plan(RUNS, 4, comparisons=[make_comparison(0, RUNS, injected=injected)], num_looks=1)
    trials = measure_trials(plan, Machine(Costs(), Costs(idle_us=350.0), noise(0.01)))
    comparison = compared(plan, [replace(trial, label="synthetic input") for trial in trials])
    assert comparison.verdict == "SLOWER"
    text = "\n".join(comparison.in_words)
    assert "No named range shows it" in text
    assert "labelled synthetic input" in text
    assert "arm B on purpose: kind delay, us 300" in text
    assert comparison.label == "synthetic input"


def test_inconclusive_says_what_it_would_take() -> None:
    plan = make_plan(RUNS, 10)
    comparison = compared(plan, run_from_log_ratios(plan, 0.02 * np.random.default_rng(3).standard_normal(10)))
    assert comparison.verdict == "INCONCLUSIVE"
    assert comparison.units_needed is not None
    assert comparison.units_needed > 10
    text = "\n".join(comparison.in_words)
    assert f"{comparison.mde_pct:.2f}%" in text
    assert f"About {comparison.units_needed} units" in text
    assert "minutes more" in text


def test_acceptance_that_differs_is_told() -> None:
    plan = make_plan(RUNS, 4, exactness="changes-output")
    comparison = compared(plan, measure_trials(plan, Machine(Costs(), Costs(tokens=10), noise(0.01))))
    assert comparison.acceptance_length == {"baseline": 2.0, "candidate": 2.5}
    assert any("2.500 tokens a request and step against 2.000" in line for line in comparison.in_words)


def many_units(count: int, steps: int) -> UnitTable:
    rng = np.random.default_rng(0)
    columns = {"tokens": np.full(count, 128.0), "steps": np.full(count, float(steps))}
    columns |= {"generated": np.full(count, 128.0), "target_steps": np.full(count, 64.0)}
    arms = []
    for shift in (0.0, 0.003):
        step_ns = 1e6 * np.exp(0.05 * rng.standard_normal(count * steps) - shift)
        unit = np.repeat(np.arange(count), steps)
        times = np.bincount(unit, step_ns)
        shares = {"device": 0.8, "host_total": 0.15, "host_exposed": 0.15, "other_idle": 0.05}
        parts = {name: share * times for name, share in shares.items()}
        ranges = {f"range_{i}": times * 0.01 * (i + 1) * np.exp(0.1 * rng.standard_normal(count)) for i in range(8)}
        arms.append(ArmUnits(times, **columns, parts_ns=parts, ranges_ns=ranges, step_ns=step_ns, step_unit=unit))
    place = np.arange(count)
    lanes = {f"range_{i}": "host" for i in range(8)}
    return UnitTable(arms[0], arms[1], place * 0, place // 4, rng.random(count) < 0.5, place.astype(float), lanes)


@pytest.mark.slow
def test_a_hundred_thousand_units_are_compared() -> None:
    count = 100_000
    plan = make_plan(units=8)
    plan = replace(plan, settings=replace(plan.settings, max_units=count))  # type: ignore[type-var]
    look = LookRecord(0, 1, count, True, "FASTER", 0.0, None, None, True)
    study = Study(plan.comparisons[0], [], many_units(count, 16), [], [look])
    start = time.perf_counter()
    (comparison,), _ = compare_studies(plan, [study], "complete")
    seconds = time.perf_counter() - start
    print(f"{count} units compared in {seconds:.2f} s")
    assert comparison.verdict == "FASTER BUT NEGLIGIBLE"
    assert len(comparison.units) == count
    assert seconds < 120


def test_differences_are_those_of_the_plan() -> None:
    plan = make_plan(units=4)
    comparison = compared(plan, measure_trials(plan))
    assert comparison.differences == [TOGGLE]
    assert (comparison.baseline, comparison.candidate) == ("off", "on")
    assert len(comparison.step_ms_quantiles["baseline"]) == 101
    assert comparison.step_ms["baseline"]["step_ms"] == 1.0


def test_trials_of_other_machines_do_not_mix() -> None:
    """The factory's noise is drawn by period, so that no two trials share it."""
    drawn: list[float] = []

    def factor(trial: Trial, period: int, arm: str) -> float:
        del arm
        drawn.append(1 + 0.001 * trial.trial + 0.0001 * period)
        return drawn[-1]

    plan = make_plan(units=4)
    measure_trials(plan, Machine(factors=factor))
    assert len(set(drawn)) == len(drawn)
