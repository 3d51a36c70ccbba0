"""Device side of a step: target forward, sampling, acceptance and drafting as one device program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specbench.device.base import Completion, Device
from specbench.device.recording import runtime_operator
from specbench.device.tracing import Tracer
from specbench.engine.attention.base import AttentionOperator
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.config import EngineConfig
from specbench.engine.device_state import DeviceState
from specbench.engine.draft_inputs import draft_temperature, gather_target_rows, list_ready, slots_going_on
from specbench.engine.drafters.base import Drafter, DraftStep, TargetRows
from specbench.engine.forward_batch import (
    COMMITTED,
    DRAFTED,
    FINITE,
    TOKENS,
    ContextRows,
    ForwardBatch,
    StepOutput,
)
from specbench.engine.models.base import CausalLM, HiddenTaps
from specbench.engine.optimizations.base import Switch
from specbench.engine.optimizations.choice_points import StepPrograms
from specbench.engine.sampling.acceptance import Acceptance, Verification
from specbench.engine.sampling.audit import pack_pairs, write_parameters
from specbench.engine.sampling.metadata import SamplingRows
from specbench.engine.sampling.sampler import Selection
from specbench.engine.step_inputs import StepInputs, StepRows


@dataclass(frozen=True)
class PendingStep:
    """A launched step. ``output`` is int64 staging memory, valid once ``completion`` has been waited for."""

    batch: ForwardBatch
    completion: Completion
    output: Tensor

    def read(self) -> StepOutput:
        """Wait for the step and return its output."""
        self.completion.wait()
        columns, values = self.batch.columns, self.output.numpy()
        rows = values[:, : columns.tokens.stop].tolist()
        return StepOutput(
            token_ids=[row[TOKENS : TOKENS + row[COMMITTED]] for row in rows],
            num_drafted=[row[DRAFTED] for row in rows],
            is_finite=[bool(row[FINITE]) for row in rows],
            effective=values[:, columns.effective],
        )


class ModelRunner:
    """Runs steps on a device. :class:`StepInputs` holds what a step reads, :class:`DeviceState` what stays."""

    def __init__(
        self,
        config: EngineConfig,
        device: Device,
        model: CausalLM,
        attention: AttentionOperator,
        drafter: Drafter,
        acceptance: Acceptance,
        tracer: Tracer,
        graphs: Switch[StepPrograms],
    ) -> None:
        self._device = device
        self._graphs = graphs
        self._model = model
        self._attention = attention
        self._drafter = drafter
        self._acceptance = acceptance
        self._tracer = tracer
        # Under other rules of acceptance drafters take what is likeliest, and nobody asks how likely.
        num_columns = drafter.vocabulary.size if config.acceptance.mode == "rejection" else 0
        self._draws_drafts = num_columns > 0
        self.state = DeviceState(config, device.torch_device, num_columns)
        self.inputs = StepInputs(config, device, num_position_rows=model.num_position_rows)

    def launch(self, batch: ForwardBatch) -> PendingStep:
        """Enqueue the copies and the program of one step and return at once."""
        self.inputs.upload(batch)
        self._upload_recordings(batch.context)
        shape = (batch.num_requests - batch.num_padding, batch.columns.count)
        output = self._device.empty_staging(shape, torch.int64)
        program = self._graphs.current.program_for(batch, output)
        return PendingStep(batch, self._device.launch(program, "device_step"), output)

    def write_cached(self, rows: ContextRows, token_ids: list[int], blocks: list[int]) -> None:
        """Enqueue what makes a context count as computed: its state, and noise for keys and values.

        :param token_ids: of the context's rows; ``blocks``: those of its slot.
        """
        staged, places = (self._device.stage(torch.tensor(values, dtype=torch.int64)) for values in (token_ids, blocks))
        device = self._device.torch_device

        def program() -> None:
            self.state.write_context(rows, staged.to(device))
            self._fill_cache(rows, places.to(device))

        self._device.launch(program, "synthetic_cache")

    def _fill_cache(self, rows: ContextRows, blocks: Tensor) -> None:
        self._attention.cache.fill(blocks)
        self._drafter.fill_cache(blocks, rows.slot)

    def _upload_recordings(self, context: tuple[ContextRows, ...]) -> None:
        """Put what the requests that start generating replay into the state; nothing without replay."""
        for chunk in context:
            if chunk.tokens_to_boundary is not None:
                start, num_positions = chunk.end + 1, chunk.tokens_to_boundary.shape[0]
                destination = self.state.tokens_to_boundary[chunk.slot, start : start + num_positions]
                self._device.copy_async(destination, self._device.stage(chunk.tokens_to_boundary))

    def program(self, batch: ForwardBatch, output: Tensor) -> Callable[[], Any]:
        """The step as the device runs it, operation by operation.

        It reads tensors of the engine that stay where they are, and of ``batch`` plain facts that decide its branches:
        recorded once, it serves every step of which these are true.

        :param output: int64 [requests, :attr:`OutputColumns.count`], written last.
        """

        def program() -> None:
            if batch.num_padding:
                self.state.reset_padding()
            slots = self.inputs.slots[: batch.num_generation]
            self._write_context(batch, self.inputs.token_ids[: batch.num_context_tokens])
            rows = self.inputs.read_rows(batch, self.state)
            with self._tracer.range("target_forward", "device", batch.shape):
                self._prepare_attention(batch, rows)
                taps = HiddenTaps(self._drafter.needs.hidden_layers)
                hidden = self._model.forward(rows.token_ids, rows.model_positions, self._attention, taps)
                finite_chunks = self._check_chunks(batch, hidden)
                selecting = hidden if rows.selecting is None else hidden[rows.selecting]
                logits = self._model.compute_logits(selecting) if selecting.shape[0] else None
            with self._tracer.range("sample_and_accept", "device"):
                self._sample_and_accept(batch, rows, logits, finite_chunks, slots, output)
            with self._tracer.range("draft", "device"):
                self._draft(batch, rows, slots, hidden, taps)

        return program

    def _write_context(self, batch: ForwardBatch, token_ids: Tensor) -> None:
        if not batch.context:
            return
        for chunk, chunk_token_ids in zip(batch.context, token_ids.split_with_sizes(batch.context_lens), strict=True):
            self.state.write_context(chunk, chunk_token_ids)

    @runtime_operator("prepare_attention")
    def _prepare_attention(self, batch: ForwardBatch, rows: StepRows) -> None:
        self._attention.prepare(self._attention_metadata(batch, rows.cells, rows.kv_lens))

    def _attention_metadata(self, batch: ForwardBatch, positions: Tensor, kv_lens: Tensor) -> AttentionMetadata:
        """Of rows of which K + 1 a generation request follow each other."""
        return AttentionMetadata(
            num_context=len(batch.context),
            context_query_lens=batch.context_lens,
            context_kv_lens=[chunk.end for chunk in batch.context],
            num_generation=batch.num_generation,
            rows_per_generation=batch.draft_len + 1,
            generation_kv_lens=kv_lens,
            block_table=self.inputs.block_table(batch.num_requests),
            positions=positions,
            max_generation_kv_len=batch.max_num_tokens,
            state=batch.state,
        )

    @staticmethod
    def _check_chunks(batch: ForwardBatch, hidden: Tensor) -> list[Tensor]:
        """Whether each chunk's rows are finite, [] each: what they leave in the cache is read by every later step."""
        if not batch.context:
            return []
        chunks = hidden[: batch.num_context_tokens].split_with_sizes(batch.context_lens)
        return [chunk.isfinite().all() for chunk in chunks]

    def _sample_and_accept(
        self,
        batch: ForwardBatch,
        rows: StepRows,
        logits: Tensor | None,
        finite_chunks: list[Tensor],
        slots: Tensor,
        output: Tensor,
    ) -> None:
        num_context, num_rows = len(batch.context), batch.rows_per_generation
        columns = batch.columns
        shape = (batch.num_requests, columns.count)
        result = torch.zeros(shape, dtype=torch.int64, device=self._device.torch_device)
        result[:, FINITE] = 1
        if finite_chunks:
            result[:num_context, FINITE] = torch.stack(finite_chunks).to(torch.int64)
        if logits is not None:
            positions = (rows.positions if rows.selecting is None else rows.positions[rows.selecting]) + 1
            selection, probability = self._acceptance.select(
                logits, batch.sampling, rows.seeds, positions, rows.draft_token_ids
            )
            num_sampling = self._commit_context(batch, selection, result)
            if selection.drawn_with is not None:
                write_parameters(result, batch, selection.drawn_with.top_k, pack_pairs(selection.drawn_with))
            if batch.num_generation:
                step = _verification(batch, rows, slots, logits, selection, probability)
                token_ids, num_committed = self._accept(batch, rows, step)
                self.state.commit(slots, token_ids, num_committed)
                self.inputs.keep_samples(batch, token_ids)
                generation = result[num_context:]
                generation[:, COMMITTED] = num_committed
                generation[:, DRAFTED] = self._acceptance.count_proposed(rows.num_draft_tokens, batch.draft_len)
                generation[:, FINITE] = selection.is_finite[num_sampling:].view(-1, num_rows).all(dim=1)
                generation[:, columns.tokens] = token_ids
        output.copy_(result[: output.shape[0]], non_blocking=True)

    def _accept(
        self,
        batch: ForwardBatch,  # noqa: ARG002 - not every runner needs it
        rows: StepRows,  # noqa: ARG002
        step: Verification,
    ) -> tuple[Tensor, Tensor]:
        """What the generation requests commit, see :meth:`Acceptance.accept`."""
        return self._acceptance.accept(self.state, step)

    def _commit_context(self, batch: ForwardBatch, selection: Selection, result: Tensor) -> int:
        """Commit the first token of each chunk that samples; return how many there are."""
        sampling = batch.sampling_chunks
        if not sampling:
            return 0
        device = self._device.torch_device
        rows = torch.tensor(sampling, device=device)
        slots = torch.tensor([batch.context[row].slot for row in sampling], device=device)
        token_ids = selection.token_ids[: len(sampling)]
        self.state.commit(slots, token_ids.unsqueeze(1), torch.ones_like(slots))
        result[rows, COMMITTED] = 1
        result[rows, FINITE] *= selection.is_finite[: len(sampling)].to(torch.int64)
        result[rows, TOKENS] = token_ids
        return len(sampling)

    def _draft(self, batch: ForwardBatch, rows: StepRows, slots: Tensor, hidden: Tensor, taps: HiddenTaps) -> None:
        ready = list_ready(batch)
        target_rows = None
        if self._drafter.needs.reads_rows:
            target_rows = self._target_rows(batch, rows, slots, ready, hidden, taps)
        step = DraftStep(
            slots_going_on(batch, ready, slots),
            batch.next_draft_len,
            batch.max_num_tokens,
            target_rows,
            draft_temperature(batch, ready) if self._draws_drafts else None,
        )
        self._drafter.draft(self.state, step)

    def _target_rows(
        self,
        batch: ForwardBatch,
        rows: StepRows,
        slots: Tensor,
        ready: list[int],
        hidden: Tensor,
        taps: HiddenTaps,
    ) -> TargetRows:
        """What the target ran, for a drafter that reads it; see :func:`gather_target_rows`."""
        num_committed = self.state.num_tokens[slots] - rows.num_tokens
        metadata = self._attention_metadata(batch, rows.positions, rows.num_tokens + batch.draft_len)
        return gather_target_rows(batch, rows, slots, num_committed, ready, hidden, taps, metadata)


def _verification(
    batch: ForwardBatch, rows: StepRows, slots: Tensor, logits: Tensor, selection: Selection, probability: Tensor | None
) -> Verification:
    """The generation requests ``slots`` of a step, whose rows are the last of ``logits`` and of the others."""
    num_rows, sampling, first = batch.rows_per_generation, batch.sampling, len(batch.sampling_chunks)
    return Verification(
        slots=slots,
        positions=rows.num_tokens,
        target_token_ids=selection.token_ids[first:].view(-1, num_rows),
        draft_token_ids=rows.draft_token_ids,
        num_draft_tokens=rows.num_draft_tokens,
        logits=logits[first:],
        sampling=SamplingRows(
            sampling.temperature[first:], sampling.top_k[first:], sampling.top_p[first:], sampling.facts
        ),
        draft_probability=None if probability is None else probability[first:].view(-1, num_rows)[:, :-1],
    )
