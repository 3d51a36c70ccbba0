"""The ranges as Nsight Systems itself records and exports them."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

ROOT = Path(__file__).parents[2]
NSYS = shutil.which("nsys")
STAGE, STEP = 59, 60

pytestmark = [pytest.mark.slow, pytest.mark.skipif(NSYS is None, reason="nsys is not on PATH")]

DRIVER = """
import torch
from specbench.device.cpu import CpuDevice
from specbench.profiling.ranges import build_tracer, finish_tracer
from specbench.profiling.window import ProfileWindow

tracer = build_tracer("nvtx", None, ProfileWindow(2, 4))
device = CpuDevice(tracer, num_threads=1)
shape = "ctx=0/0 gen=2 K=3"
for step in range(1, 6):
    with tracer.range("schedule"):
        pass
    tracer.step_started(step, shape)
    with tracer.range("launch", detail=shape):
        def program():
            with tracer.range("target_forward", "device", shape):
                torch.ones(64, 64) @ torch.ones(64, 64)
        done = device.launch(program, "device_step")
    with tracer.range("wait_output"):
        done.wait()
    tracer.step_ended(step)
device.close()
finish_tracer(tracer)
"""

SCENARIO = """
name: ranges
model: {source: tiny, weights: random}
drafter: {name: ngram, draft_len: 2}
workload: {kind: random_tokens, num_requests: 4, isl: 24, osl: 12, concurrency: 2}
engine: {dtype: float32, num_threads: 1}
measure: {warmup_requests: 1}
"""


class Range(NamedTuple):
    kind: int
    text: str
    step: int | None
    thread: int
    start_ns: int
    end_ns: int

    @property
    def name(self) -> str:
        return self.text.split()[0]


def profile(arguments: Sequence[str], folder: Path) -> list[Range]:
    """Run Python with ``arguments`` under nsys and return the exported ranges of the domain ``specbench``."""
    assert NSYS is not None
    output = folder / "report"
    command = [NSYS, "profile", "--sample=none", "--cpuctxsw=none", "-t", "nvtx", "-o", str(output)]
    status, said = run_session([*command, sys.executable, *arguments], folder)
    if "The timeout expired" in said:
        # On a busy machine nsys may give up on its own daemon before it has started anything.
        status, said = run_session([*command, sys.executable, *arguments], folder)
    assert status == 0, said
    report = output.with_suffix(".nsys-rep")
    if not report.exists():
        # Some packages of nsys do not find the importer that they ship.
        folders = (Path(NSYS).resolve().parents[1], Path("/usr/lib/nsight-systems"))
        importer = next(found for place in folders for found in place.glob("host-linux-*/QdstrmImporter"))
        run([str(importer), "-i", str(output.with_suffix(".qdstrm")), "-o", str(report)])
    database = output.with_suffix(".sqlite")
    run([NSYS, "export", "--type", "sqlite", "-o", str(database), str(report)])
    return read_ranges(database)


def run_session(command: Sequence[str], folder: Path) -> tuple[int, str]:
    """Run a command in a session of its own, end whatever it leaves behind, and return its status and output."""
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=300)
    finally:
        end_session(process.pid)
    return process.returncode, said


def run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def end_session(leader: int) -> None:
    """End what nsys left running: the processes of the session that this test started."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                process.kill()


def read_ranges(database: Path) -> list[Range]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        domains = connection.execute("SELECT domainId FROM NVTX_EVENTS WHERE eventType = 75 AND text = 'specbench'")
        (domain,) = next(domains)
        rows = connection.execute(
            "SELECT n.eventType, coalesce(s.value, n.text), n.int64Value, n.globalTid, n.start, n.end "
            "FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId "
            "WHERE n.domainId = ? AND n.eventType IN (59, 60) ORDER BY n.start",
            (domain,),
        )
        return [Range(*row) for row in rows]


def test_a_window_of_steps_reaches_the_export(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER, encoding="utf-8")
    ranges = profile([str(script)], tmp_path)
    assert [(r.text, r.step) for r in ranges if r.kind == STEP] == [
        (f"step {step} ctx=0/0 gen=2 K=3", step) for step in (2, 3, 4)
    ]
    stages = [r for r in ranges if r.kind == STAGE]
    for name in ("schedule", "launch", "wait_output", "device_step", "target_forward"):
        assert [r.step for r in stages if r.name == name] == [2, 3, 4]
    device = {r.thread for r in stages if r.name in ("device_step", "target_forward")}
    host = {r.thread for r in stages if r.name in ("schedule", "launch", "wait_output")}
    assert len(device) == len(host) == 1
    assert device != host
    for outer, inner in zip(
        [r for r in stages if r.name == "device_step"], [r for r in stages if r.name == "target_forward"], strict=True
    ):
        assert outer.start_ns <= inner.start_ns < inner.end_ns <= outer.end_ns


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_specbench_run_marks_every_step(tmp_path: Path, overlap: str) -> None:
    scenario = tmp_path / "ranges.yaml"
    scenario.write_text(SCENARIO, encoding="utf-8")
    ranges = profile(
        ["-m", "specbench", "run", str(scenario), "--profile", "nvtx", "--set", f"optimizations.overlap={overlap}"],
        tmp_path,
    )
    steps = [r for r in ranges if r.kind == STEP]
    assert len(steps) > 12
    assert [r.step for r in steps] == list(range(1, len(steps) + 1))
    assert any(" gen=2 K=2" in r.text for r in steps)
    stages = [r for r in ranges if r.kind == STAGE]
    for name in ("launch", "wait_output", "update", "device_step", "target_forward", "sample_and_accept", "draft"):
        assert [r.step for r in stages if r.name == name] == list(range(1, len(steps) + 1)), name
    texts = {(r.step, r.text.partition(" ")[2]) for r in stages if r.name in ("launch", "device_step")}
    assert texts == {(r.step, r.text.split(" ", 2)[2]) for r in steps}
