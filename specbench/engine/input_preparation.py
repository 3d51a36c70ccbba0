"""Host side of a step: from a schedule to a :class:`ForwardBatch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specbench.device.tracing import Tracer
from specbench.engine.block_manager import Slots
from specbench.engine.block_staging import BlockOffsetSource
from specbench.engine.config import EngineConfig
from specbench.engine.forward_batch import ContextRows, ForwardBatch, InputSource, RowPlaces
from specbench.engine.optimizations.base import Switch
from specbench.engine.optimizations.choice_points import BlockStaging, InputPrep, StateIndicesFill, StepPrograms
from specbench.engine.request import Request
from specbench.engine.sampling.metadata import SamplingRows
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.replay import tokens_to_boundary
from specbench.engine.sampling.step_params import ParamsReader, StepParams
from specbench.engine.scheduler import ContextChunk, Schedule
from specbench.engine.state_indices import StateIndices


class FullPass(NamedTuple):
    """A batch built from scratch, and what it was built from.

    :ivar slots: of all requests, context requests first; ``row_counts``: logits rows of each that selects a token.
    :ivar max_kv_len: most tokens a request attends to, as the host counts them.
    """

    batch: ForwardBatch
    slots: list[int]
    row_counts: list[int]
    max_kv_len: int


class InputPreparation:
    """What goes into a step, and the means to make it; how much of it is made is up to ``input_prep``.

    Staging is fresh each step: copies read it when they execute, which may be after the next step was prepared.

    :param blocks: owners of the KV blocks, one a pool.
    :param graphs: the choice point of that name, and so ``block_staging`` and ``input_prep``; whoever stands there is
        called. It knows whose sampling metadata a step is filled in through.
    :param num_position_rows: see :attr:`specbench.engine.models.base.CausalLM.num_position_rows`.
    :param state_indices: the choice point of that name; None: the model has no recurrent state.
    """

    def __init__(
        self,
        config: EngineConfig,
        blocks: Sequence[BlockOffsetSource],
        graphs: Switch[StepPrograms],
        block_staging: Switch[BlockStaging],
        input_prep: Switch[InputPrep],
        tracer: Tracer,
        num_position_rows: int = 1,
        state_indices: Switch[StateIndicesFill] | None = None,
    ) -> None:
        self._blocks = blocks
        self._graphs = graphs
        self._asked = ParamsReader()
        self._block_staging = block_staging
        self._input_prep = input_prep
        self._tracer = tracer
        self._num_position_rows = num_position_rows
        self._state_indices = state_indices
        self._max_rows = config.drafter.max_draft_len + 1
        # Without drafts a step commits one token, so the host counts the lengths of sequences it has not seen yet.
        self._source = InputSource.HOST if config.drafter.max_draft_len == 0 else InputSource.STATE

    def prepare(self, step: int, schedule: Schedule) -> ForwardBatch:
        """Return the batch of ``schedule``; enqueues the copies of the sampling parameters."""
        self._schedule = schedule
        return self._input_prep.current.prepare(step, schedule, self)

    def build(self, step: int, schedule: Schedule) -> FullPass:
        """The full pass: every input of the step, for every request."""
        requests = [chunk.request for chunk in schedule.context] + schedule.generation
        slots = [_slot(request) for request in requests]
        sampling = [index for index, chunk in enumerate(schedule.context) if chunk.samples]
        first = len(schedule.context)
        row_counts = [1] * len(sampling) + [schedule.rows_per_generation] * len(schedule.generation)
        asked, sampling_rows = self.fill_sampling_params(
            [requests[index].params for index in sampling] + [request.params for request in schedule.generation],
            row_counts,
            [slots[index] for index in sampling] + slots[first:],
        )
        # The step itself is in flight already in every count; its own tokens are not committed before it.
        kv_lens = [request.num_tokens + request.num_in_flight - 1 for request in schedule.generation]
        max_kv_len = max([*kv_lens, *(chunk.end for chunk in schedule.context)])
        batch = ForwardBatch(
            step=step,
            context=tuple(_context_rows(chunk) for chunk in schedule.context),
            context_token_ids=_context_token_ids(schedule.context),
            generation_slots=_int64(slots[first:]),
            draft_len=schedule.draft_len,
            next_draft_len=schedule.next_draft_len,
            block_offsets=self.stage_blocks(slots, max_kv_len),
            sampling=sampling_rows,
            shape=schedule.shape,
            max_num_tokens=max(request.max_tokens_in_flight(self._max_rows) for request in requests),
            source=self._source,
            places=self._places(schedule, kv_lens) if self._source is InputSource.HOST else None,
            state=self.fill_state_indices(slots, schedule.num_padding),
            asked=asked,
            num_padding=schedule.num_padding,
            num_nodes=schedule.num_nodes,
        )
        return FullPass(batch, slots, row_counts, max_kv_len)

    def fill_state_indices(self, slots: list[int], num_padding: int) -> StateIndices | None:
        """Tell the device whose recurrent state each request uses; the last ``num_padding`` requests are padding."""
        if self._state_indices is None:
            return None
        is_padding = [False] * (len(slots) - num_padding) + [True] * num_padding
        with self._tracer.range("fill_state_indices"):
            return self._state_indices.current.fill(slots, is_padding)

    def _places(self, schedule: Schedule, kv_lens: list[int]) -> RowPlaces:
        positions: list[int] = []
        for chunk in schedule.context:
            positions.extend(range(chunk.start, chunk.end))
        positions.extend([kv_len - 1 for kv_len in kv_lens])
        placed = _int64(positions)
        return RowPlaces(placed, _int64(kv_lens), self.rotary_positions(schedule, placed))

    def rotary_positions(self, schedule: Schedule, positions: Tensor) -> Tensor | None:  # noqa: ARG002
        """Positions [rows, 1, T] that the model rotates by, where it asks for several rows: in text they are equal.

        :param positions: int64 [T], of the rows of ``schedule`` in their sequences.
        """
        if self._num_position_rows == 1:
            return None
        return positions.expand(self._num_position_rows, 1, -1).contiguous()

    def fill_sampling_params(
        self, params: list[SamplingParams], row_counts: list[int], slots: list[int]
    ) -> tuple[StepParams, SamplingRows]:
        """Bring the sampling parameters of a step to the device, one entry a request that selects a token.

        :return: what was asked for, and what the step is given.
        """
        with self._tracer.range("populate_sampling_params"):
            asked = self._asked.read(params, row_counts)
            sampling = self._graphs.current.sampling_for(self._schedule, asked.all_greedy)
            return asked, sampling.fill(params, row_counts, slots)

    def stage_blocks(self, slots: Slots, max_kv_len: int, first_column: int = 0) -> Tensor:
        """Stage offsets of ``slots``; see :class:`~specbench.engine.optimizations.choice_points.BlockStaging`."""
        with self._tracer.range("stage_block_offsets"):
            return self._block_staging.current.stage(self._blocks, slots, max_kv_len, first_column)

    def num_block_columns(self, max_kv_len: int) -> int:
        """Columns that :meth:`stage_blocks` would stage from the first on."""
        return self._block_staging.current.num_columns(self._blocks, max_kv_len)

    @property
    def block_versions(self) -> list[int]:
        """One a pool; another number whenever a block offset has changed."""
        return [source.version for source in self._blocks]

    def first_changed_column(self, since: list[int]) -> int:
        """No block offset left of this column has changed since :attr:`block_versions` were ``since``."""
        return min(source.first_changed_column(version) for source, version in zip(self._blocks, since, strict=True))


def _context_token_ids(chunks: list[ContextChunk]) -> Tensor:
    token_ids: list[int] = []
    for chunk in chunks:
        token_ids.extend(chunk.request.prefill_tokens(chunk.start, chunk.end))
    return _int64(token_ids)


def _int64(values: list[int]) -> Tensor:
    """A list as a tensor; numpy reads lists three times as fast as torch does."""
    return torch.from_numpy(np.array(values, dtype=np.int64))


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
        next_token_id=_next_token_id(chunk),
        tokens_to_boundary=_recording(chunk),
    )


def _next_token_id(chunk: ContextChunk) -> int | None:
    request = chunk.request
    if not chunk.is_last:
        return request.prefill_tokens(chunk.end, chunk.end + 1)[0]
    return request.output_token_ids[-1] if request.output_token_ids else None


def _recording(chunk: ContextChunk) -> Tensor | None:
    """What the request replays from its first generation step on; see :class:`ContextRows`."""
    request = chunk.request
    if not chunk.is_last or request.params.replay_lengths is None:
        return None
    num_prompt = len(request.prompt_token_ids)
    distances = tokens_to_boundary(request.params.replay_lengths, request.max_length - num_prompt - 1)
    return torch.from_numpy(distances[chunk.end - num_prompt :])
