"""One effect over the points of a sweep, declared before it ran. Every point weighs the same.

Weights by inverse variance are not used: at a few units a point, they follow the noise of the variances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import special

from specbench.stats.checks import FloatArray, finite_vector
from specbench.stats.estimate import (
    Estimate,
    Interval,
    StandardError,
    estimate_units,
    satterthwaite_df,
    t_critical,
    to_percent,
)
from specbench.stats.robust import SignTest, sign_test


@dataclass(frozen=True)
class Heterogeneity:
    """Do the points differ by more than their errors explain?

    :param cochran_q: sum of squared deviations over squared errors (Cochran 1954).
    :param p_value: of Welch's F test (1951), since Q follows chi-squared only when a point has many units.
    :param i_squared: share of the spread that noise does not explain (Higgins and Thompson 2002), of the
        statistic that Welch's test has corrected for few units; 0 to 1.
    """

    cochran_q: float
    p_value: float
    i_squared: float


@dataclass(frozen=True)
class PooledEffect:
    """The equal-weight mean of the points' log ratios, in two readings.

    :param these_points: its error is that of measuring these points (Satterthwaite's degrees of freedom);
        ``interval`` follows.
    :param in_general: a plain t over point means, for points like these; ``general_interval`` follows. Wider
        when points differ.
    :param signs: of the point means.
    :param not_computed: field -> why.
    """

    num_points: int
    these_points: Estimate
    interval: Interval | None
    in_general: Estimate
    general_interval: Interval | None
    point_means: tuple[float, ...]
    heterogeneity: Heterogeneity | None
    signs: SignTest
    not_computed: dict[str, str] = field(default_factory=dict)

    @property
    def speedup_pct(self) -> float:
        """The pooled effect as a percentage."""
        return to_percent(self.these_points.mean)


def pool_points(points: Sequence[Estimate], confidence: float = 0.95) -> PooledEffect:
    """Pool one estimate a point; of several errors of a point, the one whose interval is widest is taken.

    :raises InputError: no point, a mean that is not finite, or ``confidence`` not between 0 and 1.
    """
    means = finite_vector([point.mean for point in points], "point means")
    lacking = _why_lacking(points)
    alone = "one point has no others to differ from" if len(points) == 1 else None
    errors = [] if lacking else [_widest(point, confidence) for point in points]
    num_units = sum(point.num_units for point in points)
    these = Estimate(float(means.mean()), num_units, () if lacking else (_combine(errors),), lacking)
    general = estimate_units(means, noun="point")
    reasons = {
        "interval": lacking,
        "general_interval": general.not_computed,
        "heterogeneity": lacking or alone,
    }
    return PooledEffect(
        num_points=len(points),
        these_points=these,
        interval=these.interval(confidence),
        in_general=general,
        general_interval=general.interval(confidence),
        point_means=tuple(means.tolist()),
        heterogeneity=None if lacking or alone else _compare_points(means, errors),
        signs=sign_test(means),
        not_computed={name: reason for name, reason in reasons.items() if reason},
    )


def _why_lacking(points: Sequence[Estimate]) -> str | None:
    """The first point without an error, and why; None when all have one."""
    return next(
        (
            f"point {i}: {point.not_computed or 'no error is known'}"
            for i, point in enumerate(points)
            if not point.errors
        ),
        None,
    )


def _widest(point: Estimate, confidence: float) -> StandardError:
    tail = (1 - confidence) / 2
    return max(point.errors, key=lambda error: t_critical(tail, error.df) * error.value)


def _combine(errors: Sequence[StandardError]) -> StandardError:
    """``sqrt(sum(s_i^2 / n_i)) / K``."""
    variances = np.array([error.value**2 for error in errors])
    df = satterthwaite_df(variances, np.array([error.df for error in errors]))
    return StandardError(math.sqrt(variances.sum()) / len(errors), df, len(errors), "units of these points")


def _compare_points(means: FloatArray, errors: Sequence[StandardError]) -> Heterogeneity:
    weights = np.array([1 / error.value**2 for error in errors])
    dfs = np.array([error.df for error in errors])
    shares = weights / weights.sum()
    cochran_q = float((weights * (means - shares @ means) ** 2).sum())
    num_points = len(errors)
    slack = float(((1 - shares) ** 2 / dfs).sum())
    welch_f = cochran_q / (num_points - 1) / (1 + 2 * (num_points - 2) / (num_points**2 - 1) * slack)
    p_value = float(special.fdtrc(num_points - 1, (num_points**2 - 1) / (3 * slack), welch_f))
    return Heterogeneity(cochran_q, p_value, max(0.0, 1 - 1 / welch_f) if welch_f > 0 else 0.0)
