"""What a comparison could have seen, and how many units it would take.

Powers average the normal distribution of a mean over the chi distribution of its estimated error, so they
hold for a handful of units. (The noncentral t of scipy is the same for a difference, but fails to converge at
early looks' bounds.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy import optimize, special

from specbench.stats.checks import FloatArray, positive, probability
from specbench.stats.estimate import StandardError
from specbench.stats.sequential import Bound

DEFAULT_POWER = 0.8
MAX_UNITS = 10_000_000
"""Above this, no number of units is given: the question is out of reach."""

_NUM_NODES = 400


@lru_cache(maxsize=256)
def _error_ratios(df: float) -> FloatArray:
    """Estimated over true standard error, at equally likely quantiles [nodes]."""
    tails = (np.arange(_NUM_NODES) + 0.5) / _NUM_NODES
    ratios: FloatArray = np.sqrt(special.chdtri(df, tails) / df)
    return ratios


def power_of_difference(effect: float, critical: float, df: float) -> float:
    """Probability that ``|mean| > critical * estimated error``.

    :param effect: the true mean in true standard errors.
    """
    reach = critical * _error_ratios(df)
    return float(np.mean(special.ndtr(effect - reach) + special.ndtr(-effect - reach)))


def power_of_equivalence(margin: float, critical: float, df: float, effect: float = 0.0) -> float:
    """Probability that both one-sided tests pass.

    :param margin: in true standard errors, as the true mean ``effect``.
    """
    room = margin - critical * _error_ratios(df)
    inside = special.ndtr(room - effect) - special.ndtr(-room - effect)
    return float(np.mean(np.where(room > 0, inside, 0.0)))


@lru_cache(maxsize=4096)
def detectable_ratio(critical: float, df: float, power: float) -> float:
    """The true mean, in true standard errors, that is found with probability ``power``; infinite with
    ``critical``.
    """
    if math.isinf(critical):
        return math.inf
    if power_of_difference(0.0, critical, df) >= power:
        return 0.0
    highest = critical * float(_error_ratios(df)[0]) + 10

    def excess(ratio: float) -> float:
        return power_of_difference(ratio, critical, df) - power

    return float(optimize.brentq(excess, 0.0, highest, xtol=1e-9))


def detectable_effect(error: StandardError, bound: Bound, power: float = DEFAULT_POWER) -> float:
    """The smallest effect, in log points, that a comparison with this error finds with probability ``power``.

    :raises InputError: ``power`` is not between 0 and 1.
    """
    ratio = detectable_ratio(bound.difference_critical(error.df), error.df, probability(power, "power"))
    return ratio * error.value


def units_for_effect(std_dev: float, effect: float, bound: Bound, power: float = DEFAULT_POWER) -> int | None:
    """Units after which a true ``effect`` is found with probability ``power``; None beyond ten million.

    :param std_dev: of one unit, log points, as ``effect``.
    :raises InputError: ``std_dev`` or ``effect`` is not above 0, or ``power`` not between 0 and 1.
    """
    ratio, target = _ratio(effect, std_dev), probability(power, "power")

    def enough(units: int) -> bool:
        df = units - 1.0
        return power_of_difference(ratio * math.sqrt(units), bound.difference_critical(df), df) >= target

    return _first_enough(enough)


def units_for_equivalence(std_dev: float, margin: float, bound: Bound, power: float = DEFAULT_POWER) -> int | None:
    """Units after which no effect at all is found equivalent with probability ``power``; None beyond ten
    million.

    :param std_dev: of one unit, log points, as ``margin``.
    :raises InputError: ``std_dev`` or ``margin`` is not above 0, or ``power`` not between 0 and 1.
    """
    ratio, target = _ratio(margin, std_dev), probability(power, "power")

    def enough(units: int) -> bool:
        df = units - 1.0
        return power_of_equivalence(ratio * math.sqrt(units), bound.equivalence_critical(df), df) >= target

    return _first_enough(enough)


def units_for_half_width(std_dev: float, half_width: float, bound: Bound) -> int | None:
    """Units after which the interval reaches at most ``half_width`` to each side; None beyond ten million.

    :param std_dev: of one unit, log points, as ``half_width``.
    :raises InputError: ``std_dev`` or ``half_width`` is not above 0.
    """
    ratio = _ratio(half_width, std_dev)
    return _first_enough(lambda units: bound.difference_critical(units - 1.0) <= ratio * math.sqrt(units))


def _ratio(effect: float, std_dev: float) -> float:
    return positive(effect, "effect") / positive(std_dev, "std_dev")


def _first_enough(enough: Callable[[int], bool]) -> int | None:
    """The smallest number of units, from 2, that is enough; ``enough`` must stay true once it is."""
    high = 2
    while not enough(high):
        high *= 2
        if high > MAX_UNITS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
