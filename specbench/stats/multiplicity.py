"""Many comparisons at once. A p value that was not computed (None) counts in the family and claims nothing.

Comparisons that were looked at more than once bring the p values of ``p_over_looks``, not nominal ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from specbench.errors import InputError
from specbench.stats.checks import FloatArray, probability


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusted p values that control the probability of any false claim (Holm 1979), in the order given.

    :raises InputError: a value is not in [0, 1].
    """
    values = _family(p_values)
    order = np.argsort(values, kind="stable")
    steps = values.size - np.arange(values.size)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * steps), 1.0)
    return _restore(adjusted, p_values)


def holm_levels(p_values: Sequence[float | None], alpha: float = 0.05) -> list[float]:
    """The level at which each comparison may be judged, so that a plain test at it decides as Holm does.

    A comparison that Holm rejects gets the level of its own step; all others the level of the step that
    failed.

    :raises InputError: a value is not in [0, 1], or ``alpha`` not between 0 and 1.
    """
    values = _family(p_values)
    level = probability(alpha, "alpha")
    order = np.argsort(values, kind="stable")
    levels = level / (values.size - np.arange(values.size))
    failed = np.flatnonzero(values[order] > levels)
    if failed.size:
        levels[failed[0] :] = levels[failed[0]]
    result = np.empty_like(values)
    result[order] = levels
    return [float(value) for value in result]


def benjamini_hochberg(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusted p values that control the share of false claims (Benjamini and Hochberg 1995): exploration
    only.

    :raises InputError: a value is not in [0, 1].
    """
    values = _family(p_values)
    return _restore(np.asarray(stats.false_discovery_control(values, method="bh")), p_values)


def _family(p_values: Sequence[float | None]) -> FloatArray:
    """The family with 1 for what was not computed."""
    if not len(p_values):
        raise InputError("no p values to correct", where="p_values")
    values = np.array([1.0 if value is None else float(value) for value in p_values])
    if not ((values >= 0) & (values <= 1)).all():
        raise InputError(f"p values must lie between 0 and 1, not {list(p_values)}", where="p_values")
    return values


def _restore(adjusted: FloatArray, p_values: Sequence[float | None]) -> list[float | None]:
    return [None if before is None else float(after) for before, after in zip(p_values, adjusted.tolist(), strict=True)]
