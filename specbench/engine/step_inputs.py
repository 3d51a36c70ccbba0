"""Device buffers of a step's inputs: what the host sends, and what the device makes of the step before.

The addresses stay the same over all steps, so that a recorded program may read from them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.device.base import Device
from specbench.engine.config import EngineConfig
from specbench.engine.device_state import DeviceState
from specbench.engine.draft_tree import DraftTree
from specbench.engine.forward_batch import ForwardBatch, InputSource


@dataclass(frozen=True)
class StepRows:
    """The rows of a step and which of them select tokens; all on the device.

    T token rows, S sampling chunks, G generation requests.
    """

    token_ids: Tensor  # [T]
    positions: Tensor  # [T] of the tokens in their sequences
    model_positions: Tensor  # [T], or [rows, 1, T] for a model that asks for several rows
    num_tokens: Tensor  # [G] committed before the step
    kv_lens: Tensor  # [G] for attention, which may change them in place
    draft_token_ids: Tensor  # [G, K], or the nodes of a tree
    num_draft_tokens: Tensor  # [G]
    selecting: Tensor | None  # [S + rows of G] rows of T; None: all of them
    seeds: Tensor  # [S + rows of G]
    tree: DraftTree | None = None  # of the G requests; None: drafts do not branch
    tree_cells: Tensor | None = None  # [T] with a tree: see :attr:`cells`

    @property
    def cells(self) -> Tensor:
        """[T] where each row stands among its request's cells: at its position, but for the nodes of a tree."""
        return self.positions if self.tree_cells is None else self.tree_cells


class StepInputs:
    """The buffers, how they are filled (:meth:`upload`, on the host), and what stands in them (:meth:`read_rows`).

    :param num_pools: pools of KV blocks, each with block offsets of its own.
    :param num_position_rows: rows of positions the model rotates by, see
        :attr:`specbench.engine.models.base.CausalLM.num_position_rows`.
    :ivar token_ids: int64 [max_num_tokens]; ``positions`` likewise, of this step's rows.
    :ivar rotary_positions: int64 [rows, 1, max_num_tokens]; None where the model rotates by ``positions``.
    :ivar num_tokens: int64 [max_batch_size], committed tokens of the generation requests before the step.
    :ivar kv_lens: int64 [max_batch_size], written anew from ``num_tokens`` each step: a backend may clamp its lengths
        in place, and lengths that are advanced must not be those.
    :ivar slots: int64 [max_batch_size], of the generation requests; ``samples``: their tokens of the last step.
    :ivar block_offsets: int32 [pools, max_batch_size, 2 (keys, values), columns]; beyond what was sent: stale.
    """

    def __init__(self, config: EngineConfig, device: Device, num_pools: int = 1, num_position_rows: int = 1) -> None:
        self._device = device

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device.torch_device)

        max_batch_size, max_num_tokens = config.max_batch_size, config.max_num_tokens
        self.token_ids = zeros(max_num_tokens)
        self.positions = zeros(max_num_tokens)
        self.rotary_positions = zeros(num_position_rows, 1, max_num_tokens) if num_position_rows > 1 else None
        self.num_tokens = zeros(max_batch_size)
        self.kv_lens = zeros(max_batch_size)
        self.slots = zeros(max_batch_size)
        self.samples = zeros(max_batch_size)
        self.block_offsets = zeros(num_pools, max_batch_size, 2, config.blocks_per_sequence, dtype=torch.int32)
        self._fill = {
            InputSource.HOST: self._take_last_tokens,
            InputSource.LAST_STEP: self._advance,
            InputSource.STATE: self._derive,
        }

    def upload(self, batch: ForwardBatch) -> None:
        """Enqueue the copies of what ``batch`` brings; what it leaves out stays."""
        self._copy(self.token_ids, batch.context_token_ids)
        if batch.source is not InputSource.LAST_STEP:
            self._copy(self.slots, batch.generation_slots)
        if batch.places is not None:
            self._copy(self.positions, batch.places.positions)
            self._copy(self.num_tokens, batch.places.kv_lens)
            if self.rotary_positions is not None and batch.places.rotary_positions is not None:
                rotary = batch.places.rotary_positions
                self._device.copy_async(self.rotary_positions[..., : rotary.shape[-1]], self._device.stage(rotary))
        if batch.block_offsets is not None:
            _, num_requests, _, num_columns = batch.block_offsets.shape
            first = batch.first_block_column
            offsets = self.block_offsets[:, :num_requests, :, first : first + num_columns]
            self._device.copy_async(offsets, self._device.stage(batch.block_offsets))

    def _copy(self, buffer: Tensor, source: Tensor) -> None:
        if source.numel():
            self._device.copy_async(buffer[: source.shape[0]], self._device.stage(source))

    def block_table(self, num_requests: int, pool: int = 0) -> Tensor:
        """[num_requests, columns] int32: the blocks of each request. A block's keys and values have the same number."""
        return self.block_offsets[pool, :num_requests, 0]

    def read_rows(self, batch: ForwardBatch, state: DeviceState) -> StepRows:
        """Complete the buffers and return the step's rows; on the device, after the chunks are in ``state``."""
        return self._fill[batch.source](batch, state)

    def keep_samples(self, batch: ForwardBatch, token_ids: Tensor) -> None:
        """Keep what the generation requests committed, ``token_ids`` [G, K + 1], for a step that goes on from there."""
        if batch.source is not InputSource.STATE:
            self.samples[: batch.num_generation].copy_(token_ids[:, 0])

    def _take_last_tokens(self, batch: ForwardBatch, state: DeviceState) -> StepRows:
        """Rows whose places the host has sent."""
        start, slots = batch.num_context_tokens, self.slots[: batch.num_generation]
        end = start + batch.num_generation
        self.token_ids[start:end] = state.token_ids[slots, self.positions[start:end]]
        return self._rows_in_buffers(batch, state)

    def _advance(self, batch: ForwardBatch, state: DeviceState) -> StepRows:
        """The rows of the last step, which were of these requests alone, one token further."""
        num_rows = batch.num_generation
        self.token_ids[:num_rows].copy_(self.samples[:num_rows])
        self.positions[:num_rows].add_(1)
        self.num_tokens[:num_rows].add_(1)
        if self.rotary_positions is not None:
            self.rotary_positions[..., :num_rows].add_(1)
        return self._rows_in_buffers(batch, state)

    def _rows_in_buffers(self, batch: ForwardBatch, state: DeviceState) -> StepRows:
        num_requests = batch.num_generation
        num_rows = batch.num_context_tokens + num_requests
        slots, num_tokens = self.slots[:num_requests], self.num_tokens[:num_requests]
        positions = self.positions[:num_rows]
        selecting, seeds = _selecting_rows(batch, state.seeds[slots])
        return StepRows(
            token_ids=self.token_ids[:num_rows],
            positions=positions,
            model_positions=positions if self.rotary_positions is None else self.rotary_positions[..., :num_rows],
            num_tokens=num_tokens,
            kv_lens=self.kv_lens[:num_requests].copy_(num_tokens),
            draft_token_ids=state.draft_token_ids[slots, :0],
            num_draft_tokens=torch.zeros_like(slots),
            selecting=selecting,
            seeds=seeds,
        )

    def _derive(self, batch: ForwardBatch, state: DeviceState) -> StepRows:
        """Rows of requests whose lengths the device alone knows."""
        num_rows = batch.rows_per_generation
        slots = self.slots[: batch.num_generation]
        num_tokens = state.num_tokens[slots]
        draft_token_ids = state.draft_token_ids[slots, : num_rows - 1]
        last = state.token_ids[slots, num_tokens - 1].unsqueeze(1)
        token_ids = torch.cat([last, draft_token_ids], dim=1).flatten()
        selecting, seeds = _selecting_rows(batch, state.seeds[slots].repeat_interleave(num_rows))
        if batch.context:
            token_ids = torch.cat([self.token_ids[: batch.num_context_tokens], token_ids])
        cells = positions = row_places(batch, num_tokens, torch.arange(num_rows, device=slots.device))
        tree = None
        if batch.num_nodes:
            tree = DraftTree.of(state.draft_parents[slots], batch.draft_len)
            positions = row_places(batch, num_tokens, tree.depths)
        rotary = self.rotary_positions
        return StepRows(
            token_ids=token_ids,
            positions=positions,
            model_positions=positions if rotary is None else positions.expand(*rotary.shape[:2], -1),
            num_tokens=num_tokens,
            kv_lens=num_tokens + (num_rows - 1),
            draft_token_ids=draft_token_ids,
            num_draft_tokens=state.num_draft_tokens[slots].clamp(max=batch.draft_len),
            selecting=selecting,
            seeds=seeds,
            tree=tree,
            tree_cells=None if tree is None else cells,
        )


