"""A captured step against the same step run operator by operator, by batch size, K and kind of sampling.

    python benchmarks/captured_steps.py [--model tiny,smollm2-135m] [--batch 1,4,16] [--draft-len 0,4] [--device cpu]
                                        [--rounds 15] [--threads 1] [--out results/captured_steps]

Random weights, decoding from a cache filled with noise, forced acceptance. One engine with ``graphs`` switched every
few steps, so that both variants see the same batch, contexts and weights. A ratio is that of a round's medians,
captured to eager, of the time that the device was busy with a step and of the time from one step's output to the next;
shown are the median over rounds, and the 10th and 90th percentile. On CUDA, kernels and launches a step are counted by
PyTorch's profiler in steps of their own. ``--out`` names a folder for ``captured_steps.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from specbench.device.tracing import NullTracer
from specbench.engine.build import build_engine
from specbench.engine.config import AcceptanceSpec, DrafterSpec, EngineConfig, ModelSpec
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.models.loading import LoadedModel
from specbench.engine.sampling.params import SamplingParams
from specbench.measure.environment import describe_environment, describe_torch

VARIANTS = ("off", "captured")
TIMED_STEPS, SETTLING_STEPS = 6, 2
CONTEXT = 192
SAMPLED = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, ignore_eos=True)
KEYS = {"greedy": "greedy", "sampled": "advanced"}
"""What captured steps of each kind are called."""
KINDS = {"greedy": SamplingParams(ignore_eos=True), "sampled": SAMPLED}


def build(
    model: str,
    device: str,
    batch_size: int,
    draft_len: int,
    num_rounds: int,
    num_threads: int | None,
    loaded: LoadedModel | None,
) -> LLMEngine:
    """An engine whose requests last as long as the rounds do."""
    # Turns of both variants, one of each before the rounds; a turn has a step from which the first interval counts.
    steps = 2 * (num_rounds + 1) * (TIMED_STEPS + SETTLING_STEPS + 1)
    length = 1.0 + 0.4 * draft_len
    max_seq_len = CONTEXT + steps * math.ceil(length) + 64
    drafter = DrafterSpec("ngram", draft_len) if draft_len else DrafterSpec()
    config = EngineConfig(
        ModelSpec(model, "random"),
        device=device,
        max_seq_len=max_seq_len,
        max_batch_size=batch_size,
        num_blocks=batch_size * (-(-(max_seq_len + 2 * (draft_len + 1)) // 32)),
        max_num_tokens=max(512, batch_size * (draft_len + 1)),
        attention="cpu-paged" if device == "cpu" else "torch-gather",
        num_threads=num_threads,
        drafter=drafter,
        acceptance=AcceptanceSpec("forced", length=length),
    )
    return build_engine(config, tracer=NullTracer(), loaded=loaded)


def fill(engine: LLMEngine, batch_size: int, params: SamplingParams) -> None:
    """Admit a full batch whose contexts count as prefilled."""
    room = engine.config.max_seq_len - CONTEXT - 8
    for index in range(batch_size):
        prompt = [(7 * index + 3 * position) % 500 for position in range(CONTEXT)]
        engine.add_cached_request(prompt, _with(params, seed=index, max_tokens=room))


def _with(params: SamplingParams, *, seed: int, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        params.temperature, params.top_k, params.top_p, seed=seed, max_tokens=max_tokens, ignore_eos=True
    )


def time_turn(engine: LLMEngine, variant: str) -> tuple[float, float]:
    """Median milliseconds that the device was busy with a step, and from output to output."""
    engine.switch({"graphs": variant})
    for _ in range(SETTLING_STEPS):
        engine.step()
    engine.flush()
    engine.drain_steps()
    for _ in range(TIMED_STEPS + 1):
        engine.step()
    engine.flush()
    steps = engine.drain_steps()
    busy = [step.device_end_ns - step.device_start_ns for step in steps[1:]]
    gaps = [after.output_ns - before.output_ns for before, after in itertools.pairwise(steps)]
    return statistics.median(busy) / 1e6, statistics.median(gaps) / 1e6


def measure_point(engine: LLMEngine, num_rounds: int) -> dict[str, Any]:
    """Turns of both variants, the first one changing each round."""
    found: dict[str, list[tuple[float, float]]] = {variant: [] for variant in VARIANTS}
    for variant in VARIANTS:  # captures happen here
        time_turn(engine, variant)
    for index in range(num_rounds):
        for variant in VARIANTS if index % 2 else VARIANTS[::-1]:
            found[variant].append(time_turn(engine, variant))
    ratios = [
        [captured[part] / eager[part] for eager, captured in zip(found["off"], found["captured"], strict=True)]
        for part in (0, 1)
    ]
    return {
        "device_ms": {variant: statistics.median(turn[0] for turn in found[variant]) for variant in VARIANTS},
        "step_ms": {variant: statistics.median(turn[1] for turn in found[variant]) for variant in VARIANTS},
        "device_ratio": summarize(ratios[0]),
        "step_ratio": summarize(ratios[1]),
    }


def summarize(ratios: list[float]) -> dict[str, float]:
    """Median, and 10th and 90th percentile."""
    deciles = statistics.quantiles(ratios, n=10)
    return {"median": statistics.median(ratios), "p10": deciles[0], "p90": deciles[-1]}


def count_launches(engine: LLMEngine, variant: str) -> dict[str, float] | None:
    """Kernels and launches from the host, a step, on CUDA; elsewhere None."""
    if engine.device.torch_device.type != "cuda":
        return None
    engine.switch({"graphs": variant})
    num_steps = 4
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(num_steps):
            engine.step()
        engine.flush()
        engine.synchronize()
    names = [event.name for event in profile.events() or []]
    launched = sum(name.startswith(("cudaLaunchKernel", "cudaGraphLaunch", "cuLaunchKernel")) for name in names)
    kernels = sum(
        event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith(("Memcpy", "Memset"))
        for event in profile.events() or []
    )
    return {"launches_per_step": launched / num_steps, "kernels_per_step": kernels / num_steps}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every point, weights loaded once a model."""
    rows: list[dict[str, Any]] = []
    for model in options.model.split(","):
        loaded = None
        for draft_len in map(int, options.draft_len.split(",")):
            for batch_size in map(int, options.batch.split(",")):
                for kind, params in KINDS.items():
                    engine = build(
                        model, options.device, batch_size, draft_len, options.rounds, options.threads, loaded
                    )
                    loaded = engine.loaded
                    fill(engine, batch_size, params)
                    row = {"model": model, "batch": batch_size, "draft_len": draft_len, "kind": kind}
                    row |= measure_point(engine, options.rounds)
                    row["launches"] = {variant: count_launches(engine, variant) for variant in VARIANTS}
                    row["captured"] = engine.describe_captures()["sets"]["real_params"]
                    row["counters"] = engine.read_counters()["graphs"]["captured"]
                    rows.append(row)
                    engine.shutdown()
                    print(_line(row), file=sys.stderr)
    return {
        "command": f"python benchmarks/captured_steps.py {' '.join(sys.argv[1:])}",
        "load_average": os.getloadavg()[0],
        "rows": rows,
        "environment": {**describe_environment(), "torch": describe_torch()},
    }


