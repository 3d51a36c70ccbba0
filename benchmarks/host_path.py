"""What the host does for a steady decode step, by variant of the toggles that shape it.

    python benchmarks/host_path.py [--batch 128,256] [--draft-len 0,5] [--rounds 31] [--out results/host_path]

The host's side is the engine's own: scheduler, block manager, input preparation and the enqueueing of copies, for a
full batch of sampled requests of about 7,000 tokens where 262,144 are allowed. The device computes nothing: its
launches are dropped, and its copies run when a step's time has been taken. Every request then commits as many tokens
as forced acceptance would give on average. The pool has blocks for the tokens there are, not for all that are allowed.

All arms take turns in one run, in an order that moves on each round; a turn is a few steps to settle and then those
that are timed. A ratio is that of a round's medians, of the arm and of the baseline of its group; shown are the median
over rounds, and the 10th and 90th percentile. Requests differ in length, so that some of them begin a block in every
step.

Two parts are measured without an engine around them: filling the sampling parameters over the number of rows, and
staging block offsets at the reference shape. ``--out`` names a folder for ``host_path.json`` and ``host_path.md``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import host_path_arms
import host_path_fills
import host_path_staging
import torch
from host_path_decoder import LONGEST_CONTEXT, MAX_SEQ_LEN, SHORTEST_CONTEXT, TIMED_STEPS, TOKENS_PER_BLOCK
from host_path_tables import render

from specbench.measure.environment import describe_environment, describe_torch

FILL_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
NUM_POOLS = (1, 2)


def measure(batch_sizes: list[int], draft_lens: list[int], num_rounds: int) -> dict[str, Any]:
    """Every part, one after the other."""
    started, (load_average, *_) = time.time(), os.getloadavg()
    points = [(batch_size, draft_len, "alike") for draft_len in draft_lens for batch_size in batch_sizes]
    points.append((max(batch_sizes), min(draft_lens), "spread"))
    arms = []
    for batch_size, draft_len, lengths in points:
        _say(f"batch {batch_size}, K = {draft_len}, lengths {lengths}")
        arms += host_path_arms.measure(batch_size, draft_len, lengths, num_rounds)
    fill_batches = [batch_size for batch_size in FILL_BATCHES if batch_size <= max(batch_sizes)]
    _say("sampling parameters over rows")
    fills = [row for draft_len in draft_lens for row in host_path_fills.measure(fill_batches, draft_len, num_rounds)]
    _say("staging at the reference shape")
    staging = [row for num_pools in NUM_POOLS for row in host_path_staging.measure(num_pools, num_rounds)]
    settings = {
        "max_seq_len": MAX_SEQ_LEN,
        "tokens_per_block": TOKENS_PER_BLOCK,
        "longest_context": LONGEST_CONTEXT,
        "shortest_context": SHORTEST_CONTEXT,
        "rounds": num_rounds,
        "timed_steps_a_round": TIMED_STEPS,
        "load_average": load_average,
        "seconds": time.time() - started,
    }
    environment = {**describe_environment(), "torch": describe_torch(1)}
    return {"settings": settings, "arms": arms, "fills": fills, "staging": staging, "environment": environment}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=_numbers, default=[128, 256])
    parser.add_argument("--draft-len", type=_numbers, default=[0, 5])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--out", type=Path, help="a folder")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    # What has been imported stays: a collection before each turn need not look at it.
    gc.collect()
    gc.freeze()
    result = measure(options.batch, options.draft_len, options.rounds)
    page = render(result)
    print(page)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "host_path.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        (options.out / "host_path.md").write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
