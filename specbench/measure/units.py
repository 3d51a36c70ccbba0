"""Units of analysis as arrays: from blocks of trials to one row a quad, or a row for four runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np
import numpy.typing as npt

from specbench.measure.blocks import complete_attempt, group_by_trial, list_blocks
from specbench.measure.unit_table import ARM_COLUMNS, ArmUnits, FloatArray, UnitTable
from specbench.measure.windows import (
    BASELINE,
    CANDIDATE,
    IntArray,
    Windows,
    count_tokens,
    split_time,
    time_ranges,
    time_steps,
    windows_of,
)
from specbench.records import TrialRecord
from specbench.scenario.plan import MIRRORED, RUNS, RunPlan

WINDOWS_PER_ARM = {MIRRORED: 4, RUNS: 2}
"""Windows of one arm in a unit: two periods in each of two passes, or two runs."""


@dataclass(frozen=True)
class MeasuredBlock:
    """The trials of one block, all of one attempt, in plan order."""

    process: int
    segment: int
    trials: tuple[TrialRecord, ...]


def select_blocks(
    plan: RunPlan, trials: Iterable[TrialRecord], only: int | None = None
) -> dict[int, list[MeasuredBlock]]:
    """Comparison -> the blocks that count, in plan order: of each, the first attempt that measured all of it.

    :param only: the one comparison that is asked for; None: all.
    """
    by_trial = group_by_trial(trials)
    found: dict[int, list[MeasuredBlock]] = {comparison.index: [] for comparison in plan.comparisons}
    for block in list_blocks(plan):
        if only not in (None, block.comparison) or block.trials[0].trial not in by_trial:
            continue
        records = complete_attempt(block, by_trial)
        if records is not None:
            found[block.comparison].append(MeasuredBlock(block.process, block.segment, tuple(records)))
    return found


def gather_units(blocks: Sequence[MeasuredBlock], design: str, *, details: bool = True) -> UnitTable:
    """One row a unit; a quad that lacks a period is left out.

    :param details: False leaves out components, ranges and single steps, which a look does not need.
    :raises ResultsError: a trial names steps that it does not have.
    """
    rows = _Rows()
    for block in blocks:
        rows.add_block(block, details)
    whole = rows.whole_units(WINDOWS_PER_ARM[design])
    return rows.table().take(whole)


@dataclass(frozen=True)
class _Unit:
    """Place and beginning of one unit; ``leads``: the baseline ran first."""

    process: int
    segment: int
    leads: bool
    began_s: float


class _Rows:
    """Windows of all trials, in the order of measurement; summed by unit and arm at the end."""

    def __init__(self) -> None:
        self.num_units = 0
        self._keys: list[IntArray] = []
        self._columns: dict[str, list[IntArray]] = {}
        self._sparse: dict[tuple[str, str], list[tuple[IntArray, IntArray]]] = {}
        self._steps: list[tuple[IntArray, IntArray]] = []
        self._units: list[_Unit] = []
        self._lanes: dict[str, str] = {}
        self._without_parts = False

    def add_block(self, block: MeasuredBlock, details: bool) -> None:
        first = self.num_units
        for trial in block.trials:
            windows = windows_of(trial)
            keys = (first + windows.quad) * 2 + windows.arm
            self._keys.append(keys)
            if trial is block.trials[0]:
                self._describe_units(block, trial, windows)
            columns = {"time_ns": windows.end_ns - windows.start_ns, "steps": windows.num_steps}
            for name, values in {**columns, **count_tokens(trial, windows)}.items():
                self._columns.setdefault(name, []).append(values)
            if details:
                self._add_details(trial, windows, keys)
        self.num_units = len(self._units)

    def _describe_units(self, block: MeasuredBlock, trial: TrialRecord, windows: Windows) -> None:
        began = _seconds(trial.started_utc)
        for quad in range(int(windows.quad.max(initial=-1)) + 1):
            own = np.flatnonzero(windows.quad == quad)
            start_ns = int(windows.start_ns[own[0]]) if own.size else 0
            leads = bool(own.size) and bool(windows.arm[own[0]] == BASELINE)
            self._units.append(_Unit(block.process, block.segment, leads, began + start_ns / 1e9))

    def _add_details(self, trial: TrialRecord, windows: Windows, keys: IntArray) -> None:
        parts = split_time(trial, windows)
        self._without_parts |= not parts
        for kind, found in (("parts", parts), ("ranges", time_ranges(trial, windows))):
            for name, values in found.items():
                self._sparse.setdefault((kind, name), []).append((keys, values))
        self._lanes |= {name: times.lane for name, times in trial.ranges.items()}
        times, owner = time_steps(trial, windows)
        self._steps.append((times, keys[owner]))

    def whole_units(self, windows_per_arm: int) -> npt.NDArray[np.bool_]:
        counts = np.bincount(_joined(self._keys), minlength=2 * self.num_units)
        whole: npt.NDArray[np.bool_] = (counts.reshape(-1, 2) == windows_per_arm).all(axis=1)
        return whole

    def table(self) -> UnitTable:
        """Every unit, whole or not."""
        keys = _joined(self._keys)
        columns = {name: self._sum(keys, _joined(values)) for name, values in self._columns.items()}
        columns |= {name: np.zeros((self.num_units, 2)) for name in ARM_COLUMNS if name not in columns}
        parts, ranges = ({} if self._without_parts else self._sums_of("parts")), self._sums_of("ranges")
        times, owner = _joined([t for t, _ in self._steps]), _joined([o for _, o in self._steps])
        arms = [
            ArmUnits(
                **{name: values[:, arm] for name, values in columns.items()},
                parts_ns={name: values[:, arm] for name, values in parts.items()},
                ranges_ns={name: values[:, arm] for name, values in ranges.items()},
                step_ns=times[owner % 2 == arm].astype(np.float64),
                step_unit=owner[owner % 2 == arm] // 2,
            )
            for arm in (BASELINE, CANDIDATE)
        ]
        start = np.maximum.accumulate(np.array([unit.began_s for unit in self._units], dtype=np.float64))
        return UnitTable(
            baseline=arms[BASELINE],
            candidate=arms[CANDIDATE],
            process=np.array([unit.process for unit in self._units], dtype=np.int64),
            segment=np.array([unit.segment for unit in self._units], dtype=np.int64),
            starts_with_baseline=np.array([unit.leads for unit in self._units], dtype=bool),
            start_s=start - start[:1],
            lanes=self._lanes,
        )

    def _sum(self, keys: IntArray, values: IntArray) -> FloatArray:
        """[units, 2] sums of ``values`` by unit and arm."""
        sums: FloatArray = np.asarray(np.bincount(keys, values, 2 * self.num_units), dtype=np.float64)
        return sums.reshape(-1, 2)

    def _sums_of(self, kind: str) -> dict[str, FloatArray]:
        found = {name: pairs for (of, name), pairs in self._sparse.items() if of == kind}
        return {
            name: self._sum(_joined([keys for keys, _ in pairs]), _joined([values for _, values in pairs]))
            for name, pairs in found.items()
        }


def _joined(arrays: Sequence[IntArray]) -> IntArray:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)


def _seconds(started_utc: str) -> float:
    """Seconds since the epoch; 0 for what is not a time."""
    try:
        moment = datetime.strptime(started_utc, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return 0.0
    return moment.replace(tzinfo=timezone.utc).timestamp()
