"""The tiny scenario on which ``ab``, ``sweep`` and ``selftest`` are tried, and how to look at what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import specbench

SCENARIO = """
name: tiny
model: random:tiny
drafter: none
workload: {kind: random_tokens, num_requests: 8, isl: 16, osl: 16, concurrency: 2}
sampling: {temperature: 0.8, seed: 1}
engine: {device: cpu, dtype: float32, num_threads: 1}
measure: {warmup_requests: 1, period_steps: 2, quads_per_segment: 2, segment_requests: 2, max_units: 6, looks: 2}
variants:
  ngram: {drafter: {name: ngram, draft_len: 3}}
  plain: {drafter: none}
"""


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    """A command in a process of its own, its output piped."""
    command = [sys.executable, "-m", "specbench", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(specbench.__file__).parents[1])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=environment, **pipes, **options)


def read(folder: Path | str, name: str) -> Any:
    """A JSON file of a folder; a list of its lines for JSONL."""
    text = (Path(folder) / name).read_text()
    return [json.loads(line) for line in text.splitlines()] if name.endswith("l") else json.loads(text)


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120.0) -> None:
    """Until ``condition`` holds; fails when the process ends before, or after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it never got there"
        time.sleep(0.01)
