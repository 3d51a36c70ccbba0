"""What happens on the machine during a measured window: collections, other load, clocks, throttling."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from specbench.measure.environment import load_average, query_gpus, read_governor
from specbench.records import Evidence

GPU_FIELDS = ("clocks.sm", "temperature.gpu", "clocks_event_reasons.active")
_IDLE_REASONS = 0x1  # the bit that only says that the GPU had nothing to do


class CollectionLog:
    """Counts garbage collections while installed in ``gc.callbacks``."""

    def __init__(self) -> None:
        self.collections = 0
        self.total_ns = 0
        self._start_ns = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:  # noqa: ARG002
        if phase == "start":
            self._start_ns = time.perf_counter_ns()
        else:
            self.collections += 1
            self.total_ns += time.perf_counter_ns() - self._start_ns


@contextlib.contextmanager
def without_collection(*, young_only: bool = False) -> Iterator[CollectionLog]:
    """Collect now, then keep the collector off; a collection that happens all the same is counted.

    :param young_only: leave old objects, which take a tenth of a second to look through with PyTorch loaded, to the
        collections that happen by themselves between windows.
    """
    log = CollectionLog()
    was_enabled = gc.isenabled()
    gc.collect(1 if young_only else 2)
    gc.freeze()
    gc.disable()
    gc.callbacks.append(log)
    try:
        yield log
    finally:
        gc.callbacks.remove(log)
        gc.unfreeze()
        if was_enabled:
            gc.enable()


@dataclass(frozen=True)
class MachineSample:
    """Counters of the machine at one moment."""

    busy_s: float
    total_s: float
    own_s: float
    load: float | None
    mhz: float | None
    throttle_events: int | None
    gpu: tuple[list[str], ...] | None


def sample_machine(with_gpu: bool, other_process: int | None = None) -> MachineSample:
    """Read the counters; a few milliseconds, more with a GPU, so never inside a window.

    :param other_process: id of a process that is measured, too: what it uses is no other load.
    """
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # Linux counts guest time in user time as well.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    own_s = _process_seconds(None) + (_process_seconds(other_process) if other_process is not None else 0.0)
    load = load_average()
    rows = query_gpus(GPU_FIELDS) if with_gpu else None
    return MachineSample(
        busy_s=total - idle,
        total_s=total,
        own_s=own_s,
        load=load[0] if load else None,
        mhz=_mean_mhz(),
        throttle_events=_throttle_events(),
        gpu=None if rows is None else tuple(rows),
    )


def _process_seconds(process: int | None) -> float:
    """CPU time of a process, of this one for None; 0 for one that is gone."""
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(process).cpu_times()
        return float(times.user + times.system)
    return 0.0


def make_evidence(start: MachineSample, end: MachineSample, log: CollectionLog, client_ns: int) -> Evidence:
    """What two samples and the collection log say of the window between them."""
    throttled = None
    if start.throttle_events is not None and end.throttle_events is not None:
        throttled = end.throttle_events - start.throttle_events
    return Evidence(
        gc_collections=log.collections,
        gc_ms=log.total_ns / 1e6,
        load_average_start=start.load,
        load_average_end=end.load,
        other_cpu_fraction=_other_share(start, end),
        client_ms=client_ns / 1e6,
        governor=read_governor(),
        cpu_mhz_start=start.mhz,
        cpu_mhz_end=end.mhz,
        cpu_throttle_events=throttled,
        gpu=_describe_gpu(start, end),
    )


def _other_share(start: MachineSample, end: MachineSample) -> float | None:
    total = end.total_s - start.total_s
    if total <= 0:
        return None
    others = (end.busy_s - start.busy_s) - (end.own_s - start.own_s)
    return min(max(others / total, 0.0), 1.0)


def _mean_mhz() -> float | None:
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError, AttributeError):
        return None
    return round(float(frequency.current), 1) if frequency and frequency.current else None


def _throttle_events() -> int | None:
    counts = []
    for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        with contextlib.suppress(OSError, ValueError):
            counts.append(int(path.read_text()))
    return sum(counts) if counts else None


def _describe_gpu(start: MachineSample, end: MachineSample) -> dict[str, Any] | None:
    if not start.gpu or not end.gpu:
        return None
    rows = [*start.gpu, *end.gpu]
    clocks = [int(row[0].split()[0]) for row in rows if row[0].split()[0].isdigit()]
    temperatures = [int(row[1]) for row in rows if row[1].isdigit()]
    reasons = 0
    for row in rows:
        with contextlib.suppress(ValueError):
            reasons |= int(row[2], 16)
    return {
        "sm_mhz_min": min(clocks, default=None),
        "sm_mhz_max": max(clocks, default=None),
        "temperature_c": max(temperatures, default=None),
        "throttle_reasons": reasons & ~_IDLE_REASONS,
    }
