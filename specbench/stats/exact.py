"""Exact tests of counts. They ask for independent trials: count by question, not by repeated answer to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from specbench.errors import InputError
from specbench.stats.checks import probability


@dataclass(frozen=True)
class ProportionInterval:
    """A share and its interval, all in [0, 1]; ``estimate`` is the observed share."""

    estimate: float
    low: float
    high: float
    confidence: float


def fisher_exact(first: int, first_total: int, second: int, second_total: int) -> float:
    """Two-sided p of equal proportions in two independent groups (Fisher 1934).

    :param first: successes among ``first_total``; ``second`` among ``second_total``.
    :raises InputError: a count is negative, above its total, or a total is 0.
    """
    _check(first, first_total)
    _check(second, second_total)
    table = np.array([[first, first_total - first], [second, second_total - second]])
    return float(stats.fisher_exact(table).pvalue)


def mcnemar_exact(only_first: int, only_second: int) -> float | None:
    """Two-sided p that both treatments succeed equally often on the same items (McNemar 1947, exact
    binomial).

    :param only_first: items on which only the first succeeded; ``only_second`` only the second.
    :return: None when no item tells them apart.
    :raises InputError: a count is negative.
    """
    discordant = only_first + only_second
    if min(only_first, only_second) < 0:
        raise InputError(f"counts cannot be negative: {only_first}, {only_second}")
    return float(stats.binomtest(only_first, discordant, 0.5).pvalue) if discordant else None


def clopper_pearson(successes: int, total: int, confidence: float = 0.95) -> ProportionInterval:
    """The exact binomial interval (Clopper and Pearson 1934).

    :raises InputError: ``successes`` is not in 0..``total``, ``total`` is 0, or ``confidence`` not between 0
        and 1.
    """
    _check(successes, total)
    level = probability(confidence, "confidence")
    found = stats.binomtest(successes, total).proportion_ci(confidence_level=level, method="exact")
    return ProportionInterval(successes / total, float(found.low), float(found.high), level)


def _check(count: int, total: int) -> None:
    if total < 1 or not 0 <= count <= total:
        raise InputError(f"{count} of {total} is not a proportion", hint="give a count and a total of at least 1")
