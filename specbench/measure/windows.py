"""What one trial did in each of its timed windows: the periods of a mirrored pass, or the whole of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specbench.errors import ResultsError
from specbench.measure import intervals, telemetry
from specbench.records import TrialRecord

IntArray = npt.NDArray[np.int64]
BASELINE, CANDIDATE = 0, 1
ARMS = ("A", "B")
COUNTS = ("num_committed", "num_first_tokens", "num_target_steps")


@dataclass(frozen=True, eq=False)
class Windows:
    """Timed windows [w] of a trial.

    :param arm: 0 for the baseline, 1 for the candidate; ``quad`` the unit within the trial's block.
    :param first_step: index into the trial's step table; ``num_steps`` belong to the window.
    """

    arm: IntArray
    quad: IntArray
    start_ns: IntArray
    end_ns: IntArray
    first_step: IntArray
    num_steps: IntArray

    def __len__(self) -> int:
        return int(self.arm.size)


def windows_of(trial: TrialRecord) -> Windows:
    """The periods of a mirrored pass; for a run, one window that is all of it.

    :raises ResultsError: a window names steps that the trial does not have.
    """
    if trial.arm is not None:
        rows = [(ARMS.index(trial.arm), 0, 0, trial.wall_ns, 0, len(trial.steps))]
    else:
        rows = [(ARMS.index(p.arm), p.quad, p.start_ns, p.end_ns, p.first_step, p.num_steps) for p in trial.periods]
    table = np.array(rows, dtype=np.int64).reshape(-1, 6)
    windows = Windows(*table.T)
    if len(windows) and int((windows.first_step + windows.num_steps).max()) > len(trial.steps):
        raise ResultsError(
            f"trial {trial.trial} has periods beyond its {len(trial.steps)} steps", hint="the file was changed"
        )
    return windows


def count_tokens(trial: TrialRecord, windows: Windows) -> dict[str, IntArray]:
    """By window: ``tokens`` committed in all, ``generated`` by generation requests, ``target_steps`` of these."""
    if len(trial.steps) == 0:  # what was measured tells no steps
        nothing = np.zeros(len(windows), dtype=np.int64)
        return {"tokens": nothing + trial.committed_tokens, "generated": nothing, "target_steps": nothing}
    first, last = windows.first_step, windows.first_step + windows.num_steps
    sums = {}
    for name in COUNTS:
        before = np.concatenate(([0], np.cumsum(np.asarray(trial.steps.columns[name], dtype=np.int64))))
        sums[name] = before[last] - before[first]
    generated, target_steps = sums["num_committed"], sums["num_target_steps"]
    return {"tokens": generated + sums["num_first_tokens"], "generated": generated, "target_steps": target_steps}


def split_time(trial: TrialRecord, windows: Windows) -> dict[str, IntArray]:
    """By window, nanoseconds of device, host_total, host_exposed and other_idle; empty where they are not known."""
    if trial.device_busy is None or len(trial.steps) == 0:
        return {}
    busy, preparing = telemetry.busy_intervals(trial), telemetry.preparing_intervals(trial)
    return telemetry.split_windows(busy, preparing, windows.start_ns, windows.end_ns)


def time_ranges(trial: TrialRecord, windows: Windows) -> dict[str, IntArray]:
    """By named range and window, nanoseconds of it that lie in the window."""
    return {
        name: intervals.covered_within(
            intervals.merge(intervals.pair(times.start_ns, times.end_ns)), windows.start_ns, windows.end_ns
        )
        for name, times in trial.ranges.items()
    }


def steps_in(windows: Windows) -> tuple[IntArray, IntArray]:
    """Every timed step in order [s]: its index into the step table, and the window that it belongs to."""
    owner = np.repeat(np.arange(len(windows)), windows.num_steps)
    before = np.cumsum(windows.num_steps) - windows.num_steps
    return np.arange(owner.size) + (windows.first_step - before)[owner], owner


def time_steps(trial: TrialRecord, windows: Windows) -> tuple[IntArray, IntArray]:
    """The time that each timed step owns [s], and the window that it belongs to: the steps of a window tile it."""
    steps, owner = steps_in(windows)
    if steps.size == 0:
        return steps, owner
    ends = np.asarray(trial.steps.columns["output_ns"], dtype=np.int64)[steps]
    opens = np.concatenate(([True], owner[1:] != owner[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    ends = np.where(closes, windows.end_ns[owner], ends)
    starts = np.where(opens, windows.start_ns[owner], np.concatenate(([0], ends[:-1])))
    return ends - starts, owner
