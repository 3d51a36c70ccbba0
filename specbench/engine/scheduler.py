"""Continuous batching: which rows the next step carries. No torch here.

Generation requests come first, K + 1 rows each; the rest of the step's row budget goes to prompt chunks, running
prompts before new ones. A new request is admitted when a slot is free and the pool holds its whole prompt. When a
generation request cannot get a block, the request admitted last is preempted: its blocks go back, and it is prefilled
again later from its own tokens.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from specbench.engine.block_manager import BlockManager
from specbench.engine.config import EngineConfig
from specbench.engine.request import Request


@dataclass(frozen=True)
class ContextChunk:
    """Tokens ``start`` to ``end - 1`` of a request's prefill. ``is_last``: generation can start after it."""

    request: Request
    start: int
    end: int
    is_last: bool

    @property
    def num_tokens(self) -> int:
        """Token rows of the chunk."""
        return self.end - self.start

    @property
    def samples(self) -> bool:
        """True when its last row chooses the first output token."""
        return self.is_last and not self.request.output_token_ids


@dataclass(frozen=True)
class Schedule:
    """Rows of one step: context chunks first, then generation requests with ``draft_len`` + 1 rows each.

    :param next_draft_len: tokens the drafter proposes at the end of the step; the next step has no more.
    :param num_occupied: slots held when the step was scheduled, those that have no row in it included.
    :param wait_first: nothing may be launched before the step in flight has been seen by the host.
    :param num_padding: requests at the end of ``generation`` that only fill it up, with the same row each step.
    :param is_warm_up: a step that serves nobody.
    :param num_nodes: nodes of each generation request's draft tree; 0: drafts do not branch.
    """

    context: list[ContextChunk] = field(default_factory=list)
    generation: list[Request] = field(default_factory=list)
    draft_len: int = 0
    next_draft_len: int = 0
    num_occupied: int = 0
    wait_first: bool = False
    num_padding: int = 0
    is_warm_up: bool = False
    num_nodes: int = 0

    @property
    def rows_per_generation(self) -> int:
        """Rows of each generation request."""
        return (self.num_nodes or self.draft_len) + 1

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to launch."""
        return not self.context and not self.generation

    @property
    def shape(self) -> str:
        """For profilers: context requests and their rows, generation requests, padding requests if any, K."""
        num_rows = sum(chunk.num_tokens for chunk in self.context)
        padding = f"+{self.num_padding}" if self.num_padding else ""
        num_generation = len(self.generation) - self.num_padding
        tree = f" nodes={self.num_nodes}" if self.num_nodes else ""
        return f"ctx={len(self.context)}/{num_rows} gen={num_generation}{padding} K={self.draft_len}{tree}"


class Scheduler:
    """Owns the queues, the slots and the block manager."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._rows = config.drafter.max_draft_len + 1
        self._reserved = self._rows + config.drafter.num_ahead
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._free_slots = list(range(config.max_batch_size))[::-1]
        self.num_preemptions = 0
        self._num_proposed = 0
        self.blocks = BlockManager(
            config.num_blocks,
            config.max_batch_size,
            config.blocks_per_sequence,
            config.tokens_per_block,
            config.num_padding_blocks,
        )

    @property
    def has_work(self) -> bool:
        """True while a request waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queue a request behind those waiting."""
        self.waiting.append(request)

    def admit_cached(self, request: Request) -> int | None:
        """Give a request whose prompt counts as prefilled a slot, and blocks for it and one step; return the slot.

        None where there is no slot or too few blocks; nothing has changed then.
        """
        if not self._free_slots or not self.blocks.grow(self._free_slots[-1], request.num_tokens + self._reserved):
            return None
        request.slot = slot = self._free_slots.pop()
        # The last token is left to the first generation step, as after a preemption.
        request.num_prefilled = request.num_tokens - 1
        request.in_context = False
        self.running.append(request)
        # It has no drafts yet; what the slot's last request left is not its own.
        self._num_proposed = 0
        return slot

    def schedule(self) -> Schedule:
        """Choose the next step. Blocks for every row of it are reserved when this returns.

        A request that the host has not seen the end of may be scheduled beyond it; what it commits there is dropped.
        """
        num_preemptions = self.num_preemptions
        generation = self._reserve_generation()
        if generation is None:
            return Schedule(wait_first=True)
        draft_len = self._draft_len(len(generation))
        num_nodes = self._config.drafter.num_nodes_for(draft_len)
        budget = self._config.max_num_tokens - len(generation) * ((num_nodes or draft_len) + 1)
        context = self._continue_prompts(budget)
        if self.num_preemptions == num_preemptions:
            # Else what was just preempted would come straight back and be preempted again.
            context += self._admit(budget - sum(chunk.num_tokens for chunk in context))
        for request in (*generation, *(chunk.request for chunk in context if chunk.samples)):
            request.num_in_flight += 1
        self._num_proposed = self._config.drafter.draft_len_for(
            len(generation) + sum(chunk.is_last for chunk in context)
        )
        return Schedule(
            context, generation, draft_len, self._num_proposed, num_occupied=len(self.running), num_nodes=num_nodes
        )

    def _draft_len(self, num_generation: int) -> int:
        """K of the step: what the batch size asks for, but no more than the step before it proposed."""
        return min(self._config.drafter.draft_len_for(num_generation), self._num_proposed) if num_generation else 0

    def _reserve_generation(self) -> list[Request] | None:
        """Grow every generation request, preempting where the pool is short; None: host must catch up first."""
        candidates = [request for request in self.running if not request.in_context]
        generation: list[Request] = []
        for request in candidates:
            if request.slot is None:
                continue  # preempted for a request before it in this loop
            if request.num_tokens + request.num_in_flight >= request.max_length:
                continue  # each step commits one token at least, so it ends with what is in flight
            if not self._reserve(request):
                if any(other.num_in_flight for other in self.running):
                    return None
                continue  # it preempted itself
            generation.append(request)
        # By slot, which is the order of the blocks in the cache: attention then needs no reordering.
        kept = [(request.slot, request) for request in generation if request.slot is not None]
        return [request for _, request in sorted(kept, key=lambda pair: pair[0])]

    def _reserve(self, request: Request) -> bool:
        """Blocks for the next step of ``request``; False when it was preempted itself or a step is in flight."""
        needed = request.max_tokens_in_flight(self._rows) + self._reserved
        while request.slot is not None:
            if self.blocks.grow(request.slot, needed):
                return True
            if any(other.num_in_flight for other in self.running):
                return False
            self.preempt(self.running[-1])
        return False

    def _continue_prompts(self, budget: int) -> list[ContextChunk]:
        chunks = []
        for request in self.running:
            if request.in_context and budget > 0:
                chunks.append(self._chunk(request, budget))
                budget -= chunks[-1].num_tokens
        return chunks

    def _admit(self, budget: int) -> list[ContextChunk]:
        chunks = []
        while self.waiting and self._free_slots and budget > 0:
            request = self.waiting[0]
            slot = self._free_slots[-1]
            # The first generation step is reserved with the prompt, so that an admission is not undone at once.
            if not self.blocks.grow(slot, request.num_prefill_tokens + 1 + self._reserved):
                break
            self.waiting.popleft()
            self._free_slots.pop()
            request.slot = slot
            self.running.append(request)
            chunks.append(self._chunk(request, budget))
            budget -= chunks[-1].num_tokens
        return chunks

    def _chunk(self, request: Request, budget: int) -> ContextChunk:
        start = request.num_prefilled
        end = min(start + budget, request.num_prefill_tokens)
        is_last = end == request.num_prefill_tokens
        request.num_prefilled = end
        request.in_context = not is_last
        return ContextChunk(request, start, end, is_last)

    def preempt(self, request: Request) -> None:
        """Take a running request's slot and blocks; it waits in front of the queue."""
        self._leave(request)
        request.reset_for_preemption()
        self.num_preemptions += 1
        self.waiting.appendleft(request)

    def finish(self, request: Request) -> None:
        """Forget a request that ended, wherever it is."""
        if request.slot is not None:
            self._leave(request)
            request.slot = None
        elif request in self.waiting:
            self.waiting.remove(request)

    def _leave(self, request: Request) -> None:
        assert request.slot is not None
        self.blocks.release(request.slot)
        self._free_slots.append(request.slot)
        self._free_slots.sort(reverse=True)
        self.running.remove(request)
