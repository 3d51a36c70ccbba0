"""From estimates to verdicts: equivalence, power and the words."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specbench.errors import InputError
from specbench.stats.equivalence import assess_equivalence, assess_non_inferiority, log_margin
from specbench.stats.estimate import Estimate, StandardError, estimate_units
from specbench.stats.power import (
    detectable_effect,
    detectable_ratio,
    power_of_difference,
    power_of_equivalence,
    units_for_effect,
    units_for_equivalence,
    units_for_half_width,
)
from specbench.stats.sequential import AnytimeBound, plan_looks, single_look
from specbench.stats.verdict import Verdict, decide

MARGIN = log_margin(0.005)
OPPOSITE = {
    Verdict.FASTER: Verdict.SLOWER,
    Verdict.FASTER_NEGLIGIBLE: Verdict.SLOWER_NEGLIGIBLE,
    Verdict.EQUIVALENT: Verdict.EQUIVALENT,
    Verdict.INCONCLUSIVE: Verdict.INCONCLUSIVE,
}
OPPOSITE |= {after: before for before, after in OPPOSITE.items()}


def estimate_of(mean: float, error: float, df: float = 19.0) -> Estimate:
    return Estimate(mean, int(df) + 1, (StandardError(error, df, int(df) + 1, "units"),))


# Words


@pytest.mark.parametrize(
    ("mean", "error", "verdict"),
    [
        (0.02, 0.002, Verdict.FASTER),
        (-0.02, 0.002, Verdict.SLOWER),
        (0.0, 0.001, Verdict.EQUIVALENT),
        (0.002, 0.0002, Verdict.FASTER_NEGLIGIBLE),
        (-0.002, 0.0002, Verdict.SLOWER_NEGLIGIBLE),
        (0.004, 0.001, Verdict.FASTER),
        (0.0, 0.01, Verdict.INCONCLUSIVE),
        (0.02, 0.02, Verdict.INCONCLUSIVE),
    ],
)
def test_every_word_has_its_case(mean: float, error: float, verdict: Verdict) -> None:
    decision = decide(estimate_of(mean, error), single_look())
    assert decision.verdict is verdict
    assert decision.label == verdict.value
    assert decision.is_settled == (verdict is not Verdict.INCONCLUSIVE)
    assert (decision.units_needed is None) == decision.is_settled


def test_decisions_are_made_on_unrounded_numbers() -> None:
    """Ends that print as 0.00% and 0.50% fall on different sides of their limits."""
    critical = single_look().difference_critical(19.0)
    for nudge, verdict in ((1e-12, Verdict.FASTER), (-1e-12, Verdict.INCONCLUSIVE)):
        assert decide(estimate_of(0.01 * critical + nudge, 0.01), single_look()).verdict is verdict
    reach = single_look().equivalence_critical(19.0) * 0.001
    for nudge, passes in ((-1e-12, True), (1e-12, False)):
        assert assess_equivalence(estimate_of(MARGIN - reach + nudge, 0.001), MARGIN, single_look()).passes is passes


def test_invalid_beats_every_verdict() -> None:
    for mean, error in ((0.02, 0.002), (0.0, 0.001), (0.0, 0.1)):
        decision = decide(
            estimate_of(mean, error), single_look(), invalid_reasons=["tokens differ"], output_changed=True
        )
        assert decision.verdict is Verdict.INVALID
        assert decision.label == "INVALID"
        assert decision.reasons == ("tokens differ",)
        assert decision.interval is not None


def test_a_changed_output_is_said_first() -> None:
    decision = decide(estimate_of(0.02, 0.002), single_look(), output_changed=True)
    assert decision.label == "OUTPUT CHANGED: FASTER"
    assert decision.verdict is Verdict.FASTER


@pytest.mark.parametrize("values", [[0.01], [0.01, 0.01, 0.01], [0.0, 0.0, 0.0, 0.0]])
def test_what_cannot_be_computed_claims_nothing(values: list[float]) -> None:
    """Equal units are not perfect equivalence: their noise is unknown."""
    decision = decide(estimate_units(values), single_look())
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.interval is None
    assert decision.equivalence.passes is None
    assert decision.mde is None
    assert decision.mde_pct is None
    assert decision.more_units_needed is None
    assert set(decision.not_computed) == {"interval", "mde", "units_needed"}
    assert decision.speedup_pct == pytest.approx(100 * math.expm1(values[0]))


def test_too_few_units_for_any_time_are_said_to_be() -> None:
    decision = decide(estimate_units([0.01, 0.0101, 0.0099]), AnytimeBound())
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.interval is None
    assert "too few" in decision.not_computed["interval"]
    assert decision.units_needed is not None


def test_an_early_look_may_be_too_early_for_an_interval() -> None:
    plan = plan_looks(10)
    decision = decide(estimate_units([0.5, -0.3]), plan.bound([2]))
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.interval is None
    assert decision.mde is None


@given(
    st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=25),
    st.floats(-0.02, 0.02),
    st.sampled_from([single_look(), AnytimeBound(), plan_looks(20).bound([8, 16])]),
)
def test_swapped_labels_swap_the_verdict(values: list[float], shift: float, bound: object) -> None:
    array = np.array(values) * 0.1 + shift
    there, back = decide(estimate_units(array), bound), decide(estimate_units(-array), bound)  # type: ignore[arg-type]
    assert back.verdict is OPPOSITE[there.verdict]
    assert back.mean_log_ratio == pytest.approx(-there.mean_log_ratio)
    assert back.mde == there.mde
    if there.interval is not None and back.interval is not None:
        assert (back.interval.low, back.interval.high) == (-there.interval.high, -there.interval.low)


def test_percentages_are_of_the_ratio() -> None:
    decision = decide(estimate_of(math.log(1.1), 0.001), single_look(), margin=0.01)
    assert decision.speedup_pct == pytest.approx(10.0)
    assert decision.margin_pct == pytest.approx(1.0)
    assert decision.interval is not None
    assert decision.interval.low_pct < 10.0 < decision.interval.high_pct


@pytest.mark.parametrize("margin", [0.0, -0.01, float("nan")])
def test_a_margin_that_is_none_is_refused(margin: float) -> None:
    with pytest.raises(InputError, match="margin"):
        decide(estimate_of(0.0, 0.1), single_look(), margin=margin)


def test_wider_of_two_errors_decides() -> None:
    within, between = StandardError(0.0005, 76.0, 80, "within"), StandardError(0.004, 3.0, 4, "between")
    assert decide(Estimate(0.005, 80, (within,)), single_look()).verdict is Verdict.FASTER
    both = decide(Estimate(0.005, 80, (within, between)), single_look())
    assert both.verdict is Verdict.INCONCLUSIVE
    alone = decide(Estimate(0.005, 80, (between,)), single_look())
    assert (both.mde, both.units_needed) == (alone.mde, alone.units_needed)
    # The error between four processes asks for more processes, each of 20 units.
    assert both.units_needed is not None
    assert both.units_needed % 20 == 0


# Equivalence


def test_both_one_sided_tests_are_scipys() -> None:
    values = np.random.default_rng(1).normal(0.001, 0.002, 15)
    found = assess_equivalence(estimate_units(values), MARGIN, single_look())
    below = stats.ttest_1samp(values, -MARGIN, alternative="greater").pvalue
    above = stats.ttest_1samp(values, MARGIN, alternative="less").pvalue
    assert (found.p_not_below, found.p_not_above) == pytest.approx((below, above))
    assert found.passes == (max(below, above) < 0.05)


def test_non_inferiority_asks_for_one_side_only() -> None:
    much_better, worse = estimate_of(0.5, 0.01), estimate_of(-0.05, 0.01)
    assert assess_non_inferiority(much_better, 0.02, single_look()).passes is True
    assert assess_equivalence(much_better, 0.02, single_look()).passes is False
    found = assess_non_inferiority(worse, 0.02, single_look())
    assert found.passes is False
    assert found.p_value is not None
    assert found.p_value > 0.5
    assert assess_non_inferiority(estimate_units([0.1]), 0.02, single_look()).passes is None


# Power


@pytest.mark.parametrize(("effect", "units"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_units_for_an_effect_are_the_published_ones(effect: float, units: int) -> None:
    """Paired t test, two-sided 5%, power 80%: Cohen's small, medium and large effects."""
    assert units_for_effect(1.0, effect, single_look()) == units


