"""Effects over fresh processes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from specbench.errors import InputError
from specbench.stats.estimate import estimate_units
from specbench.stats.processes import estimate_processes


def test_one_process_speaks_for_itself_only() -> None:
    units = np.random.default_rng(0).standard_normal(12)
    found = estimate_processes([units])
    assert found.estimate == estimate_units(units)
    assert found.scope == "this process only"
    assert not found.is_general
    assert found.between_std_dev is None


@pytest.mark.parametrize("count", [2, 3])
def test_few_processes_speak_for_themselves_only(count: int) -> None:
    rng = np.random.default_rng(count)
    found = estimate_processes([rng.standard_normal(10) for _ in range(count)])
    assert [error.source for error in found.estimate.errors] == ["within processes"]
    assert found.scope == f"these {count} processes only"
    assert not found.is_general


def test_four_processes_take_the_wider_error() -> None:
    rng = np.random.default_rng(4)
    units = [rng.standard_normal(20) + effect for effect in (-3.0, -1.0, 1.0, 3.0)]
    found = estimate_processes(units)
    means = np.array([part.mean() for part in units])
    between = estimate_units(means).interval(0.95)
    assert found.scope == "4 fresh processes"
    assert found.is_general
    assert found.process_means == pytest.approx(tuple(means))
    assert found.between_std_dev == pytest.approx(means.std(ddof=1))
    assert between is not None
    wider = found.estimate.interval(0.95)
    assert wider is not None
    assert (wider.low, wider.high) == pytest.approx((between.low, between.high))


def test_within_error_pools_unequal_processes() -> None:
    rng = np.random.default_rng(5)
    units = [rng.normal(0, spread, size) for spread, size in ((1, 5), (2, 9), (4, 30))]
    error = estimate_processes(units).estimate.errors[0]
    parts = [part.var(ddof=1) / part.size for part in units]
    assert error.value == pytest.approx(math.sqrt(sum(parts)) / 3)
    assert error.df == pytest.approx(
        sum(parts) ** 2 / sum(part**2 / (unit.size - 1) for part, unit in zip(parts, units, strict=True))
    )


def test_equal_processes_count_alike_whatever_their_units() -> None:
    assert estimate_processes([[0.0, 0.0, 0.0, 0.1], [1.0, 1.1]]).estimate.mean == pytest.approx((0.025 + 1.05) / 2)


def test_one_unit_a_process_leaves_the_error_between_them() -> None:
    found = estimate_processes([[0.1], [0.2], [0.15], [0.3]])
    assert [error.source for error in found.estimate.errors] == ["between processes"]
    few = estimate_processes([[0.1], [0.2]])
    assert few.estimate.errors == ()
    assert "two are needed" in str(few.estimate.not_computed)


def test_no_process_and_an_empty_one_are_refused() -> None:
    with pytest.raises(InputError, match="no process"):
        estimate_processes([])
    with pytest.raises(InputError, match="process 1"):
        estimate_processes([[1.0], []])


def coverage(trials: int, process_sd: float) -> dict[str, float]:
    """Four processes of 20 units, unit sd 0.65%: how often each interval holds the true effect of 0."""
    rng = np.random.default_rng(2024)
    units = process_sd * rng.standard_normal((trials, 4, 1)) + 0.65 * rng.standard_normal((trials, 4, 20))
    pooled_t = units.mean((1, 2)) / (units.reshape(trials, 80).std(1, ddof=1) / math.sqrt(80))
    wider = between = 0
    for trial in units:
        estimate = estimate_processes(list(trial)).estimate
        interval = estimate.interval(0.95)
        assert interval is not None
        wider += interval.contains(0.0)
        error = estimate.errors[1]
        between += abs(estimate.mean) <= -special.stdtrit(error.df, 0.025) * error.value
    pooled = float((np.abs(pooled_t) <= -special.stdtrit(79, 0.025)).mean())
    return {"pooled": pooled, "wider": wider / trials, "between": between / trials}


def test_coverage_over_processes() -> None:
    found = coverage(1500, 0.1)
    assert 0.87 < found["pooled"] < 0.92
    assert 0.92 < found["between"] < 0.97
    assert 0.955 < found["wider"] < 0.985


@pytest.mark.slow
def test_coverage_over_processes_closely() -> None:
    found = coverage(20_000, 0.1)
    assert found["pooled"] == pytest.approx(0.897, abs=0.008)
    assert found["wider"] == pytest.approx(0.971, abs=0.005)
