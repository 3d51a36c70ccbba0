"""What one step computes, as plain data, and what comes back.

Nothing here refers to the engine or to device memory, so a batch could be sent to another process.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from specbench.engine.sampling.metadata import SamplingRows


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


@dataclass(frozen=True)
class ForwardBatch:
    """Rows of one step: chunks in ``context``, then ``draft_len`` + 1 rows for each of ``num_generation`` requests.

    :param context_token_ids: int64 [context rows], host.
    :param generation_slots: int64 [num_generation], host.
    :param block_table: int32 [requests, columns], host; context requests first.
    :param sampling: parameters of every row that selects a token: one a sampling chunk, K + 1 a generation request.
    :param next_draft_len: tokens the drafter proposes for the next step.
    :param shape: what profilers show, see :class:`specbench.engine.scheduler.Schedule`.
    :param max_num_tokens: no sequence of the batch is longer than this after the step.
    """

    step: int
    context: tuple[ContextRows, ...]
    context_token_ids: Tensor
    generation_slots: Tensor
    draft_len: int
    next_draft_len: int
    block_table: Tensor
    sampling: SamplingRows
    shape: str
    max_num_tokens: int

    @property
    def context_lens(self) -> list[int]:
        """Token rows of each chunk."""
        return [chunk.num_tokens for chunk in self.context]

    @property
    def num_generation(self) -> int:
        """Generation requests in the step."""
        return int(self.generation_slots.shape[0])

    @property
    def num_context_tokens(self) -> int:
        """Prompt rows in the step."""
        return int(self.context_token_ids.shape[0])


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
