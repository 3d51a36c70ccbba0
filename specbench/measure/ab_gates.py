"""Gates of a comparison: what could make its figures, or the interval around them, mean something else.

``fail`` makes the comparison INVALID. ``warn`` leaves the verdict and tells the reader what to doubt: an interval that
is too narrow, or an effect that is not the same all the time. Every gate carries the figure it was judged by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from specbench.measure.gates import FAIL, NOT_APPLICABLE, PASS, WARN
from specbench.measure.machine_gates import CLEAR_P, Witnessed, judge_machine
from specbench.measure.token_rules import TokenOutcome, repeatability_gate
from specbench.measure.unit_table import FloatArray, IntArray, UnitTable
from specbench.records import Comparison, Gate
from specbench.stats.autocorrelation import MIN_UNITS_FOR_BATCHES
from specbench.stats.contrasts import group_difference, trend
from specbench.stats.estimate import Estimate, to_percent
from specbench.stats.paired import SUMS_TOLERANCE, PairedSummary
from specbench.stats.robust import sign_test

SEVERITY = (FAIL, WARN, PASS, NOT_APPLICABLE)
MIN_UNITS = 6
"""Units below which neither a trend nor halves can be told from noise, and noise itself is barely known."""
SLOW_STEP = 1.5
"""A step is slow at so many times the median of both arms."""
SLOW_SHARE_GAP, SLOW_RATIO = 0.005, 2.0
FALSE_ALARM = 0.02
"""Chance of so many false alarms among A/A comparisons below which the instrument is not trusted: 4 of 20 at 5%."""
AA_GATE = "A/A"


@dataclass(frozen=True, eq=False)
class Judged:
    """Everything a gate may look at.

    :param units: those that the verdict stands on; ``log_ratios`` [n] theirs.
    :param summary: None without units.
    """

    seen: Witnessed
    units: UnitTable
    tokens: TokenOutcome
    log_ratios: FloatArray
    summary: PairedSummary | None


def judge_comparison(judged: Judged) -> list[Gate]:
    """Every gate of one comparison, in the order of the report."""
    repeatable = repeatability_gate(judged.seen.comparison, judged.seen.blocks)
    machine = judge_machine(judged.seen) if judged.seen.blocks else []
    of_units = [gate(judged) for gate in UNIT_GATES] if judged.summary else []
    return [judged.tokens.gate, repeatable, *machine, *of_units]


def gate_warmth(judged: Judged) -> Gate:
    """Is the effect the same from the first unit to the last? Periods themselves slow down as contexts grow."""
    name = "warm"
    if len(judged.units) < MIN_UNITS:
        return Gate(name, NOT_APPLICABLE, f"{len(judged.units)} units are too few for a trend")
    ranks = _ranks(judged.units.process)
    order = np.argsort(ranks, kind="stable")
    change = trend(_centred(judged.log_ratios, judged.units.process)[order])
    return _contrast_gate(name, change, "the effect changed by {} from the first unit to the last")


def gate_halves(judged: Judged) -> Gate:
    """Do the first and the second half of the units say the same?"""
    name = "halves"
    if len(judged.units) < MIN_UNITS:
        return Gate(name, NOT_APPLICABLE, f"{len(judged.units)} units are too few for halves")
    process = judged.units.process
    _, group, counts = np.unique(process, return_inverse=True, return_counts=True)
    early = _ranks(process) < counts[group] / 2
    values = _centred(judged.log_ratios, process)
    return _contrast_gate(name, group_difference(values[~early], values[early]), "the second half is {} from the first")


def gate_order(judged: Judged) -> Gate:
    """Does it matter which arm goes first?"""
    name, leads = "order", judged.units.starts_with_baseline
    first, second = judged.log_ratios[leads], judged.log_ratios[~leads]
    if min(first.size, second.size) < 2:
        return Gate(
            name, NOT_APPLICABLE, f"{first.size} units began with the baseline, {second.size} with the candidate"
        )
    return _contrast_gate(
        name, group_difference(first, second), "units that the baseline began are {} from those that it did not"
    )


def _contrast_gate(name: str, contrast: Estimate, words: str) -> Gate:
    """Warn where a contrast of log ratios is clearly not 0."""
    p_value = contrast.p_value()
    change = f"{to_percent(contrast.mean):+.3f}%"
    if p_value is None:
        return Gate(name, NOT_APPLICABLE, f"{words.format(change)}; {contrast.not_computed}")
    return Gate(name, WARN if p_value < CLEAR_P else PASS, f"{words.format(change)} (p = {p_value:.2g})")


def _centred(values: FloatArray, process: IntArray) -> FloatArray:
    """``values`` less the mean of their process, whose own effect is none in time."""
    _, group = np.unique(process, return_inverse=True)
    return values - (np.bincount(group, values) / np.bincount(group))[group]


def _ranks(process: IntArray) -> IntArray:
    """[n] place of each unit in its process."""
    _, starts, group = np.unique(process, return_index=True, return_inverse=True)
    ranks: IntArray = np.arange(process.size) - starts[group]
    return ranks


def gate_lag1(judged: Judged) -> Gate:
    """Do neighbouring units agree more than chance allows?"""
    name = "lag-1"
    found = judged.summary.autocorrelation if judged.summary else None
    if found is None:
        return Gate(name, NOT_APPLICABLE, "fewer than three units, or none differs from another")
    detail = f"{found.lag1:+.2f} (limit {found.limit:.2f})"
    if not found.is_high:
        return Gate(name, PASS, detail)
    if len(judged.units) >= MIN_UNITS_FOR_BATCHES:
        return Gate(name, WARN, f"{detail}: the interval is the wider of units and ten batch means")
    return Gate(name, WARN, f"{detail}: neighbours agree, the interval is too narrow; longer periods would help")


def gate_outliers(judged: Judged) -> Gate:
    """Do wild units, or slow steps, visit one arm alone? A t interval covers spikes in both arms, not in one."""
    name, summary = "outliers", judged.summary
    if summary is None or summary.std_dev is None:
        return Gate(name, NOT_APPLICABLE, "no spread of units is known")
    count = len(summary.outliers)
    wild = judged.log_ratios[list(summary.outliers)] - summary.hodges_lehmann
    for_baseline, for_candidate = int((wild > 0).sum()), int((wild < 0).sum())
    error = summary.estimate.errors[0].value
    gap = abs(summary.estimate.mean - summary.hodges_lehmann) / error
    detail = (
        f"{count} of {len(judged.units)} units, {for_baseline} slow in the baseline, {for_candidate} in the candidate"
    )
    detail += f"; mean and Hodges-Lehmann {gap:.2f} standard errors apart"
    slow, slow_words = _slow_steps(judged)
    detail += slow_words
    if slow or (gap > SUMS_TOLERANCE and _one_sided(for_baseline, for_candidate)):
        return Gate(name, WARN, f"{detail}: one arm alone was hit, so the interval covers less than it says")
    return Gate(name, PASS, detail)


def _one_sided(first: int, second: int) -> bool:
    if not first + second:
        return False
    few = min(first, second) == 0
    return few or bool(stats.binomtest(first, first + second, 0.5).pvalue < CLEAR_P)


def _slow_steps(judged: Judged) -> tuple[bool, str]:
    """Has one arm clearly more slow steps? Told for mirrored passes alone, whose arms ran the same steps."""
    arms = judged.units.baseline, judged.units.candidate
    if not judged.seen.is_mirrored or not arms[0].step_ns.size or not arms[1].step_ns.size:
        return False, ""
    limit = SLOW_STEP * float(np.median(np.concatenate([arm.step_ns for arm in arms])))
    num_units = len(judged.units)
    counts = [np.bincount(arm.step_unit[arm.step_ns > limit], minlength=num_units) for arm in arms]
    shares = [float(count.sum()) / arm.step_ns.size for count, arm in zip(counts, arms, strict=True)]
    words = f"; {shares[0] * 100:.1f}% and {shares[1] * 100:.1f}% of their steps took {SLOW_STEP:g} times the median"
    signs = sign_test((counts[1] - counts[0]).astype(np.float64))
    many = max(shares) > SLOW_RATIO * min(shares) and abs(shares[0] - shares[1]) > SLOW_SHARE_GAP
    return many and signs.p_value is not None and signs.p_value < CLEAR_P, words


def gate_sums(judged: Judged) -> Gate:
    """Do the mean log ratio and the ratio of sums say the same?"""
    name, summary = "sums", judged.summary
    if summary is None or summary.sums_disagree is None:
        return Gate(name, NOT_APPLICABLE, "no spread of units is known")
    detail = f"mean of units {summary.speedup_pct:+.3f}%, ratio of sums {summary.sums_speedup_pct:+.3f}%"
    if summary.sums_disagree:
        return Gate(name, WARN, f"{detail}: over half a standard error apart, so the units are not alike")
    return Gate(name, PASS, detail)


UNIT_GATES: tuple[Callable[[Judged], Gate], ...] = (
    gate_warmth,
    gate_halves,
    gate_order,
    gate_lag1,
    gate_outliers,
    gate_sums,
)


def chance_of_alarms(found: int, comparisons: int, level: float) -> float:
    """How likely a sound instrument calls ``found`` or more of so many A/A comparisons different at ``level``."""
    return float(stats.binom.sf(found - 1, comparisons, level))


def gate_aa(p_values: Sequence[float | None], alpha: float) -> Gate:
    """Did A/A comparisons of the same command find differences more often than ``alpha`` allows?

    :param p_values: of the A/A comparisons, uncorrected for one another.
    """
    known = [p for p in p_values if p is not None]
    if not known:
        return Gate(AA_GATE, NOT_APPLICABLE, "no A/A comparison was made; specbench selftest makes 20")
    found = sum(p <= alpha for p in known)
    chance = chance_of_alarms(found, len(known), alpha)
    detail = f"{found} of {len(known)} A/A comparisons found a difference at {alpha * 100:g}%"
    if chance < FALSE_ALARM:
        return Gate(AA_GATE, FAIL, f"{detail}; chance gives that {chance * 100:.2g}% of the time")
    return Gate(AA_GATE, PASS, detail)


def worst_gates(comparisons: Sequence[Comparison]) -> list[Gate]:
    """Each gate once, as serious as it is in any comparison, with the figure from there."""
    found: dict[str, tuple[Gate, Comparison]] = {}
    for comparison in comparisons:
        for gate in comparison.gates:
            held = found.get(gate.name)
            if held is None or SEVERITY.index(gate.status) < SEVERITY.index(held[0].status):
                found[gate.name] = gate, comparison
    return [_attributed(gate, comparison, len(comparisons)) for gate, comparison in found.values()]


def _attributed(gate: Gate, comparison: Comparison, total: int) -> Gate:
    if total == 1 or gate.status not in (FAIL, WARN):
        return gate
    place = "".join(f", {key} {value}" for key, value in comparison.point.items())
    return Gate(gate.name, gate.status, f"{comparison.candidate}{place} (comparison {comparison.index}): {gate.detail}")
