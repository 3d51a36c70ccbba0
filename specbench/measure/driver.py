"""Closed-loop load: so many requests in flight, a conversation's next turn sent when its last one ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from specbench.errors import EngineError, InputError
from specbench.measure.clock import Clock
from specbench.measure.interruption import StopSignal
from specbench.measure.subject import InFlight, Subject

if TYPE_CHECKING:
    from specbench.engine.sampling.params import SamplingParams


Submit = Callable[[Sequence[int], "SamplingParams", str], InFlight]
"""Prompt ids, parameters, request id."""


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


def in_order(flights: Iterable[Flight]) -> list[Flight]:
    """Requests in workload order, however they were sent."""
    return sorted(flights, key=lambda flight: (flight.planned.conversation, flight.planned.turn))


class Admission:
    """Keeps ``concurrency`` requests in flight: a conversation's next turn is sent when its last one ended, the first
    turn of another when a conversation ended.

    It acts when it is told to, between steps, so that a run's requests meet in the same steps every time.

    :param build: makes the request of a later turn: see :meth:`RequestSource.build`.
    :param turns_of: how many turns a conversation has.
    :param next_first_turn: the first turn of the next conversation, None when there is none left.
    :param submit: how a request is sent; None: :meth:`Subject.submit`.
    """

    def __init__(
        self,
        subject: Subject,
        concurrency: int,
        clock: Clock,
        *,
        build: Callable[[int, int, Sequence[Sequence[int]]], PlannedRequest],
        turns_of: Callable[[int], int],
        next_first_turn: Callable[[], PlannedRequest | None],
        submit: Submit | None = None,
    ) -> None:
        self._submit = submit or subject.submit
        self.flights: list[Flight] = []
        self.active: dict[int, Flight] = {}
        self._subject = subject
        self._concurrency = concurrency
        self._clock = clock
        self._build = build
        self._turns_of = turns_of
        self._next_first_turn = next_first_turn
        self._outputs: dict[int, list[list[int]]] = {}

    @property
    def num_done(self) -> int:
        """Requests that ended or were refused."""
        return len(self.flights) - len(self.active)

    def fill(self, now_ns: int) -> None:
        """Send first turns until enough requests are in flight.

        :raises InputError: one of them can never be served.
        """
        while len(self.active) < self._concurrency:
            planned = self._next_first_turn()
            if planned is None:
                return
            self._send(planned, now_ns)

    def collect(self, now_ns: int) -> list[Flight]:
        """Take what ended, send the next turns, then fill up with new conversations; return what ended."""
        ended = [flight for flight in self.active.values() if flight.state and flight.state.finish_reason]
        for flight in ended:
            self._follow_up(flight)
        if ended:
            self.fill(now_ns)
        return ended

    def _follow_up(self, flight: Flight) -> None:
        conversation, turn = flight.planned.conversation, flight.planned.turn + 1
        del self.active[conversation]
        outputs = self._outputs.setdefault(conversation, [])
        outputs.append(list(flight.state.output_token_ids if flight.state else ()))
        if turn < self._turns_of(conversation):
            self._send(self._build(conversation, turn, outputs), self._clock.now_ns())
        else:
            del self._outputs[conversation]

    def _send(self, planned: PlannedRequest, start_ns: int) -> None:
        """Submit one request. One that cannot be served ends its conversation; a first turn, the run."""
        try:
            state = self._submit(planned.prompt_token_ids, planned.params, planned.request_id)
        except InputError as error:
            if planned.turn == 0:
                raise
            self.flights.append(Flight(planned, start_ns, None, error.what))
            return
        flight = Flight(planned, start_ns, state)
        self.flights.append(flight)
        self.active[planned.conversation] = flight

    def require_progress(self) -> None:
        """Requests are in flight, so the subject must have something to do.

        :raises EngineError: it has not, and would never end them.
        """
        if self.active and not self._subject.has_work:
            stuck = ", ".join(flight.planned.request_id for flight in self.active.values())
            raise EngineError(
                f"the engine is idle, but these requests have not ended: {stuck}",
                where="closed loop",
                hint="this is a defect of the engine: please report it with the scenario",
            )

    def cancel(self) -> None:
        """Drop what is in flight and let the subject run empty, so that the next loop starts from nothing."""
        for flight in self.active.values():
            self._subject.cancel(flight.planned.request_id)
        self.active.clear()
        while self._subject.has_work:
            self._subject.advance()


@dataclass
class Tally:
    """What requests came to: counted once each, when it ended."""

    tokens: int = 0
    accepted: int = 0
    target_steps: int = 0

    def add(self, flights: Iterable[Flight]) -> None:
        """Count these too."""
        for flight in flights:
            self.tokens += flight.num_tokens
            if flight.state:
                self.accepted += sum(flight.state.accepted_lengths)
                self.target_steps += len(flight.state.accepted_lengths)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a request and target step; None before the first one."""
        return self.accepted / self.target_steps if self.target_steps else None


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

    _done: Tally = field(init=False, default_factory=Tally)
    _client_ns: int = field(init=False, default=0)

    def run(self) -> LoopResult:
        """Run to the end, the time limit or a stop request; what is in flight then is cut and kept as it is.

        :raises InputError: a first turn can never be served.
        :raises EngineError: the subject failed.
        """
        num_turns = self.source.num_turns
        waiting = deque(self.source.build(conversation, 0, ()) for conversation in range(len(num_turns)))
        admission = Admission(
            self.subject,
            self.concurrency,
            self.clock,
            build=self.source.build,
            turns_of=num_turns.__getitem__,
            next_first_turn=lambda: waiting.popleft() if waiting else None,
        )
        planned = sum(num_turns)
        origin_ns = now_ns = self.clock.now_ns()
        deadline_ns = None if self.timeout_s is None else origin_ns + int(self.timeout_s * 1e9)
        status = "complete"
        admission.fill(now_ns)
        while admission.active:
            admission.require_progress()
            self.subject.advance()
            now_ns = self.clock.now_ns()
            self._done.add(admission.collect(now_ns))
            if self.progress.is_due(now_ns):
                self.progress.show(self._measure_progress(admission, now_ns - origin_ns, planned))
            cut = self._why_cut(now_ns, deadline_ns)
            self._client_ns += self.clock.now_ns() - now_ns
            if cut and (admission.active or waiting):
                status = cut
                break
        self.progress.finish(self._measure_progress(admission, now_ns - origin_ns, planned))
        admission.cancel()
        return LoopResult(admission.flights, origin_ns, status, self._client_ns, planned)

    def _why_cut(self, now_ns: int, deadline_ns: int | None) -> str | None:
        if self.stop.requested:
            return "interrupted"
        return "timeout" if deadline_ns is not None and now_ns >= deadline_ns else None

    def _measure_progress(self, admission: Admission, elapsed_ns: int, planned: int) -> Progress:
        active = list(admission.active.values())
        partial = sum(min(flight.num_tokens / flight.planned.params.max_tokens, 1.0) for flight in active)
        so_far = replace(self._done)
        so_far.add(active)
        done = admission.num_done
        return Progress(
            requests_done=done,
            requests_planned=planned,
            tokens=so_far.tokens,
            elapsed_s=elapsed_ns / 1e9,
            fraction=min((done + partial) / planned, 1.0) if planned else 1.0,
            acceptance_length=so_far.acceptance_length,
        )
