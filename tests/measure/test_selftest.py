"""What a selftest makes of its comparisons, on comparisons with known answers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from specbench.errors import InputError
from specbench.measure.detection_floor import calibrated_pace, find_floor
from specbench.measure.selftest import SelfTest, alarm_threshold, assess, judge_alone
from specbench.records import Analysis, Comparison, Unit
from specbench.scenario.plan import AbSettings, ComparisonPlan, RunPlan

STEP_US = 10_000.0
DELAY_US = 100.0
DELAYED_PCT = 100 * (STEP_US / (STEP_US + DELAY_US) - 1)
SWAPPED_PCT = 100 * ((STEP_US + DELAY_US) / STEP_US - 1)
UNIT_SD_PCT = 0.5


def units(index: int, mean_pct: float, half_width_pct: float | None = None) -> list[Unit]:
    """Forty units, two a segment and 1.5 s each, of this mean; their 95% interval has that half-width where given."""
    noise = np.random.default_rng(index).normal(0, UNIT_SD_PCT / 100, 40)
    noise -= noise.mean()
    if half_width_pct is not None:
        noise *= half_width_pct / 100 * math.sqrt(40) / (stats.t.ppf(0.975, 39) * noise.std(ddof=1))
    values = 100 * np.expm1(math.log1p(mean_pct / 100) + noise)
    return [Unit(i, 0, i // 2, "A", 3.0 * (i // 2), 1.0, 1.0, 8, 8, float(d)) for i, d in enumerate(values)]


def comparison(index: int, role: str, **changes: Any) -> Comparison:
    fields: dict[str, Any] = {
        "index": index, "role": role, "baseline": "on", "candidate": "on", "point": {}, "design": "mirrored",
        "why_design": "", "differences": [], "exactness": "bit-identical", "token_rule": "", "label": "natural",
        "metric": "time", "n_units": 40, "n_processes": 1, "baseline_tokens_per_s": 1.0, "candidate_tokens_per_s": 1.0,
        "speedup_pct": 0.0, "ci_low_pct": -0.2, "ci_high_pct": 0.2, "confidence": 0.95, "verdict": "EQUIVALENT",
        "output_changed": False, "reasons": [], "margin_pct": 0.5, "mde_pct": None, "units_needed": None, "scope": "",
        "bound": "", "alpha": 0.05, "p_value": 0.5, "p_holm": None, "tokens_identical": True,
        "first_divergence": None, "decomposition": {}, "decomposition_pct": {}, "ranges": {},
        "acceptance_length": {}, "second_line": {}, "gates": [], "in_words": [], "units": units(index, 0.01),
        "step_ms": {"baseline": {"step_ms": STEP_US / 1e3}, "candidate": {"step_ms": STEP_US / 1e3}},
    }  # fmt: skip
    return Comparison(**{**fields, **changes})


def measured(role: str, index: int, effect: float) -> Comparison:
    slow = (STEP_US + DELAY_US) / 1e3
    step_ms = {"baseline": {"step_ms": STEP_US / 1e3}, "candidate": {"step_ms": slow}}
    if role == "swapped":
        step_ms = {"baseline": step_ms["candidate"], "candidate": step_ms["baseline"]}
    return comparison(index, role, speedup_pct=effect, step_ms=step_ms, units=units(index, effect, 0.1))


def judge(
    *, rejected: int = 1, delay: float | None = DELAYED_PCT, swapped: float | None = SWAPPED_PCT, **changes: Any
) -> SelfTest:
    found = [comparison(i, "A/A", units=units(i, 0.5 if i < rejected else 0.01)) for i in range(20)]
    if delay is not None:
        found.append(measured("delay", len(found), delay))
    if swapped is not None:
        found.append(measured("swapped", len(found), swapped))
    found[0] = replace(found[0], **changes)
    return assess(PLAN, Analysis("ab", "natural", {}, {}, [], [], found))


def planned(index: int, role: str, arm: str) -> ComparisonPlan:
    injected = {arm: {"kind": "delay", "step_percent": 1, "us": DELAY_US}}
    return ComparisonPlan(index, 0, 0, role, "mirrored", "", (), "bit-identical", injected)


PLAN = RunPlan((), (), 0, {}, "ab", (planned(20, "delay", "B"), planned(21, "swapped", "A")), AbSettings())


def outcomes(selftest: SelfTest) -> dict[str, bool | None]:
    return {check.name: check.passed for check in selftest.checks}


def test_a_sound_instrument_passes() -> None:
    selftest = judge()
    assert selftest.verdict == "PASS"
    assert set(outcomes(selftest).values()) == {True}
    assert (selftest.equal_arms.rejections, selftest.equal_arms.alarm_at) == (1, 4)
    assert selftest.delay is not None
    assert selftest.swapped is not None
    assert selftest.delay.expected_pct == pytest.approx(DELAYED_PCT)
    assert selftest.swapped.expected_pct == pytest.approx(SWAPPED_PCT)


@pytest.mark.parametrize(("rejected", "verdict"), [(3, "PASS"), (4, "FAIL"), (20, "FAIL")])
def test_the_alarm_is_raised_at_four_of_twenty(rejected: int, verdict: str) -> None:
    selftest = judge(rejected=rejected)
    assert selftest.verdict == verdict
    assert outcomes(selftest)["equal arms"] is (verdict == "PASS")


@pytest.mark.parametrize("comparisons", [1, 2, 5, 10, 20, 40, 200])
def test_a_sound_instrument_raises_the_alarm_rarely_and_one_fewer_would_be_too_often(comparisons: int) -> None:
    at = alarm_threshold(comparisons)
    assert stats.binom.sf(at - 1, comparisons, 0.05) < 0.02
    assert stats.binom.sf(at - 2, comparisons, 0.05) >= 0.02


@pytest.mark.parametrize(("effect", "covered"), [(DELAYED_PCT + 0.09, True), (DELAYED_PCT + 0.11, False), (0.0, False)])
def test_the_interval_has_to_cover_the_delay(effect: float, covered: bool) -> None:
    selftest = judge(delay=effect)
    assert outcomes(selftest)["known delay in arm B"] is covered
    assert selftest.verdict == ("PASS" if covered else "FAIL")


@pytest.mark.parametrize(
    ("delay", "swapped", "passed"),
    [
        (DELAYED_PCT, DELAYED_PCT, False),
        (SWAPPED_PCT, DELAYED_PCT, False),  # each has the sign of the other
        (-0.05, 0.05, True),
        (0.05, -0.05, None),  # intervals reach 0.1 to both sides: too much noise to tell
    ],
)
def test_the_sign_has_to_turn(delay: float, swapped: float, passed: bool | None) -> None:
    assert outcomes(judge(delay=delay, swapped=swapped))["labels swapped"] is passed


@pytest.mark.parametrize("missing", ["delay", "swapped"])
def test_what_was_not_computed_does_not_pass(missing: str) -> None:
    selftest = judge(**{missing: None})
    assert selftest.verdict == "FAIL"
    assert outcomes(selftest)["labels swapped"] is None
    assert "not computed" in {check.detail for check in selftest.checks}


def test_a_p_value_that_was_not_computed_is_no_pass() -> None:
    selftest = judge(units=[], p_value=None)
    assert outcomes(selftest)["equal arms"] is None
    assert selftest.verdict == "FAIL"


def test_each_is_judged_alone_and_not_at_the_level_of_the_family() -> None:
    alone = comparison(
        0, "A/A", units=units(0, 0.2, 0.1), ci_low_pct=-9.0, ci_high_pct=9.0, p_value=0.9, alpha=0.05 / 22
    )
    p_value, low, high = judge_alone(alone)
    assert (low, high) == (pytest.approx(0.1, abs=0.002), pytest.approx(0.3, abs=0.002))
    assert p_value is not None
    assert p_value < 0.001
    assert judge_alone(replace(alone, n_processes=4)) == (0.9, -9.0, 9.0)  # their error is not in the units


def test_an_invalid_comparison_fails_and_says_why() -> None:
    selftest = judge(verdict="INVALID", reasons=["tokens differ"])
    assert outcomes(selftest)["valid"] is False
    assert "tokens differ" in selftest.checks[0].detail
    assert selftest.verdict == "FAIL"


def test_without_equal_arms_there_is_nothing_to_judge() -> None:
    with pytest.raises(InputError, match="no A/A comparison"):
        assess(PLAN, Analysis("ab", "natural", {}, {}, [], [], [measured("delay", 0, -1.0)]))


def test_the_floor_is_that_of_the_noise_of_the_equal_arms() -> None:
    selftest = judge()
    assert selftest.units_per_minute == pytest.approx(22 * 40.0)  # 38 units in 57 s, and comparisons share the time
    assert selftest.unit_sd_pct == pytest.approx(UNIT_SD_PCT, rel=0.06)  # 780 degrees of freedom
    assert [floor.minutes for floor in selftest.floor] == [1, 5, 15]
    assert [floor.units for floor in selftest.floor] == [880, 4400, 13200]
    smallest = [floor.smallest_pct or math.inf for floor in selftest.floor]
    assert smallest[0] > smallest[1] > smallest[2]
    # 4,400 units of sd 0.5%: error 0.00754%; 2.04 + 0.84 errors to be found 8 times in 10 at the last of five looks.
    assert smallest[1] == pytest.approx(0.00754 * 2.88, rel=0.07)


def test_the_smallest_effect_is_found_eight_times_in_ten() -> None:
    """Simulated with the test that the floor speaks of: the last look of a comparison with so many units."""
    deviation, pace = 0.005, 40.0
    floor = find_floor(1, deviation, pace, AbSettings())
    assert floor.smallest_pct is not None
    assert floor.half_width_pct is not None
    rng = np.random.default_rng(7)
    units = rng.normal(math.log1p(floor.smallest_pct / 100), deviation, (4000, floor.units))
    errors = units.std(axis=1, ddof=1) / math.sqrt(floor.units)
    critical = math.log1p(floor.half_width_pct / 100) / (deviation / math.sqrt(floor.units))
    found = np.abs(units.mean(axis=1)) > critical * errors
    assert found.mean() == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize(("deviation", "pace"), [(None, 40.0), (0.005, None), (0.005, 1.0)])
def test_without_noise_or_units_there_is_no_floor(deviation: float | None, pace: float | None) -> None:
    floor = find_floor(1, deviation, pace, AbSettings())
    assert (floor.half_width_pct, floor.smallest_pct) == (None, None)


def test_without_a_second_segment_the_pace_is_that_of_the_calibration() -> None:
    quads = 6
    plan = replace(PLAN, settings=AbSettings(quads_per_segment=quads), calibration={})
    assert calibrated_pace(plan) is None
    seconds = [8.0] * len(plan.comparisons)
    assert calibrated_pace(replace(plan, calibration={"seconds_per_block": seconds})) == pytest.approx(60 * quads / 8)
