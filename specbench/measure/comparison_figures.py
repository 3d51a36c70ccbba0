"""Fills in a :class:`~specbench.records.Comparison` from what was found: the figures, no judgement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from specbench.measure.analysis import STEP_FIGURES, strongest_label
from specbench.measure.counters import count_arms
from specbench.measure.effects import compare_ranges, split_effect
from specbench.measure.findings import Finding
from specbench.measure.unit_table import ArmUnits, FloatArray, UnitTable
from specbench.records import INVALID, Comparison, Gate, TrialRecord, Unit
from specbench.scenario.enumeration import planned_units
from specbench.scenario.plan import RunPlan, settings_of
from specbench.stats.estimate import to_percent
from specbench.stats.paired import PairedSummary
from specbench.stats.sequential import Bound
from specbench.stats.verdict import Decision, Verdict

MOST_STEPS = 200_000
"""Step times that quantiles are taken from; of more, every so many."""
PERCENTILES = np.arange(101)
NO_UNITS = "no unit was measured"


def fill_comparison(
    plan: RunPlan,
    finding: Finding,
    bound: Bound,
    decision: Decision | None,
    gates: list[Gate],
    reasons: Sequence[str],
) -> Comparison:
    """All of a comparison but ``in_words``.

    :param decision: None where no ratio could be computed.
    """
    planned, settings, units = finding.study.comparison, settings_of(plan), finding.units
    baseline, candidate = plan.points[planned.baseline], plan.points[planned.candidate]
    trials = finding.study.trials
    # Both passes or all four runs of a unit, guards included: what it takes to get another.
    measured_s = sum(map(_duration_ns, trials)) / 1e9 or float(_both_times(units).sum()) / 1e9
    parts = split_effect(units, bound) if decision else None
    missing = {"interval": NO_UNITS} if decision is None else _not_computed(finding, decision)
    if parts and parts.not_computed:
        missing["decomposition"] = parts.not_computed
    return Comparison(
        index=planned.index,
        role=planned.role,
        baseline=baseline.variant,
        candidate=candidate.variant,
        point=dict(baseline.coordinates),
        design=planned.design,
        why_design=planned.why_design,
        differences=list(planned.differences),
        exactness=planned.exactness,
        token_rule=finding.tokens.rule,
        label=strongest_label(trials) if trials else "",
        metric=finding.tokens.metric,
        n_units=len(units),
        n_processes=int(units.processes.size),
        baseline_tokens_per_s=units.baseline.tokens_per_s,
        candidate_tokens_per_s=units.candidate.tokens_per_s,
        **_verdict_figures(decision, reasons),
        confidence=settings.confidence,
        output_changed=finding.tokens.output_changed,
        reasons=list(reasons),
        margin_pct=100 * settings.margin,
        scope=_scope(finding),
        bound=bound.label,
        alpha=finding.levels[0],
        p_value=finding.p_difference,
        p_holm=finding.p_holm,
        tokens_identical=finding.tokens.identical,
        first_divergence=finding.tokens.divergence,
        decomposition=parts.log_points if parts else {},
        decomposition_pct=parts.effects if parts else {},
        ranges=compare_ranges(units, bound),
        acceptance_length=_by_arm(units, lambda arm: arm.acceptance_length),
        step_ms=_by_arm(units, _step_times),
        second_line=_second_line(finding.summary) if finding.summary else {},
        gates=gates,
        in_words=[],
        units=_list_units(units, finding.log_ratios),
        step_ms_quantiles={name: found for name, found in _by_arm(units, _step_quantiles).items() if found},
        measured_s=measured_s,
        units_per_minute=60 * len(finding.study.units) / measured_s if measured_s else None,
        planned_units=planned_units(plan, planned.index),
        not_computed=missing,
        baseline_index=planned.baseline,
        candidate_index=planned.candidate,
        counters=count_arms(planned, trials),
    )


def _scope(finding: Finding) -> str:
    starts = finding.study.num_starts
    if finding.effect is None:
        return NO_UNITS
    if finding.effect.num_processes == 1 and starts > 1:
        return f"these {starts} starts of one process only"
    return finding.effect.scope


def _by_arm(units: UnitTable, figure: Any) -> dict[str, Any]:
    return {"baseline": figure(units.baseline), "candidate": figure(units.candidate)}


def _both_times(units: UnitTable) -> FloatArray:
    return units.baseline.time_ns + units.candidate.time_ns


def _verdict_figures(decision: Decision | None, reasons: Sequence[str]) -> dict[str, Any]:
    if decision is None:
        verdict = INVALID if reasons else Verdict.INCONCLUSIVE.value
        keys = ("speedup_pct", "ci_low_pct", "ci_high_pct", "mde_pct", "units_needed")
        return {"verdict": verdict, **dict.fromkeys(keys)}
    interval = decision.interval
    return {
        "verdict": decision.verdict.value,
        "speedup_pct": decision.speedup_pct,
        "ci_low_pct": interval.low_pct if interval else None,
        "ci_high_pct": interval.high_pct if interval else None,
        "mde_pct": decision.mde_pct,
        "units_needed": decision.units_needed,
    }


def _not_computed(finding: Finding, decision: Decision) -> dict[str, str]:
    missing = {**(finding.summary.not_computed if finding.summary else {}), **decision.not_computed}
    if not finding.study.looks:
        reason = "no look was taken, so an interval would be one look too many"
        missing |= {"interval": reason, "mde": reason}
    return missing


def _duration_ns(trial: TrialRecord) -> int:
    """Of a pass: from its first request to its last edge."""
    return trial.periods[-1].end_ns if trial.periods else trial.wall_ns


def _second_line(summary: PairedSummary) -> dict[str, float | int | bool | None]:
    correlation = summary.autocorrelation
    return {
        "hodges_lehmann_pct": summary.hodges_lehmann_pct,
        "ratio_of_sums_pct": summary.sums_speedup_pct,
        "sums_disagree": summary.sums_disagree,
        "sign_positive": summary.signs.positive,
        "sign_negative": summary.signs.negative,
        "sign_p": summary.signs.p_value,
        "num_outliers": len(summary.outliers),
        "lag1": correlation.lag1 if correlation else None,
        "lag1_limit": correlation.limit if correlation else None,
        "std_dev_pct": None if summary.std_dev is None else to_percent(summary.std_dev),
    }


def _step_times(arm: ArmUnits) -> dict[str, float | None]:
    """Milliseconds a step: step_ms, and where it went."""
    steps = float(arm.steps.sum())
    if not steps:
        return dict.fromkeys(STEP_FIGURES)
    times_ns = {"wall": arm.time_ns, **arm.parts_ns}
    return {
        key: float(times_ns[name].sum()) / steps / 1e6 if name in times_ns else None
        for key, name in STEP_FIGURES.items()
    }


def _step_quantiles(arm: ArmUnits) -> list[float]:
    """Percentiles 0 to 100 of single steps' times in milliseconds; empty where they are not known."""
    if not arm.step_ns.size:
        return []
    sampled = arm.step_ns[:: -(-arm.step_ns.size // MOST_STEPS)]
    return [float(value) for value in np.percentile(sampled, PERCENTILES) / 1e6]


def _list_units(units: UnitTable, log_ratios: FloatArray) -> list[Unit]:
    if log_ratios.size != len(units):
        return []  # no ratio could be computed, and the comparison says why
    columns = (
        range(len(units)),
        units.process.tolist(),
        units.segment.tolist(),
        np.where(units.starts_with_baseline, "A", "B").tolist(),
        units.start_s.tolist(),
        (units.baseline.time_ns / 1e9).tolist(),
        (units.candidate.time_ns / 1e9).tolist(),
        units.baseline.tokens.astype(np.int64).tolist(),
        units.candidate.tokens.astype(np.int64).tolist(),
        (100 * np.expm1(log_ratios)).tolist(),
    )
    return [Unit(*row) for row in zip(*columns, strict=True)]
