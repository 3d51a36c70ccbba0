"""Lan-DeMets alpha spending for t tests on growing data: bounds computed for the looks that were taken."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

from scipy import optimize, special

from specbench.errors import InputError
from specbench.stats.checks import probability
from specbench.stats.t_process import UnstoppedPaths

_SMALLEST_SPENT = 1e-14


def obrien_fleming_spending(fraction: float, alpha: float) -> float:
    """Alpha of one side that may be spent by an information ``fraction`` in (0, 1] (Lan and DeMets 1983).

    ``2 - 2 Phi(z / sqrt(fraction))``, z the upper ``alpha / 2`` point: close to the bounds of O'Brien and
    Fleming (1979).
    """
    return 2 * float(special.ndtr(special.ndtri(alpha / 2) / math.sqrt(fraction)))


def look_tails(
    look_units: Sequence[int], fractions: Sequence[float], alpha: float, *, two_sided: bool
) -> tuple[float, ...]:
    """The upper-tail p value at or below which each look's t test rejects.

    A two-sided test rejects at these on either side, so its p value is compared with twice of them. Nothing
    being there, the probability that a look rejects is what the spending function allows by its fraction;
    exact for normal units.

    :param look_units: units seen at each look, rising, the first at least 2.
    :param fractions: information fraction of each look, rising in (0, 1]; at 1 all alpha is spent.
    :param alpha: of the whole test, both sides together for a two-sided one.
    :raises InputError: units or fractions do not rise as they must, or ``alpha`` is not in (0, 1).
    """
    units, times = tuple(int(count) for count in look_units), tuple(float(time) for time in fractions)
    if not units or units[0] < 2 or not _rises(units):
        raise InputError(f"looks must be at rising numbers of units, the first at least 2, not {list(units)}")
    if len(times) != len(units) or not _rises(times) or times[0] <= 0 or times[-1] > 1:
        raise InputError(
            f"information fractions of {len(units)} looks must rise within (0, 1], not {list(times)}",
            hint="no look may follow the one that spends the last of alpha",
        )
    return _tails(units, times, probability(alpha, "alpha") / (2 if two_sided else 1), two_sided)


def _rises(values: Sequence[float]) -> bool:
    return all(first < second for first, second in itertools.pairwise(values))


@lru_cache(maxsize=4096)
def _tails(units: tuple[int, ...], fractions: tuple[float, ...], alpha: float, two_sided: bool) -> tuple[float, ...]:
    tails: list[float] = []
    spent = 0.0
    paths: UnstoppedPaths | None = None
    for count, fraction in zip(units, fractions, strict=True):
        allowed = obrien_fleming_spending(fraction, alpha)
        tails.append(_solve_tail(paths, count, allowed - spent, spent))
        spent = allowed
        if count != units[-1]:
            go_on = paths.next if paths else UnstoppedPaths.first
            paths = go_on(count, tails[-1], two_sided=two_sided)
    return tuple(tails)


def _solve_tail(paths: UnstoppedPaths | None, num_units: int, increment: float, spent: float) -> float:
    """The tail that stops ``increment`` of the paths at this look."""
    if increment < _SMALLEST_SPENT:
        return 0.0  # so early that no result would stop here; the next look spends it
    if paths is None:
        return increment
    going_on = paths

    def excess(log_tail: float) -> float:
        return going_on.share_above(math.exp(log_tail), num_units) - increment

    # A tail is at least what it stops now, and at most that and all stopped before; with room for rounding, which is a
    # few per cent at the tiny tails of first looks at two or three units.
    low, high = math.log(increment * 0.8), math.log(min(0.5, 1.2 * (increment + 2 * spent)))
    while excess(low) > 0:
        low -= math.log(2)
    while excess(high) < 0 and high < math.log(0.5):
        high = min(high + math.log(2), math.log(0.5))
    return math.exp(float(optimize.brentq(excess, low, high, xtol=1e-9)))
