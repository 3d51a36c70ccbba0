"""Runs that are compared: the same requests with `steady_state` and with `rebuild`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine_driver import with_variants
from step_recorder import Recording, decoding_requests, record

from specbench.engine.config import EngineConfig
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.scheduler import Schedule

Engine = Callable[[LLMEngine], object]


def shuffle_now_and_then(seed: int) -> Engine:
    """Put the generation requests of a third of the steps in another order."""

    def install(engine: LLMEngine) -> None:
        rng, original = random.Random(seed), engine._scheduler.schedule

        def schedule() -> Schedule:
            made = original()
            shuffled = list(made.generation)
            if rng.random() < 0.3:
                rng.shuffle(shuffled)
            return replace(made, generation=shuffled)

        engine._scheduler.schedule = schedule  # type: ignore[method-assign]

    return install


def tight(config: EngineConfig) -> EngineConfig:
    """A pool that holds the longest request and little else: requests are preempted."""
    return replace(config, max_seq_len=64, num_blocks=13)


def compare(config: EngineConfig, seed: int, **options: Any) -> tuple[Recording, list[str]]:
    """Run the same requests in both variants; return the steady one and what differs."""
    requests = decoding_requests(seed)
    steady, full = (
        record(with_variants(config, input_prep=each), requests, **options) for each in ("steady_state", "rebuild")
    )
    return steady, steady.differences(full)
