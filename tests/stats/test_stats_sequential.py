"""Bounds of looks and the confidence sequence."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from specbench.errors import InputError
from specbench.stats.estimate import Estimate, StandardError, estimate_units
from specbench.stats.sequential import AnytimeBound, LookPlan, plan_looks, single_look
from specbench.stats.spending import look_tails, obrien_fleming_spending
from specbench.stats.t_process import UnstoppedPaths, ratio_at_tail

FIFTHS = (0.2, 0.4, 0.6, 0.8, 1.0)


def z_bounds(units: tuple[int, ...], alpha: float, *, two_sided: bool) -> list[float]:
    tails = look_tails(units, FIFTHS, alpha, two_sided=two_sided)
    return [-float(special.ndtri(tail)) for tail in tails]


# Spending


def test_spending_starts_at_nothing_and_ends_at_alpha() -> None:
    spent = [obrien_fleming_spending(fraction, 0.025) for fraction in FIFTHS]
    assert spent == sorted(spent)
    assert spent[0] < 1e-6
    assert spent[-1] == pytest.approx(0.025)


def test_many_units_give_the_published_normal_bounds() -> None:
    """Two-sided 5% and one-sided 5%, five equal looks: the figures every Lan-DeMets program prints."""
    units = (20_000, 40_000, 60_000, 80_000, 100_000)
    assert z_bounds(units, 0.05, two_sided=True) == pytest.approx([4.877, 3.357, 2.680, 2.290, 2.031], abs=2e-3)
    assert z_bounds(units, 0.05, two_sided=False) == pytest.approx([4.229, 2.888, 2.298, 1.962, 1.740], abs=2e-3)


def test_few_units_are_judged_more_strictly() -> None:
    """The normal bounds would let 5.5% through at 10 units."""
    few = z_bounds((2, 4, 6, 8, 10), 0.05, two_sided=True)
    many = z_bounds((200, 400, 600, 800, 1000), 0.05, two_sided=True)
    assert few[-1] > many[-1] + 0.03


@pytest.mark.parametrize(
    ("units", "times"),
    [
        ((1, 5), (0.2, 1.0)),
        ((5, 5), (0.2, 1.0)),
        ((), ()),
        ((2, 4), (1.0, 1.0)),
        ((2, 4), (0.5,)),
        ((2, 4), (0.5, 1.1)),
    ],
)
def test_impossible_looks_are_refused(units: tuple[int, ...], times: tuple[float, ...]) -> None:
    with pytest.raises(InputError):
        look_tails(units, times, 0.05, two_sided=True)


# The joint distribution behind it


@pytest.mark.parametrize(("first", "second"), [(2, 3), (2, 4), (3, 5), (5, 6), (4, 12)])
@pytest.mark.parametrize("two_sided", [True, False])
def test_crossing_probabilities_agree_with_simulation(first: int, second: int, two_sided: bool) -> None:
    """P(not stopped at the first look, above the bound at the second), by 60,000 simulated paths."""
    rng = np.random.default_rng([first, second])
    values = rng.standard_normal((60_000, second))
    early, late = (values[:, :n].mean(1) / (values[:, :n].std(1, ddof=1) / math.sqrt(n)) for n in (first, second))
    bound = -special.stdtrit(first - 1, 0.1)
    going_on = np.abs(early) <= bound if two_sided else early <= bound
    simulated = (going_on & (late > -special.stdtrit(second - 1, 0.05))).mean()
    paths = UnstoppedPaths.first(first, 0.1, two_sided=two_sided)
    error = math.sqrt(simulated / 60_000)
    assert paths.share_above(0.05, second) == pytest.approx(simulated, abs=4 * error + 1e-4)


@pytest.mark.parametrize("added", [1, 2, 7])
def test_without_stopping_the_marginal_is_the_t_distribution(added: int) -> None:
    paths = UnstoppedPaths.first(6, 0.0, two_sided=True).next(6 + added, 0.0, two_sided=True)
    assert paths.masses.sum() == pytest.approx(1.0, abs=1e-6)
    for tail in (0.2, 0.01):
        assert paths.share_above(tail, 20) == pytest.approx(tail, rel=0.01)


def test_ratio_matches_the_t_quantile() -> None:
    ratio = ratio_at_tail(0.01, 8)
    share = ratio / math.sqrt(8)
    assert share * math.sqrt(7) / math.sqrt(1 - share**2) == pytest.approx(-special.stdtrit(7, 0.01))


# Plans


@pytest.mark.parametrize(
    ("max_units", "expected"),
    [(20, (4, 8, 12, 16, 20)), (5, (2, 3, 4, 5)), (12, (3, 5, 8, 10, 12)), (2, (2,)), (3, (2, 3))],
)
def test_planned_looks(max_units: int, expected: tuple[int, ...]) -> None:
    assert plan_looks(max_units).look_units == expected


@pytest.mark.parametrize(("max_units", "looks"), [(1, 5), (20, 0)])
def test_impossible_plans_are_refused(max_units: int, looks: int) -> None:
    with pytest.raises(InputError):
        plan_looks(max_units, looks)


def test_a_look_is_judged_alike_whatever_follows() -> None:
    plan = plan_looks(20)
    bounds = [plan.bound(plan.look_units[: i + 1]) for i in range(5)]
    whole = look_tails(plan.look_units, FIFTHS, 0.05, two_sided=True)
    assert [bound.difference_p for bound in bounds] == pytest.approx([2 * tail for tail in whole])
    assert {bound.final_difference_p for bound in bounds} == {bounds[-1].difference_p}
    assert [bound.label for bound in bounds][::2] == ["look 1 of 5", "look 3 of 5", "look 5 of 5"]
    assert bounds[0].planning.difference_critical(19) == bounds[-1].difference_critical(19)


def test_one_look_is_the_plain_t_test() -> None:
    once, planned = single_look(), plan_looks(20, 1).bound([20])
    for bound in (once, planned):
        assert bound.difference_critical(19) == pytest.approx(-special.stdtrit(19, 0.025))
        assert bound.equivalence_critical(19) == pytest.approx(-special.stdtrit(19, 0.05))


def test_ending_early_spends_all_that_is_left() -> None:
    plan = plan_looks(40)
    early, going_on = plan.bound([8, 16], is_last=True), plan.bound([8, 16])
    assert going_on.difference_p < 0.001
    assert early.difference_p == pytest.approx(0.05, abs=1e-4)
    assert early.label == "look 2 of 2"


def test_looks_may_fall_beside_the_planned_units() -> None:
    plan = plan_looks(20)
    found = plan.bound([5, 9])
    assert found.label == "look 2 of 5"
    assert found.difference_p > plan.bound([4, 8]).difference_p
    assert plan.bound([5, 9, 21]).label == "look 3 of 3"


def test_looks_after_the_end_are_refused() -> None:
    with pytest.raises(InputError, match="must rise"):
        plan_looks(20).bound([10, 20, 30])
    with pytest.raises(InputError, match="no look"):
        plan_looks(20).bound([])


def test_an_alpha_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="alpha"):
        plan_looks(20, alpha=5)
    with pytest.raises(InputError, match="alpha"):
        AnytimeBound(alpha=0)
    with pytest.raises(InputError, match="mixture"):
        AnytimeBound(mixture=0)
    with pytest.raises(InputError, match="equivalence_alpha"):
        single_look(equivalence_alpha=1)


def test_a_look_too_early_to_stop_stops_nothing() -> None:
    plan = LookPlan(max_units=1000, look_units=(5, 1000))
    first = plan.bound([5])
    assert first.difference_p == 0
    assert first.difference_critical(4) == math.inf
    assert plan.bound([5, 1000]).difference_p == pytest.approx(0.05, abs=1e-4)


@settings(max_examples=8)
@given(st.integers(6, 60), st.integers(1, 6))
def test_bounds_loosen_from_look_to_look_and_never_exceed_alpha(max_units: int, looks: int) -> None:
    plan = plan_looks(max_units, looks)
    bounds = [plan.bound(plan.look_units[: i + 1]) for i in range(len(plan.look_units))]
    values = [bound.difference_p for bound in bounds]
    assert values == sorted(values)
    assert values[-1] <= 0.05 * (1 + 1e-9)
    assert sum(values) >= 0.05 * 0.99


def test_the_confidence_sequence_gives_equivalence_its_own_alpha_and_p() -> None:
    bound = AnytimeBound(0.01, equivalence_alpha=0.05)
    assert bound.difference_critical(19) == AnytimeBound(0.01).difference_critical(19)
    assert bound.equivalence_critical(19) == AnytimeBound(0.05).difference_critical(19)
    rng = np.random.default_rng(0)
    for scale in (0.1, 0.5, 1.0, 3.0):
        estimate = estimate_units(0.2 + scale * rng.standard_normal(20))
        reach = estimate.half_width(bound.equivalence_critical)
        p_value = bound.equivalence_p(estimate, 0.9)
        assert reach is not None
        assert p_value is not None
        assert (p_value <= 0.05) == (abs(estimate.mean) + reach <= 0.9)
    assert bound.equivalence_p(estimate_units([2.0, 2.1, 1.9]), 0.9) == 1.0
    assert bound.equivalence_p(estimate_units([2.0]), 0.9) is None
    with pytest.raises(InputError, match="equivalence_alpha"):
        AnytimeBound(0.05, equivalence_alpha=0.0)


@pytest.mark.parametrize("look", [1, 3])
def test_p_over_looks_is_alpha_where_a_look_just_claims(look: int) -> None:
    plan = plan_looks(20)
    taken = plan.look_units[:look]
    bound = plan.bound(taken)
    assert plan.p_over_looks(taken, bound.difference_p) == pytest.approx(0.05, rel=1e-3)
    assert plan.p_over_looks(taken, bound.difference_p / 2) < 0.05 < plan.p_over_looks(taken, bound.difference_p * 2)
    assert plan.p_over_looks(taken, 0.9) == 1.0
    assert plan.p_over_looks(taken, 0.0) < 1e-6
    with pytest.raises(InputError, match="p_value"):
        plan.p_over_looks(taken, 1.5)


def test_p_over_looks_of_one_side_is_alpha_where_a_side_just_passes() -> None:
    plan = plan_looks(20)
    for taken, last in ((plan.look_units[:2], False), ((4, 7), True)):
        bound = plan.bound(taken, is_last=last)
        p_value = plan.p_over_looks(taken, bound.equivalence_p, is_last=last, two_sided=False)
        assert p_value == pytest.approx(0.05, rel=1e-3)


@given(st.floats(1e-12, 0.5), st.integers(4, 19), st.booleans())
def test_p_over_looks_is_never_below_the_nominal_one(p_value: float, second: int, two_sided: bool) -> None:
    found = plan_looks(20).p_over_looks((3, second), p_value, is_last=True, two_sided=two_sided)
    assert found >= p_value * (1 - 1e-9)


@pytest.mark.parametrize("units", range(2, 14))
def test_bounds_exist_for_every_small_plan(units: int) -> None:
    """First looks at two or three units have tails so small that rounding is a few per cent of them."""
    for looks in range(1, 11):
        plan = plan_looks(units, looks)
        assert plan.bound(plan.look_units).difference_p <= 0.05 * (1 + 1e-9)


def test_p_over_one_look_is_the_nominal_one() -> None:
    assert plan_looks(20, 1).p_over_looks([20], 0.3) == 0.3
    assert plan_looks(20).p_over_looks([7], 0.3, is_last=True) == 0.3


# The confidence sequence


def bayes_factor(t_statistic: float, units: int, mixture: float) -> float:
    """Evidence of a normal effect against none, integrated numerically over noncentral t densities."""

    def weighed(effect: float) -> float:
        density = stats.nct.pdf(t_statistic, units - 1, effect * math.sqrt(units))
        return float(density * stats.norm.pdf(effect, scale=math.sqrt(mixture)))

    peak = t_statistic / math.sqrt(units)
    found, _ = integrate.quad(weighed, peak - 3, peak + 3, points=[0.0, peak], limit=200)
    return float(found / stats.t.pdf(t_statistic, units - 1))


@pytest.mark.parametrize("units", [8, 15, 40])
def test_the_sequence_ends_where_the_evidence_reaches_one_in_alpha(units: int) -> None:
    critical = AnytimeBound(alpha=0.05, mixture=0.3).difference_critical(units - 1.0)
    assert bayes_factor(critical, units, 0.3) == pytest.approx(1 / 0.05, rel=1e-3)
    estimate = Estimate(critical, units, (StandardError(1.0, units - 1.0, units, "units"),))
    assert AnytimeBound().p_over_looks(estimate) == pytest.approx(0.05)


def test_any_time_p_values_of_nothing_and_of_no_error() -> None:
    assert AnytimeBound().p_over_looks(Estimate(0.0, 20, (StandardError(1.0, 19.0, 20, "units"),))) == 1.0
    assert AnytimeBound().p_over_looks(Estimate(0.0, 1, ())) is None


def test_the_sequence_is_infinite_for_too_few_units() -> None:
    bound = AnytimeBound()
    assert [units for units in range(2, 12) if math.isinf(bound.difference_critical(units - 1.0))] == [
        2,
        3,
        4,
        5,
        6,
    ]
    assert bound.planning is bound
    assert bound.confidence == pytest.approx(0.95)


def test_the_sequence_as_written_out() -> None:
    n, g, alpha = 25, 0.3, 0.05
    r = 1 + n * g
    c = (math.sqrt(r) / alpha) ** (2 / n)
    values = np.random.default_rng(1).standard_normal(n)
    expected = values.std(ddof=1) * math.sqrt((n - 1) * (c - 1) / ((1 - c / r) * n))
    critical = AnytimeBound(alpha, g).difference_critical(n - 1.0)
    assert critical * values.std(ddof=1) / math.sqrt(n) == pytest.approx(expected)
