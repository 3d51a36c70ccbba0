"""What happened on the machine during a window is seen."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import weakref
from dataclasses import replace

import psutil
import pytest

from specbench.measure.observation import (
    CollectionLog,
    MachineSample,
    make_evidence,
    sample_machine,
    without_collection,
)


def test_the_collector_is_off_and_comes_back() -> None:
    assert gc.isenabled()
    with without_collection() as log:
        assert not gc.isenabled()
        for _ in range(3000):
            cycle: list[object] = []
            cycle.append(cycle)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert log.collections == 0
    assert log not in gc.callbacks


def test_old_garbage_may_stay_where_it_is() -> None:
    class Old:
        pass

    old = Old()
    old.itself = old  # type: ignore[attr-defined]
    gone = weakref.ref(old)
    gc.collect()
    gc.collect()  # now it is of the oldest generation
    del old
    with without_collection(young_only=True):
        assert gone() is not None
    with without_collection():
        assert gone() is None


def test_a_process_that_is_measured_is_no_other_load() -> None:
    spin = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        alone = sample_machine(False).own_s
        together = sample_machine(False, process.pid).own_s
        used = sum(psutil.Process(process.pid).cpu_times()[:2])
        after = sample_machine(False).own_s
        process.kill()
    assert used >= 0.45
    assert alone + 0.45 <= together <= after + used
    before = sample_machine(False).own_s
    assert before <= sample_machine(False, process.pid).own_s <= sample_machine(False).own_s  # it is gone
    assert sample_machine(False, os.getpid()).own_s == pytest.approx(2 * sample_machine(False).own_s, rel=0.2)


def test_a_collection_in_the_window_is_counted() -> None:
    with without_collection() as log:
        gc.collect()
    assert log.collections == 1
    assert log.total_ns > 0


SAMPLE = MachineSample(busy_s=100.0, total_s=400.0, own_s=10.0, load=0.5, mhz=2000.0, throttle_events=7, gpu=None)


def test_evidence_from_two_samples() -> None:
    # In the window all cores had 20 s, of which 12 busy; 9 of those were this process's own.
    after = replace(SAMPLE, busy_s=112.0, total_s=420.0, own_s=19.0, load=1.5, mhz=1500.0, throttle_events=9)
    found = make_evidence(SAMPLE, after, CollectionLog(), client_ns=2_000_000)
    assert found.other_cpu_fraction == pytest.approx(3 / 20)
    assert (found.load_average_start, found.load_average_end) == (0.5, 1.5)
    assert (found.cpu_mhz_start, found.cpu_mhz_end, found.cpu_throttle_events) == (2000.0, 1500.0, 2)
    assert (found.client_ms, found.gpu) == (2.0, None)


def test_no_time_passed_is_unknown_not_zero() -> None:
    assert make_evidence(SAMPLE, SAMPLE, CollectionLog(), 0).other_cpu_fraction is None


def test_unreadable_throttling_is_unknown() -> None:
    blind = replace(SAMPLE, throttle_events=None)
    assert make_evidence(blind, SAMPLE, CollectionLog(), 0).cpu_throttle_events is None


def test_gpu_samples_are_read() -> None:
    before = replace(SAMPLE, gpu=(["1980 MHz", "55", "0x0000000000000001"],))
    after = replace(SAMPLE, gpu=(["1410 MHz", "61", "0x0000000000000020"],))
    found = make_evidence(before, after, CollectionLog(), 0).gpu
    assert found == {"sm_mhz_min": 1410, "sm_mhz_max": 1980, "temperature_c": 61, "throttle_reasons": 0x20}


def test_other_load_is_seen_and_own_load_is_not() -> None:
    own = sample_machine(with_gpu=False)
    burn(0.5)
    after = sample_machine(with_gpu=False)
    alone = make_evidence(own, after, CollectionLog(), 0).other_cpu_fraction
    spin = "import time; end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    with subprocess.Popen([sys.executable, "-c", spin]) as process:
        before = sample_machine(with_gpu=False)
        while psutil.Process(process.pid).cpu_times().user < 0.3:  # it never ends by itself
            time.sleep(0.05)
        others = sample_machine(with_gpu=False)
        process.kill()
    assert alone is not None
    # Whatever else runs: what the other process has computed counts for others, this one's half second for nobody else.
    assert (others.busy_s - before.busy_s) - (others.own_s - before.own_s) > 0.2
    assert make_evidence(before, others, CollectionLog(), 0).other_cpu_fraction
    assert after.own_s - own.own_s > 0.4


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
