"""A full batch in decoding, stepped by hand on a device that computes nothing."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specbench.device.cpu import CpuCompletion
from specbench.device.staging import StagingPool
from specbench.device.tracing import RangeRecorder, Span
from specbench.engine.build import build_engine
from specbench.engine.config import AcceptanceSpec, DrafterSpec, EngineConfig, ModelSpec
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.models.loading import load_model
from specbench.engine.request import Request
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.scheduler import Schedule

MAX_SEQ_LEN = 262144
TOKENS_PER_BLOCK = 32
LONGEST_CONTEXT, SHORTEST_CONTEXT = 6400, 1024
TOKENS_A_STEP = {0: 1, 5: 3}
"""Committed by K: forced acceptance of mean length 3.0 at K = 5."""
SETTLING_STEPS, TIMED_STEPS = 3, 8
RANGES = ("schedule", "prepare_inputs", "populate_sampling_params", "stage_block_offsets", "launch")


class _Done:
    """A launch that is over when it is made."""

    times_ns = (0, 0)

    def wait(self, timeout_s: float | None = None) -> bool:  # noqa: ARG002
        return True


class IdleDevice:
    """A device that computes nothing: see :class:`specbench.device.base.Device`. Copies run when it is synchronised.

    Enqueueing costs the host what it costs on the CPU device; programs are then dropped.
    """

    name = "idle"
    computes = True
    torch_device = torch.device("cpu")

    def __init__(self) -> None:
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._launches: list[tuple[str, Callable[[], Any], CpuCompletion]] = []
        self._staging = StagingPool()

    def empty_staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self._staging.empty(shape, dtype)

    def stage(self, source: Tensor) -> Tensor:
        return source

    def copy_async(self, destination: Tensor, source: Tensor) -> None:
        self._copies.append((destination, source))

    def launch(self, program: Callable[[], Any], name: str) -> _Done:
        self._launches.append((name, program, CpuCompletion()))
        return _Done()

    def synchronize(self) -> None:
        for destination, source in self._copies:
            destination.copy_(source)
        self._copies.clear()
        self._launches.clear()

    def drain_busy(self) -> list[Span]:
        return []

    def read_counters(self) -> dict[str, float]:
        return {}

    def memory_bytes(self) -> int:
        return 1 << 40

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def close(self) -> None:
        self._copies.clear()


def sampled_params(count: int) -> list[SamplingParams]:
    """Four kinds of sampling that take turns, each request with a seed of its own."""
    base = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, ignore_eos=True, max_tokens=MAX_SEQ_LEN)
    kinds = [base, replace(base, temperature=1.0), replace(base, top_k=None), replace(base, top_p=None)]
    return [replace(kinds[index % 4], seed=index) for index in range(count)]


def context_lens(batch_size: int, lengths: str) -> list[int]:
    """Tokens of each prompt; some of the requests begin a block in every step either way.

    :param lengths: ``alike``: within one block of each other, as in a batch that began together; ``spread``: evenly
        from the shortest to the longest.
    """
    if lengths == "alike":
        return [LONGEST_CONTEXT + index % TOKENS_PER_BLOCK for index in range(batch_size)]
    span = LONGEST_CONTEXT + TOKENS_PER_BLOCK - SHORTEST_CONTEXT
    return [SHORTEST_CONTEXT + span * index // batch_size for index in range(batch_size)]


def _config(batch_size: int, draft_len: int, num_steps: int) -> EngineConfig:
    """The pool has blocks for the tokens there will be, or for one request as long as it may become."""
    tokens_a_step = TOKENS_A_STEP[draft_len]
    longest = LONGEST_CONTEXT + TOKENS_PER_BLOCK + (num_steps + 4) * tokens_a_step + 4 * (draft_len + 1)
    return EngineConfig(
        model=ModelSpec("tiny", weights="random"),
        device="cpu",
        dtype="float32",
        max_seq_len=MAX_SEQ_LEN,
        max_batch_size=batch_size,
        num_blocks=max(batch_size * -(-longest // TOKENS_PER_BLOCK), MAX_SEQ_LEN // TOKENS_PER_BLOCK + 1),
        tokens_per_block=TOKENS_PER_BLOCK,
        max_num_tokens=max(65536, batch_size * (draft_len + 1)),
        drafter=DrafterSpec("ngram", draft_len) if draft_len else DrafterSpec(),
        acceptance=AcceptanceSpec("forced", length=float(tokens_a_step)),
    )


class Decoder:
    """What the engine's step does on the host, without the device's answer.

    Every request commits as many tokens a step as forced acceptance would give on average.

    :param draft_len: K; 0 is plain decoding.
    :param num_steps: how many steps will be taken.
    :ivar bounded_bytes: of all steps taken: rows x 2 x ceil(max kv length / tokens per block) x 4 x pools.
    """

    def __init__(self, batch_size: int, draft_len: int, num_steps: int, lengths: str = "alike") -> None:
        self._tokens_a_step = TOKENS_A_STEP[draft_len]
        model = load_model(ModelSpec("tiny", weights="random"), torch.float32, torch.device("cpu"))
        loaded = replace(model, config=replace(model.config, max_position_embeddings=2 * MAX_SEQ_LEN))
        self.recorder = RangeRecorder()
        self.device = IdleDevice()
        self.engine: LLMEngine = build_engine(
            _config(batch_size, draft_len, num_steps), tracer=self.recorder, loaded=loaded, device=self.device
        )
        self._num_steps = 0
        self.bounded_bytes = 0
        prompts = context_lens(batch_size, lengths)
        for params, num_tokens in zip(sampled_params(batch_size), prompts, strict=True):
            self.engine.add_request([7] * num_tokens, params)
        while self.engine._scheduler.waiting or any(request.in_context for request in self.engine._scheduler.running):
            self.step()
        self.recorder.drain()

    def step(self) -> dict[str, float]:
        """Take one step; return the microseconds of its ranges."""
        engine, recorder = self.engine, self.recorder
        self._num_steps += 1
        with recorder.range("schedule"):
            schedule = engine._scheduler.schedule()
        self._count_bytes(schedule)
        with recorder.range("prepare_inputs"):
            batch = engine._input_preparation.prepare(self._num_steps, schedule)
        with recorder.range("launch"):
            engine._model_runner.launch(batch)
        self.device.synchronize()
        for chunk in schedule.context:
            if chunk.samples:
                self._commit(chunk.request, 1)
        for request in schedule.generation:
            self._commit(request, self._tokens_a_step)
        spans = recorder.drain()
        return {span.name: (span.end_ns - span.start_ns) / 1e3 for span in spans}

    def _count_bytes(self, schedule: Schedule) -> None:
        if schedule.generation:
            max_kv_len = max(request.num_tokens + request.num_in_flight - 1 for request in schedule.generation)
            self.bounded_bytes += bounded_bytes(len(schedule.generation), max_kv_len, num_pools=1)

    @staticmethod
    def _commit(request: Request, num_tokens: int) -> None:
        request.num_in_flight -= 1
        request.commit([7] * num_tokens, 0)

    def take_turn(self, choices: Mapping[str, str]) -> dict[str, float]:
        """Settle into ``choices`` and time steps; return the median of each range. One that is left out took 0."""
        self.engine.switch(choices)
        for _ in range(SETTLING_STEPS):
            self.step()
        gc.collect()
        gc.disable()
        try:
            steps = [self.step() for _ in range(TIMED_STEPS)]
        finally:
            gc.enable()
        medians = {name: statistics.median(step.get(name, 0.0) for step in steps) for name in RANGES}
        medians["prepare_and_launch"] = statistics.median(step["prepare_inputs"] + step["launch"] for step in steps)
        return medians

    def read_counters(self, choices: Mapping[str, str]) -> dict[str, int]:
        """The counters of the variants chosen, as ``toggle.counter``, and :attr:`bounded_bytes`."""
        found = self.engine.read_counters()
        counted = {
            f"{name}.{counter}": value
            for name, variant in choices.items()
            for counter, value in found[name].get(variant, {}).items()
        }
        return {**counted, "bounded_bytes_by_formula": self.bounded_bytes}


def bounded_bytes(num_rows: int, max_kv_len: int, num_pools: int) -> int:
    """Bytes of block offsets that a bounded step stages."""
    return num_rows * 2 * -(-max_kv_len // TOKENS_PER_BLOCK) * 4 * num_pools


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 10th and 90th percentile."""
    ordered = sorted(values)
    if not ordered:
        return {"median": 0.0, "p10": 0.0, "p90": 0.0}
    last = len(ordered) - 1
    return {
        "median": statistics.median(ordered),
        "p10": ordered[round(0.1 * last)],
        "p90": ordered[round(0.9 * last)],
    }