@pytest.mark.parametrize(
    ("df", "critical", "effect"), [(4, 2.776, 3.9), (9, 2.262, 1.0), (99, 1.984, 3.0), (9, 5.0, 4.0)]
)
def test_power_is_that_of_the_noncentral_t(df: float, critical: float, effect: float) -> None:
    expected = stats.nct.sf(critical, df, effect) + stats.nct.cdf(-critical, df, effect)
    assert power_of_difference(effect, critical, df) == pytest.approx(expected, abs=2e-4)


def test_power_of_equivalence_agrees_with_simulation() -> None:
    rng = np.random.default_rng(2)
    values = rng.standard_normal((40_000, 8))
    mean, error = values.mean(1), values.std(1, ddof=1) / math.sqrt(8)
    critical = single_look().equivalence_critical(7.0)
    for margin, effect in ((3.0, 0.0), (4.0, 1.0), (2.0, 0.0)):
        passed = np.abs(mean + effect / math.sqrt(8)) + critical * error < margin / math.sqrt(8)
        assert power_of_equivalence(margin, critical, 7.0, effect) == pytest.approx(passed.mean(), abs=0.01)


def test_smallest_visible_effect_is_found_four_times_in_five() -> None:
    rng = np.random.default_rng(3)
    error = StandardError(1.0 / math.sqrt(6), 5.0, 6, "units")
    effect = detectable_effect(error, single_look())
    values = rng.standard_normal((40_000, 6)) + effect
    score = values.mean(1) / (values.std(1, ddof=1) / math.sqrt(6))
    assert (np.abs(score) > single_look().difference_critical(5.0)).mean() == pytest.approx(0.8, abs=0.01)


