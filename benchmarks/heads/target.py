"""The target model, driven through specbench's own engine, and the hidden states it computes on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from specbench.engine.build import build_engine
from specbench.engine.config import EngineConfig, ModelSpec
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.sampling.params import SamplingParams
from specbench.workloads.chat_template import Message
from specbench.workloads.tokenizer import Tokenizer

AUX_LAYERS = (2, 15, 27)
"""Decoder layers whose inputs an EAGLE-3 head reads; the state after the final norm comes with them."""

_TOKENS_PER_BLOCK = 32
_PROMPT_ROWS = 512


@dataclass(frozen=True)
class Job:
    """One text to complete.

    :param key: what the caller knows it by.
    """

    key: int
    token_ids: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True)
class Done:
    """A completed text.

    :param states: [tokens seen, 4, H]: inputs of the layers ``AUX_LAYERS`` and the state after the final norm, at each
        position that the target computed; None when not recorded.
    """

    job: Job
    output: tuple[int, ...]
    states: Tensor | None


def open_target(source: str, *, batch: int, max_seq_len: int, threads: int | None, device: str = "cpu") -> LLMEngine:
    """Build a bfloat16 engine that holds ``batch`` sequences at once."""
    blocks = -(-(max_seq_len + 2) // _TOKENS_PER_BLOCK)
    config = EngineConfig(
        ModelSpec(source),
        device=device,
        max_seq_len=max_seq_len,
        max_batch_size=batch,
        num_blocks=batch * blocks,
        tokens_per_block=_TOKENS_PER_BLOCK,
        max_num_tokens=batch + _PROMPT_ROWS,
        attention="cpu-paged" if device == "cpu" else "torch-gather",
        num_threads=threads,
        optimizations=(("overlap", "off"), ("graphs", "off")),
    )
    return build_engine(config)


def load_tokenizer(engine: LLMEngine) -> Tokenizer:
    """The tokenizer that belongs to the engine's model."""
    directory = engine.loaded.directory
    assert directory is not None, "the model has no tokenizer"
    return Tokenizer.load(Path(directory))


def chat(tokenizer: Tokenizer, prompt: str) -> tuple[int, ...]:
    """A single user turn as specbench's workloads put it to the model, up to where the answer begins."""
    return tuple(tokenizer.apply_chat_template([Message("user", prompt)]))


class StateRecorder:
    """Keeps the hidden states of every row that an engine's model computes, by slot and position.

    It wraps the scheduler (which request stands in which row) and the layers, so the engine must run without overlap
    and without captured graphs.
    """

    def __init__(self, engine: LLMEngine) -> None:
        config, model = engine.config, engine.loaded.model
        shape = (config.max_batch_size, config.max_positions + 1, len(AUX_LAYERS) + 1, engine.model_config.hidden_size)
        self._states = torch.zeros(shape, dtype=torch.bfloat16)
        self._slots: dict[str, int] = {}
        self._rows: tuple[Tensor, Tensor] | None = None
        self._scheduler: Any = engine._scheduler
        self._schedule = self._scheduler.schedule
        self._scheduler.schedule = self._note_schedule
        layers: Any = cast(Any, model).layers
        for column, index in enumerate(AUX_LAYERS):
            layers[index].forward = self._keep_input(column, layers[index].forward)
        whole: Any = model
        whole.forward = self._keep_output(len(AUX_LAYERS), whole.forward)

    def take(self, request_id: str, length: int) -> Tensor:
        """Return a copy of a finished request's states [length, 4, H]."""
        return self._states[self._slots.pop(request_id), :length].clone()

    def _note_schedule(self) -> Any:
        schedule = self._schedule()
        slots, positions = [], []
        for chunk in schedule.context:
            self._slots[chunk.request.request_id] = chunk.request.slot
            slots += [chunk.request.slot] * chunk.num_tokens
            positions += range(chunk.start, chunk.end)
        slots += [request.slot for request in schedule.generation]
        positions += [request.num_tokens - 1 for request in schedule.generation]
        self._rows = torch.tensor(slots), torch.tensor(positions)
        return schedule

    def _keep_input(self, column: int, forward: Any) -> Any:
        def kept(hidden: Tensor, *rest: Any) -> Tensor:
            self._keep(column, hidden)
            result: Tensor = forward(hidden, *rest)
            return result

        return kept

    def _keep_output(self, column: int, forward: Any) -> Any:
        def kept(*arguments: Any) -> Tensor:
            result: Tensor = forward(*arguments)
            self._keep(column, result)
            return result

        return kept

    def _keep(self, column: int, hidden: Tensor) -> None:
        assert self._rows is not None
        slots, positions = self._rows
        self._states[slots, positions, column] = hidden[: slots.shape[0]].to("cpu", torch.bfloat16)


def complete(engine: LLMEngine, jobs: Iterable[Job], recorder: StateRecorder | None = None) -> Iterator[Done]:
    """Yield every job as it ends; a job is asked for only when the engine has room for it.

    With jobs of one output token that hold prompt and answer this computes the states of a text that is there already.
    """
    source, running = iter(jobs), {}
    waiting = True
    while waiting or engine.has_work:
        while waiting and len(running) < engine.config.max_batch_size:
            job = next(source, None)
            waiting = job is not None
            if job is not None:
                running[engine.add_request(job.token_ids, job.params).request_id] = job
        for event in engine.step():
            if event.finished:
                request = event.request
                job = running.pop(request.request_id)
                # The last token was chosen and never computed on.
                states = recorder.take(request.request_id, request.num_tokens - 1) if recorder is not None else None
                yield Done(job, tuple(request.output_token_ids), states)
        engine.drain_steps()
        engine.drain_audit()
