"""Units, their summary, and the second line beside the t interval."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from call_counts import count_calls
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specbench.errors import InputError
from specbench.stats import robust
from specbench.stats.autocorrelation import batch_means, lag1_autocorrelation
from specbench.stats.contrasts import group_difference, trend
from specbench.stats.estimate import Estimate, StandardError, estimate_units, to_percent
from specbench.stats.paired import pair_units, summarize_pairs
from specbench.stats.robust import find_outliers, hodges_lehmann

LOG_RATIOS = st.lists(st.floats(-1, 1).map(lambda x: round(x, 6)), min_size=1, max_size=40)


def brute_hodges_lehmann(values: np.ndarray) -> float:
    first, second = np.triu_indices(len(values))
    return float(np.median((values[first] + values[second]) / 2))


# Units


def test_positive_means_that_the_candidate_is_faster() -> None:
    units = pair_units([2.0, 2.0], [1.0, 2.0])
    assert units.log_ratios == pytest.approx([math.log(2), 0.0])
    assert units.log_ratio_of_sums == pytest.approx(math.log(4 / 3))


def test_tokens_turn_times_into_throughputs() -> None:
    units = pair_units([2.0, 1.0], [1.0, 1.0], baseline_tokens=[10, 10], candidate_tokens=[10, 20])
    assert units.log_ratios == pytest.approx([math.log(2), math.log(2)])
    assert units.log_ratio_of_sums == pytest.approx(math.log((30 / 2) / (20 / 3)))


@pytest.mark.parametrize(
    ("baseline", "candidate", "match"),
    [
        ([1.0], [1.0, 2.0], "paired with"),
        ([], [], "non-empty"),
        ([1.0, 0.0], [1.0, 1.0], "above 0"),
        ([1.0, float("nan")], [1.0, 1.0], "not finite"),
        ([[1.0]], [[1.0]], "shape"),
        (["fast"], [1.0], "numbers"),
    ],
)
def test_unusable_times_are_refused(baseline: list, candidate: list, match: str) -> None:
    with pytest.raises(InputError, match=match):
        pair_units(baseline, candidate)


def test_tokens_of_one_arm_are_refused() -> None:
    with pytest.raises(InputError, match="both arms"):
        pair_units([1.0], [1.0], baseline_tokens=[5])


@given(st.lists(st.tuples(st.floats(0.5, 2), st.floats(0.5, 2)), min_size=2, max_size=30))
def test_swapping_the_arms_changes_every_sign(times: list[tuple[float, float]]) -> None:
    baseline, candidate = np.array(times).T
    there = summarize_pairs(pair_units(baseline, candidate))
    back = summarize_pairs(pair_units(candidate, baseline))
    assert back.mean_log_ratio == pytest.approx(-there.mean_log_ratio, abs=1e-12)
    assert back.log_ratio_of_sums == pytest.approx(-there.log_ratio_of_sums, abs=1e-12)
    assert back.hodges_lehmann == pytest.approx(-there.hodges_lehmann, abs=1e-12)
    assert (back.signs.positive, back.signs.p_value) == (there.signs.negative, there.signs.p_value)
    assert (there.interval is None) == (back.interval is None)
    if there.interval is not None and back.interval is not None:
        assert back.interval.low == pytest.approx(-there.interval.high, abs=1e-9)


# Summary


def test_interval_is_the_paired_t_interval() -> None:
    rng = np.random.default_rng(3)
    baseline, candidate = rng.uniform(1, 2, 12), rng.uniform(1, 2, 12)
    summary = summarize_pairs(pair_units(baseline, candidate))
    theirs = stats.ttest_rel(np.log(baseline), np.log(candidate))
    expected = theirs.confidence_interval(0.95)
    assert summary.interval is not None
    assert (summary.interval.low, summary.interval.high) == pytest.approx((expected.low, expected.high))
    assert summary.estimate.p_value() == pytest.approx(theirs.pvalue)
    assert summary.speedup_pct == pytest.approx(100 * (math.exp(summary.mean_log_ratio) - 1))
    assert summary.sums_speedup_pct == pytest.approx(100 * (baseline.sum() / candidate.sum() - 1))


def test_sums_that_disagree_are_flagged() -> None:
    """One long unit in which the candidate is slower outweighs nine short ones in the sum alone."""
    baseline = np.array([1.0] * 9 + [50.0])
    candidate = baseline * np.array([0.9, 0.91, 0.89] * 3 + [1.1])
    assert summarize_pairs(pair_units(baseline, candidate)).sums_disagree is True
    alike = summarize_pairs(pair_units(np.ones(10), candidate / baseline))
    assert alike.sums_disagree is False


def test_outliers_are_counted_and_kept() -> None:
    values = np.array([0.01, 0.011, 0.009, 0.0105, 0.0095, 0.5])
    summary = summarize_pairs(pair_units(np.exp(values), np.ones(6)))
    assert summary.outliers == (5,)
    assert summary.mean_log_ratio == pytest.approx(values.mean())
    assert summary.num_units == 6
    assert find_outliers(np.arange(9.0)) == ()


def test_one_unit_has_a_mean_and_nothing_else() -> None:
    summary = summarize_pairs(pair_units([1.1], [1.0]))
    assert summary.speedup_pct == pytest.approx(10.0)
    assert summary.interval is None
    assert summary.std_dev is None
    assert summary.sums_disagree is None
    assert summary.estimate.p_value() is None
    assert "two are needed" in summary.not_computed["interval"]
    assert set(summary.not_computed) >= {
        "interval",
        "std_dev",
        "sums_disagree",
        "batch_means",
        "autocorrelation",
    }


@pytest.mark.parametrize("ratio", [1.0, 1.1, 1.0 + 1e-12])
def test_equal_units_give_no_interval_rather_than_a_certain_one(ratio: float) -> None:
    """Rounding of 1 ns-clocks or replayed figures, not precision."""
    baseline = np.array([1.0, 3.0, 7.0, 11.0])
    summary = summarize_pairs(pair_units(baseline * ratio, baseline))
    assert summary.interval is None
    assert "noise cannot be estimated" in summary.not_computed["interval"]


def test_a_confidence_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="confidence"):
        summarize_pairs(pair_units([1.0, 2.0], [1.0, 1.0]), confidence=95)


def test_percentages_that_no_float_holds_are_infinite() -> None:
    assert to_percent(0.0) == 0.0
    assert to_percent(1e4) == math.inf
    assert to_percent(-1e4) == -100.0


def check_cost_of_many_units(num_units: int) -> None:
    """Whole arrays are passed over some dozen times; no unit, and no pair of them, is taken by itself."""
    rng = np.random.default_rng(0)
    baseline, candidate = np.exp(0.02 * rng.standard_normal((2, num_units)))
    listed: list[int] = []
    found = []
    list_pairs = robust._pair_sums_between

    def listing(*arguments: Any) -> Any:
        sums = list_pairs(*arguments)
        listed.append(sums.size)
        return sums

    units = pair_units(baseline, candidate)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(robust, "_pair_sums_between", listing)
        count_calls(lambda: found.append(summarize_pairs(units)), limit=10_000)
    (summary,) = found
    assert summary.num_units == num_units
    assert abs(summary.hodges_lehmann) < 5e-4
    assert sum(listed) <= 200_000


def test_a_hundred_thousand_units_cost_some_dozen_passes() -> None:
    check_cost_of_many_units(100_000)


def test_listing_every_pair_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robust, "_LISTED_PAIRS", 10**9)
    with pytest.raises(AssertionError):
        check_cost_of_many_units(2_000)


# Hodges-Lehmann


@given(LOG_RATIOS)
def test_hodges_lehmann_is_the_median_of_pairwise_means(values: list[float]) -> None:
    array = np.array(values)
    assert hodges_lehmann(array) == pytest.approx(brute_hodges_lehmann(array), abs=1e-12)


@pytest.mark.parametrize("size", [700, 701, 702, 703, 1500])
@pytest.mark.parametrize("kind", ["continuous", "ties", "two values", "one value"])
def test_hodges_lehmann_of_many(size: int, kind: str) -> None:
    """Large enough that pairs are counted and not listed."""
    rng = np.random.default_rng(size)
    values = {
        "continuous": rng.standard_cauchy(size),
        "ties": rng.integers(0, 5, size).astype(float),
        "two values": np.repeat([0.0, 1.0], [size // 3, size - size // 3]),
        "one value": np.full(size, 0.1),
    }[kind]
    assert hodges_lehmann(values) == pytest.approx(brute_hodges_lehmann(values), abs=1e-12)


# Autocorrelation


def autoregressive(rng: np.random.Generator, trials: int, units: int, carry: float) -> np.ndarray:
    noise = rng.standard_normal((trials, units))
    for index in range(1, units):
        noise[:, index] += carry * noise[:, index - 1]
    return noise


def test_lag1_of_a_short_series_by_hand() -> None:
    found = lag1_autocorrelation([1.0, 2.0, 3.0, 4.0])
    assert found is not None
    assert found.lag1 == pytest.approx((-1.5 * -0.5 + -0.5 * 0.5 + 0.5 * 1.5) / 5.0)
    assert found.limit == pytest.approx(1.0)


def test_lag1_flags_carry_over_and_not_its_absence() -> None:
    rng = np.random.default_rng(5)
    flags = {}
    for carry in (0.0, 0.5, -0.5):
        found = [lag1_autocorrelation(row) for row in autoregressive(rng, 400, 60, carry)]
        flags[carry] = np.mean([item.is_high for item in found if item is not None])
    assert flags[0.0] < 0.05
    assert flags[0.5] > 0.9
    assert flags[-0.5] == 0.0


def test_lag1_does_not_take_a_process_for_carry_over() -> None:
    rng = np.random.default_rng(6)
    processes = np.repeat(np.arange(4), 25)
    values = rng.standard_normal(100) + 5.0 * processes
    pooled, grouped = lag1_autocorrelation(values), lag1_autocorrelation(values, groups=processes)
    assert pooled is not None
    assert pooled.is_high
    assert grouped is not None
    assert not grouped.is_high


def test_lag1_is_not_computed_where_nothing_varies() -> None:
    assert lag1_autocorrelation([1.0, 1.0, 1.0, 1.0]) is None
    assert lag1_autocorrelation([1.0, 2.0]) is None
    with pytest.raises(InputError, match="group labels"):
        lag1_autocorrelation([1.0, 2.0, 3.0], groups=[0, 1])


def test_ten_batches_of_equal_size_are_a_t_interval_of_their_means() -> None:
    values = np.random.default_rng(7).standard_normal(50)
    found = batch_means(values)
    expected = estimate_units(values.reshape(10, 5).mean(1))
    assert found.mean == pytest.approx(expected.mean)
    assert found.errors[0].value == pytest.approx(expected.errors[0].value)
    assert found.errors[0].df == 9
    assert found.num_units == 50


def test_batches_of_unequal_size_keep_the_mean_of_all_units() -> None:
    values = np.random.default_rng(8).standard_normal(27)
    assert batch_means(values).mean == pytest.approx(values.mean())
    assert batch_means(values[:19]).errors == ()
    assert "too few" in str(batch_means(values[:19]).not_computed)
    assert "equal" in str(batch_means(np.tile([1.0, 2.0], 10)).not_computed)


def test_a_correlated_summary_stands_on_the_wider_error() -> None:
    """With carry-over of a half, t over 200 units covers about 74%; the verdict's estimate must do far
    better.
    """
    rng = np.random.default_rng(9)
    covered = {"units": 0, "verdict": 0}
    trials = 150
    for row in autoregressive(rng, trials, 200, 0.5):
        summary = summarize_pairs(pair_units(np.exp(row / 100), np.ones(200)))
        interval, wider = summary.estimate.interval(), summary.verdict_estimate.interval()
        assert interval is not None
        assert wider is not None
        covered["units"] += interval.contains(0.0)
        covered["verdict"] += wider.contains(0.0)
    assert covered["units"] / trials < 0.82
    assert covered["verdict"] / trials > 0.90


# Several errors of one estimate


def test_the_widest_error_rules_intervals_and_p_values() -> None:
    narrow, wide = StandardError(1.0, 100.0, 101, "a"), StandardError(0.8, 3.0, 4, "b")
    both, one = Estimate(1.5, 101, (narrow, wide)), Estimate(1.5, 101, (wide,))
    assert both.interval(0.95) == one.interval(0.95)
    assert both.p_value() == one.p_value()
    assert both.upper_p(-1.0) == one.upper_p(-1.0)
    assert both.lower_p(4.0) == one.lower_p(4.0)
    # At a low confidence the larger error is the wider one, whatever its degrees of freedom.
    assert both.interval(0.5) == Estimate(1.5, 101, (narrow,)).interval(0.5)


# Contrasts


def test_group_difference_is_welchs() -> None:
    rng = np.random.default_rng(10)
    first, second = rng.normal(0, 1, 8), rng.normal(1, 3, 15)
    found, theirs = group_difference(first, second), stats.ttest_ind(first, second, equal_var=False)
    assert found.mean == pytest.approx(first.mean() - second.mean())
    assert found.p_value() == pytest.approx(theirs.pvalue)
    assert found.errors[0].df == pytest.approx(theirs.df)
    assert group_difference([1.0], [1.0, 2.0]).errors == ()


def test_trend_is_the_change_over_all_units() -> None:
    rng = np.random.default_rng(11)
    values = np.linspace(0, 3, 40) + 0.1 * rng.standard_normal(40)
    found, theirs = trend(values), stats.linregress(np.arange(40), values)
    assert found.mean == pytest.approx(theirs.slope * 39)
    assert found.p_value() == pytest.approx(theirs.pvalue, abs=1e-12)
    assert trend([1.0, 1.0, 1.0]).not_computed is not None
    assert trend([1.0, 2.0]).not_computed is not None
    assert trend([1.0, 2.0, 3.0]).errors == () or trend([1.0, 2.0, 3.0]).errors[0].value < 1e-6