def test_detectable_ratio_at_its_limits() -> None:
    assert detectable_ratio(math.inf, 5.0, 0.8) == math.inf
    assert detectable_ratio(1.96, 1e6, 0.01) == 0.0
    # A first look's bound at two units reaches far; scipy's noncentral t does not converge there.
    bound = plan_looks(10).bound([2]).difference_critical(1.0)
    assert power_of_difference(detectable_ratio(bound, 1.0, 0.8), bound, 1.0) == pytest.approx(0.8, abs=1e-6)


def test_units_for_equivalence_reach_the_power_and_not_before() -> None:
    bound = single_look()
    units = units_for_equivalence(1.0, 0.5, bound)
    assert units is not None
    powers = [
        power_of_equivalence(0.5 * math.sqrt(n), bound.equivalence_critical(n - 1.0), n - 1.0)
        for n in (units - 1, units)
    ]
    assert powers[0] < 0.8 <= powers[1]


def test_units_for_a_half_width() -> None:
    bound = single_look()
    expected = next(n for n in range(2, 500) if stats.t.isf(0.025, n - 1) / math.sqrt(n) <= 0.2)
    assert units_for_half_width(1.0, 0.2, bound) == expected
    assert units_for_half_width(1.0, 100.0, bound) == 2
    assert units_for_half_width(1.0, 1e-9, bound) is None
    anytime = units_for_half_width(1.0, 0.2, AnytimeBound())
    assert anytime is not None
    assert anytime > expected


def test_units_needed_would_settle_it() -> None:
    """Run as many units as the verdict asked for, under no effect and under one of the margin's size."""
    rng = np.random.default_rng(4)
    values = rng.normal(0, 0.01, 20)
    decision = decide(estimate_units(values), plan_looks(20).bound([4, 8, 12, 16, 20]))
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.units_needed is not None
    assert decision.more_units_needed == decision.units_needed - 20
    plan = plan_looks(decision.units_needed, 1)
    bound = plan.bound(plan.look_units)
    settled = [
        decide(estimate_units(rng.normal(effect, values.std(ddof=1), decision.units_needed)), bound).is_settled
        for effect in (0.0, MARGIN)
        for _ in range(100)
    ]
    assert np.mean(settled) > 0.75


@pytest.mark.parametrize("arguments", [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (math.inf, 1.0)])
def test_impossible_questions_are_refused(arguments: tuple[float, float]) -> None:
    for ask in (units_for_effect, units_for_equivalence, units_for_half_width):
        with pytest.raises(InputError, match="above 0"):
            ask(*arguments, single_look())
    with pytest.raises(InputError, match="power"):
        units_for_effect(1.0, 1.0, single_look(), power=80)
