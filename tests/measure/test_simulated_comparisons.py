"""The whole verdict procedure through the code that a command runs: trial lines, units, looks, correction, verdict.

A few cases go the long way, and what is printed of them must be what the looks of the same plan say of the same log
ratios as arrays (``look_arrays``), case by case. The rates that are promised are then those of thousands of arrays.
Where only the long way shows something, its few cases are compared through their own Clopper-Pearson interval.
``tests/stats/test_simulated_procedure.py`` has the statistics alone, without a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from ab_sample import (
    Machine,
    make_comparison,
    make_plan,
    make_point,
    measure_trials,
    run_from_log_ratios,
    run_looks,
)
from look_arrays import Ends, assert_rare, list_looks, look_at_processes, look_through

from specbench.measure.comparing import compare
from specbench.records import Comparison, Pooled, TrialRecord
from specbench.scenario.plan import RUNS, RunPlan, Trial
from specbench.stats.equivalence import log_margin
from specbench.stats.estimate import t_critical
from specbench.stats.exact import ProportionInterval, clopper_pearson

FloatArray = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], FloatArray]
DIFFERENT = ("FASTER", "SLOWER", "FASTER BUT NEGLIGIBLE", "SLOWER BUT NEGLIGIBLE")
SMALL = ("EQUIVALENT", "FASTER BUT NEGLIGIBLE", "SLOWER BUT NEGLIGIBLE")
NO_MARGIN = 1e-9
"""Nothing is equivalent, so that no comparison stops early on that account: the harder case for false differences."""
SD = 0.01


def normal(rng: np.random.Generator, units: int) -> FloatArray:
    return rng.standard_normal(units)


def heavy_tails(rng: np.random.Generator, units: int) -> FloatArray:
    return rng.standard_t(3, units)


def spikes(rng: np.random.Generator, units: int) -> FloatArray:
    """One unit in ten is hit in either arm."""
    hits = (rng.random(units) < 0.1) * rng.choice((-1.0, 1.0), units) * rng.uniform(2, 20, units)
    return rng.standard_normal(units) + hits


NOISES: dict[str, Noise] = {"normal": normal, "t3": heavy_tails, "spikes": spikes}
STD_DEVS = {"normal": 1.0, "t3": 3**0.5, "spikes": (1 + 0.1 * (20**3 - 2**3) / (3 * 18)) ** 0.5}


@dataclass(frozen=True)
class Rates:
    """What came out of all cases."""

    comparisons: list[Comparison]

    def share(self, test: Callable[[Comparison], bool]) -> ProportionInterval:
        return clopper_pearson(sum(map(test, self.comparisons)), len(self.comparisons), 0.999)

    @property
    def different(self) -> ProportionInterval:
        return self.share(lambda item: item.verdict in DIFFERENT)

    @property
    def small(self) -> ProportionInterval:
        return self.share(lambda item: item.verdict in SMALL)

    def covering(self, effect: float) -> ProportionInterval:
        return self.share(lambda item: covers(item, effect))


def covers(comparison: Comparison, effect: float) -> bool:
    """An interval that was not computed has no ends."""
    low, high = comparison.ci_low_pct, comparison.ci_high_pct
    percent = 100 * np.expm1(effect)
    return low is None or high is None or bool(low <= percent <= high)


def show(name: str, rate: ProportionInterval) -> None:
    print(f"{name}: {rate.estimate:.4f} ({rate.low:.4f} to {rate.high:.4f})")


class Instrument:
    """A plan of whole runs, measured again and again with other noise."""

    def __init__(self, units: int, plan: RunPlan | None = None, **settings: object) -> None:
        self.plan: RunPlan = plan or make_plan(RUNS, units, **settings)  # type: ignore[arg-type]
        self.units = units
        self._lines = [
            run_from_log_ratios(self.plan, [0.0] * units, comparison.index) for comparison in self.plan.comparisons
        ]

    def measure(self, values: FloatArray, comparison: int = 0) -> list[TrialRecord]:
        lines = self._lines[comparison]
        walls = np.repeat(np.exp(-values), 4)
        return [
            replace(line, wall_ns=round(line.wall_ns * factor)) if line.arm == "B" else line
            for line, factor in zip(lines, walls.tolist(), strict=True)
        ]

    def judge(self, *values: FloatArray) -> list[Comparison]:
        return self.judge_all(*values)[0]

    def judge_all(self, *values: FloatArray) -> tuple[list[Comparison], list[Pooled]]:
        trials = [line for index, found in enumerate(values) for line in self.measure(found, index)]
        measured, looks = run_looks(self.plan, trials)
        return compare(self.plan, measured, [], looks)

    def agrees_with(self, ends: Ends, values: FloatArray) -> None:
        """Every case, the long way, comes out as the arrays say."""
        for case, row in enumerate(values):
            (found,) = self.judge(row)
            assert found.n_units == ends.units[case]
            assert (found.verdict in DIFFERENT) == ends.differs[case]
            assert (found.verdict in SMALL) == ends.small[case]
            if found.ci_low_pct is not None and found.ci_high_pct is not None:
                printed = np.log1p(np.array([found.ci_low_pct, found.ci_high_pct]) / 100)
                expected = ends.mean[case] + np.array([-1, 1]) * ends.half[case]
                assert printed == pytest.approx(expected, abs=1e-8)


def draw_noise(name: str, cases: int, units: int, seed: int, effect: float = 0.0, sd: float = SD) -> FloatArray:
    """[cases, units]"""
    drawn = NOISES[name](np.random.default_rng([seed, units]), cases * units).reshape(cases, units)
    return np.asarray(effect + sd * drawn / STD_DEVS[name])


def check_long_way(instrument: Instrument, values: FloatArray) -> None:
    instrument.agrees_with(look_through(instrument.plan, values), values)


def promise_errors(name: str, units: int, cases: int) -> None:
    """Type I error and coverage without an effect; coverage of one that is found about half the time."""
    plan = make_plan(RUNS, units, margin=NO_MARGIN)
    nothing = look_through(plan, draw_noise(name, cases, units, 1))
    assert_rare(nothing.differs, f"type I, {name}, n = {units}")
    assert_rare(~nothing.covering(0.0), f"not covered, {name}, n = {units}", 0.07)
    effect = 2.5 * SD / np.sqrt(units)
    found = look_through(plan, draw_noise(name, cases, units, 2, effect))
    assert_rare(~found.covering(effect), f"an effect not covered, {name}, n = {units}", 0.07)
    assert 0.05 < found.differs.mean() < 0.95


def promise_false_equivalence(name: str, units: int, cases: int) -> None:
    """The true effect lies at the margin, which is three standard errors wide."""
    margin = log_margin(0.005)
    values = draw_noise(name, cases, units, 3, margin, margin * np.sqrt(units) / 3)
    assert_rare(look_through(make_plan(RUNS, units), values).small, f"false equivalence, {name}, n = {units}")


@pytest.mark.parametrize("units", [5, 10, 20])
@pytest.mark.parametrize("name", NOISES)
def test_promises(name: str, units: int) -> None:
    promise_errors(name, units, 20_000)
    promise_false_equivalence(name, units, 20_000)


@pytest.mark.parametrize(("name", "units"), [("normal", 5), ("t3", 10), ("spikes", 10)])
@pytest.mark.parametrize("effect", [0.0, 0.02])
def test_the_long_way_says_what_the_arrays_say(name: str, units: int, effect: float) -> None:
    """Fewer than 20 units, so that neighbours that agree by chance change no interval."""
    check_long_way(Instrument(units, margin=NO_MARGIN), draw_noise(name, 4, units, 11, effect))
    check_long_way(Instrument(units), draw_noise(name, 4, units, 12, effect / 5, SD / 10))


@pytest.mark.slow
@pytest.mark.parametrize("units", [5, 10, 15])
@pytest.mark.parametrize("name", NOISES)
def test_the_long_way_says_what_the_arrays_say_closely(name: str, units: int) -> None:
    for effect in (0.0, 0.01, 0.03):
        check_long_way(Instrument(units, margin=NO_MARGIN), draw_noise(name, 20, units, 11, effect))
        check_long_way(Instrument(units), draw_noise(name, 20, units, 12, effect / 5, SD / 10))


# Peeking


def promise_no_peeking_penalty(cases: int) -> None:
    """After every unit, with the confidence sequence; one plain t test a unit is wrong in 29% of comparisons."""
    units = 30
    values = draw_noise("normal", cases, units, 4)
    anytime = look_through(make_plan(RUNS, units, margin=NO_MARGIN, anytime=True), values)
    assert_rare(anytime.differs, "type I, any time")
    assert_rare(~anytime.covering(0.0), "not covered, any time")
    often = make_plan(RUNS, units, margin=NO_MARGIN, num_looks=10)
    assert_rare(look_through(often, values).differs, "type I, ten looks")
    assert len(list_looks(often)) == 10


def test_peeking() -> None:
    promise_no_peeking_penalty(50_000)


@pytest.mark.parametrize("settings", [{"anytime": True}, {"num_looks": 10}])
def test_peeking_the_long_way(settings: dict[str, object]) -> None:
    check_long_way(Instrument(15, margin=NO_MARGIN, **settings), draw_noise("normal", 2, 15, 13, 0.012))


# A pooled effect over points


def plan_of_points(count: int, units: int, **settings: object) -> RunPlan:
    names = ("off", "on")
    points = [
        make_point(2 * i + arm, names[arm], **{"workload.concurrency": 2**i}) for i in range(count) for arm in (0, 1)
    ]
    comparisons = [make_comparison(i, RUNS, baseline=2 * i, candidate=2 * i + 1) for i in range(count)]
    return make_plan(units=units, comparisons=comparisons, points=points, margin=NO_MARGIN, **settings)  # type: ignore[arg-type]


def missed_by_the_pool(ends: Sequence[Ends], effect: float) -> npt.NDArray[np.bool_]:
    """[cases] is ``effect`` outside the plain t interval of the equal-weight mean?"""
    mean = np.mean([end.mean for end in ends], axis=0)
    variances = np.array([end.error**2 for end in ends])
    df = variances.sum(0) ** 2 / (variances**2 / (np.array([end.units for end in ends]) - 1)).sum(0)
    critical = np.vectorize(lambda value: t_critical(0.025, value))(df)
    return np.asarray(np.abs(mean - effect) > critical * np.sqrt(variances.sum(0)) / len(ends))


@pytest.mark.parametrize("steepness", [2.5, 3.2, 4.0])
def test_a_pooled_effect_pays_nothing_for_looks(steepness: float) -> None:
    """Points that each stop when they look good miss clearly more often than once in twenty."""
    units, cases = 20, 20_000
    plan = plan_of_points(4, units)
    effect = steepness * SD / np.sqrt(units)
    values = [draw_noise("normal", cases, units, 20 + i, effect) for i in range(4)]
    ends = [look_through(plan, found, index) for index, found in enumerate(values)]
    assert_rare(missed_by_the_pool(ends, effect), f"pooled effect of {steepness} errors not covered")
    # The looks that each point would take if it were alone, at the same share of alpha.
    alone = make_plan(RUNS, units, margin=NO_MARGIN, confidence=1 - 0.05 / 4)
    stopping = missed_by_the_pool([look_through(alone, found) for found in values], effect)
    print(f"each point stopping by itself: {stopping.mean():.4f}")
    assert stopping.mean() > 0.06


def test_a_pooled_effect_the_long_way() -> None:
    instrument = Instrument(10, plan_of_points(3, 10))
    values = [draw_noise("normal", 3, 10, 30 + i, 0.012) for i in range(3)]
    ends = [look_through(instrument.plan, found, index) for index, found in enumerate(values)]
    for case in range(3):
        found, (pooled,) = instrument.judge_all(*(point[case] for point in values))
        assert [item.n_units for item in found] == [end.units[case] for end in ends] == [10] * 3
        low, high = pooled.these_points.ci_low_pct, pooled.these_points.ci_high_pct
        assert low is not None
        assert high is not None
        mean = np.mean([end.mean[case] for end in ends])
        assert (np.log1p(low / 100) + np.log1p(high / 100)) / 2 == pytest.approx(mean, abs=1e-8)


def test_a_budget_that_ends_at_random_costs_nothing() -> None:
    plan = make_plan(RUNS, 20, margin=NO_MARGIN)
    ends = [look_through(plan, draw_noise("normal", 2000, 20, 40 + k), budget=k) for k in range(3, 20)]
    assert_rare(np.concatenate([end.differs for end in ends]), "type I, any budget")
    assert_rare(~np.concatenate([end.covering(0.0) for end in ends]), "not covered, any budget")


@pytest.mark.parametrize("budget", [3, 4, 9, 12])
def test_a_budget_that_ends_the_long_way(budget: int) -> None:
    instrument = Instrument(19, margin=NO_MARGIN)
    values = draw_noise("normal", 3, 19, 41, 0.008)
    ends = look_through(instrument.plan, values, budget=budget)
    for case, row in enumerate(values):
        measured, looks = run_looks(instrument.plan, instrument.measure(row), budget_blocks=budget)
        ((found,), _) = compare(instrument.plan, measured, [], looks)
        assert found.n_units == ends.units[case]
        assert (found.verdict in DIFFERENT) == ends.differs[case]


# Processes


def draw_processes(cases: int, processes: int, units: int) -> FloatArray:
    """Each process favours an arm by 0.1%, a unit has 0.65% of noise: [cases, processes * units]."""
    rng = np.random.default_rng([7, processes])
    effects = 0.001 * rng.standard_normal((cases, processes))
    return np.repeat(effects, units, axis=1) + 0.0065 * rng.standard_normal((cases, processes * units))


def promise_process_effects(cases: int) -> None:
    for processes in (4, 6):
        plan = make_plan(RUNS, 20 * processes, processes=processes, margin=NO_MARGIN)
        ends = look_at_processes(plan, draw_processes(cases, processes, 20))
        assert_rare(~ends.covering(0.0), f"not covered, {processes} processes")
        assert_rare(ends.differs, f"type I, {processes} processes")


def test_process_effects_in_brief() -> None:
    promise_process_effects(1500)


@pytest.mark.slow
def test_process_effects_closely() -> None:
    promise_process_effects(20_000)


def test_processes_the_long_way() -> None:
    instrument = Instrument(24, processes=4, margin=NO_MARGIN)
    values = draw_processes(3, 4, 6) + 0.006
    instrument.agrees_with(look_at_processes(instrument.plan, values), values)


# Many comparisons


EFFECTS = {"none": (0.0,) * 4, "one": (0.0, 0.0, 0.0, 0.05)}


def family_plan() -> RunPlan:
    points = [make_point(0, "off"), *(make_point(i + 1, f"v{i}") for i in range(4))]
    comparisons = [make_comparison(i, RUNS, candidate=i + 1) for i in range(4)]
    return make_plan(RUNS, 10, comparisons=comparisons, points=points, margin=NO_MARGIN)


def false_claims(plan: RunPlan, values: Sequence[FloatArray], effects: Sequence[float]) -> npt.NDArray[np.bool_]:
    """[comparisons without an effect, cases]: Holm leaves them alpha over how many of all are without one, since the
    others are as good as always found here. One false claim more or less beside another changes nothing.
    """
    nothing = [index for index, effect in enumerate(effects) if effect == 0.0]
    claims = []
    for index in nothing:
        end = look_through(plan, values[index], index)
        _, bound = list_looks(plan, index, alpha=0.05 / len(nothing))[-1]
        at_last = end.units == plan_units(plan)
        late = np.abs(end.mean) > bound.difference_critical(plan_units(plan) - 1.0) * end.error
        claims.append(end.differs | (at_last & late))
    return np.array(claims)


def plan_units(plan: RunPlan) -> int:
    assert plan.settings is not None
    assert plan.settings.max_units is not None
    return plan.settings.max_units


@pytest.mark.parametrize("name", EFFECTS)
def test_any_false_claim_of_a_family_is_rare(name: str) -> None:
    plan = family_plan()
    values = [draw_noise("normal", 20_000, 10, 50 + i, effect) for i, effect in enumerate(EFFECTS[name])]
    assert_rare(false_claims(plan, values, EFFECTS[name]).any(axis=0), f"any false claim of four, {name} true")


def promise_family_the_long_way(cases: int) -> None:
    instrument = Instrument(10, family_plan())
    for name, effects in EFFECTS.items():
        values = [draw_noise("normal", cases, 10, 60 + i, effect) for i, effect in enumerate(effects)]
        expected = false_claims(instrument.plan, values, effects).any(axis=0)
        for case in range(cases):
            found = instrument.judge(*(rows[case] for rows in values))
            wrong = any(item.verdict in DIFFERENT for item, effect in zip(found, effects, strict=True) if not effect)
            assert wrong == expected[case], (name, case)


def test_families_the_long_way() -> None:
    promise_family_the_long_way(4)


@pytest.mark.slow
def test_families_the_long_way_closely() -> None:
    promise_family_the_long_way(100)


# Mirrored passes on a machine that drifts


def drifting(rng: np.random.Generator) -> Callable[[Trial, int, str], float]:
    """Passes differ by 2.1%, slow down by 1% from start to end, periods by 0.5%; one in fifty is hit by a spike."""
    speeds: dict[int, float] = {}

    def factor(trial: Trial, period: int, _arm: str) -> float:
        speed = speeds.setdefault(trial.trial, float(np.exp(0.021 * rng.standard_normal())))
        spike = rng.uniform(0.2, 0.6) if rng.random() < 0.02 else 0.0
        return speed * (1 + 0.01 * period / 8) * float(np.exp(0.005 * rng.standard_normal())) * (1 + spike)

    return factor


def promise_mirrored(cases: int) -> None:
    plan = make_plan(units=10, margin=NO_MARGIN, period_steps=2)
    rng = np.random.default_rng(9)
    found = []
    for _ in range(cases):
        measured, looks = run_looks(plan, measure_trials(plan, Machine(factors=drifting(rng))))
        found.append(compare(plan, measured, [], looks)[0][0])
    rates = Rates(found)
    show("type I, mirrored on a drifting machine", rates.different)
    show("coverage, mirrored on a drifting machine", rates.covering(0.0))
    slack = 3 * np.sqrt(0.05 * 0.95 / cases)
    assert rates.different.estimate <= 0.05 + slack
    assert rates.covering(0.0).estimate >= 0.95 - slack


def test_mirrored_in_brief() -> None:
    promise_mirrored(60)


@pytest.mark.slow
def test_mirrored_closely() -> None:
    promise_mirrored(1000)
