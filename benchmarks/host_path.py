"""What the host does for a steady decode step, by variant of the toggles that shape it.

    python benchmarks/host_path.py [--batch 128,256] [--draft-len 0,5] [--rounds 15] [--out results/host_path.json]

The host's side is the engine's own: scheduler, block manager, input preparation and the enqueueing of copies, for a
full batch of sampled requests of about 7,000 tokens where 262,144 are allowed. The device computes nothing: its
launches are dropped, and its copies run when a step's time has been taken. Every request then commits as many tokens
as forced acceptance would give on average. The pool has blocks for the tokens there are, not for all that are allowed.

All arms take turns in one run, in an order that moves on each round; a turn is a few steps to settle and then those
that are timed. A ratio is that of a round's medians, of the arm and of the baseline of its group; shown are the median
over rounds, and the 10th and 90th percentile. Requests differ in length, so that some of them begin a block in every
step.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.device.tracing import RangeRecorder, Span
from specbench.engine.build import build_engine
from specbench.engine.config import AcceptanceSpec, DrafterSpec, EngineConfig, ModelSpec
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.models.loading import load_model
from specbench.engine.request import Request
from specbench.engine.sampling.params import SamplingParams
from specbench.measure.environment import describe_environment, describe_torch
from specbench.registry import OPTIMIZATIONS

MAX_SEQ_LEN = 262144
TOKENS_PER_BLOCK = 32
CONTEXT = 6400
TOKENS_A_STEP = {0: 1, 5: 3}
"""Committed by K: forced acceptance of mean length 3.0 at K = 5."""
SETTLING_STEPS, TIMED_STEPS = 3, 8
HEADLINES = {
    "sampling_params": "populate_sampling_params",
    "block_staging": "stage_block_offsets",
    "input_prep": "prepare_inputs",
    "all": "prepare_inputs",
}
"""The range whose time a group is about."""


class _Done:
    """A launch that is over when it is made."""

    times_ns = (0, 0)

    def wait(self, timeout_s: float | None = None) -> bool:  # noqa: ARG002
        return True


class IdleDevice:
    """A device that computes nothing: see :class:`specbench.device.base.Device` and the module."""

    name = "idle"
    computes = True
    torch_device = torch.device("cpu")

    def __init__(self) -> None:
        self._copies: list[tuple[Tensor, Tensor]] = []

    def empty_staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype)

    def stage(self, source: Tensor) -> Tensor:
        return source

    def copy_async(self, destination: Tensor, source: Tensor) -> None:
        self._copies.append((destination, source))

    def launch(self, program: Callable[[], Any], name: str) -> _Done:  # noqa: ARG002
        return _Done()

    def synchronize(self) -> None:
        for destination, source in self._copies:
            destination.copy_(source)
        self._copies.clear()

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


@dataclass(frozen=True)
class Arm:
    """One variant of a group: ``choices`` of every toggle."""

    group: str
    variant: str
    choices: dict[str, str]
    is_baseline: bool


@dataclass
class Times:
    """Microseconds of an arm by range: the median of each of its rounds."""

    rounds: list[dict[str, float]] = field(default_factory=list)

    def of(self, name: str) -> list[float]:
        return [found[name] for found in self.rounds]


def list_arms() -> list[Arm]:
    """Each toggle's variants beside the recommended ones of the others, then all baselines against all recommended."""
    toggles = {name: OPTIMIZATIONS.load(name) for name in ("sampling_params", "block_staging", "input_prep")}
    recommended = {name: toggle.recommended for name, toggle in toggles.items()}
    arms = []
    for name, toggle in toggles.items():
        # The fast path of input_prep leaves block offsets alone in steps that change none.
        others = recommended if name == "input_prep" else {**recommended, "input_prep": "rebuild"}
        for variant in toggle.variants:
            arms.append(Arm(name, variant, {**others, name: variant}, variant == toggle.baseline))
    baselines = {name: toggle.baseline for name, toggle in toggles.items()}
    return [*arms, Arm("all", "baselines", baselines, True), Arm("all", "recommended", recommended, False)]


