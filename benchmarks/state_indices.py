"""Host time of one step's recurrent-state indices: `bulk` beside `per_request`, in one interleaved run.

    python benchmarks/state_indices.py [--requests 1,16,64,128,256] [--rounds 301] [--out results/host_path]

Both variants fill the same buffer of one CPU device, in alternating order; a round is one fill of each. The copy that a
fill enqueues is in its time, the copy's execution is not. Reported are medians, their ratio, and the middle half of the
rounds' ratios. ``--out`` names a folder for ``state_indices.json`` and ``state_indices.md``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from specbench.device.base import Device
from specbench.device.cpu import CpuDevice
from specbench.device.tracing import NullTracer
from specbench.engine.config import EngineConfig, ModelSpec
from specbench.engine.optimizations.base import build_switch
from specbench.measure.environment import describe_environment, describe_torch

BASELINE, CANDIDATE = "per_request", "bulk"
WARMUP_ROUNDS = 20


@dataclass(frozen=True)
class Sizes:
    """Host time of a fill, by variant, for one number of requests.

    :param ratio: of the medians, ``per_request`` / ``bulk``; ``ratio_quartiles``: of the rounds' own ratios.
    :param rounds: microseconds of each round, ``per_request`` and ``bulk``.
    """

    requests: int
    per_request_us: float
    bulk_us: float
    ratio: float
    ratio_quartiles: tuple[float, float]
    rounds: tuple[tuple[float, float], ...]


def measure(num_requests: int, rounds: int = 301, seed: int = 0) -> Sizes:
    """Time both variants on a batch of ``num_requests`` whose slots are in no order."""
    config = EngineConfig(ModelSpec("tiny-hybrid"), "cpu", 64, num_requests, num_requests)
    device = CpuDevice(NullTracer(), 1)
    try:
        return _measure(config, device, num_requests, rounds, random.Random(seed))
    finally:
        device.close()


def _measure(config: EngineConfig, device: Device, num_requests: int, rounds: int, rng: random.Random) -> Sizes:
    switch = build_switch("state_indices", config, device)
    slots, is_padding = rng.sample(range(num_requests), num_requests), [False] * num_requests
    fills = {}
    for name in (BASELINE, CANDIDATE):
        switch.switch(name)
        fills[name] = switch.current.fill

    def time_us(name: str) -> float:
        device.synchronize()
        start = time.perf_counter_ns()
        fills[name](slots, is_padding)
        return (time.perf_counter_ns() - start) / 1e3

    pairs = []
    gc.disable()
    try:
        for index in range(WARMUP_ROUNDS + rounds):
            order = (BASELINE, CANDIDATE) if index % 2 else (CANDIDATE, BASELINE)
            found = {name: time_us(name) for name in order}
            pairs.append((found[BASELINE], found[CANDIDATE]))
    finally:
        gc.enable()
    return _summarize(num_requests, pairs[WARMUP_ROUNDS:])


def _summarize(num_requests: int, pairs: list[tuple[float, float]]) -> Sizes:
    before, after = (statistics.median(column) for column in zip(*pairs, strict=True))
    low, _, high = statistics.quantiles([first / second for first, second in pairs], n=4)
    return Sizes(num_requests, before, after, before / after, (low, high), tuple(pairs))


def render(sizes: Sequence[Sizes], load_average: float, environment: Mapping[str, Any]) -> str:
    """The figures as Markdown."""
    cpu = environment["cpu"]
    lines = [
        "# Recurrent-state indices of a step",
        "",
        f"Microseconds of host time a fill, medians of {len(sizes[0].rounds)} rounds in which both variants take turns,"
        f" and the middle half of the rounds' ratios. {cpu['model']}, {cpu['usable_cores']}"
        f" cores, Python {environment['python']}, PyTorch {environment['packages']['torch']}; load average at the start"
        f" {load_average:.2f}, at the end {environment['load_average'][0]:.2f}.",
        "",
        f"| requests | `{BASELINE}`, us | `{CANDIDATE}`, us | times cheaper | middle half |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in sizes:
        low, high = row.ratio_quartiles
        times = f"{row.per_request_us:,.1f} | {row.bulk_us:,.1f} | {row.ratio:.1f} | {low:.1f} to {high:.1f}"
        lines.append(f"| {row.requests} | {times} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", default="1,16,64,128,256")
    parser.add_argument("--rounds", type=int, default=301)
    parser.add_argument("--out", type=Path, help="a folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    load_average, *_ = os.getloadavg()
    sizes = [measure(int(count), options.rounds) for count in options.requests.split(",")]
    environment = {**describe_environment(), "torch": describe_torch(1)}
    page = render(sizes, load_average, environment)
    print(page)
    if options.out is not None:
        result = {"environment": environment, "sizes": [asdict(row) for row in sizes]}
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "state_indices.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        (options.out / "state_indices.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
