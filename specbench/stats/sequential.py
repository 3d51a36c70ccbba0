"""When may a comparison stop, and how wide is the interval at that moment?

A :class:`Bound` turns degrees of freedom into how many standard errors an interval reaches at one look. Three
kinds: a single look (plain t), a look of a plan (alpha spending), and any time (a confidence sequence). A
verdict asks a bound and never which kind it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specbench.errors import InputError
from specbench.stats.checks import positive, probability
from specbench.stats.estimate import Estimate, t_critical
from specbench.stats.spending import look_tails

DEFAULT_LOOKS = 5
_SMALLEST_P, _LARGEST_P = 1e-15, 0.5
_ALPHA_STEPS = 256
DEFAULT_MIXTURE = 0.3
"""g of the confidence sequence: prior variance of the effect in units of a unit's variance."""


class Bound(Protocol):
    """What one look allows."""

    @property
    def label(self) -> str:
        """In words, for the report."""

    @property
    def confidence(self) -> float:
        """Confidence of the printed interval, over all looks."""

    @property
    def planning(self) -> Bound:
        """The bound by which a fresh comparison with more units would end."""

    def difference_critical(self, df: float) -> float:
        """Standard errors from the mean to each end of the interval for the difference."""

    def equivalence_critical(self, df: float) -> float:
        """Standard errors that must fit between the mean and each margin."""


@dataclass(frozen=True)
class TBound:
    """A t test at p values that a plan of looks allows.

    :param difference_p: two-sided p value at or below which this look claims a difference.
    :param equivalence_p: one-sided p value at or below which each side of the equivalence test passes at this
        look.
    :param final_difference_p: the same at the plan's last look; ``final_equivalence_p`` likewise.
    """

    label: str
    confidence: float
    difference_p: float
    equivalence_p: float
    final_difference_p: float
    final_equivalence_p: float

    @property
    def planning(self) -> Bound:
        """The plan's last look."""
        last = (self.final_difference_p, self.final_equivalence_p)
        return TBound("last look", self.confidence, *last, *last)

    def difference_critical(self, df: float) -> float:
        """The two-sided t quantile of this look."""
        return t_critical(self.difference_p / 2, df)

    def equivalence_critical(self, df: float) -> float:
        """The one-sided t quantile of this look."""
        return t_critical(self.equivalence_p, df)


def single_look(*, alpha: float = 0.05, equivalence_alpha: float = 0.05) -> TBound:
    """The bound of a comparison that is looked at once, when all its units are in.

    :param alpha: two-sided, of the difference; ``equivalence_alpha`` one-sided, of each side of the
        equivalence test.
    :raises InputError: either is not between 0 and 1.
    """
    both = (probability(alpha, "alpha"), probability(equivalence_alpha, "equivalence_alpha"))
    return TBound("single look", 1 - alpha, *both, *both)