def sampled_params(count: int) -> list[SamplingParams]:
    """Four kinds of sampling that take turns, each request with a seed of its own."""
    base = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, ignore_eos=True, max_tokens=MAX_SEQ_LEN)
    kinds = [base, replace(base, temperature=1.0), replace(base, top_k=None), replace(base, top_p=None)]
    return [replace(kinds[index % 4], seed=index) for index in range(count)]


class Decoder:
    """A full batch in decoding, stepped by hand: what the engine's step does on the host, without the device's answer.

    :param draft_len: K; 0 is plain decoding.
    :param num_steps: how many steps will be taken.
    """

    def __init__(self, batch_size: int, draft_len: int, num_steps: int) -> None:
        self._tokens_a_step = TOKENS_A_STEP[draft_len]
        longest = CONTEXT + TOKENS_PER_BLOCK + (num_steps + 4) * self._tokens_a_step + 4 * (draft_len + 1)
        model = load_model(ModelSpec("tiny", weights="random"), torch.float32, torch.device("cpu"))
        config = EngineConfig(
            model=ModelSpec("tiny", weights="random"),
            device="cpu",
            dtype="float32",
            max_seq_len=MAX_SEQ_LEN,
            max_batch_size=batch_size,
            num_blocks=batch_size * -(-longest // TOKENS_PER_BLOCK),
            tokens_per_block=TOKENS_PER_BLOCK,
            max_num_tokens=max(65536, batch_size * (draft_len + 1)),
            drafter=DrafterSpec("ngram", draft_len) if draft_len else DrafterSpec(),
            acceptance=AcceptanceSpec("forced", length=float(self._tokens_a_step)),
        )
        self.recorder = RangeRecorder()
        self.device = IdleDevice()
        loaded = replace(model, config=replace(model.config, max_position_embeddings=2 * MAX_SEQ_LEN))
        self.engine: LLMEngine = build_engine(config, tracer=self.recorder, loaded=loaded, device=self.device)
        for index, params in enumerate(sampled_params(batch_size)):
            self.engine.add_request([7] * (CONTEXT + index % TOKENS_PER_BLOCK), params)
        self._num_steps = 0
        while self.engine._scheduler.waiting or any(request.in_context for request in self.engine._scheduler.running):
            self.step()
        self.recorder.drain()

    def step(self) -> dict[str, float]:
        """Take one step; return the microseconds of its ranges."""
        engine, recorder = self.engine, self.recorder
        self._num_steps += 1
        with recorder.range("schedule"):
            schedule = engine._scheduler.schedule()
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

    @staticmethod
    def _commit(request: Request, num_tokens: int) -> None:
        request.num_in_flight -= 1
        request.commit([7] * num_tokens, 0)

    def take_turn(self, arm: Arm) -> dict[str, float]:
        """Settle into ``arm`` and time its steps; return the median of each range. One that is left out took 0."""
        self.engine.switch(arm.choices)
        for _ in range(SETTLING_STEPS):
            self.step()
        gc.collect()
        gc.disable()
        try:
            steps = [self.step() for _ in range(TIMED_STEPS)]
        finally:
            gc.enable()
        names = ("schedule", "prepare_inputs", "populate_sampling_params", "stage_block_offsets", "launch")
        medians = {name: statistics.median(step.get(name, 0.0) for step in steps) for name in names}
        medians["prepare_and_launch"] = statistics.median(step["prepare_inputs"] + step["launch"] for step in steps)
        return medians


def measure(batch_size: int, draft_len: int, num_rounds: int) -> list[dict[str, Any]]:
    """Return one row an arm: times, ratios to the baseline of its group, counters."""
    arms = list_arms()
    num_steps = (num_rounds + 1) * len(arms) * (SETTLING_STEPS + TIMED_STEPS)
    decoder = Decoder(batch_size, draft_len, num_steps)
    times = [Times() for _ in arms]
    counters: list[dict[str, int]] = [{} for _ in arms]
    for round_ in range(-1, num_rounds):  # the first one warms up
        for turn in range(len(arms)):
            index = (turn + round_) % len(arms)
            before = _counters(decoder.engine, arms[index])
            found = decoder.take_turn(arms[index])
            if round_ >= 0:
                times[index].rounds.append(found)
                after = _counters(decoder.engine, arms[index])
                counters[index] = {k: counters[index].get(k, 0) + after[k] - before[k] for k in after}
    decoder.engine.shutdown()
    rows = []
    for arm, taken, counted in zip(arms, times, counters, strict=True):
        baseline = next(t for a, t in zip(arms, times, strict=True) if a.group == arm.group and a.is_baseline)
        rows.append(_row(batch_size, draft_len, arm, taken, baseline, counted))
    return rows


def _counters(engine: LLMEngine, arm: Arm) -> dict[str, int]:
    """The counters of the arm's variants, as ``toggle.counter``."""
    found = engine.read_counters()
    return {
        f"{name}.{counter}": value
        for name, variant in arm.choices.items()
        for counter, value in found[name].get(variant, {}).items()
    }


def _row(
    batch_size: int, draft_len: int, arm: Arm, taken: Times, baseline: Times, counted: dict[str, int]
) -> dict[str, Any]:
    headline = HEADLINES[arm.group]
    ratios = {}
    for name in dict.fromkeys((headline, "prepare_inputs", "prepare_and_launch")):
        pairs = zip(taken.of(name), baseline.of(name), strict=True)
        ratios[name] = _spread([mine / other for mine, other in pairs if other])
    num_steps = len(taken.rounds) * (SETTLING_STEPS + TIMED_STEPS)
    return {
        "batch_size": batch_size,
        "draft_len": draft_len,
        "group": arm.group,
        "variant": arm.variant,
        "is_baseline": arm.is_baseline,
        "choices": arm.choices,
        "headline": headline,
        "us": {name: _spread(taken.of(name)) for name in taken.rounds[0]},
        "ratio_to_baseline": ratios,
        "counted_per_step": {name: value / num_steps for name, value in counted.items()},
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
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


def _print_row(row: dict[str, Any]) -> None:
    us, ratio = row["us"][row["headline"]], row["ratio_to_baseline"][row["headline"]]
    prepare, whole = row["us"]["prepare_inputs"], row["us"]["prepare_and_launch"]
    print(
        f"{row['batch_size']:5} {row['draft_len']:3} {row['group']:16} {row['variant']:14} "
        f"{us['median']:10.1f} [{us['p10']:8.1f}, {us['p90']:8.1f}] {ratio['median']:8.4f} "
        f"[{ratio['p10']:.4f}, {ratio['p90']:.4f}] {prepare['median']:10.1f} {whole['median']:10.1f}",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", default="128,256")
    parser.add_argument("--draft-len", default="0,5")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"{'batch':>5} {'K':>3} {'group':16} {'variant':14} {'us a step [p10, p90]':>32} ", end="")
    print(f"{'ratio to the baseline':>26} {'prepare us':>10} {'+ launch us':>10}")
    rows: list[dict[str, Any]] = []
    started = time.time()
    for batch_size in map(int, options.batch.split(",")):
        for draft_len in map(int, options.draft_len.split(",")):
            found = measure(batch_size, draft_len, options.rounds)
            rows += found
            for row in found:
                _print_row(row)
    result = {
        "max_seq_len": MAX_SEQ_LEN,
        "tokens_per_block": TOKENS_PER_BLOCK,
        "context": CONTEXT,
        "rounds": options.rounds,
        "timed_steps_a_round": TIMED_STEPS,
        "seconds": time.time() - started,
        "rows": rows,
        "environment": {**describe_environment(), "torch": describe_torch(1)},
    }
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2, default=str) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
