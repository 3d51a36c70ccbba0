"""Do neighbouring units agree more than chance allows? Then a t interval over units is too narrow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specbench.errors import InputError
from specbench.stats.checks import FloatArray, finite_vector
from specbench.stats.estimate import Estimate, StandardError, why_no_spread

NUM_BATCHES = 10
MIN_UNITS_FOR_BATCHES = 2 * NUM_BATCHES


@dataclass(frozen=True)
class Autocorrelation:
    """Lag-1 autocorrelation of units in the order they were measured.

    :param limit: ``2 / sqrt(n)``; above it neighbours are correlated and the units are not independent.
    """

    lag1: float
    limit: float

    @property
    def is_high(self) -> bool:
        """True when longer periods or batch means are needed. A negative one makes intervals too wide, not
        wrong.
        """
        return self.lag1 > self.limit


def lag1_autocorrelation(values: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Autocorrelation | None:
    """Lag-1 autocorrelation of ``values`` [n], or None where there are fewer than 3 or they do not vary.

    :param groups: [n], a label a unit (its process): the mean is taken within a group and neighbours of
        different groups are no pair, since a process's own effect is not a correlation in time.
    :raises InputError: empty, not finite, or ``groups`` of another length.
    """
    array = finite_vector(values, "values")
    labels = np.zeros(array.size, dtype=np.int64) if groups is None else np.unique(groups, return_inverse=True)[1]
    if labels.shape != array.shape:
        raise InputError(f"{labels.size} group labels for {array.size} units", where="groups")
    centred = array - (np.bincount(labels, weights=array) / np.bincount(labels))[labels]
    scale = float(centred @ centred)
    if array.size < 3 or scale <= 0 or why_no_spread(centred):
        return None
    together = labels[1:] == labels[:-1]
    lag1 = float((centred[1:] * centred[:-1])[together].sum()) / scale
    return Autocorrelation(lag1, 2 / math.sqrt(array.size))


def batch_means(log_ratios: npt.ArrayLike) -> Estimate:
    """The mean of all units with its error taken from ten consecutive batches (Conway 1963), 9 degrees of
    freedom.

    Batches differ by at most one unit. Each deviation is weighted by its batch's share, so the estimate stays
    the mean of all units.

    :param log_ratios: [n] in the order of measurement; fewer than 20 give no error.
    :raises InputError: empty, or a value is not finite.
    """
    values = finite_vector(log_ratios, "log_ratios")
    mean = float(values.mean())
    if values.size < MIN_UNITS_FOR_BATCHES:
        reason = f"{values.size} units are too few for {NUM_BATCHES} batches of two"
        return Estimate(mean, values.size, (), reason)
    batches: list[FloatArray] = np.array_split(values, NUM_BATCHES)
    means = np.array([batch.mean() for batch in batches])
    reason_flat = why_no_spread(means)
    if reason_flat:
        return Estimate(mean, values.size, (), reason_flat)
    shares = np.array([batch.size for batch in batches]) / values.size
    variance = float((shares**2 * (means - mean) ** 2).sum()) * NUM_BATCHES / (NUM_BATCHES - 1)
    error = StandardError(math.sqrt(variance), NUM_BATCHES - 1.0, NUM_BATCHES, "ten batch means")
    return Estimate(mean, values.size, (error,))
