"""A mean in log points with every standard error that may bound it.

Log points: 0.01 is about 1%. Positive means that the candidate is better. An :class:`Estimate` may carry
several standard errors (within and between processes, units and batch means); every interval and test uses
the widest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy.typing as npt
from scipy import special

from specbench.stats.checks import FloatArray, finite_vector, is_constant, probability

Critical = Callable[[float], float]
"""Degrees of freedom -> how many standard errors an interval reaches to each side (``inf`` where it has no
end).
"""


_LARGEST_EXPONENT = 700.0


def to_percent(log_points: float) -> float:
    """Log points as a percentage: ``100 (exp(x) - 1)``; infinite where that is too big for a float."""
    return 100.0 * math.expm1(log_points) if log_points < _LARGEST_EXPONENT else math.inf


def t_critical(tail: float, df: float) -> float:
    """The value that a t variable exceeds with probability ``tail``; infinite for a tail of 0."""
    return math.inf if tail <= 0 else -float(special.stdtrit(df, tail))


@dataclass(frozen=True)
class Interval:
    """A confidence interval, both ends in log points."""

    low: float
    high: float
    confidence: float

    @property
    def low_pct(self) -> float:
        """The lower end as a percentage."""
        return to_percent(self.low)

    @property
    def high_pct(self) -> float:
        """The upper end as a percentage."""
        return to_percent(self.high)

    @property
    def half_width(self) -> float:
        """Half the length, in log points."""
        return (self.high - self.low) / 2

    def contains(self, value: float) -> bool:
        """True when ``value`` lies inside, ends included."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class StandardError:
    """One standard error of a mean.

    :param value: log points, above 0.
    :param df: degrees of freedom of the t distribution that goes with it.
    :param replicates: what was averaged (units, processes, batches): the error falls as 1 / sqrt(replicates).
    :param source: in words, for the report.
    """

    value: float
    df: float
    replicates: int
    source: str


@dataclass(frozen=True)
class Estimate:
    """A mean log ratio and what is known of its error.

    :param num_units: units of analysis behind it.
    :param errors: empty when no error can be computed; then ``not_computed`` says why.
    """

    mean: float
    num_units: int
    errors: tuple[StandardError, ...]
    not_computed: str | None = None

    def half_width(self, critical: Critical) -> float | None:
        """The widest ``critical(df) * error``, or None without an error. Infinite where ``critical`` is."""
        return max((critical(error.df) * error.value for error in self.errors), default=None)

    def interval(self, confidence: float = 0.95) -> Interval | None:
        """The t interval, or None where there is no error to build it from.

        :raises InputError: ``confidence`` is not between 0 and 1.
        """
        tail = (1 - probability(confidence, "confidence")) / 2
        half = self.half_width(lambda df: t_critical(tail, df))
        return None if half is None else Interval(self.mean - half, self.mean + half, confidence)

    def upper_p(self, null: float = 0.0) -> float | None:
        """One-sided p of a mean at or below ``null``: the largest over the errors, uncorrected for looks."""
        tails = [float(special.stdtr(e.df, (null - self.mean) / e.value)) for e in self.errors]
        return max(tails, default=None)

    def lower_p(self, null: float = 0.0) -> float | None:
        """One-sided p of a mean at or above ``null``: the largest over the errors, uncorrected for looks."""
        tails = [float(special.stdtr(e.df, (self.mean - null) / e.value)) for e in self.errors]
        return max(tails, default=None)

    def p_value(self, null: float = 0.0) -> float | None:
        """Two-sided p of a mean equal to ``null``: the largest over the errors, uncorrected for looks."""
        tails = [2 * float(special.stdtr(e.df, -abs(self.mean - null) / e.value)) for e in self.errors]
        return max(tails, default=None)


def estimate_units(log_ratios: npt.ArrayLike, noun: str = "unit") -> Estimate:
    """The mean of independent units with its paired t error (Student 1908): sd / sqrt(n), n - 1 degrees of
    freedom.

    :param log_ratios: [n], log points, one a unit.
    :param noun: what one value is, in words.
    :raises InputError: empty, or a value is not finite.
    """
    values = finite_vector(log_ratios, "log_ratios")
    mean, reason = float(values.mean()), why_no_spread(values, noun)
    if reason:
        return Estimate(mean, values.size, (), reason)
    error = float(values.std(ddof=1)) / math.sqrt(values.size)
    return Estimate(mean, values.size, (StandardError(error, values.size - 1.0, values.size, f"{noun}s"),))


def why_no_spread(values: FloatArray, noun: str = "unit") -> str | None:
    """Why a standard deviation of ``values`` would say nothing about noise, or None where it does."""
    if values.size < 2:
        return f"one {noun} has no spread; two are needed"
    if is_constant(values):
        return f"all {values.size} {noun}s are equal, so the noise cannot be estimated"
    return None


def satterthwaite_df(variances: FloatArray, dfs: FloatArray) -> float:
    """Degrees of freedom of a sum of estimated variances, each with its own (Satterthwaite 1946)."""
    return float(variances.sum() ** 2 / (variances**2 / dfs).sum())
