"""Host time of filling the sampling parameters of a steady step, over the number of logits rows."""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

from host_path_decoder import IdleDevice, sampled_params, spread

from specbench.engine.config import DrafterSpec, EngineConfig, ModelSpec
from specbench.engine.optimizations.base import build_switch

BASELINE = "refill"
SETTLING_FILLS, TIMED_FILLS = 2, 10


def measure(batch_sizes: list[int], draft_len: int, num_rounds: int) -> list[dict[str, Any]]:
    """One row a batch size and variant; all of them take turns within a round."""
    points = {batch_size: _Point(batch_size, draft_len) for batch_size in batch_sizes}
    variants = list(next(iter(points.values())).switch.toggle.variants)
    cells = [(batch_size, variant) for batch_size in batch_sizes for variant in variants]
    rounds: dict[tuple[int, str], list[float]] = {cell: [] for cell in cells}
    for round_ in range(-1, num_rounds):  # the first one warms up
        for turn in range(len(cells)):
            batch_size, variant = cells[(turn + round_) % len(cells)]
            found = points[batch_size].take_turn(variant)
            if round_ >= 0:
                rounds[batch_size, variant].append(found)
    return [
        {
            "batch_size": batch_size,
            "draft_len": draft_len,
            "rows": batch_size * (draft_len + 1),
            "variant": variant,
            "us": spread(taken),
            "ratio_to_refill": spread([a / b for a, b in zip(taken, rounds[batch_size, BASELINE], strict=True)]),
        }
        for (batch_size, variant), taken in rounds.items()
    ]


class _Point:
    """The choice point of an engine of one size, and the parameters of its steady step."""

    def __init__(self, batch_size: int, draft_len: int) -> None:
        config = EngineConfig(
            model=ModelSpec("tiny"),
            device="cpu",
            max_seq_len=64,
            max_batch_size=batch_size,
            num_blocks=batch_size,
            drafter=DrafterSpec("ngram", draft_len) if draft_len else DrafterSpec(),
        )
        self._device = IdleDevice()
        self.switch = build_switch("sampling_params", config, self._device)
        self._params = sampled_params(batch_size)
        self._row_counts = [draft_len + 1] * batch_size
        self._slots = list(range(batch_size))

    def take_turn(self, variant: str) -> float:
        """Median microseconds of a fill that repeats the one before; copies run in between."""
        self.switch.switch(variant)
        for _ in range(SETTLING_FILLS):
            self._fill()
        gc.collect()
        gc.disable()
        try:
            return statistics.median(self._fill() for _ in range(TIMED_FILLS))
        finally:
            gc.enable()

    def _fill(self) -> float:
        # Lists of their own, as a step makes them.
        params, row_counts, slots = list(self._params), list(self._row_counts), list(self._slots)
        start_ns = time.perf_counter_ns()
        self.switch.current.fill(params, row_counts, slots)
        taken_us = (time.perf_counter_ns() - start_ns) / 1e3
        self._device.synchronize()
        return taken_us
