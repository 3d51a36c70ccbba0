"""From an estimate to one word that may be claimed. Decided on unrounded numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from specbench.stats.equivalence import EquivalenceTest, assess_equivalence, log_margin
from specbench.stats.estimate import Estimate, Interval, StandardError, to_percent
from specbench.stats.power import DEFAULT_POWER, detectable_effect, units_for_effect, units_for_equivalence
from specbench.stats.sequential import Bound

DEFAULT_MARGIN = 0.005
WIDEST_HALF_WIDTH = math.log(10)
"""Log points. An early look reaches thousands; more than a factor of ten to each side is no interval to print."""


class Verdict(str, Enum):
    """The words of a verdict. There is none for "no difference": that is never shown, only EQUIVALENT within
    a margin.
    """

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    EQUIVALENT = "EQUIVALENT"
    FASTER_NEGLIGIBLE = "FASTER BUT NEGLIGIBLE"
    SLOWER_NEGLIGIBLE = "SLOWER BUT NEGLIGIBLE"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"


@dataclass(frozen=True)
class Decision:
    """A verdict and the figures behind it. Log points; None was not computed and ``not_computed`` says why.

    :param reasons: why INVALID; empty otherwise.
    :param output_changed: the pair changes the output on purpose, so speed alone says little.
    :param interval: at the bound's level, so that all looks together keep its confidence.
    :param mde: the smallest true effect that this comparison finds with the stated power.
    :param units_needed: units in all after which an effect of the margin's size is found, and none is found
        equivalent, each with the stated power and the noise seen here; given for INCONCLUSIVE alone.
    :param bound: which look decided, in words.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    output_changed: bool
    num_units: int
    mean_log_ratio: float
    interval: Interval | None
    equivalence: EquivalenceTest
    mde: float | None
    units_needed: int | None
    bound: str
    not_computed: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The verdict as printed first, OUTPUT CHANGED before it where that is so."""
        changed = self.output_changed and self.verdict is not Verdict.INVALID
        return f"OUTPUT CHANGED: {self.verdict.value}" if changed else self.verdict.value

    @property
    def is_settled(self) -> bool:
        """True when more units of the same comparison would not be asked for."""
        return self.verdict is not Verdict.INCONCLUSIVE

    @property
    def more_units_needed(self) -> int | None:
        """Units still needed beyond those measured."""
        return None if self.units_needed is None else max(self.units_needed - self.num_units, 0)

    @property
    def speedup_pct(self) -> float:
        """``exp(mean d) - 1`` as a percentage, positive where the candidate is faster."""
        return to_percent(self.mean_log_ratio)

    @property
    def mde_pct(self) -> float | None:
        """The smallest effect that could have been seen, as a percentage."""
        return None if self.mde is None else to_percent(self.mde)

    @property
    def margin_pct(self) -> float:
        """The equivalence margin as a percentage."""
        return to_percent(self.equivalence.margin)


def decide(
    estimate: Estimate,
    bound: Bound,
    *,
    margin: float = DEFAULT_MARGIN,
    invalid_reasons: Sequence[str] = (),
    output_changed: bool = False,
    power: float = DEFAULT_POWER,
) -> Decision:
    """The verdict of one comparison at one look.

    :param margin: what counts as no difference, as a fraction (0.005 for 0.5%).
    :param invalid_reasons: what makes the figures unusable; any reason beats every verdict.
    :param output_changed: True for pairs whose output differs on purpose or by a known defect.
    :param power: of the smallest effect and of the units needed.
    :raises InputError: ``margin`` is not above 0 or ``power`` not between 0 and 1.
    """
    equivalence = assess_equivalence(estimate, log_margin(margin), bound)
    interval, missing = _interval(estimate, bound)
    verdict = Verdict.INVALID if invalid_reasons else choose_verdict(interval, equivalence)
    effects = [detectable_effect(error, bound, power) for error in estimate.errors]
    mde = max(effects, default=None) if interval else None
    if mde is not None and mde > WIDEST_HALF_WIDTH:
        missing["mde"] = f"{estimate.num_units} units could have shown no effect below a factor of ten"
        mde = None
    inconclusive = verdict is Verdict.INCONCLUSIVE
    units_needed = _units_needed(estimate, equivalence.margin, bound, power) if inconclusive else None
    if inconclusive and units_needed is None:
        missing["units_needed"] = estimate.not_computed or "more units than could ever be run"
    return Decision(
        verdict=verdict,
        reasons=tuple(invalid_reasons),
        output_changed=output_changed,
        num_units=estimate.num_units,
        mean_log_ratio=estimate.mean,
        interval=interval,
        equivalence=equivalence,
        mde=mde,
        units_needed=units_needed,
        bound=bound.label,
        not_computed=missing,
    )


def choose_verdict(interval: Interval | None, equivalence: EquivalenceTest) -> Verdict:
    """The word for what excludes 0 and what lies within the margin. What was not computed claims nothing."""
    differs = interval is not None and not interval.contains(0.0)
    if interval is not None and differs:
        faster = interval.low > 0
        if equivalence.passes:
            return Verdict.FASTER_NEGLIGIBLE if faster else Verdict.SLOWER_NEGLIGIBLE
        return Verdict.FASTER if faster else Verdict.SLOWER
    return Verdict.EQUIVALENT if equivalence.passes else Verdict.INCONCLUSIVE


def _interval(estimate: Estimate, bound: Bound) -> tuple[Interval | None, dict[str, str]]:
    """The interval at ``bound``, or why neither it nor the smallest effect can be computed."""
    half = estimate.half_width(bound.difference_critical)
    if half is not None and half <= WIDEST_HALF_WIDTH:
        return Interval(estimate.mean - half, estimate.mean + half, bound.confidence), {}
    reason = f"{estimate.num_units} units are too few for an interval at {bound.label}"
    if half is None:
        reason = estimate.not_computed or "no error is known"
    return None, {"interval": reason, "mde": reason}


def _units_needed(estimate: Estimate, margin: float, bound: Bound, power: float) -> int | None:
    """Units in all to settle a question of the margin's size, by the error that needs the most."""
    needed = [_replicates_needed(error, margin, bound.planning, power) for error in estimate.errors]
    scaled = [
        None if count is None else math.ceil(estimate.num_units * count / error.replicates)
        for count, error in zip(needed, estimate.errors, strict=True)
    ]
    known = [count for count in scaled if count is not None]
    return max(known) if known and len(known) == len(scaled) else None


def _replicates_needed(error: StandardError, margin: float, bound: Bound, power: float) -> int | None:
    std_dev = error.value * math.sqrt(error.replicates)
    found = (
        units_for_effect(std_dev, margin, bound, power),
        units_for_equivalence(std_dev, margin, bound, power),
    )
    return None if None in found else max(count for count in found if count is not None)
