"""The engine: requests in, committed tokens out, one step at a time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.device.base import Device
from specbench.device.tracing import Span, Tracer
from specbench.engine.block_manager import BlockManager
from specbench.engine.config import EngineConfig, positions_for
from specbench.engine.forward_batch import ContextRows, StepOutput
from specbench.engine.input_preparation import InputPreparation
from specbench.engine.model_runner import ModelRunner, PendingStep
from specbench.engine.models.loading import LoadedModel
from specbench.engine.optimizations.base import Switch
from specbench.engine.optimizations.choice_points import StepOrder, StepPrograms
from specbench.engine.request import Request
from specbench.engine.sampling.audit import AuditLog
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.replay import check_replay
from specbench.engine.scheduler import Schedule, Scheduler
from specbench.engine.step_accounting import StepTimes, account_step
from specbench.errors import CapacityError, InputError, NonFiniteLogitsError, PromptTooLongError, UnknownNameError
from specbench.records import SamplingAudit, StepRecord


@dataclass(frozen=True)
class StepEvent:
    """Tokens one request gained in a step; ``finished`` when they were its last."""

    request: Request
    token_ids: list[int]
    finished: bool


@dataclass(frozen=True)
class _InFlight:
    schedule: Schedule
    pending: PendingStep
    host_start_ns: int
    launch_ns: int


class LLMEngine:
    """Continuous batching over one model. Build it with :func:`specbench.engine.build.build_engine`.

    With overlap a call of :meth:`step` launches a step before it reads the one launched by the call before, so its
    events are those of the earlier step.

    :param switches: the toggles of this engine by name, each connected to its choice point.
    :param owns_device: :meth:`shutdown` closes the device; else others go on using it.
    """

    def __init__(
        self,
        config: EngineConfig,
        loaded: LoadedModel,
        device: Device,
        scheduler: Scheduler,
        input_preparation: InputPreparation,
        model_runner: ModelRunner,
        tracer: Tracer,
        switches: Mapping[str, Switch[Any]],
        *,
        owns_device: bool = True,
    ) -> None:
        self.config = config
        self.loaded = loaded
        self.model_config = loaded.config
        self.device = device
        self._scheduler = scheduler
        self._input_preparation = input_preparation
        self._model_runner = model_runner
        self._tracer = tracer
        self._switches = switches
        self._step_order: Switch[StepOrder] = switches["overlap"]
        self._owns_device = owns_device
        self._requests: dict[str, Request] = {}
        self._ids = itertools.count()
        self._num_steps = 0
        self._in_flight: _InFlight | None = None
        self._steps: list[StepRecord] = []
        self._graphs: Switch[StepPrograms] = switches["graphs"]
        self._audit = AuditLog()
        self._audit.switch(self.variants)

    def add_request(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, *, request_id: str | None = None
    ) -> Request:
        """Queue a prompt; its clock starts now.

        :raises PromptTooLongError: no token could follow the prompt within ``max_seq_len``.
        :raises CapacityError: the KV pool could not hold the request even alone.
        :raises InputError: an empty prompt, an id outside the vocabulary, an id in use, recorded lengths that are
            missing, have no use or do not fit.
        """
        request = self._make_request(prompt_token_ids, params, request_id)
        self._requests[request.request_id] = request
        self._scheduler.add(request)
        return request

    def add_cached_request(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, *, request_id: str | None = None
    ) -> Request:
        """Admit a request at once, as if its prompt had been prefilled: the next step generates from it.

        State and blocks are those that prefilling would have left; keys and values are noise that no model computed,
        or nothing at all where nothing is computed. Between steps only.

        :raises CapacityError: no slot is free, or too few blocks are.
        :raises InputError: as :meth:`add_request`; also a model with recurrent state, which has no such noise.
        """
        request = self._make_request(prompt_token_ids, params, request_id)
        if self.model_config.has_recurrent_state:
            raise InputError(
                "a model with recurrent state cannot be given a synthetic context",
                where="measure.windows",
                hint="a model whose layers all attend",
            )
        slot = self._scheduler.admit_cached(request)
        if slot is None:
            raise CapacityError(
                f"no slot, or too few KV blocks, for a cached context of {request.num_tokens} tokens",
                where=f"request {request.request_id}",
                hint="raise engine.max_batch_size, engine.num_blocks or engine.kv_cache",
            )
        self._requests[request.request_id] = request
        self._write_cached(request, slot)
        return request

    def _write_cached(self, request: Request, slot: int) -> None:
        *cached, last = request.prompt_token_ids
        end, seed = len(cached), request.params.seed
        rows = ContextRows(slot, 0, end, is_last=True, samples=False, seed=seed, next_token_id=last)
        self._model_runner.write_cached(rows, cached, self.blocks.table[slot, : self.blocks.num_owned(slot)].tolist())

    def _make_request(self, prompt_token_ids: Sequence[int], params: SamplingParams, request_id: str | None) -> Request:
        request_id = f"request-{next(self._ids)}" if request_id is None else request_id
        prompt = tuple(prompt_token_ids)
        max_length = min(len(prompt) + params.max_tokens, self.config.max_seq_len)
        self._check_request(request_id, prompt, max_length)
        check_replay(params, len(prompt), self.config, f"request {request_id}")
        end_ids = () if params.ignore_eos else self.model_config.eos_token_ids
        return Request(
            request_id=request_id,
            prompt_token_ids=prompt,
            params=params,
            end_token_ids=frozenset((*end_ids, *params.stop_token_ids)),
            max_length=max_length,
            admitted_ns=time.perf_counter_ns(),
        )

    def _check_request(self, request_id: str, prompt: tuple[int, ...], max_length: int) -> None:
        where = f"request {request_id}"
        if request_id in self._requests:
            raise InputError("a request with this id is running", where=where)
        if not prompt:
            raise InputError("the prompt has no tokens", where=where)
        if min(prompt) < 0 or max(prompt) >= self.model_config.vocab_size:
            raise InputError(f"a token id lies outside 0..{self.model_config.vocab_size - 1}", where=where)
        if len(prompt) >= self.config.max_seq_len:
            raise PromptTooLongError(
                f"the prompt has {len(prompt)} tokens, and max_seq_len is {self.config.max_seq_len}",
                where=where,
                hint=f"set engine.max_seq_len to {len(prompt) + 1} or more, or shorten the prompt",
            )
        positions = positions_for(max_length, self.config.drafter.max_draft_len, self.config.drafter.num_ahead)
        needed = self._scheduler.blocks.blocks_for(positions)
        if needed > self.config.num_blocks:
            raise CapacityError(
                f"needs {needed} KV blocks, the pool has {self.config.num_blocks}",
                where=where,
                hint="raise engine.num_blocks or engine.kv_cache, or lower the output length",
            )

    def abort(self, request_id: str) -> None:
        """Drop a request; tokens of it in flight are discarded. Unknown or finished ids are ignored."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            request.finish_reason = "abort"
            self._scheduler.finish(request)

    @property
    def has_work(self) -> bool:
        """True while a request waits or runs, or a step is in flight."""
        return self._scheduler.has_work or self._in_flight is not None

    @property
    def num_preemptions(self) -> int:
        """Preemptions since the engine was built."""
        return self._scheduler.num_preemptions

    @property
    def blocks(self) -> BlockManager:
        """The block manager, for checks and reports."""
        return self._scheduler.blocks

    def step(self) -> list[StepEvent]:
        """Launch the next step and return the events of the step whose tokens reached the host."""
        launched = self._launch()
        finished, self._in_flight = self._step_order.current.choose(self._in_flight, launched)
        return self._finish(finished)

    def flush(self) -> list[StepEvent]:
        """Finish the step in flight, if there is one, without launching another; return its events."""
        finished, self._in_flight = self._in_flight, None
        return self._finish(finished)

    @property
    def variants(self) -> dict[str, str]:
        """The variant that stands at each toggle's choice point now."""
        return {name: switch.variant for name, switch in self._switches.items()}

    def switch(self, choices: Mapping[str, str]) -> list[StepEvent]:
        """Put other variants at the choice points of ``choices`` (toggle to variant); others stay. Between steps only.

        All variants were built with the engine, and nothing is in flight while they change. A variant that stands
        already is activated all the same, so that switching costs every variant the same.

        :return: events of the step that had to be finished first; see :meth:`flush`.
        :raises UnknownNameError: a toggle or a variant this engine does not have; nothing has changed then.
        """
        for name, variant in choices.items():
            if name not in self._switches:
                raise UnknownNameError.of("toggle", name, self._switches, where=f"optimizations.{name}")
            self._switches[name].toggle.require(variant)
        events = self.flush()
        for name, variant in choices.items():
            self._switches[name].switch(variant)
        self._graphs.current.settle()
        self._audit.switch(self.variants)
        return events

    def drain_audit(self) -> list[SamplingAudit]:
        """What requests asked of the sampler and what they were served with, by row since the last call."""
        return self._audit.drain()

    def describe_captures(self) -> dict[str, Any]:
        """What the variants of ``graphs`` have captured so far; empty where none has."""
        found = [variant.describe() for variant in self._graphs.variants.values()]
        return next((described for described in found if described), {})

    def read_counters(self) -> dict[str, dict[str, dict[str, int]]]:
        """By toggle and variant, what each has done since the engine was built."""
        return {name: switch.read_counters() for name, switch in self._switches.items()}

    def _launch(self) -> _InFlight | None:
        host_start_ns = time.perf_counter_ns()
        with self._tracer.range("schedule"):
            schedule = self._scheduler.schedule()
            fitted = schedule if schedule.is_empty else self._graphs.current.fit(schedule)
        if schedule.is_empty:
            return None
        self._num_steps += 1
        step = self._num_steps
        self._tracer.step_started(step, fitted.shape)
        with self._tracer.range("prepare_inputs", detail=fitted.shape):
            batch = self._input_preparation.prepare(step, fitted)
        with self._tracer.range("launch", detail=fitted.shape):
            pending = self._model_runner.launch(batch)
        return _InFlight(schedule, pending, host_start_ns, time.perf_counter_ns())

    def _finish(self, in_flight: _InFlight | None) -> list[StepEvent]:
        if in_flight is None:
            return []
        with self._tracer.range("wait_output"):
            output = in_flight.pending.read()
        now_ns = time.perf_counter_ns()
        with self._tracer.range("update"):
            events = self._update(in_flight, output, now_ns)
        self._tracer.step_ended(in_flight.pending.batch.step)
        return events

    def _update(self, in_flight: _InFlight, output: StepOutput, now_ns: int) -> list[StepEvent]:
        schedule = in_flight.schedule
        requests = [chunk.request for chunk in schedule.context] + schedule.generation
        live = [request.finish_reason is None for request in requests]
        self._check_finite(in_flight.pending.batch.step, requests, live, output)
        events, kept = [], [0] * len(requests)
        for row, request in enumerate(requests):
            token_ids = output.token_ids[row]
            if not token_ids:
                continue
            request.num_in_flight -= 1
            if live[row]:
                kept[row] = request.commit(token_ids, now_ns)
                events.append(self._event(request, token_ids[: kept[row]]))
        self._audit.check(in_flight.pending.batch, output.effective)
        times = StepTimes(in_flight.host_start_ns, in_flight.launch_ns, *in_flight.pending.completion.times_ns, now_ns)
        self._steps.append(account_step(in_flight.pending.batch, schedule, output, live, kept, times))
        return events

    def _event(self, request: Request, token_ids: list[int]) -> StepEvent:
        finished = request.finish_reason is not None
        if finished:
            del self._requests[request.request_id]
            self._scheduler.finish(request)
        return StepEvent(request, token_ids, finished)

    @staticmethod
    def _check_finite(step: int, requests: list[Request], live: list[bool], output: StepOutput) -> None:
        bad = [
            r.request_id
            for r, alive, finite in zip(requests, live, output.is_finite, strict=True)
            if alive and not finite
        ]
        if bad:
            raise NonFiniteLogitsError(
                f"the target's logits are NaN or infinite for {', '.join(bad[:3])}",
                where=f"step {step}",
                hint="check the weights with `specbench pull --force`, or use engine.dtype=float32",
            )

    def drain_steps(self) -> list[StepRecord]:
        """Return the records of the steps finished since the last call and forget them."""
        steps, self._steps = self._steps, []
        return steps

    def drain_busy(self) -> list[Span]:
        """Return device-lane spans since the last call. May synchronise."""
        return self.device.drain_busy()

    def synchronize(self) -> None:
        """Block until the device is idle."""
        self.device.synchronize()

    def shutdown(self) -> None:
        """Release the device: close it, or leave it idle when it is shared. The engine takes no more work."""
        if self._owns_device:
            self.device.close()
        else:
            self.device.synchronize()
