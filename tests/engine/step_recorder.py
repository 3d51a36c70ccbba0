"""Runs an engine and keeps what the device had in its buffers at each step, when attention was about to read it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from engine_driver import tiny_model
from torch import Tensor

from specbench.device.base import Device
from specbench.device.cpu import CpuDevice
from specbench.engine.build import build_engine
from specbench.engine.config import EngineConfig
from specbench.engine.device_state import DeviceState
from specbench.engine.forward_batch import ForwardBatch
from specbench.engine.llm_engine import LLMEngine, StepEvent
from specbench.engine.models.loading import LoadedModel
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.step_inputs import StepRows

Requests = Sequence[tuple[list[int], SamplingParams]]
Change = Callable[[LLMEngine], Sequence[StepEvent]]
"""Done to the engine before a step; returns the events it caused."""


def decoding_requests(seed: int, count: int = 8) -> list[tuple[list[int], SamplingParams]]:
    """Short prompts and outputs of 3 to 60 tokens; greedy, sampled alike, and sampled each in its own way."""
    rng = random.Random(seed)
    greedy = SamplingParams(ignore_eos=True)
    sampled = SamplingParams(temperature=0.9, top_k=40, top_p=0.95, ignore_eos=True)
    kinds = [greedy, greedy, sampled, sampled, replace(sampled, temperature=1.4), replace(sampled, top_k=None)]
    return [
        (
            [rng.randrange(200) for _ in range(rng.randint(1, 20))],
            replace(rng.choice(kinds), seed=index, max_tokens=rng.randint(3, 60)),
        )
        for index in range(count)
    ]


@dataclass
class Recording:
    """One entry a step, and the outputs in the order of submission."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    counters: dict[str, Any] = field(default_factory=dict)
    num_preemptions: int = 0

    def differences(self, other: Recording) -> list[str]:
        """What is not equal, as ``step: name``."""
        found = [] if self.outputs == other.outputs else ["outputs"]
        if len(self.steps) != len(other.steps):
            found.append(f"{len(self.steps)} and {len(other.steps)} steps")
        for number, (mine, others) in enumerate(zip(self.steps, other.steps, strict=False), start=1):
            found += [f"{number}: {name}" for name in mine if not _equal(mine[name], others[name])]
        return found


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return torch.equal(left, right)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(left == right)


def look_at(engine: LLMEngine, batch: ForwardBatch, rows: StepRows) -> dict[str, Any]:
    """A copy of every input of the step, where it lies on the device, and of what the host says about it."""
    inputs, tokens_per_block = engine._model_runner.inputs, engine.config.tokens_per_block
    kv_lens = [chunk.end for chunk in batch.context] + rows.kv_lens.tolist()
    columns = [-(-kv_len // tokens_per_block) for kv_len in kv_lens]
    sampling = batch.sampling
    return {
        "token_ids": rows.token_ids.clone(),
        "positions": rows.positions.clone(),
        "model_positions": rows.model_positions.clone(),
        "num_tokens": rows.num_tokens.clone(),
        "kv_lens": rows.kv_lens.clone(),
        "slots": inputs.slots[: batch.num_generation].clone(),
        "seeds": rows.seeds.clone(),
        "block_offsets": [inputs.block_offsets[:, row, :, :used].clone() for row, used in enumerate(columns)],
        "facts": sampling.facts,
        "sampling": []
        if sampling.all_greedy
        else [sampling.temperature.clone(), sampling.top_k.clone(), sampling.top_p.clone()],
        "max_num_tokens": batch.max_num_tokens,
        "shape": batch.shape,
        "step": batch.step,
    }


def watch(engine: LLMEngine, look: Callable[[ForwardBatch, StepRows], object]) -> None:
    """Call ``look`` on the device when a step's inputs are complete and attention has not seen them."""
    inputs = engine._model_runner.inputs
    original = inputs.read_rows

    def watched(batch: ForwardBatch, state: DeviceState) -> StepRows:
        rows = original(batch, state)
        look(batch, rows)
        return rows

    inputs.read_rows = watched  # type: ignore[method-assign]


def record(
    config: EngineConfig,
    requests: Requests,
    *,
    change: Change = lambda _engine: (),
    prepare: Callable[[LLMEngine], object] = lambda _engine: None,
    loaded: LoadedModel | None = None,
    device: Device | None = None,
) -> Recording:
    """Run all requests, four at a time.

    :param prepare: done to the engine before its first step.
    """
    device = device or CpuDevice(num_threads=1)
    engine = build_engine(config, loaded=loaded or tiny_model(), device=device)
    found, waiting, handles, unfinished = Recording(), list(requests), [], 0
    watch(engine, lambda batch, rows: found.steps.append(look_at(engine, batch, rows)))
    prepare(engine)
    try:
        while waiting or engine.has_work:
            while waiting and unfinished < 4:
                prompt, params = waiting.pop(0)
                handles.append(engine.add_request(prompt, params))
                unfinished += 1
            events = [*change(engine), *engine.step()]
            unfinished -= sum(event.finished for event in events)
        found.outputs = [handle.output_token_ids for handle in handles]
        found.counters = engine.read_counters()
        found.num_preemptions = engine.num_preemptions
        return found
    finally:
        try:
            engine.shutdown()  # waits, and so raises what a step on the device raised
        finally:
            device.close()
