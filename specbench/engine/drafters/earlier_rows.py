"""The target's rows together with those just before them, for a drafter that reads more than one token ahead.

A pair of a hidden state and a token some places further on is stale where the token was a draft that is then turned
down, or, behind a prompt's chunk, not known yet. Such a drafter reads the last rows of a step again in the next one.
The target does not run them again: its hidden states of the last committed rows are kept by slot.

Shapes: E rows that are read again, C chunks, G generation requests of W rows, T rows of the step, U rows with those
before them, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.drafters.base import DrafterHost, TargetRows


@dataclass(frozen=True)
class WidenedRows:
    """Rows as those of :class:`TargetRows`: of each chunk its own and up to E before it, of each generation request
    W + E.

    :param positions: [U] int64; ``slots`` [U] int64; ``hidden`` [U, H].
    :param ends: [B] rows: of each request that goes on, the one before its last committed token.
    """

    positions: Tensor
    slots: Tensor
    hidden: Tensor
    ends: Tensor
    metadata: AttentionMetadata


@dataclass(frozen=True)
class _Part:
    """The chunks, or the generation requests.

    :param kept: [requests, E, H] hidden states of the last committed rows; ``kept_slots`` [requests], whose they are.
    """

    positions: Tensor
    slots: Tensor
    hidden: Tensor
    ends: Tensor
    kept: Tensor
    kept_slots: Tensor


class EarlierRows:
    """Keeps the hidden states of each slot's last committed rows, and puts them before the rows of the next step.

    Device operations throughout, over a buffer that stays where it is: a step may be recorded.

    :param count: E; rows are widened where it is at least 1.
    """

    def __init__(self, count: int, host: DrafterHost) -> None:
        self._count = count
        shape = (host.config.max_batch_size + 1, count, host.target.config.hidden_size)
        # The last row of a slot is the one before those of its next step.
        self._hidden = torch.zeros(shape, dtype=host.dtype, device=host.device)

    def widen(self, rows: TargetRows) -> WidenedRows:
        """Return ``rows`` with those before them, and keep the last that are committed now.

        A generation request of fewer than E + 1 committed tokens starts at position 0, and has void rows at its end
        instead. They lie within the blocks that every step reserves, as E is less than the largest K.
        """
        metadata, count = rows.metadata, self._count
        lens, kv_lens = metadata.context_query_lens, metadata.context_kv_lens
        before = [min(count, kv_len - num_rows) for num_rows, kv_len in zip(lens, kv_lens, strict=True)]
        generation = self._widen_generation(rows, sum(lens) + sum(before))
        parts = [self._widen_chunks(rows, before), generation] if lens else [generation]
        slots, kept = (torch.cat(tensors) for tensors in zip(*((p.kept_slots, p.kept) for p in parts), strict=True))
        self._hidden.index_copy_(0, slots, kept)
        positions, num_rows = torch.cat([part.positions for part in parts]), metadata.rows_per_generation + count
        longest = metadata.max_generation_kv_len
        widened = replace(
            metadata,
            context_query_lens=[length + extra for length, extra in zip(lens, before, strict=True)],
            rows_per_generation=num_rows,
            generation_kv_lens=generation.positions.view(-1, num_rows)[:, -1] + 1,
            positions=positions,
            max_generation_kv_len=None if longest is None else max(longest, num_rows),
        )
        return WidenedRows(
            positions=positions,
            slots=torch.cat([part.slots for part in parts]),
            hidden=torch.cat([part.hidden for part in parts]),
            ends=torch.cat([part.ends for part in parts]),
            metadata=widened,
        )

    def forget(self, slot: int) -> None:
        """Keep nothing of whoever had the slot, for a sequence whose rows before its next ones nobody has run."""
        self._hidden[slot] = 0

    def _widen_generation(self, rows: TargetRows, first_row: int) -> _Part:
        """The generation requests, whose rows begin at ``first_row``."""
        metadata, count, device = rows.metadata, self._count, rows.positions.device
        num_context, num_rows = metadata.num_context_rows, metadata.rows_per_generation
        num_requests = metadata.num_generation
        shape = (num_requests, num_rows)
        slots = rows.slots[num_context:].view(shape)[:, 0]
        begin = rows.positions[num_context:].view(shape)[:, 0] - count
        start = begin.clamp(min=0)
        missing = start - begin  # rows before position 0
        window = torch.cat([self._hidden[slots], rows.hidden[num_context:].view(*shape, rows.hidden.shape[1])], dim=1)
        request, offsets = torch.arange(num_requests, device=device), torch.arange(count + num_rows, device=device)
        ends = rows.ends[rows.ends.shape[0] - num_requests :]
        num_committed = ends + 1 - num_context - request * num_rows
        return _Part(
            positions=(start.unsqueeze(1) + offsets).flatten(),
            slots=slots.repeat_interleave(count + num_rows),
            hidden=_pick(window, (missing.unsqueeze(1) + offsets).clamp(max=count + num_rows - 1)).flatten(0, 1),
            ends=first_row + request * (count + num_rows) + count + num_committed - 1 - missing,
            kept=_pick(window, num_committed.unsqueeze(1) + offsets[:count]),
            kept_slots=slots,
        )

    def _widen_chunks(self, rows: TargetRows, before: list[int]) -> _Part:
        """The chunks, each with as many rows as ``before`` says."""
        assert rows.requests is not None
        metadata, count, device = rows.metadata, self._count, rows.positions.device
        lens = metadata.context_query_lens
        firsts = [sum(lens[:chunk]) for chunk in range(len(lens))]
        slots = rows.slots[torch.tensor(firsts, device=device)]
        chunks = rows.hidden[: sum(lens)].split_with_sizes(lens)
        windows = [torch.cat(pair) for pair in zip(self._hidden[slots], chunks, strict=True)]
        spans = list(zip(lens, before, metadata.context_kv_lens, strict=True))
        moved = torch.tensor(before, device=device).cumsum(0)
        num_ending = rows.ends.shape[0] - metadata.num_generation
        repeats = torch.tensor([num_rows + extra for num_rows, extra, _ in spans], device=device)
        return _Part(
            positions=torch.cat([torch.arange(end - n - extra, end, device=device) for n, extra, end in spans]),
            slots=slots.repeat_interleave(repeats, output_size=sum(lens) + sum(before)),
            hidden=torch.cat([window[count - extra :] for window, extra in zip(windows, before, strict=True)]),
            ends=rows.ends[:num_ending] + moved[rows.requests[:num_ending]],
            kept=torch.stack([window[-count:] for window in windows]),
            kept_slots=slots,
        )


def _pick(window: Tensor, index: Tensor) -> Tensor:
    """Rows ``index`` [G, n] of ``window`` [G, rows, H]."""
    return window.gather(1, index.unsqueeze(2).expand(-1, -1, window.shape[2]))
