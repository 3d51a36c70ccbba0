"""Many points: pooled effects and corrected claims."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specbench.errors import InputError
from specbench.stats.estimate import Estimate, StandardError, estimate_units
from specbench.stats.multiplicity import benjamini_hochberg, holm, holm_levels
from specbench.stats.pooled import pool_points

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)

# Benjamini and Hochberg (1995), 15 hypotheses of the rt-PA trial.
TRIAL = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459]
TRIAL += [0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0]


# Pooled effects


def points_of(rng: np.random.Generator, sizes: list[int], spreads: list[float], effects: list[float]) -> list[Estimate]:
    return [
        estimate_units(rng.normal(effect, spread, size))
        for size, spread, effect in zip(sizes, spreads, effects, strict=True)
    ]


def test_pooled_error_is_that_of_an_equal_weight_mean() -> None:
    rng = np.random.default_rng(0)
    units = [rng.normal(0, spread, size) for spread, size in ((1.0, 5), (2.0, 8), (0.1, 30))]
    pooled = pool_points([estimate_units(part) for part in units])
    error = pooled.these_points.errors[0]
    variances = [part.var(ddof=1) / part.size for part in units]
    assert pooled.these_points.mean == pytest.approx(np.mean([part.mean() for part in units]))
    assert error.value == pytest.approx(math.sqrt(sum(variances)) / 3)
    squares = sum(variance**2 / (part.size - 1) for variance, part in zip(variances, units, strict=True))
    assert error.df == pytest.approx(sum(variances) ** 2 / squares)
    assert pooled.num_points == 3


def test_two_points_pool_as_welchs_t() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.normal(1, 1, 7), rng.normal(2, 4, 11)
    theirs = stats.ttest_ind(first, -second, equal_var=False)
    pooled = pool_points([estimate_units(first), estimate_units(second)])
    assert pooled.these_points.p_value() == pytest.approx(theirs.pvalue)
    assert pooled.these_points.errors[0].df == pytest.approx(theirs.df)


def test_points_in_general_are_a_t_over_their_means() -> None:
    points = points_of(np.random.default_rng(2), [6, 6, 6, 6], [1, 1, 1, 1], [5, 10, 15, 20])
    pooled = pool_points(points)
    expected = stats.ttest_1samp([point.mean for point in points], 0.0)
    assert pooled.in_general.p_value() == pytest.approx(expected.pvalue)
    assert pooled.interval is not None
    assert pooled.general_interval is not None
    assert pooled.general_interval.half_width > 3 * pooled.interval.half_width
    assert (pooled.signs.positive, pooled.signs.p_value) == (4, pytest.approx(2 / 16))


def test_heterogeneity_of_two_points_is_welchs_t() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.normal(0, 1, 6), rng.normal(1, 3, 9)
    found = pool_points([estimate_units(first), estimate_units(second)]).heterogeneity
    theirs = stats.ttest_ind(first, second, equal_var=False)
    assert found is not None
    assert found.p_value == pytest.approx(theirs.pvalue)
    assert found.cochran_q == pytest.approx(theirs.statistic**2)


def test_cochran_q_by_hand() -> None:
    points = [Estimate(mean, 10, (StandardError(error, 9.0, 10, "units"),)) for mean, error in ((1, 1), (2, 1), (6, 2))]
    found = pool_points(points).heterogeneity
    centre = (1 + 2 + 6 / 4) / 2.25
    assert found is not None
    assert found.cochran_q == pytest.approx((1 - centre) ** 2 + (2 - centre) ** 2 + (6 - centre) ** 2 / 4)
    assert 0 < found.i_squared < 1 - 2 / found.cochran_q


def test_heterogeneity_cries_wolf_at_its_rate_and_finds_what_is_there() -> None:
    """Six points of five units: chi-squared on Q would call 16% of alike points different."""
    rng = np.random.default_rng(4)
    alike = [pool_points([estimate_units(row) for row in rng.standard_normal((6, 5))]) for _ in range(300)]
    p_values = np.array([item.heterogeneity.p_value for item in alike if item.heterogeneity])
    naive = np.array([stats.chi2.sf(item.heterogeneity.cochran_q, 5) for item in alike if item.heterogeneity])
    assert 0.02 < (p_values < 0.05).mean() < 0.09
    assert (naive < 0.05).mean() > 0.12
    apart = pool_points([estimate_units(row) for row in rng.standard_normal((6, 5)) + 5 * np.arange(6)[:, None]])
    assert apart.heterogeneity is not None
    assert apart.heterogeneity.p_value < 1e-3
    assert apart.heterogeneity.i_squared > 0.9


def test_a_point_without_an_error_leaves_the_general_reading() -> None:
    pooled = pool_points([estimate_units([0.1, 0.2, 0.3]), estimate_units([0.4])])
    assert pooled.these_points.errors == ()
    assert pooled.interval is None
    assert pooled.heterogeneity is None
    assert pooled.general_interval is not None
    assert "point 1: one unit" in pooled.not_computed["interval"]
    assert pooled.speedup_pct == pytest.approx(100 * math.expm1(0.3))


def test_one_point_is_itself() -> None:
    point = estimate_units([0.1, 0.2, 0.3])
    pooled = pool_points([point])
    assert pooled.interval == point.interval()
    assert set(pooled.not_computed) == {"general_interval", "heterogeneity"}
    assert "one point has no spread" in pooled.not_computed["general_interval"]
    with pytest.raises(InputError, match="point means"):
        pool_points([])


def test_the_widest_error_of_a_point_is_pooled() -> None:
    wide, narrow = StandardError(2.0, 3.0, 4, "between"), StandardError(1.0, 76.0, 80, "within")
    pooled = pool_points([Estimate(0.0, 80, (narrow, wide)), Estimate(1.0, 80, (narrow,))])
    assert pooled.these_points.errors[0].value == pytest.approx(math.sqrt(4 + 1) / 2)


# Corrected claims


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_published_trial() -> None:
    """Holm claims three of the fifteen, Benjamini and Hochberg four."""
    assert sum(p <= 0.05 for p in holm(TRIAL) if p is not None) == 3
    assert sum(p <= 0.05 for p in benjamini_hochberg(TRIAL) if p is not None) == 4


def test_what_was_not_computed_counts_and_claims_nothing() -> None:
    for correct in (holm, benjamini_hochberg):
        found = correct([0.01, None, None])
        assert found == [pytest.approx(0.03), None, None]
    assert holm_levels([0.01, None]) == pytest.approx([0.025, 0.05])


@given(P_VALUES)
def test_holm_rejects_step_by_step(p_values: list[float]) -> None:
    """Against the definition: go on while p <= alpha / (claims left), stop at the first that is not."""
    rejected = set()
    for step, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[index] > 0.05 / (len(p_values) - step):
            break
        rejected.add(index)
    adjusted, levels = holm(p_values), holm_levels(p_values)
    for index, p_value in enumerate(p_values):
        assert (p_value <= levels[index]) == (index in rejected)
        value = adjusted[index]
        assert value is not None
        if abs(value - 0.05) > 1e-9:
            assert (value < 0.05) == (index in rejected)


@pytest.mark.parametrize("p_values", [[], [1.5], [-0.1], [float("nan")]])
def test_values_that_are_no_probability_are_refused(p_values: list[float]) -> None:
    for correct in (holm, holm_levels, benjamini_hochberg):
        with pytest.raises(InputError):
            correct(p_values)
