"""The whole verdict procedure through the code that a command runs: trial lines, units, looks, correction, verdict.

``tests/stats/test_simulated_procedure.py`` has the statistics alone, vectorised and with many more cases; here every
case goes the long way, and what comes out is read from the comparison as it is printed. Rates are compared through
their own Clopper-Pearson interval.
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

from specbench.measure.comparing import compare
from specbench.records import Comparison, TrialRecord
from specbench.scenario.plan import RUNS, RunPlan, Trial
from specbench.stats.equivalence import log_margin
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

    def __init__(self, units: int, **settings: object) -> None:
        self.plan: RunPlan = make_plan(RUNS, units, **settings)  # type: ignore[arg-type]
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
        trials = [line for index, found in enumerate(values) for line in self.measure(found, index)]
        measured, looks = run_looks(self.plan, trials)
        return compare(self.plan, measured, [], looks)[0]

    def repeat(self, cases: int, draw: Callable[[np.random.Generator], FloatArray], seed: int) -> Rates:
        rng = np.random.default_rng([seed, self.units])
        return Rates([self.judge(draw(rng))[0] for _ in range(cases)])


def draw_noise(
    name: str, units: int, effect: float = 0.0, sd: float = SD
) -> Callable[[np.random.Generator], FloatArray]:
    return lambda rng: effect + sd * NOISES[name](rng, units) / STD_DEVS[name]


def promise_errors(name: str, units: int, cases: int) -> None:
    """Type I error and coverage without an effect; coverage of one that is found about half the time."""
    instrument = Instrument(units, margin=NO_MARGIN)
    nothing = instrument.repeat(cases, draw_noise(name, units), 1)
    show(f"type I, {name}, n = {units}", nothing.different)
    show(f"coverage, {name}, n = {units}", nothing.covering(0.0))
    assert nothing.different.low <= 0.05
    assert nothing.covering(0.0).high >= 0.93
    effect = 2.5 * SD / np.sqrt(units)
    found = instrument.repeat(cases, draw_noise(name, units, effect), 2)
    show(f"coverage of an effect, {name}, n = {units}", found.covering(effect))
    assert found.covering(effect).high >= 0.93


def promise_false_equivalence(name: str, units: int, cases: int) -> None:
    """The true effect lies at the margin, which is three standard errors wide."""
    instrument = Instrument(units)
    margin = log_margin(0.005)
    sd = margin * np.sqrt(units) / 3
    rates = instrument.repeat(cases, draw_noise(name, units, margin, sd), 3)
    show(f"false equivalence, {name}, n = {units}", rates.small)
    assert rates.small.low <= 0.05


@pytest.mark.parametrize(("name", "units"), [("normal", 5), ("t3", 10), ("spikes", 20)])
def test_promises_in_brief(name: str, units: int) -> None:
    promise_errors(name, units, 40)
    promise_false_equivalence(name, units, 40)


@pytest.mark.slow
@pytest.mark.parametrize("units", [5, 10, 20])
@pytest.mark.parametrize("name", NOISES)
def test_promises_closely(name: str, units: int) -> None:
    promise_errors(name, units, 300)
    promise_false_equivalence(name, units, 300)


# Peeking


def promise_no_peeking_penalty(cases: int) -> None:
    """After every unit, with the confidence sequence; one plain t test a unit is wrong in 29% of comparisons."""
    units = 30
    anytime = Instrument(units, margin=NO_MARGIN, anytime=True).repeat(cases, draw_noise("normal", units), 4)
    show("type I, any time", anytime.different)
    show("coverage, any time", anytime.covering(0.0))
    assert anytime.different.low <= 0.05
    assert anytime.covering(0.0).high >= 0.95
    often = Instrument(units, margin=NO_MARGIN, num_looks=10).repeat(cases, draw_noise("normal", units), 5)
    show("type I, ten looks", often.different)
    assert often.different.low <= 0.05


def test_peeking_in_brief() -> None:
    promise_no_peeking_penalty(12)


@pytest.mark.slow
def test_peeking_closely() -> None:
    promise_no_peeking_penalty(200)


def test_a_budget_that_ends_at_random_costs_nothing() -> None:
    rng = np.random.default_rng(6)
    instrument = Instrument(20, margin=NO_MARGIN)
    found = []
    for _ in range(50):
        trials = instrument.measure(SD * rng.standard_normal(20))
        measured, looks = run_looks(instrument.plan, trials, budget_blocks=int(rng.integers(3, 20)))
        found.append(compare(instrument.plan, measured, [], looks)[0][0])
    assert Rates(found).different.low <= 0.05
    assert Rates(found).covering(0.0).high >= 0.93


# Processes


def draw_processes(rng: np.random.Generator, processes: int, units: int) -> FloatArray:
    """Each process favours an arm by 0.1%, a unit has 0.65% of noise."""
    return np.repeat(0.001 * rng.standard_normal(processes), units) + 0.0065 * rng.standard_normal(processes * units)


def promise_process_effects(cases: int) -> None:
    for processes in (4, 6):
        instrument = Instrument(20 * processes, processes=processes, margin=NO_MARGIN)
        rates = instrument.repeat(cases, lambda rng, count=processes: draw_processes(rng, count, 20), 7)  # type: ignore[misc]
        show(f"coverage, {processes} processes", rates.covering(0.0))
        assert rates.covering(0.0).high >= 0.93
        assert rates.different.low <= 0.05


def test_process_effects_in_brief() -> None:
    promise_process_effects(25)


@pytest.mark.slow
def test_process_effects_closely() -> None:
    promise_process_effects(300)


# Many comparisons


def promise_family(cases: int) -> None:
    """Of four comparisons without an effect, any false claim at all; and beside one true effect."""
    points = [make_point(0, "off"), *(make_point(i + 1, f"v{i}") for i in range(4))]
    comparisons = [make_comparison(i, RUNS, candidate=i + 1) for i in range(4)]
    instrument = Instrument(10, comparisons=comparisons, points=points, margin=NO_MARGIN)
    for name, effects in (("none", (0.0,) * 4), ("one", (0.0, 0.0, 0.0, 0.05))):
        rng = np.random.default_rng(8)
        wrong = 0
        for _ in range(cases):
            found = instrument.judge(*(effect + SD * rng.standard_normal(10) for effect in effects))
            pairs: Sequence[tuple[Comparison, float]] = list(zip(found, effects, strict=True))
            wrong += any(item.verdict in DIFFERENT for item, effect in pairs if effect == 0.0)
        rate = clopper_pearson(wrong, cases, 0.999)
        show(f"any false claim of four, {name} true", rate)
        assert rate.low <= 0.05


def test_family_in_brief() -> None:
    promise_family(12)


@pytest.mark.slow
def test_family_closely() -> None:
    promise_family(200)


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
    plan = make_plan(units=10, margin=NO_MARGIN, period_steps=2, guard_steps=0)
    rng = np.random.default_rng(9)
    found = []
    for _ in range(cases):
        measured, looks = run_looks(plan, measure_trials(plan, Machine(factors=drifting(rng))))
        found.append(compare(plan, measured, [], looks)[0][0])
    rates = Rates(found)
    show("type I, mirrored on a drifting machine", rates.different)
    show("coverage, mirrored on a drifting machine", rates.covering(0.0))
    assert rates.different.low <= 0.05
    assert rates.covering(0.0).high >= 0.93


def test_mirrored_in_brief() -> None:
    promise_mirrored(25)


@pytest.mark.slow
def test_mirrored_closely() -> None:
    promise_mirrored(300)
