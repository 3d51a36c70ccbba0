"""Device side of a step: target forward, sampling, acceptance and drafting as one device program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.device.base import Completion, Device
from specbench.device.tracing import Tracer
from specbench.engine.attention.base import AttentionOperator
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.config import EngineConfig
from specbench.engine.device_state import DeviceState
from specbench.engine.drafters.base import Drafter
from specbench.engine.forward_batch import ContextRows, ForwardBatch, StepOutput
from specbench.engine.models.base import CausalLM
from specbench.engine.sampling.acceptance import Acceptance
from specbench.engine.sampling.sampler import Selection, select_and_check

# Columns of the output matrix before the token ids.
_COMMITTED, _DRAFTED, _FINITE, _TOKENS = 0, 1, 2, 3


@dataclass(frozen=True)
class PendingStep:
    """A launched step. ``output`` is int64 staging memory, valid once ``completion`` has been waited for."""

    batch: ForwardBatch
    completion: Completion
    output: Tensor

    def read(self) -> StepOutput:
        """Wait for the step and return its output."""
        self.completion.wait()
        rows = self.output.tolist()
        return StepOutput(
            token_ids=[row[_TOKENS : _TOKENS + row[_COMMITTED]] for row in rows],
            num_drafted=[row[_DRAFTED] for row in rows],
            is_finite=[bool(row[_FINITE]) for row in rows],
        )


@dataclass(frozen=True)
class _StepRows:
    """Where the rows of a step come from and which of them select tokens; all on the device.

    T token rows, S sampling chunks, G generation requests.
    """

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    num_tokens: Tensor  # [G] committed before the step
    draft_token_ids: Tensor  # [G, K]
    num_draft_tokens: Tensor  # [G]
    selecting: Tensor | None  # [S + G (K + 1)] rows of T; None: all of them
    seeds: Tensor  # [S + G (K + 1)]


class ModelRunner:
    """Runs steps on a device. Static buffers hold what the host sends; :class:`DeviceState` holds what stays."""

    def __init__(
        self,
        config: EngineConfig,
        device: Device,
        model: CausalLM,
        attention: AttentionOperator,
        drafter: Drafter,
        acceptance: Acceptance,
        tracer: Tracer,
    ) -> None:
        self._device = device
        self._model = model
        self._attention = attention
        self._drafter = drafter
        self._acceptance = acceptance
        self._tracer = tracer
        self.state = DeviceState(config, device.torch_device)
        self._buffers = {
            "token_ids": self._zeros((config.max_num_tokens,), torch.int64),
            "slots": self._zeros((config.max_batch_size,), torch.int64),
            "block_table": self._zeros((config.max_batch_size, config.blocks_per_sequence), torch.int32),
        }

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._device.torch_device)

    def launch(self, batch: ForwardBatch) -> PendingStep:
        """Enqueue the copies and the program of one step and return at once."""
        token_ids = self._upload("token_ids", batch.context_token_ids)
        slots = self._upload("slots", batch.generation_slots)
        block_table = self._upload("block_table", batch.block_table)
        self._upload_recordings(batch.context)
        output = self._device.empty_staging(
            (len(batch.context) + batch.num_generation, _TOKENS + batch.draft_len + 1), torch.int64
        )
        program = self._program(batch, token_ids, slots, block_table, output)
        return PendingStep(batch, self._device.launch(program, "device_step"), output)

    def _upload(self, name: str, source: Tensor) -> Tensor:
        buffer = self._buffers[name][: source.shape[0]]
        if source.numel():
            self._device.copy_async(buffer, self._device.stage(source))
        return buffer

    def _upload_recordings(self, context: tuple[ContextRows, ...]) -> None:
        """Put what the requests that start generating replay into the state; nothing without replay."""
        for chunk in context:
            if chunk.tokens_to_boundary is not None:
                start, num_positions = chunk.end + 1, chunk.tokens_to_boundary.shape[0]
                destination = self.state.tokens_to_boundary[chunk.slot, start : start + num_positions]
                self._device.copy_async(destination, self._device.stage(chunk.tokens_to_boundary))

    def _program(
        self, batch: ForwardBatch, context_token_ids: Tensor, slots: Tensor, block_table: Tensor, output: Tensor
    ) -> Callable[[], None]:
        """The step as the device runs it."""

        def program() -> None:
            self._write_context(batch, context_token_ids)
            rows = self._gather_rows(batch, context_token_ids, slots)
            with self._tracer.range("target_forward", "device", batch.shape):
                self._attention.prepare(self._attention_metadata(batch, rows, block_table))
                hidden = self._model.forward(rows.token_ids, rows.positions, self._attention)
                finite_chunks = self._check_chunks(batch, hidden)
                selecting = hidden if rows.selecting is None else hidden[rows.selecting]
                logits = self._model.compute_logits(selecting) if selecting.shape[0] else None
            with self._tracer.range("sample_and_accept", "device"):
                self._sample_and_accept(batch, rows, logits, finite_chunks, slots, output)
            with self._tracer.range("draft", "device"):
                self._draft(batch, slots)

        return program

    def _write_context(self, batch: ForwardBatch, token_ids: Tensor) -> None:
        if not batch.context:
            return
        for chunk, chunk_token_ids in zip(batch.context, token_ids.split_with_sizes(batch.context_lens), strict=True):
            self.state.write_context(chunk, chunk_token_ids)

    def _gather_rows(self, batch: ForwardBatch, context_token_ids: Tensor, slots: Tensor) -> _StepRows:
        state, device = self.state, self._device.torch_device
        draft_len, num_rows = batch.draft_len, batch.draft_len + 1
        num_tokens = state.num_tokens[slots]
        draft_token_ids = state.draft_token_ids[slots, :draft_len]
        last = state.token_ids[slots, num_tokens - 1].unsqueeze(1)
        token_ids = torch.cat([last, draft_token_ids], dim=1).flatten()
        positions = ((num_tokens - 1).unsqueeze(1) + torch.arange(num_rows, device=device)).flatten()
        seeds = state.seeds[slots].repeat_interleave(num_rows)
        selecting = None
        if batch.context:
            ends: list[int] = []
            samples: list[tuple[int, int]] = []
            for chunk in batch.context:
                ends.append(chunk.num_tokens + (ends[-1] if ends else 0))
                if chunk.samples:
                    samples.append((ends[-1] - 1, chunk.seed))
            generation = torch.arange(token_ids.shape[0], device=device) + ends[-1]
            selecting = torch.cat(
                [torch.tensor([row for row, _ in samples], dtype=torch.int64, device=device), generation]
            )
            seeds = torch.cat([torch.tensor([seed for _, seed in samples], dtype=torch.int64, device=device), seeds])
            chunk_positions = [torch.arange(chunk.start, chunk.end, device=device) for chunk in batch.context]
            token_ids = torch.cat([context_token_ids, token_ids])
            positions = torch.cat([*chunk_positions, positions])
        num_draft_tokens = state.num_draft_tokens[slots].clamp(max=draft_len)
        return _StepRows(token_ids, positions, num_tokens, draft_token_ids, num_draft_tokens, selecting, seeds)

    def _attention_metadata(self, batch: ForwardBatch, rows: _StepRows, block_table: Tensor) -> AttentionMetadata:
        return AttentionMetadata(
            num_context=len(batch.context),
            context_query_lens=batch.context_lens,
            context_kv_lens=[chunk.end for chunk in batch.context],
            num_generation=batch.num_generation,
            rows_per_generation=batch.draft_len + 1,
            generation_kv_lens=rows.num_tokens + batch.draft_len,
            block_table=block_table,
            positions=rows.positions,
            max_generation_kv_len=batch.max_num_tokens,
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
        rows: _StepRows,
        logits: Tensor | None,
        finite_chunks: list[Tensor],
        slots: Tensor,
        output: Tensor,
    ) -> None:
        num_context, num_rows = len(batch.context), batch.draft_len + 1
        result = torch.zeros(output.shape, dtype=torch.int64, device=self._device.torch_device)
        result[:, _FINITE] = 1
        if finite_chunks:
            result[:num_context, _FINITE] = torch.stack(finite_chunks).to(torch.int64)
        if logits is not None:
            positions = (rows.positions if rows.selecting is None else rows.positions[rows.selecting]) + 1
            selection = select_and_check(logits, batch.sampling, rows.seeds, positions)
            num_sampling = self._commit_context(batch, selection, result)
            if batch.num_generation:
                target = selection.token_ids[num_sampling:].view(-1, num_rows)
                token_ids, num_committed = self._acceptance.accept(
                    self.state, slots, rows.num_tokens, target, rows.draft_token_ids, rows.num_draft_tokens
                )
                self.state.commit(slots, token_ids, num_committed)
                generation = result[num_context:]
                generation[:, _COMMITTED] = num_committed
                generation[:, _DRAFTED] = self._acceptance.count_proposed(rows.num_draft_tokens, batch.draft_len)
                generation[:, _FINITE] = selection.is_finite[num_sampling:].view(-1, num_rows).all(dim=1)
                generation[:, _TOKENS:] = token_ids
        output.copy_(result, non_blocking=True)

    def _commit_context(self, batch: ForwardBatch, selection: Selection, result: Tensor) -> int:
        """Commit the first token of each chunk that samples; return how many there are."""
        sampling = [row for row, chunk in enumerate(batch.context) if chunk.samples]
        if not sampling:
            return 0
        device = self._device.torch_device
        rows = torch.tensor(sampling, device=device)
        slots = torch.tensor([batch.context[row].slot for row in sampling], device=device)
        token_ids = selection.token_ids[: len(sampling)]
        self.state.commit(slots, token_ids.unsqueeze(1), torch.ones_like(slots))
        result[rows, _COMMITTED] = 1
        result[rows, _FINITE] *= selection.is_finite[: len(sampling)].to(torch.int64)
        result[rows, _TOKENS] = token_ids
        return len(sampling)

    def _draft(self, batch: ForwardBatch, slots: Tensor) -> None:
        ready = [chunk.slot for chunk in batch.context if chunk.is_last]
        if ready:
            slots = torch.cat([torch.tensor(ready, device=slots.device), slots])
        if slots.shape[0]:
            self._drafter.propose(self.state, slots, batch.next_draft_len, batch.max_num_tokens)
