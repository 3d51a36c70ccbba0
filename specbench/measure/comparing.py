"""From units to comparisons: estimate, correction for one another, verdict, and everything printed beside it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from specbench.measure.ab_gates import Judged, gate_aa, judge_comparison
from specbench.measure.comparison_figures import fill_comparison
from specbench.measure.effects import estimate_units_of
from specbench.measure.findings import Finding, Study
from specbench.measure.looks import (
    LooksTaken,
    NoBound,
    bound_of,
    due_look,
    final_bound,
    p_values,
    planned_end,
    pooled_families,
    seen_at,
    take_look,
)
from specbench.measure.machine_gates import Witnessed
from specbench.measure.token_rules import judge_tokens
from specbench.measure.units import gather_units, select_blocks
from specbench.measure.wording import Occasion, put_in_words
from specbench.records import (
    EQUAL_ARMS,
    INVALID,
    Comparison,
    Effect,
    Gate,
    LookRecord,
    Pooled,
    RequestRecord,
    TrialRecord,
)
from specbench.scenario.plan import RunPlan, settings_of
from specbench.stats.equivalence import log_margin
from specbench.stats.estimate import Estimate, Interval, to_percent
from specbench.stats.multiplicity import holm, holm_levels
from specbench.stats.paired import summarize_pairs
from specbench.stats.pooled import PooledEffect, pool_points
from specbench.stats.sequential import Bound
from specbench.stats.verdict import WIDEST_HALF_WIDTH, decide

__all__ = ["compare", "compare_studies", "due_look", "make_studies", "take_look"]

INTERRUPTED = "interrupted"


def compare(
    plan: RunPlan,
    trials: Iterable[TrialRecord],
    requests: Iterable[RequestRecord],
    looks: Sequence[LookRecord],
    status: str = "complete",
) -> tuple[list[Comparison], list[Pooled]]:
    """Every comparison of an ``ab`` plan, and the pooled effect of each candidate over the points of a sweep.

    :param status: how measuring ended: ``complete`` or ``interrupted``.
    :raises InputError: the plan compares nothing.
    :raises ResultsError: a trial names steps that it does not have.
    """
    return compare_studies(plan, make_studies(plan, trials, requests, looks), status)


def make_studies(
    plan: RunPlan,
    trials: Iterable[TrialRecord],
    requests: Iterable[RequestRecord],
    looks: Sequence[LookRecord],
) -> list[Study]:
    """What was measured of each comparison."""
    by_trial: dict[tuple[int, int], list[RequestRecord]] = {}
    for request in requests:
        by_trial.setdefault((request.trial, request.attempt), []).append(request)
    blocks = select_blocks(plan, trials)
    return [
        Study(
            comparison=comparison,
            blocks=blocks[comparison.index],
            units=gather_units(blocks[comparison.index], comparison.design),
            requests=[
                request
                for block in blocks[comparison.index]
                for trial in block.trials
                for request in by_trial.get((trial.trial, trial.attempt), [])
            ],
            looks=[look for look in looks if look.comparison == comparison.index],
        )
        for comparison in plan.comparisons
    ]


def compare_studies(plan: RunPlan, studies: Sequence[Study], status: str) -> tuple[list[Comparison], list[Pooled]]:
    """As :func:`compare`, from units."""
    settings = settings_of(plan)
    findings = [_find(plan, study) for study in studies]
    if not findings:
        return [], []
    alpha = 1 - settings.confidence
    differences, equivalences = [f.p_difference for f in findings], [f.p_equivalence for f in findings]
    adjusted = holm(differences)
    levels = zip(holm_levels(differences, alpha), holm_levels(equivalences, alpha), strict=True)
    found = [replace(f, p_holm=p, levels=pair) for f, p, pair in zip(findings, adjusted, levels, strict=True)]
    trust = gate_aa([f.p_difference for f in found if f.study.comparison.role == EQUAL_ARMS], alpha)
    comparisons = [_conclude(plan, finding, trust, status) for finding in found]
    return comparisons, _pool(plan, comparisons, found)


def _find(plan: RunPlan, study: Study) -> Finding:
    """What the latest look saw: nothing is claimed yet."""
    index = study.comparison.index
    units = seen_at(plan, study.units, study.looks[-1].units) if study.looks else study.units
    tokens = judge_tokens(plan, study.comparison, study.blocks, units)
    taken = LooksTaken.of(study.looks)
    finding = Finding(study=study, units=units, tokens=tokens, taken=taken)
    if not len(units) or tokens.unusable:
        return finding
    pairs = units.pair(tokens.metric)
    effect = estimate_units_of(pairs.log_ratios, units.process)
    summary = summarize_pairs(pairs, groups=units.process, confidence=settings_of(plan).confidence)
    difference = equivalence = None
    if study.looks:
        margin = log_margin(settings_of(plan).margin)
        difference, equivalence = p_values(plan, index, taken, effect.estimate, margin)
    return replace(
        finding,
        log_ratios=pairs.log_ratios,
        summary=summary,
        effect=effect,
        p_difference=difference,
        p_equivalence=equivalence,
    )


def _conclude(plan: RunPlan, finding: Finding, trust: Gate, status: str) -> Comparison:
    study, settings = finding.study, settings_of(plan)
    gates = judge_comparison(
        Judged(
            Witnessed(study.comparison, study.blocks, study.requests),
            finding.units,
            finding.tokens,
            finding.log_ratios,
            finding.summary,
        )
    )
    gates += [] if study.comparison.role == EQUAL_ARMS else [trust]
    reasons = tuple(f"{gate.name}: {gate.detail}" for gate in gates if gate.status == "fail")
    bound = _bound(plan, finding)
    decision = None
    if finding.effect is not None:
        decision = decide(
            finding.effect.estimate,
            bound,
            margin=settings.margin,
            invalid_reasons=reasons,
            output_changed=finding.tokens.output_changed,
        )
    comparison = fill_comparison(plan, finding, bound, decision, gates, reasons)
    occasion = Occasion(
        family_size=len(plan.comparisons),
        last_look=study.looks[-1] if study.looks else None,
        planned_end=planned_end(plan, study.comparison.index),
        counts_processes=settings.processes > 1,
        is_interrupted=status == INTERRUPTED,
        injected=study.comparison.injected,
        num_starts=study.num_starts,
        warning=plan.calibration.get("warning"),
    )
    return replace(comparison, in_words=put_in_words(comparison, occasion))


def _bound(plan: RunPlan, finding: Finding) -> Bound:
    index, (difference, equivalence) = finding.study.comparison.index, finding.levels
    if not finding.study.looks:
        return NoBound(final_bound(plan, index, difference, equivalence))
    return bound_of(plan, index, finding.taken, difference, equivalence)


def _pool(plan: RunPlan, comparisons: Sequence[Comparison], findings: Sequence[Finding]) -> list[Pooled]:
    """One effect a candidate over the points of a sweep, where there are two or more.

    Its interval is that of one look: see :func:`specbench.measure.looks.stops_early`.
    """
    valid = {c.index: f for c, f in zip(comparisons, findings, strict=True) if c.verdict != INVALID}
    pooled = []
    for (baseline, candidate), members in pooled_families(plan).items():
        usable = [finding for index in members if (finding := valid.get(index)) and finding.effect]
        if len(usable) > 1:
            estimates = [finding.effect.estimate for finding in usable if finding.effect]
            found = pool_points(estimates, settings_of(plan).confidence)
            if not all(finding.study.looks for finding in usable):
                reason = "points have not been looked at yet, so an interval would be one look too many"
                missing = {"interval": reason, "general_interval": reason}
                found = replace(found, interval=None, general_interval=None, not_computed=missing)
            pooled.append(_describe_pool(baseline, candidate, found, len(members) - len(usable)))
    return pooled


def _describe_pool(baseline: str, candidate: str, found: PooledEffect, left_out: int) -> Pooled:
    missing = dict(found.not_computed)
    if left_out:
        missing["points"] = f"{left_out} of {left_out + found.num_points} are not in it: INVALID, or not measured"
    spread = found.heterogeneity
    for name, interval in (("interval", found.interval), ("general_interval", found.general_interval)):
        if interval is not None and interval.half_width > WIDEST_HALF_WIDTH:
            missing[name] = "it reaches beyond a factor of ten to each side"
    return Pooled(
        baseline=baseline,
        candidate=candidate,
        n_points=found.num_points,
        these_points=_effect(found.these_points, found.interval),
        in_general=_effect(found.in_general, found.general_interval),
        heterogeneity=None
        if spread is None
        else {"cochran_q": spread.cochran_q, "p_value": spread.p_value, "i_squared": spread.i_squared},
        sign_positive=found.signs.positive,
        sign_negative=found.signs.negative,
        sign_p=found.signs.p_value,
        not_computed=missing,
    )


def _effect(estimate: Estimate, interval: Interval | None) -> Effect:
    if interval is None or interval.half_width > WIDEST_HALF_WIDTH:
        return Effect(to_percent(estimate.mean), None, None)
    return Effect(to_percent(estimate.mean), interval.low_pct, interval.high_pct)
