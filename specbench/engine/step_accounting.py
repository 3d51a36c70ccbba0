"""From one step's output to its :class:`StepRecord`. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specbench.engine.forward_batch import ForwardBatch, StepOutput
from specbench.engine.scheduler import Schedule
from specbench.records import StepRecord


@dataclass(frozen=True)
class StepTimes:
    """``perf_counter_ns`` of one step, named as in :class:`StepRecord`."""

    host_start_ns: int
    launch_ns: int
    device_start_ns: int
    device_end_ns: int
    output_ns: int


class DraftCounts(NamedTuple):
    """Requests by draft position, each of length K; see :func:`count_drafts`."""

    opened: tuple[int, ...]
    eligible: tuple[int, ...]
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]


def count_drafts(
    draft_len: int, num_drafted: Sequence[int], num_committed: Sequence[int], num_kept: Sequence[int]
) -> DraftCounts:
    """Count draft tokens by position.

    Position i is *open* in a request when the sequence had not ended before it, and *eligible* when its positions
    before i were accepted too: accepted / eligible is the conditional rate, accepted / open the joint one. Draft tokens
    past the end of a sequence are in none of the counts, so an end inside a draft moves no rate.

    :param num_committed: by request, tokens the device committed, the target's own included.
    :param num_kept: by request, those of them up to the end of the sequence.
    """
    opened, eligible = [0] * draft_len, [0] * draft_len
    drafted, accepted = [0] * draft_len, [0] * draft_len
    for proposed, committed, kept in zip(num_drafted, num_committed, num_kept, strict=True):
        ended_inside = kept < committed
        num_accepted = kept if ended_inside else committed - 1
        num_eligible = kept if ended_inside else min(num_accepted + 1, draft_len)
        for position in range(draft_len):
            opened[position] += position < kept or not ended_inside
            eligible[position] += position < num_eligible
            drafted[position] += position < (kept if ended_inside else proposed)
            accepted[position] += position < num_accepted
    return DraftCounts(tuple(opened), tuple(eligible), tuple(drafted), tuple(accepted))


def account_step(
    batch: ForwardBatch,
    schedule: Schedule,
    output: StepOutput,
    live: Sequence[bool],
    kept: Sequence[int],
    times: StepTimes,
) -> StepRecord:
    """Count what a step did for the requests that were still ``live``; updates their accepted lengths.

    :param kept: tokens kept by row, context requests first.
    """
    first = len(schedule.context)
    rows = [row for row in range(first, first + len(schedule.generation)) if live[row]]
    for row in rows:
        schedule.generation[row - first].accepted_lengths.append(kept[row])
    counts = count_drafts(
        batch.draft_len,
        [output.num_drafted[row] for row in rows],
        [len(output.token_ids[row]) for row in rows],
        [kept[row] for row in rows],
    )
    return StepRecord(
        step=batch.step,
        num_context=len(batch.context),
        num_generation=len(schedule.generation),
        num_context_tokens=batch.num_context_tokens,
        draft_len=batch.draft_len,
        num_committed=sum(kept[row] for row in rows),
        num_first_tokens=sum(kept[:first]),
        num_target_steps=len(rows),
        drafted=counts.drafted,
        accepted=counts.accepted,
        host_start_ns=times.host_start_ns,
        launch_ns=times.launch_ns,
        device_start_ns=times.device_start_ns,
        device_end_ns=times.device_end_ns,
        output_ns=times.output_ns,
        eligible=counts.eligible,
        opened=counts.opened,
        num_occupied=schedule.num_occupied,
    )
