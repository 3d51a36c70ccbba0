"""What a step hands its drafter: who goes on, the rows that the target ran, and at which temperature each draws.

Shapes: T rows of the step, B requests that go on, H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.drafters.base import TargetRows
from specbench.engine.forward_batch import ForwardBatch
from specbench.engine.models.base import HiddenTaps
from specbench.engine.sampling.params import GREEDY_TEMPERATURE
from specbench.engine.step_inputs import StepRows


def list_ready(batch: ForwardBatch) -> list[int]:
    """The chunks of ``batch`` that end a prompt, by their place: these requests go on, as those that generate do."""
    return [row for row, chunk in enumerate(batch.context) if chunk.is_last]


def slots_going_on(batch: ForwardBatch, ready: list[int], slots: Tensor) -> Tensor:
    """[B] int64: the slots of ``ready`` chunks, then ``slots``, those of the generation requests."""
    if not ready:
        return slots
    return torch.cat([torch.tensor([batch.context[row].slot for row in ready], device=slots.device), slots])


def draft_temperature(batch: ForwardBatch, ready: list[int]) -> Tensor | None:
    """See :attr:`specbench.engine.drafters.base.DraftStep.temperature`."""
    if batch.sampling.all_greedy:
        return None
    temperature, num_sampling = batch.sampling.temperature, len(batch.sampling_chunks)
    generation = temperature[num_sampling :: batch.rows_per_generation]
    if not ready:
        return generation
    # One that was preempted samples nothing in the step that ends its context, so that its parameters are in no
    # row of it: it drafts what is likeliest, which is judged as such.
    context = temperature.new_full((len(ready),), GREEDY_TEMPERATURE)
    places = [place for place, row in enumerate(ready) if batch.context[row].samples]
    context[torch.tensor(places, dtype=torch.int64, device=context.device)] = temperature[:num_sampling]
    return torch.cat([context, generation])


def gather_target_rows(
    batch: ForwardBatch,
    rows: StepRows,
    slots: Tensor,
    num_committed: Tensor,
    ready: list[int],
    hidden: Tensor,
    taps: HiddenTaps,
    metadata: AttentionMetadata,
) -> TargetRows:
    """What the target ran, of which K + 1 rows a generation request follow each other.

    :param slots: of the generation requests; ``num_committed``: how many tokens the step commits for each.
    :param hidden: [T, H] after the final norm; ``taps``: what entered the layers that the drafter reads.
    :param metadata: of the same rows, with lengths of its own: a backend may have clamped the target's in place.
    """
    device, num_rows = slots.device, batch.draft_len + 1
    first = torch.arange(batch.num_generation, device=device) * num_rows + batch.num_context_tokens
    ends, row_slots, requests = first + num_committed - 1, slots.repeat_interleave(num_rows), None
    if batch.context:
        lens = batch.context_lens
        chunk_slots = torch.tensor([chunk.slot for chunk in batch.context], device=device)
        chunk_slots = chunk_slots.repeat_interleave(torch.tensor(lens, device=device))
        row_slots = torch.cat([chunk_slots, row_slots])
        chunk_ends = torch.tensor(lens, device=device).cumsum(0) - 1
        picked = torch.tensor(ready, dtype=torch.int64, device=device)
        ends = torch.cat([chunk_ends[picked], ends])
        requests = torch.cat([picked, torch.arange(len(batch.context), batch.num_requests, device=device)])
    return TargetRows(
        token_ids=rows.token_ids,
        positions=rows.positions,
        slots=row_slots,
        hidden=hidden,
        tapped=tuple(taps.states[layer] for layer in taps.layers),
        ends=ends,
        requests=requests,
        metadata=metadata,
    )
