"""What is known of a comparison while it runs: for people who wait, never for a decision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specbench.engine.optimizations.base import Exactness
from specbench.engine.optimizations.defects import KNOWN_DEFECT
from specbench.measure.blocks import complete_attempt, group_by_trial, list_blocks
from specbench.measure.observers import ComparisonProgress
from specbench.measure.units import gather_units, select_blocks
from specbench.records import LookRecord, TrialRecord
from specbench.scenario.plan import RunPlan
from specbench.stats.estimate import estimate_units, to_percent
from specbench.stats.verdict import Verdict


def measured_units(plan: RunPlan, comparison: int, trials: Iterable[TrialRecord], process: int | None = None) -> int:
    """Units of a comparison that are on disk; those of one process, or all."""
    by_trial = group_by_trial(trials)
    mine = (block for block in list_blocks(plan, process) if block.comparison == comparison)
    return sum(block.units for block in mine if complete_attempt(block, by_trial) is not None)


def _verdict_so_far(exactness: str, looks: Sequence[LookRecord]) -> str | None:
    """Of a known defect it is no faster and no slower one: whatever its speed, nothing will be claimed of it."""
    verdict = looks[-1].verdict if looks else None
    settled = verdict is not None and verdict != Verdict.INCONCLUSIVE.value
    return KNOWN_DEFECT if settled and exactness == Exactness.KNOWN_DEFECT.value else verdict


def describe_so_far(
    plan: RunPlan, comparison: int, trials: Iterable[TrialRecord], looks: Sequence[LookRecord]
) -> ComparisonProgress:
    """Units so far with a plain t interval, and the verdict of the latest look."""
    planned = plan.comparisons[comparison]
    names = [plan.points[point].variant for point in (planned.baseline, planned.candidate)]
    label = f"{names[1]} against {names[0]}"
    coordinates = plan.points[planned.candidate].coordinates
    if coordinates:
        label += f" ({', '.join(f'{key}={value}' for key, value in coordinates.items())})"
    verdict = _verdict_so_far(planned.exactness, looks)
    units = gather_units(select_blocks(plan, trials, comparison)[comparison], planned.design, details=False)
    if not len(units):
        return ComparisonProgress(label, 0, verdict=verdict)
    estimate = estimate_units(units.pair("time" if units.equal_tokens else "throughput").log_ratios)
    interval = estimate.interval()
    return ComparisonProgress(
        label,
        len(units),
        to_percent(estimate.mean),
        interval.low_pct if interval else None,
        interval.high_pct if interval else None,
        verdict,
    )
