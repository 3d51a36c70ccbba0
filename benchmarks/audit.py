"""What the audit of sampling parameters costs: steps with it against the same steps without.

    python benchmarks/audit.py [--model tiny,smollm2-135m] [--batch 1,16] [--draft-len 0,4] [--rounds 21] [--threads 1]
                               [--out results/audit]

Random weights, sampled requests, forced acceptance, eager steps. One engine; every few steps the audit is taken out of
it, operations of the device and comparison, or put back. A ratio is that of a round's medians of the time from one
step's output to the next, with the audit to without; shown are the median over rounds, and the 10th and 90th
percentile. Beside it the two parts alone: the host's comparison and the device's operations. ``--out`` names a folder
for ``audit.json`` and ``audit.md``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from captured_steps import SAMPLED, SETTLING_STEPS, TIMED_STEPS, build, fill, summarize

from specbench.engine import model_runner
from specbench.engine.forward_batch import ForwardBatch, OutputColumns
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.sampling.audit import AuditLog, pack_pairs, write_parameters
from specbench.engine.sampling.metadata import RowFacts, SamplingRows
from specbench.engine.sampling.step_params import ParamsReader
from specbench.measure.environment import describe_environment, describe_torch

WITH, WITHOUT = "with", "without"
CHECK = AuditLog.check


def set_audit(is_on: bool) -> None:
    """Put the audit into every engine, or take it out."""
    nothing = lambda *_: None  # noqa: E731
    model_runner.write_parameters = write_parameters if is_on else nothing
    model_runner.pack_pairs = pack_pairs if is_on else nothing
    AuditLog.check = CHECK if is_on else nothing  # type: ignore[method-assign, assignment]


def time_turn(engine: LLMEngine, turn: str) -> float:
    """Median milliseconds from output to output."""
    set_audit(turn == WITH)
    for _ in range(SETTLING_STEPS):
        engine.step()
    engine.drain_steps()
    for _ in range(TIMED_STEPS + 1):
        engine.step()
    steps = engine.drain_steps()
    return statistics.median(after.output_ns - before.output_ns for before, after in itertools.pairwise(steps)) / 1e6


def measure_point(model: str, batch_size: int, draft_len: int, options: argparse.Namespace) -> dict[str, Any]:
    """Turns with and without, the first one changing each round."""
    engine = build(model, "cpu", batch_size, draft_len, options.rounds, options.threads, None)
    fill(engine, batch_size, SAMPLED)
    found: dict[str, list[float]] = {WITH: [], WITHOUT: []}
    for turn in (WITH, WITHOUT):
        time_turn(engine, turn)
    for index in range(options.rounds):
        for turn in (WITH, WITHOUT) if index % 2 else (WITHOUT, WITH):
            found[turn].append(time_turn(engine, turn))
    engine.shutdown()
    set_audit(True)
    return {
        "model": model,
        "batch": batch_size,
        "draft_len": draft_len,
        "step_ms": statistics.median(found[WITHOUT]),
        "ratio": summarize([a / b for a, b in zip(found[WITH], found[WITHOUT], strict=True)]),
    }


def time_comparison(num_requests: int, draft_len: int) -> float:
    """Median microseconds of the host's comparison for a steady batch."""
    asked = ParamsReader().read([SAMPLED] * num_requests, [draft_len + 1] * num_requests)
    batch = cast(ForwardBatch, SimpleNamespace(asked=asked, context=(), sampling_chunks=[]))
    log, shape = AuditLog(), (num_requests, 2 * (draft_len + 1))
    arrays = [np.ones(shape, dtype=np.int64) for _ in range(64)]
    taken = []
    for array in arrays:
        start = time.perf_counter_ns()
        log.check(batch, array)
        taken.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(taken)


def time_operations(num_requests: int, draft_len: int) -> float:
    """Median microseconds of the device's operations on a CPU, one thread."""
    num_rows = num_requests * (draft_len + 1)
    result = torch.zeros((num_requests, OutputColumns(draft_len).count), dtype=torch.int64)
    rows = SamplingRows(
        torch.full((num_rows,), 0.8),
        torch.full((num_rows,), 50),
        torch.full((num_rows,), 0.9),
        RowFacts(num_both=num_rows, top_k_max=50),
    )
    batch = SimpleNamespace(
        columns=OutputColumns(draft_len),
        rows_per_generation=draft_len + 1,
        num_generation=num_requests,
        context=(),
        sampling_chunks=[],
    )
    taken = []
    with torch.inference_mode():
        for _ in range(301):
            start = time.perf_counter_ns()
            write_parameters(result, batch, rows.top_k, pack_pairs(rows))  # type: ignore[arg-type]
            taken.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(taken)


def render(result: dict[str, Any]) -> str:
    """Tables in Markdown."""
    lines = [f"`{result['command']}`", "", "| model | batch | K | step ms without | ratio with (p10-p90) |"]
    lines.append("|---|---|---|---|---|")
    for row in result["rows"]:
        ratio = row["ratio"]
        lines.append(
            f"| {row['model']} | {row['batch']} | {row['draft_len']} | {row['step_ms']:.3f} "
            f"| {ratio['median']:.4f} ({ratio['p10']:.3f}-{ratio['p90']:.3f}) |"
        )
    lines += ["", "| requests | K | the host's comparison, us a step | the device's operations on a CPU, us |"]
    lines.append("|---|---|---|---|")
    for part in result["parts"]:
        lines.append(f"| {part['batch']} | {part['draft_len']} | {part['host_us']:.1f} | {part['device_us']:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read options, measure, print or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="tiny,smollm2-135m")
    parser.add_argument("--batch", default="1,16")
    parser.add_argument("--draft-len", default="0,4")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    result = {
        "command": f"python benchmarks/audit.py {' '.join(sys.argv[1:])}",
        "load_average": os.getloadavg()[0],
        "rows": [
            measure_point(model, int(batch_size), int(draft_len), options)
            for model in options.model.split(",")
            for draft_len in options.draft_len.split(",")
            for batch_size in options.batch.split(",")
        ],
        "parts": [
            {
                "batch": batch_size,
                "draft_len": draft_len,
                "host_us": time_comparison(batch_size, draft_len),
                "device_us": time_operations(batch_size, draft_len),
            }
            for batch_size in (1, 16, 256)
            for draft_len in (0, 5)
        ],
        "environment": {**describe_environment(), "torch": describe_torch()},
    }
    text = render(result)
    print(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "audit.json").write_text(json.dumps(result, indent=1) + "\n")
        (options.out / "audit.md").write_text(text)


if __name__ == "__main__":
    main()
