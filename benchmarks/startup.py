"""Start and memory: time of the commands that must be quick, load to first token, peak memory of a run.

    python benchmarks/startup.py [--model smollm2-135m] [--repeats 5] [--out results/x.json]

Every figure is of a fresh process, medians with the range. Peak memory is the process's high-water mark (VmHWM) less
what was resident after imports, beside the weights and KV cache it holds; the cache is filled to the last token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from specbench.measure.environment import describe_environment

RUN = """
import json, sys, time
start = time.perf_counter()
import torch
from specbench.engine.build import build_engine
from specbench.engine.config import EngineConfig, ModelSpec
from specbench.engine.sampling.params import SamplingParams

def kib(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name))

source, dtype, length, batch = sys.argv[1], sys.argv[2], 1024, 8
imported, resident = time.perf_counter(), kib("VmRSS")
config = EngineConfig(
    model=ModelSpec(source), device="cpu", dtype=dtype, max_seq_len=length, max_batch_size=batch, num_blocks=batch * 33
)
engine = build_engine(config)
loaded = time.perf_counter()
params = SamplingParams(max_tokens=4, ignore_eos=True)
engine.add_request(range(100, 132), params)
while not engine.step():
    pass
first = time.perf_counter()
while engine.has_work:
    engine.step()
for _ in range(batch):
    engine.add_request([7] * (length - 8), params)
while engine.has_work:
    engine.step()
width = 2 if dtype == "bfloat16" else 4
weights = engine.loaded.num_parameters * width
cache = batch * length * engine.model_config.kv_bytes_per_token(width)
peak = (kib("VmHWM") - resident) * 1024
print(json.dumps({
    "import_s": imported - start, "load_s": loaded - imported, "load_to_first_token_s": first - imported,
    "peak_bytes": peak, "weights_bytes": weights, "kv_cache_bytes": cache, "peak_ratio": peak / (weights + cache),
}))
"""


def time_command(arguments: list[str], repeats: int) -> dict[str, float]:
    """Wall seconds of ``python -m specbench ...``: median, lowest, highest."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "specbench", *arguments], check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - start)
    return summarize(seconds[1:])


def time_runs(model: str, dtype: str, repeats: int) -> dict[str, dict[str, float]]:
    """Figures of :data:`RUN`, after one run that warms the file cache."""
    runs = []
    for _ in range(repeats + 1):
        done = subprocess.run([sys.executable, "-c", RUN, model, dtype], check=True, capture_output=True, text=True)
        runs.append(json.loads(done.stdout))
    return {name: summarize([run[name] for run in runs[1:]]) for name in runs[0]}


def summarize(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def main() -> None:
    """Measure, print, and write JSON where ``--out`` says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--scenario", default="scenarios/quickstart.yaml")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    figures: dict[str, Any] = {
        "--help": time_command(["--help"], args.repeats),
        "check": time_command(["check", args.scenario], args.repeats),
    }
    for dtype in ("bfloat16", "float32"):
        figures[dtype] = time_runs(args.model, dtype, args.repeats)
    print(json.dumps(figures, indent=2))
    if args.out:
        report = {"figures": figures, "environment": describe_environment()}
        args.out.write_text(json.dumps(report, indent=2, default=str) + "\n")


if __name__ == "__main__":
    main()
