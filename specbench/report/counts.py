"""What the toggles' variants counted of their own work, a step: copies, bytes, steps that needed nothing."""

from __future__ import annotations

from math import floor, log10

from specbench.records import Comparison, Point, ToggleCounts, VariantCounts
from specbench.report.layout import Cell, Quantity, Table

TITLE = "Counted by toggles"
NOTE = "over the timed steps; docs/optimizations says what each counts"
_FEW_DECIMALS = 3


def point_counts(point: Point) -> Table | None:
    """A row a toggle: the variant that stood, and what it counted."""
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (toggle, variant, _in_words(counted))
        for toggle, variants in point.counters.items()
        for variant, counted in variants.items()
        if counted.steps
    )
    return Table(TITLE, ("", "variant", "a step"), rows, note=NOTE, folded=True) if rows else None


def _in_words(counted: VariantCounts) -> str:
    return ", ".join(f"{_quantity(counted.per_step(name)).number} {name}" for name in counted.counts)


def comparison_counts(comparison: Comparison) -> Table | None:
    """A row a counter of every toggle whose variant differs between the arms; a dash where one does not count it."""
    before, after = (comparison.counters.get(arm, {}) for arm in ("baseline", "candidate"))
    rows: list[tuple[Cell, ...]] = []
    for toggle in dict.fromkeys([*before, *after]):
        arms = [_of_toggle(counters, toggle) for counters in (before, after)]
        if arms[0][0] == arms[1][0]:
            continue
        names = dict.fromkeys(name for _, counted in arms for name in counted.counts)
        rows += [(f"{toggle}: {name}", *(_quantity(counted.per_step(name)) for _, counted in arms)) for name in names]
    if not rows:
        return None
    return Table(f"{TITLE}, a step", ("", "baseline", "candidate"), tuple(rows), note=NOTE, folded=True)


def _of_toggle(counters: ToggleCounts, toggle: str) -> tuple[str | None, VariantCounts]:
    """An arm's variant and what it counted; none and nothing where the arm does not tell."""
    return next(iter(counters.get(toggle, {}).items()), (None, VariantCounts(0, {})))


def _quantity(value: float | None) -> Quantity:
    """Whole numbers as they are; others to three decimals, or to the first figure that is not 0."""
    if value is None or value == round(value):
        return Quantity(value, decimals=0)
    decimals = _FEW_DECIMALS if abs(value) >= 10**-_FEW_DECIMALS else -floor(log10(abs(value)))
    return Quantity(value, decimals=decimals if abs(value) < 100 else 1)
