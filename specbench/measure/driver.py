"""Closed-loop load: so many requests in flight, a conversation's next turn sent when its last one ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from specbench.errors import EngineError, InputError
from specbench.measure.clock import Clock
from specbench.measure.interruption import StopSignal
from specbench.measure.subject import InFlight, Subject

if TYPE_CHECKING:
    from specbench.engine.sampling.params import SamplingParams


@dataclass(frozen=True)
class PlannedRequest:
    """One request before it is sent."""

    request_id: str
    conversation: int
    turn: int
    category: str | None
    prompt_token_ids: Sequence[int]
    params: SamplingParams


class RequestSource(Protocol):
    """Conversations in workload order, each one or several turns."""

    @property
    def num_turns(self) -> Sequence[int]:
        """Turns of each conversation."""
        ...

    def build(self, conversation: int, turn: int, previous_outputs: Sequence[Sequence[int]]) -> PlannedRequest:
        """The request of one turn, given the output ids of the turns before it."""
        ...


@dataclass
class Flight:
    """One request that was sent, or refused: then ``state`` is None, and ``error`` says why."""

    planned: PlannedRequest
    start_ns: int
    state: InFlight | None
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        """Committed output tokens so far."""
        return len(self.state.output_token_ids) if self.state else 0


@dataclass(frozen=True)
class Progress:
    """How far a loop is, for whoever shows it."""

    requests_done: int
    requests_planned: int
    tokens: int
    elapsed_s: float
    fraction: float
    acceptance_length: float | None


class ProgressObserver(Protocol):
    """Shows progress. ``is_due`` is asked every step and must cost nothing."""

    def is_due(self, now_ns: int) -> bool:
        """True when the next :meth:`show` is wanted."""
        ...

    def show(self, progress: Progress) -> None:
        """Show it."""
        ...

    def finish(self, progress: Progress) -> None:
        """The loop is over, with this as its last word."""
        ...


class NoProgress:
    """Shows nothing."""

    def is_due(self, now_ns: int) -> bool:  # noqa: ARG002
        return False

    def show(self, progress: Progress) -> None:
        pass

    def finish(self, progress: Progress) -> None:
        pass


@dataclass(frozen=True)
class LoopResult:
    """What one closed loop did.

    :param flights: requests in the order they were sent.
    :param origin_ns: the first admission.
    :param status: ``complete``, ``interrupted`` or ``timeout``.
    :param client_ns: time between steps that the load generator took for itself.
    """

    flights: list[Flight]
    origin_ns: int
    status: str
    client_ns: int
    planned_requests: int


@dataclass
class ClosedLoop:
    """Drives ``subject`` with ``concurrency`` requests in flight until ``source`` is used up.

    First turns are built before the clock starts. Later turns depend on outputs and are built between steps,
    which :attr:`LoopResult.client_ns` accounts for.

    :param timeout_s: the loop is cut after this long.
    """

    subject: Subject
    source: RequestSource
    concurrency: int
    clock: Clock
    stop: StopSignal
    timeout_s: float | None = None
    progress: ProgressObserver = field(default_factory=NoProgress)

    _flights: list[Flight] = field(init=False, default_factory=list)
    _active: dict[int, Flight] = field(init=False, default_factory=dict)
    _outputs: dict[int, list[list[int]]] = field(init=False, default_factory=dict)
    _done_tokens: int = field(init=False, default=0)
    _done_accepted: int = field(init=False, default=0)
    _done_target_steps: int = field(init=False, default=0)
    _num_done: int = field(init=False, default=0)
    _client_ns: int = field(init=False, default=0)

    def run(self) -> LoopResult:
        """Run to the end, the time limit or a stop request; what is in flight then is cut and kept as it is.

        :raises InputError: a first turn can never be served.
        :raises EngineError: the subject failed.
        """
        waiting = deque(self.source.build(c, 0, ()) for c in range(len(self.source.num_turns)))
        planned = sum(self.source.num_turns)
        origin_ns = now_ns = self.clock.now_ns()
        deadline_ns = None if self.timeout_s is None else origin_ns + int(self.timeout_s * 1e9)
        status = "complete"
        self._fill(waiting, now_ns)
        while self._active:
            self._check_progress_possible()
            self.subject.advance()
            now_ns = self.clock.now_ns()
            self._collect(waiting, now_ns)
            if self.progress.is_due(now_ns):
                self.progress.show(self._measure_progress(now_ns - origin_ns, planned))
            cut = self._why_cut(now_ns, deadline_ns)
            self._client_ns += self.clock.now_ns() - now_ns
            if cut and (self._active or waiting):
                status = cut
                break
        self.progress.finish(self._measure_progress(now_ns - origin_ns, planned))
        self._cancel_active()
        return LoopResult(self._flights, origin_ns, status, self._client_ns, planned)

    def _why_cut(self, now_ns: int, deadline_ns: int | None) -> str | None:
        if self.stop.requested:
            return "interrupted"
        return "timeout" if deadline_ns is not None and now_ns >= deadline_ns else None

    def _check_progress_possible(self) -> None:
        if not self.subject.has_work:
            stuck = ", ".join(flight.planned.request_id for flight in self._active.values())
            raise EngineError(
                f"the engine is idle, but these requests have not ended: {stuck}",
                where="closed loop",
                hint="this is a defect of the engine: please report it with the scenario",
            )

    def _fill(self, waiting: deque[PlannedRequest], now_ns: int) -> None:
        while waiting and len(self._active) < self.concurrency:
            self._send(waiting.popleft(), now_ns)

    def _send(self, planned: PlannedRequest, start_ns: int) -> None:
        """Submit one request. One that cannot be served ends its conversation; a first turn, the run."""
        try:
            state = self.subject.submit(planned.prompt_token_ids, planned.params, planned.request_id)
        except InputError as error:
            if planned.turn == 0:
                raise
            self._flights.append(Flight(planned, start_ns, None, error.what))
            self._num_done += 1
            return
        flight = Flight(planned, start_ns, state)
        self._flights.append(flight)
        self._active[planned.conversation] = flight

    def _collect(self, waiting: deque[PlannedRequest], now_ns: int) -> None:
        """Take what ended, send the next turns, then fill up with new conversations."""
        ended = [flight for flight in self._active.values() if flight.state and flight.state.finish_reason]
        for flight in ended:
            planned = flight.planned
            del self._active[planned.conversation]
            self._account(flight)
            outputs = self._outputs.setdefault(planned.conversation, [])
            outputs.append(list(flight.state.output_token_ids if flight.state else ()))
            if planned.turn + 1 < self.source.num_turns[planned.conversation]:
                follow_up = self.source.build(planned.conversation, planned.turn + 1, outputs)
                self._send(follow_up, self.clock.now_ns())
            else:
                del self._outputs[planned.conversation]
        if ended:
            self._fill(waiting, now_ns)

    def _account(self, flight: Flight) -> None:
        self._num_done += 1
        self._done_tokens += flight.num_tokens
        if flight.state:
            self._done_accepted += sum(flight.state.accepted_lengths)
            self._done_target_steps += len(flight.state.accepted_lengths)

    def _cancel_active(self) -> None:
        """Drop what is in flight and let the subject run empty, so that the next loop starts from nothing."""
        for flight in self._active.values():
            self.subject.cancel(flight.planned.request_id)
        self._active.clear()
        while self.subject.has_work:
            self.subject.advance()

    def _measure_progress(self, elapsed_ns: int, planned: int) -> Progress:
        active = [flight for flight in self._active.values() if flight.state]
        tokens = self._done_tokens + sum(flight.num_tokens for flight in active)
        partial = sum(min(flight.num_tokens / flight.planned.params.max_tokens, 1.0) for flight in active)
        committed = self._done_accepted + sum(sum(f.state.accepted_lengths) for f in active if f.state)
        target_steps = self._done_target_steps + sum(len(f.state.accepted_lengths) for f in active if f.state)
        return Progress(
            requests_done=self._num_done,
            requests_planned=planned,
            tokens=tokens,
            elapsed_s=elapsed_ns / 1e9,
            fraction=min((self._num_done + partial) / planned, 1.0) if planned else 1.0,
            acceptance_length=committed / target_steps if target_steps else None,
        )
