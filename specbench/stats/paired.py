"""Paired comparison of two arms: one log ratio a unit, and everything that is printed about them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from specbench.errors import InputError
from specbench.stats.autocorrelation import Autocorrelation, batch_means, lag1_autocorrelation
from specbench.stats.checks import FloatArray, finite_vector, positive_vector
from specbench.stats.estimate import Estimate, Interval, estimate_units, to_percent
from specbench.stats.robust import SignTest, find_outliers, hodges_lehmann, sign_test

SUMS_TOLERANCE = 0.5
"""Share of a standard error by which mean log ratio and ratio of sums may differ unremarked."""


@dataclass(frozen=True, eq=False)
class PairedUnits:
    """Units of analysis.

    :param log_ratios: [n] log points; positive where the candidate is faster.
    :param log_ratio_of_sums: log of the ratio of both arms' totals.
    """

    log_ratios: FloatArray
    log_ratio_of_sums: float


def pair_units(
    baseline_s: npt.ArrayLike,
    candidate_s: npt.ArrayLike,
    *,
    baseline_tokens: npt.ArrayLike | None = None,
    candidate_tokens: npt.ArrayLike | None = None,
) -> PairedUnits:
    """``d = ln(time A / time B)`` a unit, A the baseline; with token counts, of the throughputs instead.

    :param baseline_s: [n] the baseline's time in each unit, any one unit of time; ``candidate_s`` alike.
    :param baseline_tokens: [n] tokens committed in that time, where the arms' tokens differ; both arms or
        neither.
    :raises InputError: lengths differ, an arm's tokens are missing, or a value is not finite and above 0.
    """
    baseline, candidate = (
        positive_vector(baseline_s, "baseline_s"),
        positive_vector(candidate_s, "candidate_s"),
    )
    _same_length(baseline, candidate)
    logs = np.log(baseline / candidate)
    sums = float(np.log(baseline.sum() / candidate.sum()))
    if (baseline_tokens is None) != (candidate_tokens is None):
        raise InputError("token counts are needed for both arms or for neither", where="baseline_tokens")
    if baseline_tokens is not None and candidate_tokens is not None:
        of_baseline = positive_vector(baseline_tokens, "baseline_tokens")
        of_candidate = positive_vector(candidate_tokens, "candidate_tokens")
        _same_length(baseline, of_baseline)
        _same_length(baseline, of_candidate)
        logs = logs + np.log(of_candidate / of_baseline)
        sums += float(np.log(of_candidate.sum() / of_baseline.sum()))
    return PairedUnits(logs, sums)


def _same_length(first: FloatArray, second: FloatArray) -> None:
    if first.shape != second.shape:
        raise InputError(
            f"{first.size} values are paired with {second.size}",
            hint="give one value of each arm for every unit",
        )


@dataclass(frozen=True)
class PairedSummary:
    """What is printed about one comparison. Log points; None was not computed and ``not_computed`` says why.

    :param estimate: mean of the log ratios with its paired t error; ``interval`` is its t interval.
    :param std_dev: of one unit.
    :param sums_disagree: mean log ratio and ratio of sums differ by more than half a standard error: the
        units are not alike.
    :param outliers: indices of units outside Tukey's fences; they are in every figure.
    """

    num_units: int
    estimate: Estimate
    interval: Interval | None
    std_dev: float | None
    log_ratio_of_sums: float
    sums_disagree: bool | None
    hodges_lehmann: float
    signs: SignTest
    outliers: tuple[int, ...]
    autocorrelation: Autocorrelation | None
    batch_means: Estimate
    not_computed: dict[str, str] = field(default_factory=dict)

    @property
    def mean_log_ratio(self) -> float:
        """The estimated effect."""
        return self.estimate.mean

    @property
    def speedup_pct(self) -> float:
        """``exp(mean d) - 1`` as a percentage."""
        return to_percent(self.estimate.mean)

    @property
    def sums_speedup_pct(self) -> float:
        """Ratio of sums, minus 1, as a percentage."""
        return to_percent(self.log_ratio_of_sums)

    @property
    def hodges_lehmann_pct(self) -> float:
        """Hodges-Lehmann estimate as a percentage."""
        return to_percent(self.hodges_lehmann)

    @property
    def verdict_estimate(self) -> Estimate:
        """What a verdict stands on: units, and where neighbours are correlated the wider of units and batch
        means.
        """
        if self.autocorrelation is None or not self.autocorrelation.is_high:
            return self.estimate
        return dataclasses.replace(self.estimate, errors=self.estimate.errors + self.batch_means.errors)


def summarize_pairs(
    units: PairedUnits, *, groups: npt.ArrayLike | None = None, confidence: float = 0.95
) -> PairedSummary:
    """Everything printed about ``units``.

    :param groups: [n] the process of each unit, for the autocorrelation alone.
    :raises InputError: empty, not finite, ``groups`` of another length, or ``confidence`` not between 0 and
        1.
    """
    logs = finite_vector(units.log_ratios, "log_ratios")
    estimate = estimate_units(logs)
    error = estimate.errors[0].value if estimate.errors else None
    autocorrelation = lag1_autocorrelation(logs, groups)
    batches = batch_means(logs)
    missing: dict[str, str] = {}
    if estimate.not_computed:
        missing |= dict.fromkeys(("interval", "std_dev", "sums_disagree"), estimate.not_computed)
    if batches.not_computed:
        missing["batch_means"] = batches.not_computed
    if autocorrelation is None:
        missing["autocorrelation"] = "fewer than three units, or none differs from its group's mean"
    gap = abs(estimate.mean - units.log_ratio_of_sums)
    return PairedSummary(
        num_units=logs.size,
        estimate=estimate,
        interval=estimate.interval(confidence),
        std_dev=None if error is None else float(logs.std(ddof=1)),
        log_ratio_of_sums=units.log_ratio_of_sums,
        sums_disagree=None if error is None else gap > SUMS_TOLERANCE * error,
        hodges_lehmann=hodges_lehmann(logs),
        signs=sign_test(logs),
        outliers=find_outliers(logs),
        autocorrelation=autocorrelation,
        batch_means=batches,
        not_computed=missing,
    )
