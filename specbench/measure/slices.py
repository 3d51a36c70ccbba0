"""Parts of a workload: the conversations that one segment sends, from a given one on, round and round.

A conversation that comes again in a later round has another request id and another seed, so that a sampled answer is
not repeated. Both are functions of the conversation and the round alone: equal in all arms, passes and processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specbench.measure.driver import PlannedRequest, RequestSource
from specbench.workloads.base import stable_seed


class EndlessSource:
    """The conversations of ``source`` from number ``first`` on, for a loop that stops by itself.

    :param first: may lie beyond the last conversation: in a later round.
    """

    def __init__(self, source: RequestSource, first: int) -> None:
        self._source = source
        self._first = first
        self._turns = list(source.num_turns)

    def turns_of(self, conversation: int) -> int:
        """Turns of a conversation, counted from the first of this source."""
        return self._turns[(self._first + conversation) % len(self._turns)]

    def build(self, conversation: int, turn: int, previous_outputs: Sequence[Sequence[int]]) -> PlannedRequest:
        """See :meth:`specbench.measure.driver.RequestSource.build`; any ``conversation`` may be asked for."""
        number, of_source = divmod(self._first + conversation, len(self._turns))
        planned = self._source.build(of_source, turn, previous_outputs)
        if number == 0:
            return replace(planned, conversation=conversation)
        return replace(
            planned,
            conversation=conversation,
            request_id=f"{planned.request_id}~{number + 1}",
            params=replace(planned.params, seed=stable_seed(planned.params.seed, "round", number)),
        )


class SliceSource:
    """``count`` conversations of ``source`` from number ``first`` on, all their turns.

    See :class:`specbench.measure.driver.RequestSource`.
    """

    def __init__(self, source: RequestSource, first: int, count: int) -> None:
        self._endless = EndlessSource(source, first)
        self.num_turns = [self._endless.turns_of(conversation) for conversation in range(count)]

    def build(self, conversation: int, turn: int, previous_outputs: Sequence[Sequence[int]]) -> PlannedRequest:
        """The request of one turn."""
        return self._endless.build(conversation, turn, previous_outputs)
