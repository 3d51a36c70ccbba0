"""What one step computes, as plain data, and what comes back.

Nothing here refers to the engine or to device memory, so a batch could be sent to another process.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specbench.engine.sampling.metadata import SamplingRows
from specbench.engine.sampling.step_params import StepParams
from specbench.engine.state_indices import StateIndices


@dataclass(frozen=True)
class ContextRows:
    """One prompt chunk: positions ``start`` to ``end - 1`` of the sequence in ``slot``.

    :param samples: its last row chooses a token.
    :param next_token_id: the token after the chunk, where it is known: of the prompt, or committed before a preemption.
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
    """Rows of one step: chunks in ``context``, then equally many rows for each of ``num_generation`` requests.

    A generation request's rows are its last committed token, then its K = ``draft_len`` draft tokens, one after the
    other, or the nodes of its draft tree, of which K at most follow each other.

    :param context_token_ids: int64 [context rows], host.
    :param generation_slots: int64 [num_generation], host.
    :param block_offsets: int32 [pools, requests, 2 (keys, values), columns], host; context requests first. Columns that
        are not sent stay as they are on the device. None: as in the last step, all of them.
    :param first_block_column: where ``block_offsets`` begin; columns left of it are as in the last step.
    :param sampling: parameters of every row that selects a token: one a sampling chunk, one each row of a
        generation request.
    :param next_draft_len: tokens the drafter proposes for the next step.
    :param shape: what profilers show, see :class:`specbench.engine.scheduler.Schedule`.
    :param max_num_tokens: no sequence of the batch is longer than this after the step; None: not known, as the step is
        recorded for any length.
    :param places: present when ``source`` is ``HOST``.
    :param state: where the recurrent state of each request is; None for a model without.
    :param asked: what the requests ask of the sampler, whatever ``sampling`` holds; None: not said.
    :param num_padding: requests at the end that fill the batch up to a captured size.
    :param num_nodes: nodes of each request's draft tree; 0: its drafts do not branch.
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
    max_num_tokens: int | None
    source: InputSource
    places: RowPlaces | None = None
    first_block_column: int = 0
    state: StateIndices | None = None
    asked: StepParams | None = None
    num_padding: int = 0
    num_nodes: int = 0

    @property
    def rows_per_generation(self) -> int:
        """Rows of each generation request."""
        return (self.num_nodes or self.draft_len) + 1

    @property
    def columns(self) -> OutputColumns:
        """Of the step's output."""
        return OutputColumns(self.draft_len, self.rows_per_generation)

    @property
    def context_lens(self) -> list[int]:
        """Token rows of each chunk."""
        return [chunk.num_tokens for chunk in self.context]

    @property
    def sampling_chunks(self) -> list[int]:
        """Rows of the output whose chunk chooses a token."""
        return [row for row, chunk in enumerate(self.context) if chunk.samples]

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
"""Columns of a step's output as the device writes it, a row a request. From the last one on K + 1 token ids, then of
each of the request's rows the top_k, and the temperature and top_p, that it was drawn with; see
:class:`OutputColumns`."""


@dataclass(frozen=True)
class OutputColumns:
    """Where a row of the output of a step with ``draft_len`` draft tokens holds what.

    What rows were drawn with stays zero in a step that draws nothing; see :mod:`specbench.engine.sampling.audit`.

    :param num_rows: rows of a generation request; None: K + 1, as without a draft tree.
    """

    draft_len: int
    num_rows: int | None = None

    @property
    def tokens(self) -> slice:
        """Token ids."""
        return slice(TOKENS, TOKENS + self.draft_len + 1)

    @property
    def top_k(self) -> slice:
        """Of each row."""
        return self._block(0)

    @property
    def pairs(self) -> slice:
        """Temperature and top_p of each row, the two float32 halves of a word."""
        return self._block(1)

    @property
    def effective(self) -> slice:
        """``top_k`` and ``pairs``."""
        return slice(self.top_k.start, self.pairs.stop)

    @property
    def count(self) -> int:
        """Columns in all."""
        return TOKENS + self.draft_len + 1 + 2 * self._num_rows

    def _block(self, index: int) -> slice:
        first = TOKENS + self.draft_len + 1 + index * self._num_rows
        return slice(first, first + self._num_rows)

    @property
    def _num_rows(self) -> int:
        return self.draft_len + 1 if self.num_rows is None else self.num_rows


@dataclass(frozen=True)
class StepOutput:
    """What the host sees of one step; a row a request, context requests first.

    :param token_ids: committed ids by request, beyond an end of sequence included.
    :param num_drafted: draft tokens that the drafter had proposed for the step, by request; of a tree its levels, for
        so many could have been accepted.
    :param is_finite: by request, False when the logits of one of its rows held NaN or infinity.
    :param effective: int64 [requests, 2 rows a request], columns :attr:`OutputColumns.effective`.
    """

    token_ids: list[list[int]]
    num_drafted: list[int]
    is_finite: list[bool]
    effective: npt.NDArray[np.int64]
