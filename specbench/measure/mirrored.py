"""One pass of a mirrored segment: periods of equal steps, each in the arm that the mask says.

What happens is a function of the step count alone. Requests are sent between steps, as soon as others ended, and never
by the clock; every period begins with an empty device, whatever the arm and whether it changed. So the pass with the
complementary mask runs the same requests through the same steps, and every step is timed in both arms.

    settle, switch to the arm | guard steps | timed steps | settle, the next period
                                            ^ start_ns     ^ end_ns

Both moments come right after a step's tokens have reached the host. An engine that launches ahead has its next step in
flight then, as it does all the time: were the device emptied there, the first step of every period would be prepared
while nothing runs, and host work that is hidden in production would count once a period.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from specbench.measure.clock import Clock
from specbench.measure.counters import UNREAD, Readings
from specbench.measure.driver import (
    Admission,
    LoopResult,
    NoProgress,
    PlannedRequest,
    Progress,
    ProgressObserver,
    Tally,
)
from specbench.measure.interruption import StopSignal
from specbench.measure.slices import EndlessSource
from specbench.measure.subject import Subject


@dataclass(frozen=True)
class Edges:
    """The tokens of one period's timed steps reach the host between these two moments. Clock nanoseconds.

    :param client_ns: time between timed steps that the load generator took for itself.
    :param counters: as they were read at both, outside of what is timed.
    """

    arm: str
    start_ns: int
    end_ns: int
    client_ns: int
    counters: Readings = UNREAD


@dataclass(frozen=True)
class PassResult:
    """What one pass did.

    :param loop: its requests; ``planned_requests`` counts those that were sent: an endless source has no more to plan.
    :param edges: of the periods that were run to their end.
    :param end_ns: the last edge; later steps belong to nothing.
    """

    loop: LoopResult
    edges: list[Edges]
    end_ns: int


@dataclass
class MirroredPass:
    """Drives ``subject``, which holds no request yet, through the periods of ``mask``, then drops what is in flight.

    A step is a call of :meth:`~specbench.measure.subject.Subject.advance`. An engine that launches ahead may find
    nothing to launch in one (every request ends with the step in flight); its period then has a step less, in both
    passes. How many steps a period really had is read off their records.

    :param mask: the arm of each period.
    :param choices: arm -> toggle -> variant. Both arms are switched to at every period, equal choices included.
    :param arm_started: told the arm at every switch.
    :param from_cache: the first requests begin with their prompts in the cache, put there and not computed; none of
        them may end within the pass.
    """

    subject: Subject
    source: EndlessSource
    concurrency: int
    clock: Clock
    stop: StopSignal
    mask: str
    choices: Mapping[str, Mapping[str, str]]
    period_steps: int
    guard_steps: int
    arm_started: Callable[[str], None] | None = None
    from_cache: bool = False
    progress: ProgressObserver = field(default_factory=NoProgress)

    _admission: Admission = field(init=False)
    _ready: deque[PlannedRequest] = field(init=False, default_factory=deque)
    _num_built: int = field(init=False, default=0)
    _client_ns: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._admission = Admission(
            self.subject,
            self.concurrency,
            self.clock,
            build=self.source.build,
            turns_of=self.source.turns_of,
            next_first_turn=self._next_first_turn,
            submit=self.subject.submit_cached if self.from_cache else None,
        )

    def run(self) -> PassResult:
        """Run the pass, or as far as the step in which a stop was requested.

        :raises InputError: a first turn can never be served.
        :raises EngineError: the subject failed.
        """
        edges: list[Edges] = []
        # The first batch, and what follows it.
        self._build_ahead(self.concurrency if self.from_cache else 2 * self.concurrency)
        self.subject.settle()
        origin_ns = self.clock.now_ns()
        self._admission.fill(origin_ns)
        for arm in self.mask:
            period = self._run_period(arm)
            if period is None:
                break
            edges.append(period)
            if len(edges) < len(self.mask):
                self._pause(len(edges), origin_ns)
        self.subject.settle()
        complete = len(edges) == len(self.mask)
        end_ns = edges[-1].end_ns if complete else self.clock.now_ns()
        self.progress.finish(self._measure_progress(len(edges), end_ns - origin_ns))
        self._admission.cancel()
        flights, client_ns = self._admission.flights, sum(period.client_ns for period in edges)
        status = "complete" if complete else "interrupted"
        return PassResult(LoopResult(flights, origin_ns, status, client_ns, len(flights)), edges, end_ns)

    def _run_period(self, arm: str) -> Edges | None:
        """Run one period; None when a stop was requested in it."""
        self.subject.settle()
        self.subject.switch(self.choices[arm])
        if self.arm_started is not None:
            self.arm_started(arm)
        if not self._advance(self.guard_steps):
            return None
        self._client_ns = 0
        before = self.subject.read_counters()
        start_ns = self.clock.now_ns()
        if not self._advance(self.period_steps):
            return None
        end_ns = self.clock.now_ns()
        edges = Edges(arm, start_ns, end_ns, self._client_ns, (before, self.subject.read_counters()))
        self.subject.settle()
        return edges

    def _advance(self, steps: int) -> bool:
        """Run so many steps, requests sent between them; False when a stop was requested."""
        for _ in range(steps):
            self._admission.require_progress()
            self.subject.advance()
            self._collect()
            if self.stop.requested:
                return False
        return True

    def _collect(self) -> None:
        now_ns = self.clock.now_ns()
        self._admission.collect(now_ns)
        self._client_ns += self.clock.now_ns() - now_ns

    def _pause(self, periods_done: int, origin_ns: int) -> None:
        """Between two periods, in no figure: send what follows requests that ended in the last step, build ahead."""
        self._collect()
        if not self.from_cache:
            self._build_ahead(self.concurrency)
        now_ns = self.clock.now_ns()
        if self.progress.is_due(now_ns):
            self.progress.show(self._measure_progress(periods_done, now_ns - origin_ns))

    def _build_ahead(self, count: int) -> None:
        """Have first turns ready, so that none is built inside a period as long as they last."""
        while len(self._ready) < count:
            self._ready.append(self._build_first_turn())

    def _next_first_turn(self) -> PlannedRequest:
        return self._ready.popleft() if self._ready else self._build_first_turn()

    def _build_first_turn(self) -> PlannedRequest:
        self._num_built += 1
        return self.source.build(self._num_built - 1, 0, ())

    def _measure_progress(self, periods_done: int, elapsed_ns: int) -> Progress:
        so_far = Tally()
        so_far.add(self._admission.flights)
        return Progress(
            requests_done=self._admission.num_done,
            requests_planned=len(self._admission.flights),
            tokens=so_far.tokens,
            elapsed_s=elapsed_ns / 1e9,
            fraction=periods_done / len(self.mask),
            acceptance_length=so_far.acceptance_length,
        )
