"""What one step computes, as plain data, and what comes back.

Nothing here refers to the engine or to device memory, so a batch could be sent to another process.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from specbench.engine.sampling.metadata import SamplingRows
from specbench.engine.state_indices import StateIndices


@dataclass(frozen=True)
class ContextRows:
    """One prompt chunk: positions ``start`` to ``end - 1`` of the sequence in ``slot``.

    :param samples: its last row chooses a token.
    :param next_token_id: the committed token after the chunk, where there is one already (after a preemption).
    :param tokens_to_boundary: int64, host, of a last chunk under replay: how many tokens a step commits there, by
        position from the first that a generation step commits (``end + 1``). None elsewhere.
    """

    slot: int
    start: int
    end: int
    is_last: bool
    samples: bool
    seed: int
    next_token_id: int | None
    tokens_to_boundary: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        """Token rows of the chunk."""
        return self.end - self.start


class InputSource(Enum):
    """Where the device takes a step's positions, KV lengths and generation tokens from."""

    HOST = "host"
    """The batch brings positions and lengths; the last committed tokens are read from the device's state there."""
    LAST_STEP = "last step"
    """The inputs of the step before, one token further; the tokens are that step's samples."""
    STATE = "state"
    """All are read from the device's state: with speculation the host does not know the lengths."""


@dataclass(frozen=True)
class RowPlaces:
    """Where the rows of a step stand; on the host.

    :param positions: int64 [T], context rows first.
    :param kv_lens: int64 [num_generation]; tokens a generation request attends to, its new row included.
    :param rotary_positions: int64 [rows, 1, T], for a model that rotates by several rows of positions; else None.
    """

    positions: Tensor
    kv_lens: Tensor
    rotary_positions: Tensor | None = None


@dataclass(frozen=True)
class ForwardBatch:
    """Rows of one step: chunks in ``context``, then ``draft_len`` + 1 rows for each of ``num_generation`` requests.

    :param context_token_ids: int64 [context rows], host.
    :param generation_slots: int64 [num_generation], host.
    :param block_offsets: int32 [pools, requests, 2 (keys, values), columns], host; context requests first. Columns that
        are not sent stay as they are on the device. None: as in the last step, all of them.
    :param sampling: parameters of every row that selects a token: one a sampling chunk, K + 1 a generation request.
    :param next_draft_len: tokens the drafter proposes for the next step.
    :param shape: what profilers show, see :class:`specbench.engine.scheduler.Schedule`.
    :param max_num_tokens: no sequence of the batch is longer than this after the step.
    :param places: present when ``source`` is ``HOST``.
    :param state: where the recurrent state of each request is; None for a model without.
    """

    step: int
    context: tuple[ContextRows, ...]
    context_token_ids: Tensor
    generation_slots: Tensor
    draft_len: int
    next_draft_len: int
    block_offsets: Tensor | None
    sampling: SamplingRows
    shape: str
    max_num_tokens: int
    source: InputSource
    places: RowPlaces | None = None
    state: StateIndices | None = None

    @property
    def context_lens(self) -> list[int]:
        """Token rows of each chunk."""
        return [chunk.num_tokens for chunk in self.context]

    @property
    def num_generation(self) -> int:
        """Generation requests in the step."""
        return int(self.generation_slots.shape[0])

    @property
    def num_requests(self) -> int:
        """Requests in the step, which are the rows of its block table."""
        return len(self.context) + self.num_generation

    @property
    def num_context_tokens(self) -> int:
        """Prompt rows in the step."""
        return int(self.context_token_ids.shape[0])


COMMITTED, DRAFTED, FINITE, TOKENS = 0, 1, 2, 3
"""Columns of a step's output as the device writes it, a row a request; token ids from the last one on."""


@dataclass(frozen=True)
class StepOutput:
    """What the host sees of one step; a row a request, context requests first.

    :param token_ids: committed ids by request, beyond an end of sequence included.
    :param num_drafted: draft tokens that the drafter had proposed for the step, by request.
    :param is_finite: by request, False when the logits of one of its rows held NaN or infinity.
    """

    token_ids: list[list[int]]
    num_drafted: list[int]
    is_finite: list[bool]