def row_places(batch: ForwardBatch, num_tokens: Tensor, offsets: Tensor) -> Tensor:
    """[T] of all rows, those of generation requests ``offsets`` [rows] or [G, rows] behind the last committed token.

    :param num_tokens: [G] committed tokens.
    """
    generation = ((num_tokens - 1).unsqueeze(1) + offsets).flatten()
    if not batch.context:
        return generation
    chunks = [torch.arange(chunk.start, chunk.end, device=num_tokens.device) for chunk in batch.context]
    return torch.cat([*chunks, generation])


def _selecting_rows(batch: ForwardBatch, generation_seeds: Tensor) -> tuple[Tensor | None, Tensor]:
    """Which rows select a token, None for all of them; and the seed of each.

    :param generation_seeds: of the rows of generation requests, which all select.
    """
    if not batch.context:
        return None, generation_seeds
    device = generation_seeds.device
    ends: list[int] = []
    samples: list[tuple[int, int]] = []
    for chunk in batch.context:
        ends.append(chunk.num_tokens + (ends[-1] if ends else 0))
        if chunk.samples:
            samples.append((ends[-1] - 1, chunk.seed))
    chunk_rows = torch.tensor([row for row, _ in samples], dtype=torch.int64, device=device)
    chunk_seeds = torch.tensor([seed for _, seed in samples], dtype=torch.int64, device=device)
    generation_rows = torch.arange(generation_seeds.shape[0], device=device) + ends[-1]
    return torch.cat([chunk_rows, generation_rows]), torch.cat([chunk_seeds, generation_seeds])
