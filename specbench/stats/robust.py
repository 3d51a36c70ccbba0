"""The second line beside the t interval: estimates that a few wild units cannot move. Nothing is ever
dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from specbench.stats.checks import finite_vector

TUKEY_FENCE = 1.5
IntArray = npt.NDArray[np.int64]
_LISTED_PAIRS = 200_000
_INTEGER_BITS = 61


@dataclass(frozen=True)
class SignTest:
    """How many units favour each arm.

    :param ties: units at exactly 0; they say nothing and are left out of p.
    :param p_value: two-sided, exact binomial; None when every unit is a tie.
    """

    positive: int
    negative: int
    ties: int
    p_value: float | None


def sign_test(values: npt.ArrayLike) -> SignTest:
    """Sign test of a median of 0 (Arbuthnott 1710) on ``values`` [n].

    :raises InputError: empty, or a value is not finite.
    """
    array = finite_vector(values, "values")
    positive, negative = int((array > 0).sum()), int((array < 0).sum())
    decided = positive + negative
    p_value = float(stats.binomtest(positive, decided, 0.5).pvalue) if decided else None
    return SignTest(positive, negative, array.size - decided, p_value)


def find_outliers(values: npt.ArrayLike) -> tuple[int, ...]:
    """Indices outside Tukey's fences (1.5 interquartile ranges beyond the quartiles), to be shown and kept.

    :raises InputError: empty, or a value is not finite.
    """
    array = finite_vector(values, "values")
    first, third = np.percentile(array, (25, 75))
    reach = TUKEY_FENCE * (third - first)
    outside = (array < first - reach) | (array > third + reach)
    return tuple(int(index) for index in np.flatnonzero(outside))


def hodges_lehmann(values: npt.ArrayLike) -> float:
    """The median of all pairwise means, each value with itself included (Hodges and Lehmann 1963).

    There are n (n + 1) / 2 pairs. The median is bracketed by counting pairs, O(n log n) a round, until the
    bracket holds few enough to list. Values become integers of 61 bits, so that sums and ties are exact.

    :param values: [n].
    :raises InputError: empty, or a value is not finite.
    """
    array = np.sort(finite_vector(values, "values"))
    shift = _INTEGER_BITS - int(np.frexp(np.abs(array).max())[1])
    ordered = np.rint(np.ldexp(array, shift)).astype(np.int64)
    total = ordered.size * (ordered.size + 1) // 2
    lower_rank, upper_rank = (total - 1) // 2, total // 2
    lower = upper = _pair_sum_at(ordered, lower_rank)
    if int(_pairs_up_to(ordered, lower).sum()) <= upper_rank:
        upper = _pair_sum_after(ordered, lower)
    return float(np.ldexp(lower, -shift) + np.ldexp(upper, -shift)) / 4


def _pair_sum_at(ordered: IntArray, rank: int) -> int:
    """The sum of a pair that ``rank`` other pairs do not exceed."""
    low, high = 2 * int(ordered[0]) - 1, 2 * int(ordered[-1])  # every sum is above low and at most high
    below, within = 0, ordered.size * (ordered.size + 1) // 2
    while within > _LISTED_PAIRS and high - low > 1:
        middle = (low + high) // 2
        count = int(_pairs_up_to(ordered, middle).sum())
        if count > rank:
            high, within = middle, count - below
        else:
            low, below, within = middle, count, below + within - count
    if high - low == 1:
        return high
    sums = _pair_sums_between(ordered, low, high)
    return int(np.partition(sums, rank - below)[rank - below])


def _pairs_up_to(ordered: IntArray, limit: int) -> IntArray:
    """For each i, how many j >= i have a sum of at most ``limit`` with it: always the nearest ones."""
    reach = np.searchsorted(ordered, limit - ordered, side="right")
    counts: IntArray = np.maximum(reach - np.arange(ordered.size), 0)
    return counts


def _pair_sums_between(ordered: IntArray, above: int, limit: int) -> IntArray:
    """The sums of pairs over ``above`` and up to ``limit``, in no order."""
    own = np.arange(ordered.size)
    first = own + _pairs_up_to(ordered, above)
    counts = own + _pairs_up_to(ordered, limit) - first
    left = np.repeat(own, counts)
    step = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    sums: IntArray = ordered[left] + ordered[first[left] + step]
    return sums


def _pair_sum_after(ordered: IntArray, limit: int) -> int:
    """The smallest sum of a pair above ``limit``; there is one."""
    own = np.arange(ordered.size)
    following = own + _pairs_up_to(ordered, limit)
    inside = following < ordered.size
    return int((ordered[own[inside]] + ordered[following[inside]]).min())
