"""Staging of block offsets at the reference shape, by variant, number of pools and kind of staging memory."""

from __future__ import annotations

import statistics
import time
from resource import RUSAGE_SELF, getrusage
from typing import Any

import torch
from host_path_decoder import MAX_SEQ_LEN, TOKENS_PER_BLOCK, bounded_bytes, spread
from torch import Tensor

from specbench.device.staging import StagingPool
from specbench.engine.block_manager import BlockManager
from specbench.engine.block_staging import BoundedBlockStaging, EmptyStaging, FullBlockStaging

NUM_ROWS = 256
KV_LEN = 7168
"""Of the longest sequence: 224 blocks."""
SETTLING_STEPS, TIMED_STEPS = 2, 3


def fresh(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory as PyTorch's allocator gives it."""
    return torch.empty(shape, dtype=dtype)


def measure(num_pools: int, num_rounds: int) -> list[dict[str, Any]]:
    """One row a variant and kind of memory; a copy reads each step's offsets after the next has been staged."""
    sources, destination = _sources(num_pools), torch.zeros((num_pools, NUM_ROWS, 2, _columns()), dtype=torch.int32)
    memories: dict[str, EmptyStaging] = {"torch.empty": fresh, "pool": StagingPool().empty}
    stagings = {
        (variant, memory): FullBlockStaging(empty)
        if variant == "full"
        else BoundedBlockStaging(empty, can_outrun_host=False)
        for memory, empty in memories.items()
        for variant in ("full", "bounded")
    }
    arms = list(stagings)
    rounds: dict[tuple[str, str], list[float]] = {arm: [] for arm in arms}
    page_faults: dict[tuple[str, str], list[float]] = {arm: [] for arm in arms}
    for round_ in range(-1, num_rounds):  # the first one warms up
        for turn in range(len(arms)):
            arm = arms[(turn + round_) % len(arms)]
            taken_us, num_faults = _take_turn(stagings[arm], sources, destination)
            if round_ >= 0:
                rounds[arm].append(taken_us)
                page_faults[arm].append(num_faults)
    return [
        {
            "num_pools": num_pools,
            "rows": NUM_ROWS,
            "max_kv_len": KV_LEN,
            "variant": variant,
            "memory": memory,
            "us": spread(taken),
            "page_faults": spread(page_faults[variant, memory]),
            "ratio_to_torch_empty": _ratios(taken, rounds[variant, "torch.empty"]),
            "ratio_to_full": _ratios(taken, rounds["full", memory]),
            "bytes_per_step": stagings[variant, memory].counters.bytes / stagings[variant, memory].counters.steps,
            "bytes_by_formula": bounded_bytes(NUM_ROWS, MAX_SEQ_LEN if variant == "full" else KV_LEN, num_pools),
        }
        for (variant, memory), taken in rounds.items()
    ]


def _columns() -> int:
    return MAX_SEQ_LEN // TOKENS_PER_BLOCK


def _sources(num_pools: int) -> list[BlockManager]:
    blocks_a_row = KV_LEN // TOKENS_PER_BLOCK
    sources = [BlockManager(NUM_ROWS * blocks_a_row, NUM_ROWS, _columns(), TOKENS_PER_BLOCK) for _ in range(num_pools)]
    for source in sources:
        for slot in range(NUM_ROWS):
            source.grow(slot, KV_LEN)
    return sources


def _take_turn(staging: FullBlockStaging, sources: list[BlockManager], destination: Tensor) -> tuple[float, float]:
    """Median microseconds and page faults of staging; two steps' memory is in use at a time, as under overlap."""
    slots, taken, faults, waiting = list(range(NUM_ROWS)), [], [], None
    for step in range(SETTLING_STEPS + TIMED_STEPS):
        num_faults, start_ns = getrusage(RUSAGE_SELF).ru_minflt, time.perf_counter_ns()
        staged = staging.stage(sources, slots, KV_LEN)
        end_ns = time.perf_counter_ns()
        if step >= SETTLING_STEPS:
            taken.append((end_ns - start_ns) / 1e3)
            faults.append(getrusage(RUSAGE_SELF).ru_minflt - num_faults)
        if waiting is not None:
            destination[..., : waiting.shape[-1]].copy_(waiting)
        waiting = staged
        del staged
    return statistics.median(taken), statistics.median(faults)


def _ratios(taken: list[float], others: list[float]) -> dict[str, float]:
    return spread([mine / other for mine, other in zip(taken, others, strict=True)])
