"""The break-even map of a sweep: against a machine whose break-even is known, and against noise alone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ab_sample import Costs, Machine, make_plan, make_requests, measure_trials
from scipy import stats

from specbench import encoding
from specbench.measure.analysis import RunContext
from specbench.measure.break_even import find_break_even
from specbench.measure.sweep_analysis import analyze_sweep
from specbench.records import (
    DOES_NOT_PAY,
    NOT_CLEAR,
    NOT_COMPARED,
    PAYS,
    Analysis,
    BreakEven,
    BreakEvenCell,
    BreakEvenLine,
    TrialRecord,
)
from specbench.scenario.enumeration import enumerate_sweep
from specbench.scenario.plan import RUNS, PlanPoint, RunPlan

Place = tuple[str, int, int]
"""Drafter, K, concurrency."""
CONCURRENCIES = (1, 4, 16, 64)
COMMITTED = {0: 1.0, 2: 1.5, 4: 2.6}
"""Tokens a step by K."""


def true_speedup(draft_len: int, concurrency: int) -> float:
    """A step takes 1 + rows / 32: K = 2 breaks even at a concurrency of 32 / 3, K = 4 at 64 / 3."""
    rows = concurrency * (draft_len + 1)
    return COMMITTED[draft_len] * (1 + concurrency / 32) / (1 + rows / 32)


def grid(concurrencies: Sequence[int] = CONCURRENCIES, lengths: Sequence[int] = (2, 4)) -> list[Place]:
    plain = [("none", 0, concurrency) for concurrency in concurrencies]
    return plain + [("ngram", length, concurrency) for length in lengths for concurrency in concurrencies]


def plan_of(places: Sequence[Place], rounds: int = 6, **more: Sequence[Any]) -> RunPlan:
    """A sweep over ``places``; ``more`` are further coordinates, a value a place."""
    points = []
    for index, (drafter, draft_len, concurrency) in enumerate(places):
        coordinates = {"drafter.name": drafter, "drafter.draft_len": draft_len, "workload.concurrency": concurrency}
        coordinates |= {key: values[index] for key, values in more.items()}
        axes = {"drafter": drafter, "concurrency": concurrency, "draft_len": draft_len, "isl": None, "osl": 64}
        # K decides how large the books are, which must not hide the baseline.
        scenario = {"drafter": {"name": drafter}, "engine": {"dtype": "bfloat16", "num_blocks": 9 + draft_len}}
        points.append(PlanPoint(index, "base", axes, scenario, coordinates))
    trials = enumerate_sweep(len(points), rounds, 3, [0] * len(points))
    scenario = {"name": "sample", "measure": {"confidence": "95%"}}
    return RunPlan(tuple(points), trials, 0, scenario, "sweep")


Noise = Callable[[int, int], float]
"""(round, point) -> log points on its speed."""


def measure(plan: RunPlan, speedup: Callable[[Place], float], noise: Noise) -> list[TrialRecord]:
    """A line a trial: 1000 tokens at a speed of 100 tokens a second and slot times the speedup."""
    (sample, *_) = measure_trials(make_plan(RUNS, 1), Machine(Costs()))
    lines = []
    for trial in plan.trials:
        axes = plan.points[trial.point].axes
        place = (axes["drafter"], axes["draft_len"], axes["concurrency"])
        speed = 100 * place[2] * speedup(place) * math.exp(noise(trial.segment, trial.point))
        own = {"trial": trial.trial, "point": trial.point, "segment": trial.segment, "seed": trial.seed}
        own |= {"arm": None, "comparison": None, "axes": {**sample.axes, **axes}, "output_tokens_per_s": speed}
        own |= {"committed_tokens": 1000, "wall_ns": round(1000 / speed * 1e9)}
        lines.append(replace(sample, tokens_sha256=f"concurrency {place[2]}", **own))
    return lines


def known(place: Place) -> float:
    return 1.0 if place[0] == "none" else true_speedup(place[1], place[2])


def noisy(sd: float = 0.02, seed: int = 0, drift: float = 0.0) -> Noise:
    """Independent noise of each trial, and a change of the whole machine from round to round."""
    rng = np.random.default_rng(seed)
    drawn = rng.normal(0, sd, (64, 64))
    shared = rng.normal(0, drift, 64)
    return lambda number, point: float(drawn[number, point] + shared[number])


def analyzed(plan: RunPlan, trials: Sequence[TrialRecord]) -> Analysis:
    return analyze_sweep(plan, trials, make_requests(trials), RunContext())


def map_of(plan: RunPlan, trials: Sequence[TrialRecord]) -> BreakEven:
    found = analyzed(plan, trials).break_even
    assert found is not None
    return found


def cell(found: BreakEven, draft_len: int, concurrency: int) -> BreakEvenCell:
    (line,) = [line for line in found.lines if line.draft_len == draft_len]
    (only,) = [cell for cell in line.cells if cell.concurrency == concurrency]
    return only


def test_a_known_break_even_is_found() -> None:
    plan = plan_of(grid())
    found = map_of(plan, measure(plan, known, noisy(drift=0.2)))
    assert [(line.drafter, line.draft_len) for line in found.lines] == [("ngram", 2), ("ngram", 4)]
    assert [(line.pays_up_to, line.stops_by) for line in found.lines] == [(4, 16), (16, 64)]
    assert [line.answer for line in found.lines] == ["stops paying between 4 and 16", "stops paying between 16 and 64"]
    for length, broken_even in ((2, 32 / 3), (4, 64 / 3)):
        for concurrency in CONCURRENCIES:
            one, truth = cell(found, length, concurrency), 100 * (true_speedup(length, concurrency) - 1)
            assert one.ci_low_pct is not None
            assert one.ci_high_pct is not None
            assert one.ci_low_pct < truth < one.ci_high_pct
            assert one.verdict == (PAYS if concurrency < broken_even else DOES_NOT_PAY)
            assert (one.rounds, one.acceptance_length, one.tokens_identical) == (6, 2.0, True)


def test_the_interval_is_that_of_a_paired_t_test_at_holms_level() -> None:
    plan = plan_of(grid())
    trials = measure(plan, known, noisy(sd=0.05, drift=0.3))
    speeds = np.zeros((6, len(plan.points)))
    for trial in trials:
        speeds[trial.segment, trial.point] = math.log(trial.committed_tokens / trial.wall_ns)
    cells = [one for line in map_of(plan, trials).lines for one in line.cells]
    ratios = [speeds[:, one.point] - speeds[:, one.baseline_point] for one in cells]
    p_values = [float(stats.ttest_1samp(ratio, 0.0).pvalue) for ratio in ratios]
    assert [one.p_value for one in cells] == pytest.approx(p_values)
    rank = {place: order for order, place in enumerate(np.argsort(p_values))}
    stopped = min((rank[i] for i, p in enumerate(p_values) if p > 0.05 / (8 - rank[i])), default=8)
    for index, (one, ratio) in enumerate(zip(cells, ratios, strict=True)):
        level = 0.05 / (8 - min(rank[index], stopped))
        low, high = stats.t.interval(1 - level, 5, float(ratio.mean()), float(stats.sem(ratio)))
        assert one.alpha == pytest.approx(level)
        assert one.ci_low_pct == pytest.approx(100 * math.expm1(low))
        assert one.ci_high_pct == pytest.approx(100 * math.expm1(high))
        assert (one.verdict == NOT_CLEAR) == (low < 0 < high)
    assert any(one.alpha < 0.01 for one in cells)


def test_what_a_whole_round_has_in_common_cancels() -> None:
    plan = plan_of(grid())
    quiet = map_of(plan, measure(plan, known, noisy()))
    wild = map_of(plan, measure(plan, known, lambda number, point: noisy()(number, point) + 0.9 * (-1) ** number))
    for one, other in zip(quiet.lines, wild.lines, strict=True):
        for before, after in zip(one.cells, other.cells, strict=True):
            assert after.speedup_pct == pytest.approx(before.speedup_pct, abs=1e-5)
            assert after.ci_low_pct == pytest.approx(before.ci_low_pct, abs=1e-5)
    # Pairing rounds with one another's, as unpaired runs would be, loses all of it.
    spoiled = [
        replace(trial, segment=(trial.segment + 1) % 6) if trial.axes["drafter"] == "none" else trial
        for trial in measure(plan, known, lambda number, _: 0.9 * (-1) ** number)
    ]
    assert {one.verdict for line in map_of(plan, spoiled).lines for one in line.cells} == {NOT_CLEAR}


def test_noise_alone_claims_nothing_more_often_than_the_confidence_allows() -> None:
    plan, rng = plan_of(grid((1, 4, 16)), rounds=4), np.random.default_rng(11)
    base, wrong, runs = measure(plan, lambda _: 1.0, lambda *_: 0.0), 0, 120
    for _ in range(runs):
        drawn = rng.normal(0, 0.03, (4, len(plan.points)))
        trials = [replace(t, wall_ns=round(t.wall_ns * math.exp(drawn[t.segment, t.point]))) for t in base]
        wrong += any(one.verdict != NOT_CLEAR for line in map_of(plan, trials).lines for one in line.cells)
    assert wrong <= stats.binom.ppf(0.999, runs, 0.05)


def test_one_round_has_no_interval_and_claims_nothing() -> None:
    plan = plan_of(grid((1, 4)), rounds=1)
    found = map_of(plan, measure(plan, known, noisy()))
    cells = [one for line in found.lines for one in line.cells]
    assert {(one.verdict, one.ci_low_pct, one.rounds) for one in cells} == {(NOT_CLEAR, None, 1)}
    assert all(one.speedup_pct for one in cells)
    assert found.lines[0].answer == "not clear at 1, 4"


def test_two_rounds_have_no_interval_wider_than_a_factor_of_ten() -> None:
    plan = plan_of(grid((1, 4)), rounds=2)
    found = map_of(plan, measure(plan, known, noisy(sd=0.3)))
    assert {one.verdict for line in found.lines for one in line.cells} == {NOT_CLEAR}
    assert all(one.ci_high_pct is None or one.ci_high_pct <= 900 for line in found.lines for one in line.cells)
    encoding.dumps(found)  # no infinity in it


def test_without_the_drafter_none_there_is_no_map_but_the_way_to_one() -> None:
    plan = plan_of([("ngram", 2, 1), ("ngram", 2, 4)])
    found = map_of(plan, measure(plan, known, noisy()))
    assert found.lines == []
    assert found.missing is not None
    assert found.missing.endswith("--set sweep.drafter=none,ngram")
    assert "every point speculates" in found.missing


def test_an_interrupted_sweep_says_that_the_rest_is_missing() -> None:
    plan = plan_of(grid((1, 4)))
    trials = [trial for trial in measure(plan, known, noisy()) if trial.axes["drafter"] == "ngram"]
    missing = map_of(plan, trials).missing
    assert missing is not None
    assert missing.startswith("No break-even map yet: ")


def test_nothing_to_compare_says_nothing() -> None:
    for places in ([("ngram", 2, 1)], [("none", 0, 1), ("none", 0, 4)]):
        plan = plan_of(places)
        assert analyzed(plan, measure(plan, known, noisy())).break_even is None


def test_points_are_compared_with_what_is_like_them_in_all_else() -> None:
    places = [*grid((1, 4), (2,)), *grid((1, 4), (2,))]
    plan = plan_of(places, **{"workload.osl": [16] * 4 + [64] * 4})
    found = map_of(plan, measure(plan, known, noisy()))
    assert [(line.axes, [one.baseline_point for one in line.cells]) for line in found.lines] == [
        ({"workload.osl": 16}, [0, 1]),
        ({"workload.osl": 64}, [4, 5]),
    ]
    apart = plan_of(places[:4], **{"workload.osl": [16] * 2 + [64] * 2})
    missing = map_of(apart, measure(apart, known, noisy())).missing
    assert missing is not None
    assert "no point of the drafter none is like one that speculates" in missing


def test_other_engine_settings_are_another_baseline() -> None:
    plan = plan_of(grid((1, 4), (2,)))
    trials = measure(plan, known, noisy())
    float32 = replace(plan.points[2], scenario={**(plan.points[2].scenario or {}), "engine": {"dtype": "float32"}})
    plan = replace(plan, points=(*plan.points[:2], float32, *plan.points[3:]))
    (line,) = map_of(plan, trials).lines
    assert [one.verdict for one in line.cells] == [NOT_COMPARED, PAYS]
    assert line.cells[0].baseline_point is None
    assert line.answer == "pays up to 4, not compared at 1"


def test_what_goes_with_concurrency_in_step_makes_no_line_of_its_own() -> None:
    places = grid()
    plan = plan_of(places, **{"workload.num_requests": [4 * concurrency for _, _, concurrency in places]})
    found = map_of(plan, measure(plan, known, noisy()))
    assert [(line.draft_len, line.axes, len(line.cells)) for line in found.lines] == [(2, {}, 4), (4, {}, 4)]


def test_chain_and_tree_of_one_head_have_a_line_each_and_one_baseline() -> None:
    """Swept drafters of one name and K are told apart by what the sweep calls them."""
    places = [("none", 0, 1), ("none", 0, 4), *[("eagle3", 4, concurrency) for _ in range(2) for concurrency in (1, 4)]]
    names = ["none", "none", "eagle3", "eagle3", "eagle3 {tree: {}}", "eagle3 {tree: {}}"]
    plan = plan_of(places, **{"drafter.name": names})
    found = map_of(plan, measure(plan, known, noisy()))
    assert [(line.drafter, line.axes) for line in found.lines] == [
        ("eagle3", {"drafter.name": "eagle3"}),
        ("eagle3", {"drafter.name": "eagle3 {tree: {}}"}),
    ]
    assert [[cell.baseline_point for cell in line.cells] for line in found.lines] == [[0, 1], [0, 1]]


def test_a_drafter_whose_k_is_0_does_not_speculate() -> None:
    places = [("none", 0, 1), ("ngram", 0, 1), ("ngram", 4, 1)]
    plan = plan_of(places)
    found = map_of(plan, measure(plan, known, noisy()))
    assert [(line.drafter, line.draft_len) for line in found.lines] == [("ngram", 4)]
    plan = plan_of(places[:2])
    assert analyzed(plan, measure(plan, known, noisy())).break_even is None


def test_lengths_that_are_forced_have_a_line_each_and_one_baseline() -> None:
    places = [*grid((1, 4), (2,)), ("ngram", 2, 1), ("ngram", 2, 4)]
    plan = plan_of(places, **{"acceptance.length": [None, None, 1.5, 1.5, 2.5, 2.5]})
    found = map_of(plan, measure(plan, known, noisy()))
    assert [(line.axes["acceptance.length"], [c.baseline_point for c in line.cells]) for line in found.lines] == [
        (1.5, [0, 1]),
        (2.5, [0, 1]),
    ]


def test_a_point_that_failed_is_not_compared_and_a_cut_trial_does_not_count() -> None:
    plan = plan_of(grid((1, 4), (2,)), rounds=4)
    trials = measure(plan, known, noisy())
    failed = [t for t in trials if t.point == 3]
    kept = [t for t in trials if t.point != 3]
    cut = next(i for i, t in enumerate(kept) if t.point == 2)
    kept[cut] = replace(kept[cut], status="interrupted", committed_tokens=1)
    kept.append(replace(failed[0], status="failed", error="out of memory", committed_tokens=0, wall_ns=0))
    (line,) = map_of(plan, kept).lines
    assert [(one.concurrency, one.verdict, one.rounds) for one in line.cells] == [(1, PAYS, 3), (4, NOT_COMPARED, 0)]


def test_it_comes_back_from_json_as_it_was() -> None:
    plan = plan_of(grid((1, 4)))
    analysis = analyzed(plan, measure(plan, known, noisy()))
    assert encoding.from_json(Analysis, json.loads(encoding.dumps(analysis))) == analysis
    older = json.loads(encoding.dumps(analysis))
    del older["break_even"]
    assert encoding.from_json(Analysis, older).break_even is None


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ((PAYS, PAYS, DOES_NOT_PAY), (4, 16, "stops paying between 4 and 16")),
        ((PAYS, NOT_CLEAR, DOES_NOT_PAY), (1, 16, "stops paying between 1 and 16, not clear at 4")),
        ((PAYS, PAYS, PAYS), (16, None, "pays at every concurrency measured")),
        ((DOES_NOT_PAY,) * 3, (None, 1, "pays at no concurrency measured")),
        ((PAYS, PAYS, NOT_CLEAR), (4, None, "pays up to 4, not clear at 16")),
        ((PAYS, NOT_COMPARED, NOT_CLEAR), (1, None, "pays up to 1, not clear at 16, not compared at 4")),
        ((NOT_CLEAR, DOES_NOT_PAY, DOES_NOT_PAY), (None, 4, "does not pay from 4 on, not clear at 1")),
        ((NOT_CLEAR,) * 3, (None, None, "not clear at 1, 4, 16")),
        ((DOES_NOT_PAY, PAYS, PAYS), (None, None, "no single break-even: pays at 4, 16, does not pay at 1")),
    ],
)
def test_the_answer_in_words(verdicts: Sequence[str], expected: tuple[int | None, int | None, str]) -> None:
    plan = plan_of(grid((1, 4, 16), (2,)))
    line: BreakEvenLine = map_of(plan, measure(plan, known, noisy())).lines[0]
    assert find_break_even([replace(one, verdict=v) for one, v in zip(line.cells, verdicts, strict=True)]) == expected
