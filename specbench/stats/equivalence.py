"""Equivalence and non-inferiority: claims that a difference is small, which no large p value supports."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specbench.stats.checks import positive
from specbench.stats.estimate import Estimate
from specbench.stats.sequential import Bound


@dataclass(frozen=True)
class EquivalenceTest:
    """Two one-sided tests against a margin, symmetric in log points so that swapping the arms changes
    nothing.

    :param margin: log points.
    :param reach: how far from the mean each margin must lie; None where no error can be computed.
    :param p_not_below: nominal one-sided p of an effect at or below ``-margin``; ``p_not_above`` at or above
        ``+margin``. Uncorrected for looks: the decision compares ``reach``, which is corrected.
    :param passes: both sides reject, so the effect lies within the margin; None where that cannot be
        computed.
    """

    margin: float
    reach: float | None
    p_not_below: float | None
    p_not_above: float | None
    passes: bool | None


def log_margin(margin: float) -> float:
    """A margin given as a fraction (0.005 for 0.5%) in log points.

    :raises InputError: it is not above 0.
    """
    return math.log1p(positive(margin, "margin"))


def assess_equivalence(estimate: Estimate, margin: float, bound: Bound) -> EquivalenceTest:
    """Two one-sided t tests (Schuirmann 1987) at what ``bound`` allows each of them.

    :param margin: log points, above 0.
    :raises InputError: ``margin`` is not above 0.
    """
    limit = positive(margin, "margin")
    reach = estimate.half_width(bound.equivalence_critical)
    return EquivalenceTest(
        margin=limit,
        reach=reach,
        p_not_below=estimate.upper_p(-limit),
        p_not_above=estimate.lower_p(limit),
        passes=None if reach is None else abs(estimate.mean) + reach < limit,
    )


@dataclass(frozen=True)
class NonInferiorityTest:
    """One one-sided test: the candidate is worse by less than ``margin``.

    :param p_value: nominal one-sided p of an effect at or below ``-margin``, uncorrected for looks.
    :param passes: None where it cannot be computed.
    """

    margin: float
    p_value: float | None
    passes: bool | None


def assess_non_inferiority(estimate: Estimate, margin: float, bound: Bound) -> NonInferiorityTest:
    """For quality beside speed. Positive means better, in whatever unit estimate and margin share.

    :raises InputError: ``margin`` is not above 0.
    """
    limit = positive(margin, "margin")
    reach = estimate.half_width(bound.equivalence_critical)
    passes = None if reach is None else estimate.mean - reach > -limit
    return NonInferiorityTest(limit, estimate.upper_p(-limit), passes)
