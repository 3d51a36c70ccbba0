"""Steps whose drafts are trees: a path is accepted, and what it left in the cache is put where a sequence has it."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from specbench.device.recording import runtime_operator
from specbench.engine.drafters.base import TargetRows
from specbench.engine.forward_batch import ForwardBatch
from specbench.engine.model_runner import ModelRunner
from specbench.engine.models.base import HiddenTaps
from specbench.engine.sampling.acceptance import Verification
from specbench.engine.sampling.tree_acceptance import TreeAcceptance
from specbench.engine.step_inputs import StepRows, row_places


class TreeModelRunner(ModelRunner):
    """See the module. Its steps have K = 0, and then no tree, or the K and the nodes of the engine's tree."""

    @runtime_operator("prepare_attention")
    def _prepare_attention(self, batch: ForwardBatch, rows: StepRows) -> None:
        metadata = self._attention_metadata(batch, rows.cells, rows.kv_lens)
        if rows.tree is not None:
            longest = batch.max_num_tokens
            metadata = replace(
                metadata,
                rows_per_generation=batch.rows_per_generation,
                visible=rows.tree.visible,
                # A path may commit K + 1 tokens, but there are cells for all nodes.
                max_generation_kv_len=None if longest is None else longest - batch.draft_len + batch.num_nodes,
            )
        self._attention.prepare(metadata)

    def _accept(self, batch: ForwardBatch, rows: StepRows, step: Verification) -> tuple[Tensor, Tensor]:
        """See :class:`ModelRunner`; keeps the accepted rows in the state, and moves their keys and values."""
        if rows.tree is None:
            return super()._accept(batch, rows, step)
        acceptance = cast(TreeAcceptance, self._acceptance)
        path = acceptance.walk(
            rows.tree, step.target_token_ids, step.draft_token_ids, step.num_draft_tokens, batch.draft_len
        )
        self.state.accepted_rows[step.slots] = path.rows
        self._move_accepted(batch, rows, path.rows)
        return path.token_ids, path.num_committed

    def _move_accepted(self, batch: ForwardBatch, rows: StepRows, accepted: Tensor) -> None:
        """Move the keys and values of the rows ``accepted`` [G, K + 1] to the cells of their positions.

        Rows behind the last accepted one bring nothing that counts to cells that the next step writes.
        """
        first = (rows.num_tokens - 1).unsqueeze(1)
        table = self.inputs.block_table(batch.num_requests)[len(batch.context) :]
        targets = first + torch.arange(accepted.shape[1], device=accepted.device)
        self._attention.cache.move(self._cells(table, first + accepted), self._cells(table, targets))

    def _cells(self, table: Tensor, places: Tensor) -> Tensor:
        """Cells of the cache, flat, that ``places`` [G, W] of the requests with the blocks ``table`` have."""
        tokens_per_block = self._attention.cache.tokens_per_block
        blocks = table.gather(1, places // tokens_per_block).to(torch.int64)
        return (blocks * tokens_per_block + places % tokens_per_block).flatten()

    def _target_rows(
        self,
        batch: ForwardBatch,
        rows: StepRows,
        slots: Tensor,
        ready: list[int],
        hidden: Tensor,
        taps: HiddenTaps,
    ) -> TargetRows:
        """See :class:`ModelRunner`: of a tree's rows the accepted ones, as if there had been no others."""
        if rows.tree is None:
            return super()._target_rows(batch, rows, slots, ready, hidden, taps)
        num_context, num_rows = batch.num_context_tokens, batch.rows_per_generation
        first = num_context + num_rows * torch.arange(batch.num_generation, device=slots.device)
        kept = (first.unsqueeze(1) + self.state.accepted_rows[slots]).flatten()
        if num_context:
            kept = torch.cat([torch.arange(num_context, device=slots.device), kept])
        narrow_taps = HiddenTaps(taps.layers)
        narrow_taps.states.update({layer: state[kept] for layer, state in taps.states.items()})
        offsets = torch.arange(batch.draft_len + 1, device=slots.device)
        narrow = replace(
            rows,
            token_ids=rows.token_ids[kept],
            positions=row_places(batch, rows.num_tokens, offsets),
            tree=None,
            tree_cells=None,
        )
        return super()._target_rows(batch, narrow, slots, ready, hidden[kept], narrow_taps)
