"""What the variants of each toggle counted in a measured window: readings at its ends, and their difference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from specbench.records import ToggleCounts, TrialRecord, VariantCounts
from specbench.scenario.plan import TOGGLES, ComparisonPlan


@dataclass(frozen=True)
class CounterReading:
    """What has been counted since the engine was built.

    :param variants: toggle -> the variant that stands now.
    :param counts: toggle -> variant -> counter -> value.
    """

    variants: Mapping[str, str]
    counts: Mapping[str, Mapping[str, Mapping[str, int]]]


Readings = tuple[CounterReading | None, CounterReading | None]
"""At the start and at the end of a window; None where the subject does not tell."""
UNREAD: Readings = (None, None)


def count_between(readings: Readings, steps: int) -> ToggleCounts | None:
    """What the variants that stood counted in a window of ``steps`` steps without a switch; None: not told."""
    before, after = readings
    if before is None or after is None:
        return None
    found: ToggleCounts = {}
    for toggle, variant in after.variants.items():
        since = before.counts.get(toggle, {}).get(variant, {})
        now = after.counts.get(toggle, {}).get(variant, {})
        if now:
            counted = {name: value - since.get(name, 0) for name, value in now.items()}
            found[toggle] = {variant: VariantCounts(steps, counted)}
    return found


def add_counts(items: Iterable[ToggleCounts | None]) -> ToggleCounts | None:
    """All windows together; None where one of them does not tell, or there is none."""
    known = list(items)
    total: ToggleCounts = {}
    for counts in known:
        if counts is None:
            return None
        for toggle, variants in counts.items():
            held = total.setdefault(toggle, {})
            for variant, counted in variants.items():
                held[variant] = _add(held.get(variant, VariantCounts(0, {})), counted)
    return total if known else None


def _add(first: VariantCounts, second: VariantCounts) -> VariantCounts:
    names = dict.fromkeys([*first.counts, *second.counts])
    sums = {name: first.counts.get(name, 0) + second.counts.get(name, 0) for name in names}
    return VariantCounts(first.steps + second.steps, sums)


def choose_counts(counted: ToggleCounts | None, chosen: Mapping[str, str]) -> ToggleCounts:
    """Of each toggle, the variant that a configuration has.

    :param chosen: toggle -> variant; a toggle that is not named had one variant throughout.
    """
    found: ToggleCounts = {}
    for toggle, variants in (counted or {}).items():
        variant = chosen.get(toggle) or (next(iter(variants)) if len(variants) == 1 else None)
        if variant is not None and variant in variants:
            found[toggle] = {variant: variants[variant]}
    return found


def chosen_variants(comparison: ComparisonPlan) -> tuple[dict[str, str], dict[str, str]]:
    """The baseline's and the candidate's variant of each toggle in which they differ."""
    found: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for item in comparison.differences:
        if item.key.startswith(TOGGLES):
            toggle = item.key.removeprefix(TOGGLES)
            found[0][toggle], found[1][toggle] = str(item.baseline), str(item.candidate)
    return found


def count_arms(comparison: ComparisonPlan, trials: Sequence[TrialRecord]) -> dict[str, ToggleCounts]:
    """By arm, what its variants counted in the timed steps of a comparison; an arm that tells nothing left out."""
    arms = zip(("baseline", "candidate"), ("A", "B"), chosen_variants(comparison), strict=True)
    found = {
        name: choose_counts(add_counts(t.counters for t in trials if t.arm in (None, arm)), chosen)
        for name, arm, chosen in arms
    }
    return {name: counts for name, counts in found.items() if counts}
