"""Host side of a step: from a schedule to a :class:`ForwardBatch`."""

from __future__ import annotations

import torch

from specbench.device.base import Device
from specbench.device.tracing import Tracer
from specbench.engine.block_manager import BlockManager
from specbench.engine.config import EngineConfig
from specbench.engine.forward_batch import ContextRows, ForwardBatch
from specbench.engine.optimizations.base import SamplingParamsFill, Switch
from specbench.engine.request import Request
from specbench.engine.sampling.replay import tokens_to_boundary
from specbench.engine.scheduler import ContextChunk, Schedule


class InputPreparation:
    """Builds every input of a step from scratch, in staging memory of its own.

    Staging is fresh each step: copies read it when they execute, which may be after the next step was prepared.

    :param sampling_params: the choice point of that name; whoever stands there is called.
    """

    def __init__(
        self,
        config: EngineConfig,
        device: Device,
        blocks: BlockManager,
        sampling_params: Switch[SamplingParamsFill],
        tracer: Tracer,
    ) -> None:
        self._config = config
        self._device = device
        self._blocks = blocks
        self._sampling_params = sampling_params
        self._tracer = tracer

    def prepare(self, step: int, schedule: Schedule) -> ForwardBatch:
        """Return the batch of ``schedule``; enqueues the copies of the sampling parameters."""
        context = tuple(_context_rows(chunk) for chunk in schedule.context)
        requests = [chunk.request for chunk in schedule.context] + schedule.generation
        rows = self._config.drafter.max_draft_len + 1
        slots = [_slot(request) for request in schedule.generation]
        with self._tracer.range("populate_sampling_params"):
            sampling_chunks = [chunk for chunk in schedule.context if chunk.samples]
            sampling = self._sampling_params.current.fill(
                [chunk.request.params for chunk in sampling_chunks] + [r.params for r in schedule.generation],
                [1] * len(sampling_chunks) + [schedule.draft_len + 1] * len(schedule.generation),
                [_slot(chunk.request) for chunk in sampling_chunks] + slots,
            )
        table = self._blocks.table[[_slot(request) for request in requests]]
        return ForwardBatch(
            step=step,
            context=context,
            context_token_ids=self._stage_context(schedule.context),
            generation_slots=torch.tensor(slots, dtype=torch.int64),
            draft_len=schedule.draft_len,
            next_draft_len=schedule.next_draft_len,
            block_table=torch.from_numpy(table),
            sampling=sampling,
            shape=schedule.shape,
            # The step itself is in flight already in this count.
            max_num_tokens=max(request.max_tokens_in_flight(rows) for request in requests),
        )

    def _stage_context(self, chunks: list[ContextChunk]) -> torch.Tensor:
        token_ids: list[int] = []
        for chunk in chunks:
            token_ids.extend(chunk.request.prefill_tokens(chunk.start, chunk.end))
        return torch.tensor(token_ids, dtype=torch.int64)


def _slot(request: Request) -> int:
    assert request.slot is not None, "a scheduled request holds a slot"
    return request.slot


def _context_rows(chunk: ContextChunk) -> ContextRows:
    request = chunk.request
    return ContextRows(
        slot=_slot(request),
        start=chunk.start,
        end=chunk.end,
        is_last=chunk.is_last,
        samples=chunk.samples,
        seed=request.params.seed,
        next_token_id=request.output_token_ids[-1] if request.output_token_ids else None,
        tokens_to_boundary=_recording(chunk),
    )


def _recording(chunk: ContextChunk) -> torch.Tensor | None:
    """What the request replays from its first generation step on; see :class:`ContextRows`."""
    request = chunk.request
    if not chunk.is_last or request.params.replay_lengths is None:
        return None
    num_prompt = len(request.prompt_token_ids)
    distances = tokens_to_boundary(request.params.replay_lengths, request.max_length - num_prompt - 1)
    return torch.from_numpy(distances[chunk.end - num_prompt :])
