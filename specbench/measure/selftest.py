"""Is the instrument sound here? From the comparisons of ``selftest`` to one word, and to what can be seen at all.

Three things are known beforehand: two equal arms do not differ, a delay of known size in one arm slows it by that
much, and exchanging the arms turns the sign. The floor is then the smallest effect that this machine shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from specbench.errors import InputError
from specbench.measure.ab_gates import FALSE_ALARM, chance_of_alarms
from specbench.measure.detection_floor import (
    Floor,
    calibrated_pace,
    find_floor,
    log_ratios,
    unit_deviation,
    units_per_minute,
)
from specbench.records import DELAY, EQUAL_ARMS, INVALID, SCHEMA_VERSION, SWAPPED, Analysis, Comparison
from specbench.scenario.plan import AbSettings, RunPlan
from specbench.stats.estimate import estimate_units, to_percent
from specbench.stats.exact import clopper_pearson

LEVEL = 0.05
"""Of each A/A comparison."""
MINUTES = (1, 5, 15)
PASS, FAIL = "PASS", "FAIL"
_OTHER = {"A": "B", "B": "A"}


@dataclass(frozen=True)
class Check:
    """One thing that was known beforehand. ``passed`` None: it could not be checked."""

    name: str
    passed: bool | None
    detail: str


@dataclass(frozen=True)
class EqualArms:
    """What equal arms showed.

    :param p_values: of each comparison, judged alone; None was not computed.
    :param share_low: exact 95% interval of the share of rejections; ``share_high`` likewise.
    :param alarm_at: rejections at which the instrument is called unsound.
    """

    comparisons: int
    rejections: int
    alarm_at: int
    share_low: float
    share_high: float
    p_values: list[float | None]


@dataclass(frozen=True)
class KnownDelay:
    """A delay of known size in one arm. Percentages, positive where the candidate (arm B) is faster.

    :param arm: which was delayed, by ``delay_us`` microseconds in each of its steps.
    :param step_us: time of a step in the other arm; with the delay it makes ``expected_pct``.
    :param ci_low_pct: 95% interval of this comparison, judged alone.
    :param covered: the interval holds ``expected_pct``; None where there is no interval.
    """

    arm: str
    delay_us: float
    step_us: float | None
    expected_pct: float | None
    found_pct: float | None
    ci_low_pct: float | None
    ci_high_pct: float | None
    covered: bool | None

    @property
    def has_right_sign(self) -> bool:
        """True when the delayed arm looks slower."""
        return self.found_pct is not None and (self.found_pct > 0) == (self.arm == "A") and self.found_pct != 0

    @property
    def excludes_zero(self) -> bool:
        """True when the interval tells the effect from none."""
        low, high = self.ci_low_pct, self.ci_high_pct
        return low is not None and high is not None and not low <= 0 <= high


@dataclass(frozen=True)
class SelfTest:
    """``selftest.json``.

    :param verdict: ``PASS`` or ``FAIL``.
    :param unit_sd_pct: standard deviation of one unit, over all equal arms; None was not computed.
    """

    schema_version: int = field(default=SCHEMA_VERSION, kw_only=True)
    verdict: str
    checks: list[Check]
    equal_arms: EqualArms
    delay: KnownDelay | None
    swapped: KnownDelay | None
    floor: list[Floor]
    unit_sd_pct: float | None
    units_per_minute: float | None


def assess(plan: RunPlan, analysis: Analysis) -> SelfTest:
    """Judge the comparisons of a selftest.

    :raises InputError: they are not those of a selftest.
    """
    equal = [comparison for comparison in analysis.comparisons if comparison.role == EQUAL_ARMS]
    if not equal:
        raise InputError("there is no A/A comparison to judge", where="selftest")
    arms = _count_rejections(equal)
    delay, swapped = (_known_delay(plan, analysis, role) for role in (DELAY, SWAPPED))
    checks = [
        _check_valid(analysis.comparisons),
        _check_equal(arms),
        _check_covered(DELAY, delay),
        _check_covered(SWAPPED, swapped),
        _check_sign(delay, swapped),
    ]
    deviation = unit_deviation(equal)
    pace = units_per_minute(analysis.comparisons) or calibrated_pace(plan)
    return SelfTest(
        verdict=PASS if all(check.passed for check in checks) else FAIL,
        checks=checks,
        equal_arms=arms,
        delay=delay,
        swapped=swapped,
        floor=[find_floor(minutes, deviation, pace, plan.settings or AbSettings()) for minutes in MINUTES],
        unit_sd_pct=None if deviation is None else 100 * deviation,
        units_per_minute=pace,
    )


def alarm_threshold(comparisons: int) -> int:
    """The fewest rejections that a sound instrument has with a chance below the one that gates allow: 4 of 20."""
    counts = range(comparisons + 1)
    return next((k for k in counts if chance_of_alarms(k, comparisons, LEVEL) < FALSE_ALARM), comparisons + 1)


def judge_alone(comparison: Comparison) -> tuple[float | None, float | None, float | None]:
    """p of no difference and the ends of the 95% interval in percent, as of a comparison that was asked alone.

    The verdict's own are corrected for all comparisons of the command and for looks, of which none ends a selftest. The
    error of several processes is not in the units alone, so that there the comparison's own, wider interval stays.
    """
    if comparison.n_processes > 1 or not comparison.units:
        return comparison.p_value, comparison.ci_low_pct, comparison.ci_high_pct
    estimate = estimate_units(log_ratios(comparison))
    interval = estimate.interval(1 - LEVEL)
    if interval is None:
        return estimate.p_value(), None, None
    return estimate.p_value(), interval.low_pct, interval.high_pct


def _count_rejections(equal: Sequence[Comparison]) -> EqualArms:
    p_values = [judge_alone(comparison)[0] for comparison in equal]
    rejections = sum(p is not None and p <= LEVEL for p in p_values)
    share = clopper_pearson(rejections, len(equal))
    return EqualArms(len(equal), rejections, alarm_threshold(len(equal)), share.low, share.high, p_values)


def _check_valid(comparisons: Sequence[Comparison]) -> Check:
    broken = [comparison for comparison in comparisons if comparison.verdict == INVALID]
    reasons = list(dict.fromkeys(reason for comparison in broken for reason in comparison.reasons))
    detail = f"{len(comparisons) - len(broken)} of {len(comparisons)} comparisons are valid"
    return Check("valid", not broken, f"{detail}: {'; '.join(reasons)}" if reasons else detail)


def _check_equal(arms: EqualArms) -> Check:
    unknown = sum(p is None for p in arms.p_values)
    detail = (
        f"{arms.rejections} of {arms.comparisons} equal arms called different at 5% ({arms.share_low:.1%} to "
        f"{arms.share_high:.1%}); alarm at {arms.alarm_at}"
    )
    if unknown:
        return Check("equal arms", None, f"{detail}; {unknown} not computed")
    return Check("equal arms", arms.rejections < arms.alarm_at, detail)


def _check_covered(role: str, known: KnownDelay | None) -> Check:
    name = f"known delay in arm {known.arm}" if known else f"known delay ({role})"
    if known is None or known.covered is None:
        return Check(name, None, "not computed")
    detail = (
        f"{known.delay_us:.0f} µs a step makes {known.expected_pct:+.2f}%; found {known.found_pct:+.2f}% "
        f"[{known.ci_low_pct:+.2f}%, {known.ci_high_pct:+.2f}%]"
    )
    return Check(name, known.covered, detail)


def _check_sign(delay: KnownDelay | None, swapped: KnownDelay | None) -> Check:
    """A delayed candidate has to look slower, a delayed baseline has to make it look faster."""
    name, known = "labels swapped", (delay, swapped)
    if delay is None or swapped is None or delay.found_pct is None or swapped.found_pct is None:
        return Check(name, None, "not computed")
    detail = f"{delay.found_pct:+.2f}% with the delay in arm {delay.arm}, {swapped.found_pct:+.2f}% in {swapped.arm}"
    turned = all(found is not None and found.has_right_sign for found in known)
    if not turned and not any(found is not None and found.excludes_zero for found in known):
        return Check(name, None, f"{detail}: neither is told from 0, so the noise is too much for a delay of this size")
    return Check(name, turned, detail)


def _known_delay(plan: RunPlan, analysis: Analysis, role: str) -> KnownDelay | None:
    found = next((comparison for comparison in analysis.comparisons if comparison.role == role), None)
    planned = next((comparison for comparison in plan.comparisons if comparison.role == role), None)
    if found is None or planned is None or not planned.injected:
        return None
    ((arm, defect),) = planned.injected.items()
    step_us = _step_us(found, _OTHER[arm])
    _, low, high = judge_alone(found)
    expected = None if step_us is None else _expected_pct(arm, float(defect["us"]), step_us)
    return KnownDelay(
        arm=arm,
        delay_us=float(defect["us"]),
        step_us=step_us,
        expected_pct=expected,
        found_pct=found.speedup_pct,
        ci_low_pct=low,
        ci_high_pct=high,
        covered=_covers(low, expected, high),
    )


def _step_us(comparison: Comparison, arm: str) -> float | None:
    step_ms = comparison.step_ms.get("baseline" if arm == "A" else "candidate", {}).get("step_ms")
    return None if step_ms is None else 1000 * step_ms


def _expected_pct(arm: str, delay_us: float, step_us: float) -> float:
    """What a delay in every step of ``arm`` does to the candidate's speed."""
    slowed = math.log1p(delay_us / step_us)
    return to_percent(slowed if arm == "A" else -slowed)


def _covers(low: float | None, value: float | None, high: float | None) -> bool | None:
    return None if low is None or value is None or high is None else low <= value <= high