def _line(row: dict[str, Any]) -> str:
    ratio, step = row["device_ratio"], row["step_ratio"]
    return (
        f"| {row['model']} | {row['batch']} | {row['draft_len']} | {row['kind']} "
        f"| {row['device_ms']['off']:.3f} | {row['device_ms']['captured']:.3f} "
        f"| {ratio['median']:.3f} ({ratio['p10']:.3f}-{ratio['p90']:.3f}) "
        f"| {step['median']:.3f} ({step['p10']:.3f}-{step['p90']:.3f}) "
        f"| {row['captured']['operators'][KEYS[row['kind']]]} | {_launches(row)} |"
    )


def _launches(row: dict[str, Any]) -> str:
    """Of the host a step, eager and captured, and the kernels that they come to; CUDA alone."""
    eager, captured = (row["launches"][variant] for variant in VARIANTS)
    if eager is None or captured is None:
        return "-"
    launches = f"{eager['launches_per_step']:.0f} to {captured['launches_per_step']:.0f}"
    return f"{launches}, {eager['kernels_per_step']:.0f} kernels"


def render(result: dict[str, Any]) -> str:
    """The rows as a Markdown table."""
    head = (
        "| model | batch | K | rows | device ms, eager | device ms, captured | device ratio (p10-p90) "
        "| step ratio (p10-p90) | operators recorded | launches a step |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    return "\n".join([f"`{result['command']}`", "", head, *map(_line, result["rows"])]) + "\n"


def main() -> None:
    """Read options, measure, print or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="tiny,smollm2-135m")
    parser.add_argument("--batch", default="1,4,16")
    parser.add_argument("--draft-len", default="0,4")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    started = time.time()
    result = measure(options)
    result["took_s"] = round(time.time() - started, 1)
    text = render(result)
    print(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "captured_steps.json").write_text(json.dumps(result, indent=1) + "\n")
        (options.out / "captured_steps.md").write_text(text)


if __name__ == "__main__":
    main()
