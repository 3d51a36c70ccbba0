"""The figures of each configuration in an ``ab``: of whole runs as ``run`` has them, of mirrored passes by arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specbench.measure import telemetry
from specbench.measure.analysis import (
    acceptance_figures,
    by_batch_size,
    common_hash,
    compute_point,
    coordinates_of,
    request_figures,
    step_time_figures,
    sum_times,
)
from specbench.measure.counters import add_counts, choose_counts, chosen_variants
from specbench.measure.findings import Study
from specbench.measure.telemetry import StepTimes
from specbench.measure.unit_table import ArmUnits, IntArray
from specbench.measure.windows import CANDIDATE, Windows, steps_in, windows_of
from specbench.records import Point, StepTable, ToggleCounts, TrialRecord
from specbench.scenario.plan import MIRRORED, PlanPoint, RunPlan

ACCEPTANCE_COLUMNS = ("num_committed", "num_target_steps", "drafted", "eligible", "opened", "accepted")


def compute_points(plan: RunPlan, studies: Sequence[Study]) -> list[Point]:
    """One point a configuration that was measured, in plan order. A baseline is pooled over its comparisons."""
    points = []
    for point in plan.points:
        runs = [
            (study, [trial for trial in study.trials if trial.point == point.index])
            for study in studies
            if study.comparison.design != MIRRORED
        ]
        trials = [trial for _, found in runs for trial in found]
        if trials:
            requests = [request for study, found in runs if found for request in study.requests]
            points.append(compute_point(trials, requests, point))
            continue
        arms = [
            (study, arm)
            for study in studies
            for arm, index in enumerate((study.comparison.baseline, study.comparison.candidate))
            if study.comparison.design == MIRRORED and index == point.index and study.blocks
        ]
        if arms:
            points.append(_mirrored_point(point, arms))
    return points


def _mirrored_point(point: PlanPoint, arms: Sequence[tuple[Study, int]]) -> Point:
    """Of the periods that ran this configuration. Its requests were served by both arms, so they have no latencies."""
    pieces = [(trial, arm) for study, arm in arms for trial in study.trials]
    halves = [_ArmOfPass(trial, arm) for trial, arm in pieces]
    requests = {id(request): request for study, _ in arms for request in study.requests}
    own = [study.units.candidate if arm == CANDIDATE else study.units.baseline for study, arm in arms]
    steps, tokens, wall_ns = (sum(int(getattr(a, name).sum()) for a in own) for name in ("steps", "tokens", "time_ns"))
    first = pieces[0][0]
    return Point(
        **{**coordinates_of(first), **_planned(point)},
        status="complete",
        trials=len({(trial.trial, trial.attempt) for trial, _ in pieces}),
        **request_figures(list(requests.values())),
        steps=steps,
        committed_tokens=tokens,
        wall_s=wall_ns / 1e9,
        output_tokens_per_s=tokens / wall_ns * 1e9 if wall_ns else None,
        **acceptance_figures(telemetry.count_acceptance(half.acceptance_table() for half in halves)),
        **step_time_figures(sum_times([_times_of(units) for units in own]), wall_ns, steps),
        ranges=telemetry.describe_ranges(_gather([half.range_durations() for half in halves])),
        tokens_sha256=common_hash([trial for trial, _ in pieces]),
        axes=dict(point.coordinates),
        counters=_counters_of(arms),
    )


def _counters_of(arms: Sequence[tuple[Study, int]]) -> ToggleCounts:
    """Of the variants that one configuration has: its passes ran those of the other arm, too."""
    chosen: dict[str, str] = {}
    for study, arm in arms:
        chosen |= chosen_variants(study.comparison)[arm]
    return choose_counts(add_counts(trial.counters for study, _ in arms for trial in study.trials), chosen)


def _planned(point: PlanPoint) -> dict[str, Any]:
    """The candidate's own place: a pass carries the baseline's."""
    known = ("concurrency", "draft_len", "isl", "osl")
    return {
        "point": point.index,
        "variant": point.variant,
        **{name: point.axes[name] for name in known if name in point.axes},
        **by_batch_size(point.axes),
    }


def _times_of(units: ArmUnits) -> StepTimes | None:
    """Where the time of one arm of a comparison went; None where it is not known."""
    if not units.parts_ns:
        return None
    parts = {name: int(values.sum()) for name, values in units.parts_ns.items()}
    return StepTimes(wall=int(units.time_ns.sum()), steps=int(units.steps.sum()), **parts)


def _gather(found: Sequence[Mapping[str, IntArray]]) -> dict[str, list[IntArray]]:
    gathered: dict[str, list[IntArray]] = {}
    for durations in found:
        for name, values in durations.items():
            gathered.setdefault(name, []).append(values)
    return gathered


class _ArmOfPass:
    """The periods of one arm in one pass."""

    def __init__(self, trial: TrialRecord, arm: int) -> None:
        self.trial = trial
        every = windows_of(trial)
        mine = every.arm == arm
        self.windows = Windows(*(getattr(every, name)[mine] for name in Windows.__dataclass_fields__))
        self._steps = steps_in(self.windows)[0].tolist()

    def acceptance_table(self) -> StepTable:
        columns = self.trial.steps.columns
        known = [name for name in ACCEPTANCE_COLUMNS if columns.get(name)]
        return StepTable({name: [columns[name][i] for i in self._steps] for name in known})

    def range_durations(self) -> dict[str, IntArray]:
        """Range -> lengths of those that began in a period of the arm, in nanoseconds."""
        found = {}
        for name, times in self.trial.ranges.items():
            start, end = (np.asarray(values, dtype=np.int64) for values in (times.start_ns, times.end_ns))
            place = np.searchsorted(self.windows.start_ns, start, side="right") - 1
            inside = (place >= 0) & (start < self.windows.end_ns[np.maximum(place, 0)])
            if inside.any():
                found[name] = (end - start)[inside]
        return found
