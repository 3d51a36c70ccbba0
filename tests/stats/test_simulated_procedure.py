"""The whole verdict procedure on simulated comparisons: looks, interval, equivalence and the word that comes
out.

Trials are vectorised with the bounds that the product uses; one test checks that the vectorised procedure
gives the very verdicts of :func:`specbench.stats.verdict.decide`. Rates are compared through their own
Clopper-Pearson interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from specbench.stats.equivalence import log_margin
from specbench.stats.estimate import estimate_units
from specbench.stats.exact import ProportionInterval, clopper_pearson
from specbench.stats.paired import pair_units
from specbench.stats.sequential import AnytimeBound, Bound, plan_looks, single_look
from specbench.stats.verdict import DEFAULT_MARGIN, Verdict, decide

FloatArray = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, tuple[int, int]], FloatArray]
Looks = Sequence[tuple[int, Bound]]

MARGIN = log_margin(DEFAULT_MARGIN)
DIFFERENT = {Verdict.FASTER, Verdict.SLOWER, Verdict.FASTER_NEGLIGIBLE, Verdict.SLOWER_NEGLIGIBLE}
SMALL = {Verdict.EQUIVALENT, Verdict.FASTER_NEGLIGIBLE, Verdict.SLOWER_NEGLIGIBLE}
UNITS = (5, 10, 20)


def normal(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    return rng.standard_normal(shape)


def heavy_tails(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    return rng.standard_t(3, shape)


def spikes(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    """One unit in ten is hit by a spike of 2 to 20 standard deviations, in either arm."""
    hits = rng.random(shape) < 0.1
    return rng.standard_normal(shape) + hits * rng.choice((-1.0, 1.0), shape) * rng.uniform(2, 20, shape)


def timed_quads(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    """Log ratios of quads, mirrored over two passes, from step times with a run's own speed, drift and
    spikes.

    Runs differ by 2.1%, a pass drifts by 1% and periods are noisy by 0.5%; one period in fifty takes 20% to
    60% longer.
    """
    trials, units = shape
    factors = np.ones((trials, units, 2, 4))
    factors *= np.exp(0.021 * rng.standard_normal((trials, 1, 2, 1)))
    clock = (np.arange(units)[:, None] * 4 + np.arange(4)) / (4 * units)
    factors *= 1 + 0.01 * clock[:, None, :] * rng.choice((-1.0, 1.0), (trials, 1, 2, 1))
    factors *= np.exp(0.005 * rng.standard_normal(factors.shape))
    factors *= 1 + (rng.random(factors.shape) < 0.02) * rng.uniform(0.2, 0.6, factors.shape)
    abba = np.array([True, False, False, True])
    is_a = abba ^ (rng.random((trials, units, 1)) < 0.5)
    is_a = np.stack([is_a, ~is_a], axis=2)
    baseline, candidate = (factors * is_a).sum((2, 3)), (factors * ~is_a).sum((2, 3))
    return pair_units(baseline.ravel(), candidate.ravel()).log_ratios.reshape(shape)


NOISES: dict[str, Noise] = {"normal": normal, "t3": heavy_tails, "spikes": spikes}
ALL_NOISES: dict[str, Noise] = {**NOISES, "timed quads": timed_quads}


@dataclass(frozen=True)
class Outcomes:
    """What every trial [trials] came to; without an interval its ends are infinite."""

    excludes_zero: npt.NDArray[np.bool_]
    is_small: npt.NDArray[np.bool_]
    low: FloatArray
    high: FloatArray
    units: npt.NDArray[np.int64]

    @property
    def different(self) -> int:
        return int(self.excludes_zero.sum())

    def covering(self, effect: float) -> int:
        return int(((self.low <= effect) & (effect <= self.high)).sum())


def run_procedure(log_ratios: FloatArray, looks: Looks, margin: float = MARGIN) -> Outcomes:
    """Look, stop at the first claim or at the last look: every trial (row) at once."""
    trials = len(log_ratios)
    done = np.zeros(trials, dtype=bool)
    differs, small = np.zeros(trials, dtype=bool), np.zeros(trials, dtype=bool)
    low, high = np.full(trials, -np.inf), np.full(trials, np.inf)
    units = np.zeros(trials, dtype=np.int64)
    for count, bound in looks:
        live = ~done
        seen = log_ratios[live, :count]
        mean, error = seen.mean(1), seen.std(1, ddof=1) / np.sqrt(count)
        half = bound.difference_critical(count - 1.0) * error
        differs[live] = np.abs(mean) > half
        small[live] = np.abs(mean) + bound.equivalence_critical(count - 1.0) * error < margin
        low[live], high[live], units[live] = mean - half, mean + half, count
        done = differs | small
    return Outcomes(differs, small, low, high, units)


def five_looks(units: int) -> Looks:
    plan = plan_looks(units)
    return [(count, plan.bound(plan.look_units[: i + 1])) for i, count in enumerate(plan.look_units)]


def after_every_unit(units: int, bound: Bound) -> Looks:
    return [(count, bound) for count in range(2, units + 1)]


def interval_of(count: int, trials: int, confidence: float = 0.999) -> ProportionInterval:
    return clopper_pearson(count, trials, confidence)


def show(rate: ProportionInterval) -> str:
    return f"{rate.estimate:.4f} ({rate.low:.4f} to {rate.high:.4f})"


def assert_at_most(rate: ProportionInterval, limit: float) -> None:
    assert rate.low <= limit, rate


def assert_at_least(rate: ProportionInterval, limit: float) -> None:
    assert rate.high >= limit, rate


# The vectorised procedure is the product's


@pytest.mark.parametrize("kind", ["five looks", "any time"])
def test_vectorised_verdicts_are_the_products(kind: str) -> None:
    looks = five_looks(12) if kind == "five looks" else after_every_unit(24, AnytimeBound())
    rng = np.random.default_rng(42)
    effects = rng.choice((0.0, 0.3, -1.0, 3.0, -9.0), (60, 1)) * MARGIN
    values = effects + heavy_tails(rng, (60, looks[-1][0])) * rng.choice((0.05, 0.3, 1.0), (60, 1)) * MARGIN
    outcomes = run_procedure(values, looks)
    seen = set()
    for index, row in enumerate(values):
        decision = next(
            (found for count, bound in looks if (found := decide(estimate_units(row[:count]), bound)).is_settled),
            decide(estimate_units(row), looks[-1][1]),
        )
        seen.add(decision.verdict)
        assert (decision.verdict in DIFFERENT) == outcomes.excludes_zero[index]
        assert (decision.verdict in SMALL) == outcomes.is_small[index]
        assert decision.num_units == outcomes.units[index]
        if decision.interval is not None:
            ends = (decision.interval.low, decision.interval.high)
            assert ends == pytest.approx((outcomes.low[index], outcomes.high[index]))
    assert len(seen) >= 4


# What the procedure promises. The fast slice has the slow tests' code and fewer trials.


def promise_type_one(noise: Noise, units: int, trials: int) -> ProportionInterval:
    """False differences with no margin to stop at, which is the harder case."""
    values = noise(np.random.default_rng([1, units]), (trials, units))
    return interval_of(run_procedure(values, five_looks(units), margin=1e-12).different, trials)


def promise_coverage(noise: Noise, units: int, trials: int) -> ProportionInterval:
    """The interval printed at the stopping look: the worst over effects of 0 to 4 standard errors."""
    values = noise(np.random.default_rng([2, units]), (trials, units))
    effects = np.array([0.0, 1.0, 2.5, 4.0]) * values.std() / np.sqrt(units)
    covered = [run_procedure(values + effect, five_looks(units), 1e-12).covering(effect) for effect in effects]
    return interval_of(min(covered), trials)


def promise_false_equivalence(noise: Noise, units: int, trials: int, precision: float) -> ProportionInterval:
    """Claims of a small effect where the true one lies at the margin; ``precision`` is the margin in standard
    errors.
    """
    values = noise(np.random.default_rng([3, units]), (trials, units))
    values = values * (MARGIN * np.sqrt(units) / precision / values.std()) + MARGIN
    return interval_of(int(run_procedure(values, five_looks(units)).is_small.sum()), trials)


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("noise", NOISES)
def test_promises_in_brief(noise: str, units: int) -> None:
    trials = 6000
    assert_at_most(promise_type_one(NOISES[noise], units, trials), 0.05)
    assert_at_least(promise_coverage(NOISES[noise], units, trials), 0.93)
    assert_at_most(promise_false_equivalence(NOISES[noise], units, trials, 3.0), 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("noise", ALL_NOISES)
def test_type_one_error_closely(noise: str, units: int) -> None:
    trials = 200_000 if noise == "normal" else 50_000
    rate = promise_type_one(ALL_NOISES[noise], units, trials)
    print(f"type I, {noise}, n = {units}: {show(rate)}")
    assert_at_most(rate, 0.05)
    assert rate.estimate < 0.052


@pytest.mark.slow
@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("noise", ALL_NOISES)
def test_coverage_closely(noise: str, units: int) -> None:
    rate = promise_coverage(ALL_NOISES[noise], units, 30_000)
    print(f"coverage, {noise}, n = {units}: {show(rate)}")
    assert rate.low >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("precision", [1.5, 3.0, 6.0])
@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("noise", ALL_NOISES)
def test_false_equivalence_closely(noise: str, units: int, precision: float) -> None:
    rate = promise_false_equivalence(ALL_NOISES[noise], units, 50_000, precision)
    print(f"false equivalence, {noise}, n = {units}, {precision}: {show(rate)}")
    assert_at_most(rate, 0.05)


def test_a_plain_look_at_n_covers_too() -> None:
    """The interval without looks, at the nominal 95%: t noise and spikes in both arms make it wider, not
    wrong.
    """
    for name, noise in ALL_NOISES.items():
        for units in UNITS:
            values = noise(np.random.default_rng([4, units]), (4000, units))
            outcomes = run_procedure(values, [(units, single_look())], margin=1e-12)
            assert_at_least(interval_of(outcomes.covering(0.0), 4000), 0.945)
            assert outcomes.covering(0.0) >= 0.93 * 4000, name


def test_spikes_in_one_arm_alone_are_beyond_any_t_interval() -> None:
    """The limit of the promise: a load that visits one arm only skews its units, and gates must find it."""
    trials, units = 4000, 10
    rng = np.random.default_rng(9)
    hits = (rng.random((trials, units)) < 0.1) * rng.uniform(2, 20, (trials, units))
    values = rng.standard_normal((trials, units)) + hits - 0.1 * 11
    rate = interval_of(run_procedure(values, [(units, single_look())], 1e-12).covering(0.0), trials)
    assert rate.high < 0.93


# Peeking


def test_looking_after_every_unit_needs_the_confidence_sequence() -> None:
    """Plain t at each of 30 units is wrong in 29% of comparisons; the sequence keeps to 5%."""
    trials = 6000
    values = normal(np.random.default_rng(5), (trials, 30))
    plain = interval_of(run_procedure(values, after_every_unit(30, single_look()), margin=1e-12).different, trials)
    sequence = interval_of(run_procedure(values, after_every_unit(30, AnytimeBound()), margin=1e-12).different, trials)
    assert plain.low < 0.29 < plain.high
    assert sequence.high < 0.05


def test_testing_equivalence_plainly_at_five_looks_is_wrong_13_percent_of_the_time() -> None:
    """One side alone, at the margin; with spending it is 5%."""
    trials, units = 10_000, 50
    values = normal(np.random.default_rng(6), (trials, units)) + 1.0
    rejected = {"plain": np.zeros(trials, dtype=bool), "spent": np.zeros(trials, dtype=bool)}
    for count, bound in five_looks(units):
        seen = values[:, :count]
        score = (seen.mean(1) - 1.0) / (seen.std(1, ddof=1) / np.sqrt(count))
        rejected["plain"] |= score > single_look().equivalence_critical(count - 1.0)
        rejected["spent"] |= score > bound.equivalence_critical(count - 1.0)
    plain, spent = (interval_of(int(rejected[name].sum()), trials) for name in ("plain", "spent"))
    assert plain.low < 0.13 < plain.high
    assert spent.low <= 0.05 <= spent.high


@pytest.mark.slow
@pytest.mark.parametrize("noise", ALL_NOISES)
def test_the_confidence_sequence_over_a_long_run(noise: str) -> None:
    trials = 5000
    values = ALL_NOISES[noise](np.random.default_rng(7), (trials, 200))
    looks = after_every_unit(200, AnytimeBound())
    wrong = interval_of(run_procedure(values, looks, margin=1e-12).different, trials)
    scaled = values * (MARGIN * np.sqrt(200) / 5 / values.std()) + MARGIN
    outcomes = run_procedure(scaled, looks)
    small = interval_of(int(outcomes.is_small.sum()), trials)
    covered = outcomes.covering(MARGIN) / trials
    print(f"any time, {noise}: type I {show(wrong)}, false equivalence {show(small)}, coverage {covered:.4f}")
    assert wrong.high <= 0.05
    assert small.high <= 0.05
    assert covered >= 0.95


@pytest.mark.slow
def test_five_looks_at_many_units() -> None:
    rate = promise_type_one(normal, 100, 50_000)
    assert rate.low <= 0.05 <= rate.high


def test_true_effects_are_found_and_named() -> None:
    """Power, signs and swapped labels: an effect of 4 standard errors is found, with its sign."""
    trials, units = 2000, 20
    values = normal(np.random.default_rng(8), (trials, units)) * 0.01 + 0.01
    there, back = run_procedure(values, five_looks(units)), run_procedure(-values, five_looks(units))
    assert there.different / trials > 0.95
    assert (there.low[there.excludes_zero] > 0).mean() > 0.999
    assert (there.excludes_zero == back.excludes_zero).all()
    assert back.low == pytest.approx(-there.high)
