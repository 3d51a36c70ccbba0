"""Figures from records: pure functions, so that everything after ``trials.jsonl`` re-runs without an engine.

Definitions. Steps are engine steps, those that only prefill included. A step owns the time from the output before it
(or from the trial's origin) to its own output, so that the steps of a trial tile its wall time. The device is busy
while it executes something (merged intervals). The host prepares while one of its ranges is open, ``wait_*`` ranges
apart. Exposed is what it prepares while the device idles.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specbench.device.tracing import Span
from specbench.measure import intervals
from specbench.records import Distribution, RangeStats, RangeTimes, RequestRecord, StepTable, TrialRecord

WAIT_PREFIX = "wait"
NS_PER_MS = 1e6


@dataclass(frozen=True)
class StepTimes:
    """Where wall time went, in nanoseconds: device + host_exposed + other_idle = wall."""

    wall: int
    device: int
    host_total: int
    host_exposed: int
    other_idle: int
    steps: int

    def per_step_ms(self, name: str) -> float | None:
        """One component in milliseconds a step; None without steps."""
        return getattr(self, name) / self.steps / NS_PER_MS if self.steps else None


@dataclass(frozen=True)
class FullBatch:
    """Steps with every slot busy: ramp and tail are left out.

    :param active: live requests that had rows in them, summed over those steps.
    """

    steps: int
    tokens: int
    wall_ns: int
    active: int

    def __add__(self, other: FullBatch) -> FullBatch:
        return FullBatch(
            self.steps + other.steps,
            self.tokens + other.tokens,
            self.wall_ns + other.wall_ns,
            self.active + other.active,
        )

    @property
    def tokens_per_s(self) -> float | None:
        """Committed tokens over the time of these steps."""
        return self.tokens / self.wall_ns * 1e9 if self.wall_ns > 0 else None

    @property
    def mean_active(self) -> float | None:
        """Mean live requests that a step advanced."""
        return self.active / self.steps if self.steps else None


@dataclass(frozen=True)
class Acceptance:
    """Counts behind the acceptance figures, by draft position 1..K.

    :param drafted: live requests that proposed a token at the position; ``accepted`` is never more.
    :param eligible: live requests whose earlier positions were all accepted: denominators of the conditional
        rate.
    :param opened: live requests that had not ended before the position, in the steps whose K reaches it:
        denominators of the joint rate.
    :param accepted: requests whose token at the position was accepted.
    """

    committed: int
    target_steps: int
    drafted: tuple[int, ...]
    eligible: tuple[int, ...]
    opened: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def length(self) -> float | None:
        """Tokens a request and target step, the bonus token included."""
        return self.committed / self.target_steps if self.target_steps else None

    @property
    def conditional(self) -> list[float | None]:
        """Rate at position i among requests whose positions before i were accepted."""
        return [_ratio(a, e) for a, e in zip(self.accepted, self.eligible, strict=True)]

    @property
    def joint(self) -> list[float | None]:
        """Rate at which positions 1 to i were all accepted."""
        return [_ratio(a, o) for a, o in zip(self.accepted, self.opened, strict=True)]


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def gather_ranges(spans: Iterable[Span], origin_ns: int, end_ns: int) -> dict[str, RangeTimes]:
    """Group the spans that started inside the window by name, times counted from ``origin_ns``."""
    grouped: dict[str, RangeTimes] = {}
    for name, lane, start_ns, stop_ns in spans:
        if origin_ns <= start_ns <= end_ns:
            times = grouped.setdefault(name, RangeTimes(lane, [], []))
            times.start_ns.append(start_ns - origin_ns)
            times.end_ns.append(stop_ns - origin_ns)
    return grouped


def split_step_time(trial: TrialRecord) -> StepTimes | None:
    """Split wall time into device, exposed host and other idle; None without device times."""
    if trial.device_busy is None or len(trial.steps) == 0:
        return None
    busy, preparing = busy_intervals(trial), preparing_intervals(trial)
    start, end = (np.array([at], dtype=np.int64) for at in (0, trial.wall_ns))
    parts = {name: int(values[0]) for name, values in split_windows(busy, preparing, start, end).items()}
    return StepTimes(wall=trial.wall_ns, steps=len(trial.steps), **parts)


def split_windows(
    busy: intervals.Intervals,
    preparing: intervals.Intervals,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> dict[str, npt.NDArray[np.int64]]:
    """Where the time of each window (``starts[i]``, ``ends[i]``) went: device, host_total, host_exposed, other_idle.

    :param busy: disjoint intervals in which the device executed something; ``preparing`` in which the host prepared.
    """
    either = intervals.merge(np.concatenate((busy, preparing)))
    device = intervals.covered_within(busy, starts, ends)
    used = intervals.covered_within(either, starts, ends)
    return {
        "device": device,
        "host_total": intervals.covered_within(preparing, starts, ends),
        "host_exposed": used - device,
        "other_idle": ends - starts - used,
    }


def busy_intervals(trial: TrialRecord) -> intervals.Intervals:
    """When the device executed something, disjoint and in order; nothing where that is not known."""
    busy = trial.device_busy
    return intervals.merge(intervals.pair(busy.start_ns, busy.end_ns) if busy else intervals.NOTHING)


def preparing_intervals(trial: TrialRecord) -> intervals.Intervals:
    """When the host prepared: one of its ranges was open, those in which it waits apart."""
    host = [
        intervals.pair(times.start_ns, times.end_ns)
        for name, times in trial.ranges.items()
        if times.lane == "host" and not name.startswith(WAIT_PREFIX)
    ]
    return intervals.merge(np.concatenate(host) if host else intervals.NOTHING)


def step_durations_ns(steps: StepTable) -> npt.NDArray[np.int64]:
    """Time each step owns [n]: from the output before it, or the origin, to its own."""
    output_ns = np.asarray(steps.columns["output_ns"], dtype=np.int64)
    return output_ns - np.concatenate((np.zeros(1, dtype=np.int64), output_ns[:-1]))[: len(output_ns)]


def full_batch(steps: StepTable, slots: int) -> FullBatch:
    """Sum the steps in which each of ``slots`` slots held a live request.

    A request that had ended before the step (the host learned of it while the step ran) holds its slot for nothing; a
    prompt that waits for rows holds it for good. The first fill is ramp: nothing counts before the first step in which
    every slot generates, so the prefill of requests that replace others counts and that of the first ones does not.
    """
    if len(steps) == 0:
        return FullBatch(0, 0, 0, 0)
    column = {name: np.asarray(steps.columns[name], dtype=np.int64) for name in _FULL_BATCH_COLUMNS}
    known = np.asarray(steps.columns.get("num_occupied", np.zeros(len(steps))), dtype=np.int64)
    occupied = np.where(known > 0, known, column["num_context"] + column["num_generation"])
    live = occupied - (column["num_generation"] - column["num_target_steps"])
    past_ramp = np.cumsum(column["num_target_steps"] >= slots) > 0
    full = past_ramp & (live >= slots)
    tokens = column["num_committed"] + column["num_first_tokens"]
    active = column["num_context"] + column["num_target_steps"]
    wall_ns = int(step_durations_ns(steps)[full].sum())
    return FullBatch(int(full.sum()), int(tokens[full].sum()), wall_ns, int(active[full].sum()))


_FULL_BATCH_COLUMNS = (
    "num_context",
    "num_generation",
    "num_committed",
    "num_first_tokens",
    "num_target_steps",
)


def count_acceptance(tables: Iterable[StepTable]) -> Acceptance:
    """Sum acceptance over steps; each target step weighs the same, whatever its request."""
    committed = target_steps = 0
    drafted: list[int] = []
    eligible: list[int] = []
    opened: list[int] = []
    accepted: list[int] = []
    for steps in tables:
        columns = steps.columns
        committed += sum(columns["num_committed"])
        target_steps += sum(columns["num_target_steps"])
        _sum_positions(drafted, columns["drafted"])
        _sum_positions(eligible, columns["eligible"])
        _sum_positions(accepted, columns["accepted"])
        _sum_positions(opened, _opened(columns))
    return Acceptance(committed, target_steps, tuple(drafted), tuple(eligible), tuple(opened), tuple(accepted))


def _opened(columns: Mapping[str, Sequence[Any]]) -> list[Sequence[int]]:
    """Denominators of the joint rate by step; where they were not recorded, the live requests at every position."""
    eligible: Sequence[Sequence[int]] = columns["eligible"]
    recorded: Sequence[Sequence[int]] = columns.get("opened") or [()] * len(eligible)
    return [open_ or [*live[:1]] * len(live) for open_, live in zip(recorded, eligible, strict=True)]


def _sum_positions(sums: list[int], steps: Iterable[Sequence[int]]) -> None:
    """Add position by position; ``sums`` grows to the longest K seen."""
    for values in steps:
        sums.extend([0] * (len(values) - len(sums)))
        for position, value in enumerate(values):
            sums[position] += value


def describe(values: Sequence[float]) -> Distribution | None:
    """Mean and percentiles; None without values."""
    if len(values) == 0:
        return None
    array = np.asarray(values, dtype=np.float64)
    p50, p90, p95, p99 = (float(p) for p in np.percentile(array, (50, 90, 95, 99)))
    return Distribution(float(array.mean()), p50, p90, p95, p99)


def range_stats(trials: Iterable[TrialRecord]) -> dict[str, RangeStats]:
    """Durations of each named range, pooled over trials, in order of first use."""
    durations: dict[str, list[npt.NDArray[np.int64]]] = {}
    for trial in trials:
        for name, times in trial.ranges.items():
            pair = intervals.pair(times.start_ns, times.end_ns)
            durations.setdefault(name, []).append(pair[:, 1] - pair[:, 0])
    return describe_ranges(durations)


def describe_ranges(durations: Mapping[str, Sequence[npt.NDArray[np.int64]]]) -> dict[str, RangeStats]:
    """Statistics of each range from all its durations in nanoseconds, which may come in several arrays."""
    stats = {}
    for name, parts in durations.items():
        micros = np.concatenate(parts) / 1e3
        p50, p99 = (float(p) for p in np.percentile(micros, (50, 99)))
        stats[name] = RangeStats(len(micros), float(micros.mean()), p50, p99)
    return stats


def hash_tokens(outputs: Iterable[Sequence[int]]) -> str:
    """SHA-256 over outputs in workload order: each a little-endian u32 count, then its ids as u32."""
    digest = hashlib.sha256()
    for token_ids in outputs:
        digest.update(struct.pack(f"<I{len(token_ids)}I", len(token_ids), *token_ids))
    return digest.hexdigest()


def repeated_tail(token_ids: Sequence[int], max_period: int = 32, min_repeats: int = 4) -> int:
    """Length of the longest tail made of one pattern (``max_period`` tokens at most) again and again."""
    ids = np.asarray(token_ids, dtype=np.int64)
    longest = 0
    for period in range(1, min(max_period, len(ids) // min_repeats) + 1):
        differs = np.flatnonzero(ids[period:] != ids[:-period])
        tail = len(ids) if len(differs) == 0 else len(ids) - int(differs[-1]) - 1
        if tail >= period * min_repeats:
            longest = max(longest, tail)
    return longest


@dataclass(frozen=True)
class Latencies:
    """Samples in milliseconds. A request that was cut gives what it got to: TTFT and gaps, no TPOT or E2E."""

    ttft: list[float]
    tpot: list[float]
    itl: list[float]
    e2e: list[float]


def latencies(requests: Iterable[RequestRecord]) -> Latencies:
    """TTFT, TPOT and E2E of each request, and every gap between chunks of tokens (ITL)."""
    found = Latencies([], [], [], [])
    for request in requests:
        if request.ttft_ms is not None:
            found.ttft.append(request.ttft_ms)
        found.itl.extend(b - a for a, b in zip(request.chunk_ms, request.chunk_ms[1:], strict=False))
        if request.e2e_ms is None or request.ttft_ms is None:
            continue
        found.e2e.append(request.e2e_ms)
        if request.output_tokens > 1:
            found.tpot.append((request.e2e_ms - request.ttft_ms) / (request.output_tokens - 1))
    return found
