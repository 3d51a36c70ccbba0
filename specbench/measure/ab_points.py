"""The figures of each configuration in an ``ab``: of whole runs as ``run`` has them, of mirrored passes by arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specbench.measure import telemetry
from specbench.measure.analysis import common_hash, compute_point, coordinates_of, sum_times
from specbench.measure.findings import Study
from specbench.measure.telemetry import StepTimes
from specbench.measure.unit_table import IntArray
from specbench.measure.windows import Windows, split_time, steps_in, windows_of
from specbench.records import Point, RequestRecord, StepTable, TrialRecord
from specbench.scenario.plan import MIRRORED, PlanPoint, RunPlan

ACCEPTANCE_COLUMNS = ("num_committed", "num_target_steps", "drafted", "eligible", "opened", "accepted")


def compute_points(plan: RunPlan, studies: Sequence[Study]) -> list[Point]:
    """One point a configuration that was measured, in plan order. A baseline is pooled over its comparisons."""
    points = []
    for point in plan.points:
        runs = [
            (study, [t for block in study.blocks for t in block.trials if t.point == point.index])
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
    pieces = [(trial, arm) for study, arm in arms for block in study.blocks for trial in block.trials]
    halves = [_ArmOfPass(trial, arm) for trial, arm in pieces]
    requests = {id(request): request for study, _ in arms for request in study.requests}
    accepted = telemetry.count_acceptance(half.acceptance_table() for half in halves)
    times = sum_times([half.times() for half in halves])
    steps, tokens = sum(half.num_steps for half in halves), sum(half.tokens() for half in halves)
    wall_ns = sum(half.wall_ns for half in halves)
    first = pieces[0][0]
    counts = {name: list(getattr(accepted, name)) for name in ("drafted", "eligible", "opened", "accepted")}
    counts |= {"committed": [accepted.committed], "target_steps": [accepted.target_steps]}
    return Point(
        **{**coordinates_of(first), **_planned(point)},
        status="complete",
        trials=len({(trial.trial, trial.attempt) for trial, _ in pieces}),
        **_request_figures(list(requests.values())),
        steps=steps,
        committed_tokens=tokens,
        wall_s=wall_ns / 1e9,
        output_tokens_per_s=tokens / wall_ns * 1e9 if wall_ns else None,
        acceptance_length=accepted.length,
        conditional_acceptance=accepted.conditional,
        joint_acceptance=accepted.joint,
        acceptance_counts=counts,
        **_component_figures(times, wall_ns, steps),
        ranges=telemetry.describe_ranges(_gather([half.range_durations() for half in halves])),
        tokens_sha256=common_hash([trial for trial, _ in pieces]),
        axes=dict(point.coordinates),
    )


def _planned(point: PlanPoint) -> dict[str, Any]:
    """The candidate's own place: a pass carries the baseline's."""
    known = ("concurrency", "draft_len", "isl", "osl")
    return {
        "point": point.index,
        "variant": point.variant,
        **{name: point.axes[name] for name in known if name in point.axes},
    }


def _request_figures(requests: Sequence[RequestRecord]) -> dict[str, Any]:
    return {
        "requests": len(requests),
        "failed_requests": sum(request.finish_reason == "error" for request in requests),
        "prompt_tokens": sum(request.prompt_tokens for request in requests),
    }


def _component_figures(times: StepTimes | None, wall_ns: int, steps: int) -> dict[str, Any]:
    if times is None:
        return {"step_ms": wall_ns / steps / 1e6 if steps else None}
    names = {"step_ms": "wall", "device_ms": "device", "host_total_ms": "host_total"}
    names |= {"host_exposed_ms": "host_exposed", "other_idle_ms": "other_idle"}
    return {key: times.per_step_ms(name) for key, name in names.items()}


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
        self.num_steps = int(self.windows.num_steps.sum())
        self.wall_ns = int((self.windows.end_ns - self.windows.start_ns).sum())
        self._steps = steps_in(self.windows)[0].tolist()

    def tokens(self) -> int:
        columns = self.trial.steps.columns
        return sum(columns["num_committed"][i] + columns["num_first_tokens"][i] for i in self._steps)

    def acceptance_table(self) -> StepTable:
        columns = self.trial.steps.columns
        known = [name for name in ACCEPTANCE_COLUMNS if columns.get(name)]
        return StepTable({name: [columns[name][i] for i in self._steps] for name in known})

    def times(self) -> StepTimes | None:
        parts = split_time(self.trial, self.windows)
        if not parts:
            return None
        return StepTimes(
            wall=self.wall_ns, steps=self.num_steps, **{name: int(values.sum()) for name, values in parts.items()}
        )

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
