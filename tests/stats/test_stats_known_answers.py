"""Published and textbook answers, recomputed from their data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from specbench.errors import InputError
from specbench.stats.estimate import estimate_units
from specbench.stats.exact import clopper_pearson, fisher_exact, mcnemar_exact
from specbench.stats.paired import pair_units, summarize_pairs
from specbench.stats.robust import sign_test

# Extra hours of sleep under two drugs, ten patients (Student 1908).
SLEEP_FIRST = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
SLEEP_SECOND = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])

# The json rows of benchstat's documentation, ns/op.
JSON_OLD = [1726.0, 1723, 1707, 1707, 1713, 1729, 1736, 1707, 1705, 1774]
JSON_NEW = [1423.0, 1416, 1411, 1413, 1412, 1426, 1422, 1424, 1447, 1425]


def test_fisher_counts_by_answer_and_by_question() -> None:
    assert fisher_exact(15, 198, 0, 594) == pytest.approx(6.178554890767e-10, rel=1e-10)
    assert fisher_exact(15, 198, 0, 198) == pytest.approx(4.6e-5, abs=0.05e-5)


def test_fisher_agrees_with_summing_tables() -> None:
    """Summed here over every table with the same margins that is as unlikely."""
    table = stats.hypergeom(30, 12, 14)
    chances = {count: table.pmf(count) for count in range(13)}
    expected = sum(chance for chance in chances.values() if chance <= chances[9] * (1 + 1e-9))
    assert fisher_exact(9, 14, 3, 16) == pytest.approx(expected)


def test_clopper_pearson_of_15_in_198() -> None:
    found = clopper_pearson(15, 198)
    assert (round(found.low, 5), round(found.high, 5)) == (0.04302, 0.12187)
    assert found.estimate == pytest.approx(15 / 198)


def test_clopper_pearson_at_the_ends() -> None:
    """Nothing in n: the upper end solves (1 - p)^n = 2.5%."""
    none, every = clopper_pearson(0, 20), clopper_pearson(20, 20)
    assert none.low == 0
    assert none.high == pytest.approx(1 - 0.025 ** (1 / 20))
    assert (every.low, every.high) == pytest.approx((1 - none.high, 1.0))


def test_mcnemar_counts_discordant_items_only() -> None:
    assert mcnemar_exact(1, 7) == pytest.approx(2 * (1 + 8) / 2**8)
    assert mcnemar_exact(4, 4) == pytest.approx(1.0)
    assert mcnemar_exact(0, 0) is None


@pytest.mark.parametrize(("count", "total"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_counts_are_refused(count: int, total: int) -> None:
    with pytest.raises(InputError, match="not a proportion"):
        clopper_pearson(count, total)
    with pytest.raises(InputError, match="not a proportion"):
        fisher_exact(1, 5, count, total)


def test_negative_discordant_counts_are_refused() -> None:
    with pytest.raises(InputError, match="negative"):
        mcnemar_exact(-1, 3)


def test_sleep_data_paired() -> None:
    found = estimate_units(SLEEP_FIRST - SLEEP_SECOND)
    interval = found.interval(0.95)
    assert interval is not None
    assert found.mean / found.errors[0].value == pytest.approx(-4.0621, abs=5e-5)
    assert found.errors[0].df == 9
    assert found.p_value() == pytest.approx(0.002833, abs=5e-7)
    assert (interval.low, interval.high) == pytest.approx((-2.4599, -0.7001), abs=5e-5)


def test_mean_interval_of_six_values() -> None:
    found = estimate_units([-8, 2, 3, 4, 5, 6])
    interval = found.interval(0.95)
    assert interval is not None
    assert found.mean == pytest.approx(2)
    assert (interval.low, interval.high) == pytest.approx((-3.351093, 7.351093), abs=5e-7)


def test_json_example_medians_and_pairs() -> None:
    """The published change is of medians; Hodges-Lehmann over pairs finds the same within half a point."""
    old, new = float(np.median(JSON_OLD)), float(np.median(JSON_NEW))
    assert (old, new) == (1718.0, 1422.5)
    assert round(100 * (new / old - 1), 2) == -17.20
    summary = summarize_pairs(pair_units(JSON_OLD, JSON_NEW))
    assert 100 * math.expm1(-summary.hodges_lehmann) == pytest.approx(-17.20, abs=0.5)
    assert summary.interval is not None
    assert summary.interval.contains(-math.log(new / old))
    assert (summary.signs.positive, summary.signs.p_value) == (10, pytest.approx(2 / 2**10))


def test_sign_test_leaves_ties_out() -> None:
    found = sign_test([0.0, 0.0, 1.0, 2.0, -1.0])
    assert (found.positive, found.negative, found.ties) == (2, 1, 2)
    assert found.p_value == pytest.approx(1.0)
    assert sign_test([0.0, 0.0]).p_value is None