@dataclass(frozen=True)
class LookPlan:
    """Fixed before the first unit: when to look and what may be spent.

    :param max_units: units at which the comparison ends.
    :param look_units: planned units at each look, rising, ending at ``max_units``.
    :param alpha: two-sided, of the difference; ``equivalence_alpha`` one-sided, of each side of the
        equivalence test.
    """

    max_units: int
    look_units: tuple[int, ...]
    alpha: float = 0.05
    equivalence_alpha: float = 0.05

    def bound(self, units_at_looks: Sequence[int], *, is_last: bool = False) -> TBound:
        """The bound of the latest look.

        :param units_at_looks: units seen at each look so far, this one included. They may differ from the
            planned ones, as long as nothing measured decided them.
        :param is_last: the comparison ends here whatever is seen (its time is over): all alpha left is spent.
        :raises InputError: the units do not rise from 2, or the plan was over before.
        """
        taken, looks, fractions = self._looks(units_at_looks, is_last)
        difference = look_tails(looks, fractions, self.alpha, two_sided=True)
        equivalence = look_tails(looks, fractions, self.equivalence_alpha, two_sided=False)
        index = len(taken) - 1
        return TBound(
            label=f"look {len(taken)} of {len(looks)}",
            confidence=1 - self.alpha,
            difference_p=2 * difference[index],
            equivalence_p=equivalence[index],
            final_difference_p=2 * difference[-1],
            final_equivalence_p=equivalence[-1],
        )

    def p_over_looks(
        self, units_at_looks: Sequence[int], p_value: float, *, is_last: bool = False, two_sided: bool = True
    ) -> float:
        """The p value of the latest look, corrected for all looks: what Holm may be given.

        It is the smallest alpha with which this look would claim a difference, or a side of the equivalence test with
        ``two_sided`` False; above a half, 1.

        :param p_value: nominal, of this look's t test: of both sides together, or of one.
        :raises InputError: as :meth:`bound`, or ``p_value`` is not between 0 and 1.
        """
        taken, _, fractions = self._looks(units_at_looks, is_last)
        if not 0 <= p_value <= 1:
            raise InputError(f"p_value must lie between 0 and 1, not {p_value}", where="p_value")
        if fractions[0] == 1:
            return p_value

        def nominal(step: int) -> float:
            """What this look's p value may be with the alpha of a grid, whose bounds are kept from call to call."""
            tails = look_tails(taken, fractions[: len(taken)], _alpha_at(step), two_sided=two_sided)
            return (2 if two_sided else 1) * tails[-1]

        if p_value >= _LARGEST_P or nominal(_ALPHA_STEPS) < p_value:
            return 1.0
        low = max(math.floor(_ALPHA_STEPS * _place_of(max(p_value, _SMALLEST_P))), 0)
        reach = 1
        while low + reach < _ALPHA_STEPS and nominal(low + reach) < p_value:
            low, reach = low + reach, 2 * reach
        high = min(low + reach, _ALPHA_STEPS)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if nominal(middle) < p_value else (low, middle)
        below, above = nominal(low), nominal(high)
        if not 0 < below < p_value <= above:
            return max(p_value, _alpha_at(low if below >= p_value else high))
        share = math.log(p_value / below) / math.log(above / below)
        return max(p_value, _alpha_at(low + share))

    def _looks(
        self, units_at_looks: Sequence[int], is_last: bool
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
        """Looks taken, those and the ones to come, and the information fraction of each of these."""
        taken = tuple(units_at_looks)
        if not taken:
            raise InputError("no look was taken yet", where="units_at_looks")
        ends = is_last or taken[-1] >= self.max_units
        looks = taken if ends else (*taken, *(units for units in self.look_units if units > taken[-1]))
        fractions = (*(min(units / self.max_units, 1.0) for units in looks[:-1]), 1.0)
        return taken, looks, fractions


def _alpha_at(step: float) -> float:
    """Alpha on a grid of equal ratios."""
    return _SMALLEST_P * math.pow(_LARGEST_P / _SMALLEST_P, step / _ALPHA_STEPS)


def _place_of(alpha: float) -> float:
    """Where ``alpha`` lies between the ends of that grid, 0 to 1."""
    return math.log(alpha / _SMALLEST_P) / math.log(_LARGEST_P / _SMALLEST_P)


def plan_looks(
    max_units: int, num_looks: int = DEFAULT_LOOKS, *, alpha: float = 0.05, equivalence_alpha: float = 0.05
) -> LookPlan:
    """Looks at equal numbers of units, rounded up, but none before the second unit, which no t test can
    judge.

    :raises InputError: fewer than 2 units or 1 look, or an alpha not between 0 and 1.
    """
    if max_units < 2 or num_looks < 1:
        raise InputError(f"{num_looks} looks at up to {max_units} units; at least 1 look and 2 units are needed")
    probability(alpha, "alpha")
    probability(equivalence_alpha, "equivalence_alpha")
    units = {-(-max_units * look // num_looks) for look in range(1, num_looks + 1)}
    return LookPlan(max_units, tuple(sorted(units - {1})), alpha, equivalence_alpha)


@dataclass(frozen=True)
class AnytimeBound:
    """The t-mixture confidence sequence: valid at every number of units at once, so one may look after each.

    A normal prior of variance ``mixture`` on the standardised effect, mixed over the t likelihood, gives a
    martingale (Lai 1976; Wang and Ramdas 2024), which by Ville's inequality exceeds 1 / alpha at any time
    with probability alpha. Both sides of the equivalence test use the same two-sided sequence, so a false
    equivalence has probability alpha at most.

    :param equivalence_alpha: of the equivalence test, where a correction for many comparisons left it another; None:
        alpha.
    """

    alpha: float = 0.05
    mixture: float = DEFAULT_MIXTURE
    equivalence_alpha: float | None = None

    def __post_init__(self) -> None:
        probability(self.alpha, "alpha")
        positive(self.mixture, "mixture")
        if self.equivalence_alpha is not None:
            probability(self.equivalence_alpha, "equivalence_alpha")

    @property
    def label(self) -> str:
        """In words, for the report."""
        return "any time"

    @property
    def confidence(self) -> float:
        """Confidence over all times together."""
        return 1 - self.alpha

    @property
    def planning(self) -> Bound:
        """More units are judged by the same sequence."""
        return self

    def difference_critical(self, df: float) -> float:
        """``sqrt((n - 1)(c - 1) / (1 - c / r))`` with n = df + 1, r = 1 + n g, c = (sqrt(r) / alpha)^(2 / n);
        infinite where c >= r: too few units for any claim. Exact for units; with Satterthwaite's df it is an
        approximation.
        """
        return self._critical(df, self.alpha)

    def equivalence_critical(self, df: float) -> float:
        """As for the difference."""
        return self._critical(df, self.equivalence_alpha or self.alpha)

    def _critical(self, df: float, alpha: float) -> float:
        num_units = df + 1
        growth = 1 + num_units * self.mixture
        ratio = (math.sqrt(growth) / alpha) ** (2 / num_units)
        if ratio >= growth:
            return math.inf
        return math.sqrt(df * (ratio - 1) / (1 - ratio / growth))

    def p_over_looks(self, estimate: Estimate, null: float = 0.0) -> float | None:
        """The p value of a mean equal to ``null`` that holds at any time: one over the evidence, 1 at most; None
        without an error.
        """
        values = [self._p_value((estimate.mean - null) / error.value, error.df) for error in estimate.errors]
        return max(values, default=None)

    def equivalence_p(self, estimate: Estimate, margin: float) -> float | None:
        """The p value of an effect outside ``margin`` (log points) that holds at any time; None without an error."""
        sides = [self.p_over_looks(estimate, null) for null in (-margin, margin)]
        known = [side for side in sides if side is not None]
        if not known:
            return None
        return max(known) if abs(estimate.mean) < margin else 1.0

    def _p_value(self, t_statistic: float, df: float) -> float:
        growth = 1 + (df + 1) * self.mixture
        fit = math.log1p(t_statistic**2 / df) - math.log1p(t_statistic**2 / (df * growth))
        return min(1.0, math.exp((math.log(growth) - (df + 1) * fit) / 2))
