"""Two checks on units in the order they were measured: do two groups of them differ, and do they drift?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import stats

from specbench.stats.checks import finite_vector
from specbench.stats.estimate import Estimate, StandardError, satterthwaite_df, why_no_spread


def group_difference(first: npt.ArrayLike, second: npt.ArrayLike) -> Estimate:
    """Mean of ``first`` minus mean of ``second`` with Welch's error (1947): AB against BA, first half against
    second.

    :param first: [n] log points; ``second`` [m].
    :raises InputError: a group is empty, or a value is not finite.
    """
    groups = finite_vector(first, "first"), finite_vector(second, "second")
    difference = float(groups[0].mean() - groups[1].mean())
    num_units = groups[0].size + groups[1].size
    reason = next((reason for group in groups if (reason := why_no_spread(group))), None)
    if reason:
        return Estimate(difference, num_units, (), reason)
    variances = np.array([group.var(ddof=1) / group.size for group in groups])
    df = satterthwaite_df(variances, np.array([group.size - 1.0 for group in groups]))
    error = StandardError(float(np.sqrt(variances.sum())), df, num_units, "two groups of units")
    return Estimate(difference, num_units, (error,))


def trend(values: npt.ArrayLike) -> Estimate:
    """Least-squares change of ``values`` from the first unit to the last.

    :param values: [n] log points in the order of measurement; at least 3 for an error.
    :raises InputError: empty, or a value is not finite.
    """
    array = finite_vector(values, "values")
    reason = why_no_spread(array) if array.size > 2 else "a trend needs three units"
    if reason:
        return Estimate(0.0, array.size, (), reason)
    fit = stats.linregress(np.arange(array.size), array)
    span = array.size - 1
    if not fit.stderr > 0:
        return Estimate(float(fit.slope) * span, array.size, (), "the units lie on a line")
    error = StandardError(float(fit.stderr) * span, array.size - 2.0, array.size, "trend over units")
    return Estimate(float(fit.slope) * span, array.size, (error,))
