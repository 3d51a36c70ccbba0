"""Looks at a comparison while it runs: when one is due, what it saw, and whether more units are asked for.

A look is at units, in plan order; where several fresh processes measure, at processes. What each may claim is fixed
before the first unit: see :mod:`specbench.stats.sequential`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specbench.measure.effects import estimate_units_of
from specbench.measure.token_rules import judge_tokens
from specbench.measure.unit_table import IntArray, UnitTable
from specbench.measure.units import gather_units, select_blocks
from specbench.records import CANDIDATE, PLANNED, LookRecord, TrialRecord
from specbench.scenario.enumeration import planned_units
from specbench.scenario.plan import RunPlan, settings_of
from specbench.stats.estimate import Estimate
from specbench.stats.processes import MIN_PROCESSES
from specbench.stats.sequential import AnytimeBound, Bound, LookPlan, plan_looks, single_look
from specbench.stats.verdict import Verdict, decide

MIN_UNITS = 2
"""Units of a process without which it has no noise to estimate, and counts at no look."""


def pooled_families(plan: RunPlan) -> dict[tuple[str, str], list[int]]:
    """(baseline, candidate) -> its comparisons at the points of a sweep, pooled into one effect; two at least."""
    families: dict[tuple[str, str], list[int]] = {}
    for comparison in plan.comparisons:
        baseline, candidate = plan.points[comparison.baseline], plan.points[comparison.candidate]
        if comparison.role == CANDIDATE and baseline.coordinates:
            families.setdefault((baseline.variant, candidate.variant), []).append(comparison.index)
    return {names: members for names, members in families.items() if len(members) > 1}


def stops_early(plan: RunPlan) -> bool:
    """May a look end a comparison before its plan or the budget does?

    Not where effects are pooled: a mean over points that each stopped when it looked good has more noise than units of
    a planned number show. Every comparison of such a plan is looked at once, at a moment that only time decides.
    """
    return settings_of(plan).stop_early and not pooled_families(plan)


def has_ended(plan: RunPlan, comparison: int, looks: Iterable[LookRecord]) -> bool:
    """Is no further unit of this comparison to be measured, whatever of its plan is missing?

    :param looks: taken so far, of any comparison.
    """
    settles = stops_early(plan)
    return any(look.is_last or (look.settled and settles) for look in looks if look.comparison == comparison)


def _is_anytime(plan: RunPlan) -> bool:
    """Without early stops there is one look, and nothing that any other could spend."""
    return settings_of(plan).anytime and stops_early(plan)


def family_alpha(plan: RunPlan) -> float:
    """What one comparison may spend while nothing is known of the others: an equal share (Bonferroni)."""
    return (1 - settings_of(plan).confidence) / max(len(plan.comparisons), 1)


def planned_end(plan: RunPlan, comparison: int) -> int:
    """Units, or processes where there are several, at which a comparison ends."""
    settings = settings_of(plan)
    return settings.processes if settings.processes > 1 else planned_units(plan, comparison)


def make_look_plan(
    plan: RunPlan, comparison: int, alpha: float, equivalence_alpha: float | None = None
) -> LookPlan | None:
    """When to look and what may be spent; None where fewer than two are planned, which one look judges by units."""
    settings, end = settings_of(plan), planned_end(plan, comparison)
    sides = alpha if equivalence_alpha is None else equivalence_alpha
    if end < MIN_UNITS:
        return None
    if not stops_early(plan):
        return LookPlan(end, (end,), alpha, sides)
    looks = plan_looks(end, settings.num_looks, alpha=alpha, equivalence_alpha=sides)
    if settings.processes == 1:
        return looks
    planned = tuple(count for count in looks.look_units if count >= MIN_PROCESSES or count == end)
    return LookPlan(end, planned, alpha, sides)


@dataclass(frozen=True)
class NoBound:
    """Before the first look nothing may be claimed, however many units there are."""

    planning: Bound
    label: str = "no look was taken"

    @property
    def confidence(self) -> float:
        """That of the looks to come."""
        return self.planning.confidence

    def difference_critical(self, df: float) -> float:  # noqa: ARG002
        """No interval."""
        return math.inf

    def equivalence_critical(self, df: float) -> float:  # noqa: ARG002
        """No equivalence."""
        return math.inf


@dataclass(frozen=True)
class LooksTaken:
    """The looks of one comparison so far.

    :param counts: units (processes) at each, rising; ``is_last`` the latest of them spent all that was left.
    """

    counts: tuple[int, ...]
    is_last: bool

    @classmethod
    def of(cls, looks: Sequence[LookRecord]) -> LooksTaken:
        """From the records of one comparison, in order. A look at what the one before saw takes its place: that one
        decided nothing, and this one is the last.
        """
        counts: list[int] = []
        for look in looks:
            counts = [count for count in counts if count < look.units]
            if look.units >= MIN_UNITS:
                counts.append(look.units)
        return cls(tuple(counts), bool(looks) and looks[-1].is_last)


def bound_of(
    plan: RunPlan, comparison: int, taken: LooksTaken, alpha: float, equivalence_alpha: float | None = None
) -> Bound:
    """What the latest look of ``taken`` may claim."""
    sides = alpha if equivalence_alpha is None else equivalence_alpha
    if _is_anytime(plan):
        return AnytimeBound(alpha, equivalence_alpha=sides)
    looks = make_look_plan(plan, comparison, alpha, sides)
    if looks is None or not taken.counts:
        return single_look(alpha=alpha, equivalence_alpha=sides)
    return looks.bound(taken.counts, is_last=taken.is_last)


def final_bound(plan: RunPlan, comparison: int, alpha: float, equivalence_alpha: float) -> Bound:
    """What the last planned look may claim: what is reckoned with before any look."""
    looks = make_look_plan(plan, comparison, alpha, equivalence_alpha)
    counts = looks.look_units if looks else ()
    return bound_of(plan, comparison, LooksTaken(counts, True), alpha, equivalence_alpha)


def p_values(
    plan: RunPlan, comparison: int, taken: LooksTaken, estimate: Estimate, margin: float
) -> tuple[float | None, float | None]:
    """p of no difference and p of an effect outside ``margin`` (log points), each over all looks taken."""
    alpha = family_alpha(plan)
    if _is_anytime(plan):
        bound = AnytimeBound(alpha)
        return bound.p_over_looks(estimate), bound.equivalence_p(estimate, margin)
    difference = estimate.p_value()
    below, above = estimate.upper_p(-margin), estimate.lower_p(margin)
    if difference is None or below is None or above is None:
        return None, None
    looks = make_look_plan(plan, comparison, alpha)
    if looks is None or not taken.counts:
        return difference, max(below, above)
    counts, last = taken.counts, taken.is_last
    return (
        looks.p_over_looks(counts, difference, is_last=last),
        looks.p_over_looks(counts, max(below, above), is_last=last, two_sided=False),
    )


def countable(plan: RunPlan, units: UnitTable) -> int:
    """Units that a look would see now, or processes with units enough to count."""
    if settings_of(plan).processes == 1:
        return len(units)
    return int(_counting_processes(units).size)


def seen_at(plan: RunPlan, units: UnitTable, count: int) -> UnitTable:
    """The units that a look at ``count`` units (processes) saw."""
    if settings_of(plan).processes == 1:
        return units.take(np.arange(len(units)) < count)
    return units.take(np.isin(units.process, _counting_processes(units)[:count]))


def _counting_processes(units: UnitTable) -> IntArray:
    numbers, counts = np.unique(units.process, return_counts=True)
    enough = counts >= MIN_UNITS
    return numbers[enough] if enough.any() else numbers


def due_look(plan: RunPlan, comparison: int, num_units: int, previous: Iterable[LookRecord]) -> bool:
    """Is a look due now?

    :param num_units: units of the comparison that are measured; complete processes where several are planned.
    :param previous: looks taken so far, of any comparison.
    """
    settings, end = settings_of(plan), planned_end(plan, comparison)
    mine = [look for look in previous if look.comparison == comparison]
    seen = mine[-1].units if mine else 0
    if has_ended(plan, comparison, mine) or num_units <= seen:
        return False
    if num_units >= end:
        return True
    if _is_anytime(plan):
        return num_units >= (MIN_UNITS if settings.processes == 1 else MIN_PROCESSES)
    looks = make_look_plan(plan, comparison, family_alpha(plan))
    return looks is not None and any(seen < count <= num_units for count in looks.look_units)


def take_look(
    plan: RunPlan,
    comparison: int,
    trials: Iterable[TrialRecord],
    previous: Iterable[LookRecord],
    *,
    is_last: bool = False,
    reason: str = PLANNED,
) -> LookRecord:
    """Look at everything that is measured of a comparison.

    :param previous: looks taken so far, of any comparison.
    :param is_last: no unit follows whatever is seen: all alpha left is spent. So it is at the last planned unit.
    :return: with a mean of 0 and no interval where nothing was measured.
    """
    settings, planned = settings_of(plan), plan.comparisons[comparison]
    mine = [look for look in previous if look.comparison == comparison]
    blocks = select_blocks(plan, trials, comparison)[comparison]
    every = gather_units(blocks, planned.design, details=False)
    count = countable(plan, every)
    ends = is_last or count >= planned_end(plan, comparison)
    record = LookRecord(
        comparison, len(mine) + 1, count, ends, Verdict.INCONCLUSIVE.value, 0.0, None, None, False, reason
    )
    if not len(every):
        return record
    units = seen_at(plan, every, count)
    tokens = judge_tokens(plan, planned, blocks, units)
    if tokens.unusable:
        return replace(record, verdict=Verdict.INVALID.value, settled=True)
    estimate = estimate_units_of(units.pair(tokens.metric).log_ratios, units.process).estimate
    taken = LooksTaken.of([*mine, record])
    decision = decide(
        estimate,
        bound_of(plan, comparison, taken, family_alpha(plan)),
        margin=settings.margin,
        invalid_reasons=tokens.invalid_reasons,
        output_changed=tokens.output_changed,
    )
    interval = decision.interval
    return replace(
        record,
        verdict=decision.verdict.value,
        mean=estimate.mean,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        settled=decision.is_settled,
    )
