"""The books of a step on a device that computes nothing: what is committed, and the work the step stands for.

Counts are those of planned acceptance, drawn by request seed and position, so that they are the counts of an engine
that computes. Token ids are made up: a function of request seed and position alone, valid, and never an end. They are
equal in all arms that commit as many.

Everything per step is a dozen operations of NumPy on views of the device's state. PyTorch gives the interpreter's lock
up in every operation and stands in line for it again, which on small tensors takes longer than the operation while the
host is at work.

Shapes: G generation requests, K draft tokens a request and step, W = K + 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specbench.device.times import StepWork
from specbench.engine.device_state import DeviceState
from specbench.engine.forward_batch import (
    COMMITTED,
    DRAFTED,
    FINITE,
    TOKENS,
    ContextRows,
    ForwardBatch,
    OutputColumns,
)
from specbench.engine.sampling.acceptance import PlannedAcceptance
from specbench.engine.sampling.audit import write_parameters
from specbench.engine.sampling.metadata import SamplingRows

IntArray = npt.NDArray[np.int64]
AHEAD = 64
"""Positions of a request that are planned at once: the draws cost as much for one as for all."""
_UNPLANNED = -(1 << 40)
_SEED_FACTOR, _POSITION_FACTOR = 0x2545F4914F6CDD1D, 0x369DEA0F31A53F85


class _PlannedCounts:
    """How many draft tokens each slot accepts at a position, planned :data:`AHEAD` positions at a time."""

    def __init__(self, acceptance: PlannedAcceptance, state: DeviceState, max_draft_len: int) -> None:
        self._acceptance = acceptance
        self._state = state
        self._max_draft_len = max_draft_len
        num_slots = state.num_tokens.shape[0]
        self._first: IntArray = np.full(num_slots, _UNPLANNED, dtype=np.int64)
        self._counts: IntArray = np.zeros((num_slots, AHEAD), dtype=np.int64)

    def forget(self, slot: int) -> None:
        """Another request has the slot."""
        self._first[slot] = _UNPLANNED

    def at(self, slots: IntArray, positions: IntArray, draft_len: int) -> IntArray:
        """[G], each at most ``draft_len``: whoever accepts n of the longest draft accepts as many of a shorter one."""
        if not draft_len:
            return np.zeros_like(slots)
        if (positions - self._first[slots]).max() >= AHEAD:
            self._plan(slots, positions)
        counts: IntArray = np.minimum(self._counts[slots, positions - self._first[slots]], draft_len)
        return counts

    def _plan(self, slots: IntArray, positions: IntArray) -> None:
        """Plan for all of a batch: its requests run out of what was planned at about the same step."""
        ahead = (positions[:, None] + np.arange(AHEAD)).ravel()
        rows = torch.from_numpy(np.repeat(slots, AHEAD))
        counts = self._acceptance.plan(self._state, rows, torch.from_numpy(ahead), self._max_draft_len)
        self._counts[slots] = counts.numpy().reshape(-1, AHEAD)
        self._first[slots] = positions


class SimulatedStep:
    """Keeps the books of steps over ``state``, on the device's worker.

    :param end_token_ids: ids that are never made up; not all there are.
    """

    def __init__(
        self,
        state: DeviceState,
        acceptance: PlannedAcceptance,
        max_draft_len: int,
        vocab_size: int,
        end_token_ids: tuple[int, ...],
    ) -> None:
        self._state = state
        self._planned = _PlannedCounts(acceptance, state, max_draft_len)
        self._ids: IntArray = np.setdiff1d(np.arange(vocab_size, dtype=np.int64), end_token_ids)
        self._num_tokens: IntArray = state.num_tokens.numpy()
        self._token_ids: IntArray = state.token_ids.numpy()
        self._seeds: IntArray = state.seeds.numpy()

    def forget(self, slot: int) -> None:
        """Another request has ``slot``, of whose context the state knows already."""
        self._planned.forget(slot)

    def keep_books(self, batch: ForwardBatch, context_token_ids: Tensor, slots: Tensor, output: Tensor) -> StepWork:
        """Do to the state and to ``output`` what the step would.

        :param context_token_ids: int64 [context rows]; ``slots``: int64 [G]; both on the device.
        :return: the work that the step stands for.
        """
        if batch.num_padding:
            self._state.reset_padding()
        rows: IntArray = output.numpy()
        columns = OutputColumns(batch.draft_len)
        rows[:, :TOKENS] = 0
        rows[:, columns.effective] = 0
        rows[:, FINITE] = 1
        if not batch.sampling.all_greedy:
            write_parameters(rows, batch, batch.sampling.top_k.numpy(), _pack_pairs(batch.sampling))
        kv_tokens = self._keep_context(batch.context, context_token_ids, rows)
        num_generation, draft_len = int(slots.shape[0]), batch.draft_len
        if num_generation:
            generation = rows[len(batch.context) :, : columns.tokens.stop]
            kv_tokens += self._keep_generation(slots.numpy(), draft_len, generation)
        return StepWork(batch.num_context_tokens + num_generation * (draft_len + 1), kv_tokens)

    def _keep_context(self, chunks: tuple[ContextRows, ...], token_ids: Tensor, rows: IntArray) -> int:
        """Write the chunks, commit the first token of those that sample; return the tokens that they attend to."""
        first = 0
        for row, chunk in enumerate(chunks):
            self._state.write_context(chunk, token_ids[first : first + chunk.num_tokens])
            first += chunk.num_tokens
            if chunk.is_last:
                self._planned.forget(chunk.slot)
            if chunk.samples:
                ids = self._make_ids(self._seeds[chunk.slot : chunk.slot + 1], np.array([[chunk.end]]))
                self._token_ids[chunk.slot, chunk.end] = ids[0, 0]
                self._num_tokens[chunk.slot] = chunk.end + 1
                rows[row, COMMITTED] = 1
                rows[row, TOKENS] = ids[0, 0]
        return sum(chunk.end for chunk in chunks)

    def _keep_generation(self, slots: IntArray, draft_len: int, rows: IntArray) -> int:
        """Commit what is planned; return the tokens that the requests attend to."""
        num_tokens = self._num_tokens[slots]
        committed = self._planned.at(slots, num_tokens, draft_len) + 1
        positions = num_tokens[:, None] + np.arange(draft_len + 1)
        ids = self._make_ids(self._seeds[slots], positions)
        self._token_ids[slots[:, None], positions] = ids
        self._num_tokens[slots] = num_tokens + committed
        rows[:, COMMITTED] = committed
        rows[:, DRAFTED] = draft_len
        rows[:, TOKENS:] = ids
        return int(num_tokens.sum()) + draft_len * len(slots)

    def _make_ids(self, seeds: IntArray, positions: IntArray) -> IntArray:
        """Valid ids [G, W] for positions [G, W] of requests with ``seeds`` [G]; sums and products wrap."""
        mixed = seeds[:, None] * _SEED_FACTOR + positions * _POSITION_FACTOR
        mixed ^= mixed >> 29
        made: IntArray = self._ids[(mixed & np.iinfo(np.int64).max) % len(self._ids)]
        return made


def _pack_pairs(rows: SamplingRows) -> IntArray:
    """:func:`specbench.engine.sampling.audit.pack_pairs` without PyTorch's operations."""
    pairs: IntArray = np.stack((rows.temperature.numpy(), rows.top_p.numpy()), axis=1).view(np.int64)[:, 0]
    return pairs
