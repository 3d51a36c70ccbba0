"""From what a loop did to the lines that are kept: one trial, one line a request."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from specbench.device.tracing import Span
from specbench.measure import intervals, telemetry
from specbench.measure.counters import UNREAD, Readings, add_counts, count_between
from specbench.measure.driver import Flight, LoopResult, in_order
from specbench.measure.mirrored import Edges, PassResult
from specbench.measure.subject import Telemetry
from specbench.records import WINDOW, Period, RangeTimes, RequestRecord, SamplingAudit, StepTable, ToggleCounts

Decode = Callable[[Sequence[int]], str]
PERIODS_PER_QUAD = 4


@dataclass(frozen=True)
class Kept:
    """What of the content is written; nothing unless the user asked.

    :param decode: ids to text, None for a workload without a tokenizer.
    """

    outputs: bool = False
    prompts: bool = False
    decode: Decode | None = None


@dataclass(frozen=True)
class Window:
    """One measured window in numbers: everything a trial line says beyond its place in the plan.

    :param wall_ns: what the figures are over: the whole window, or the timed periods of a pass.
    :param acceptance_length: over the same steps as the other figures.
    :param steps: all of the window, those between timed periods included.
    :param counters: see :class:`~specbench.records.TrialRecord`; ``audit``: its ``sampling_audit``.
    """

    wall_ns: int
    committed_tokens: int
    tokens_sha256: str | None
    acceptance_length: float | None
    steps: StepTable
    device_busy: RangeTimes | None
    ranges: dict[str, RangeTimes]
    periods: list[Period] = field(default_factory=list)
    counters: ToggleCounts | None = None
    audit: list[SamplingAudit] | None = None

    @property
    def output_tokens_per_s(self) -> float | None:
        """Committed tokens over wall time."""
        return self.committed_tokens / self.wall_ns * 1e9 if self.wall_ns > 0 else None


def record_window(loop: LoopResult, found: Telemetry, has_token_ids: bool, counters: Readings = UNREAD) -> Window:
    """Cut what the subject recorded to a run's window: from the first admission to the last commit.

    :param counters: as they were read around the loop. They are kept with every step that ran in between: one that was
        launched ahead and committed nothing was prepared like the others.
    """
    commits = [_last_commit_ns(flight) for flight in loop.flights]
    end_ns = max((commit for commit in commits if commit is not None), default=loop.origin_ns)
    # A step that ended later (launched ahead, for a request that turned out to have ended) committed nothing.
    steps = StepTable.of((step for step in found.steps if step.output_ns <= end_ns), loop.origin_ns)
    return Window(
        wall_ns=end_ns - loop.origin_ns,
        committed_tokens=sum(flight.num_tokens for flight in loop.flights),
        tokens_sha256=_hash_outputs(loop) if has_token_ids else None,
        acceptance_length=telemetry.count_acceptance([steps]).length,
        steps=steps,
        device_busy=_merge_busy(found.busy, loop.origin_ns, end_ns),
        ranges=telemetry.gather_ranges(found.spans, loop.origin_ns, end_ns),
        counters=count_between(counters, len(found.steps)),
        audit=found.audit,
    )


def record_pass(result: PassResult, found: Telemetry, has_token_ids: bool) -> Window:
    """Cut what the subject recorded to a mirrored pass: figures of its timed steps, steps and ranges of all of it."""
    loop, origin_ns = result.loop, result.loop.origin_ns
    # Whatever was in flight when the pass ended is no part of it.
    rows = [step for step in found.steps if step.output_ns <= result.end_ns]
    periods = _count_periods(result.edges, [step.output_ns for step in rows], origin_ns)
    timed = StepTable.of(
        row for period in periods for row in rows[period.first_step : period.first_step + period.num_steps]
    )
    return Window(
        wall_ns=sum(period.end_ns - period.start_ns for period in periods),
        committed_tokens=_tokens_between(loop.flights, result.edges),
        tokens_sha256=_hash_outputs(loop) if has_token_ids else None,
        acceptance_length=telemetry.count_acceptance([timed]).length,
        steps=StepTable.of(rows, origin_ns),
        device_busy=_merge_busy(found.busy, origin_ns, result.end_ns),
        ranges=telemetry.gather_ranges(found.spans, origin_ns, result.end_ns),
        periods=periods,
        counters=add_counts(count_between(e.counters, p.num_steps) for e, p in zip(result.edges, periods, strict=True)),
        audit=found.audit,
    )


def record_timed(result: PassResult, found: Telemetry, has_token_ids: bool) -> Window:
    """Cut what the subject recorded to the one timed period of a pass, whose beginning is the window's origin.

    Tokens are hashed from the first step on, those before the period included.
    """
    edge = timed_period(result)
    start_ns, end_ns = edge.start_ns, edge.end_ns
    rows = [step for step in found.steps if start_ns < step.output_ns <= end_ns]
    steps = StepTable.of(rows, start_ns)
    return Window(
        wall_ns=end_ns - start_ns,
        committed_tokens=_tokens_between(result.loop.flights, [edge]),
        tokens_sha256=_hash_outputs(result.loop) if has_token_ids else None,
        acceptance_length=telemetry.count_acceptance([steps]).length,
        steps=steps,
        device_busy=_merge_busy(found.busy, start_ns, end_ns),
        ranges=telemetry.gather_ranges(found.spans, start_ns, end_ns),
        counters=count_between(edge.counters, len(rows)),
        audit=found.audit,
    )


def timed_period(result: PassResult) -> Edges:
    """The one timed period of a pass; of one that was cut before its end, an empty one there."""
    return result.edges[0] if result.edges else Edges("A", result.end_ns, result.end_ns, 0)


def cut_to_period(request: RequestRecord, origin_ns: int, edge: Edges) -> RequestRecord:
    """A request as its window saw it: it began before, and has neither a first token nor an end.

    :param origin_ns: of the loop that ``request`` was recorded in.
    """
    first_ms, last_ms = ((moment - origin_ns) / 1e6 - request.start_ms for moment in (edge.start_ns, edge.end_ns))
    chunks = zip(request.chunk_ms, request.chunk_sizes, strict=True)
    kept = [(time_ms - first_ms, size) for time_ms, size in chunks if first_ms < time_ms <= last_ms]
    return replace(
        request,
        start_ms=0.0,
        ttft_ms=None,
        e2e_ms=None,
        finish_reason=WINDOW,
        chunk_ms=[time_ms for time_ms, _ in kept],
        chunk_sizes=[size for _, size in kept],
    )


def _count_periods(edges: Sequence[Edges], output_ns: Sequence[int], origin_ns: int) -> list[Period]:
    """Which steps each period timed. The device idles at an edge, so a step lies on one side of it."""
    periods: list[Period] = []
    previous = 0  # steps before the period's guard
    for index, edge in enumerate(edges):
        first, end = bisect_right(output_ns, edge.start_ns), bisect_right(output_ns, edge.end_ns)
        periods.append(
            Period(
                arm=edge.arm,
                quad=index // PERIODS_PER_QUAD,
                first_step=first,
                num_steps=end - first,
                num_guard_steps=first - previous,
                start_ns=edge.start_ns - origin_ns,
                end_ns=edge.end_ns - origin_ns,
            )
        )
        previous = end
    return periods


def _tokens_between(flights: Sequence[Flight], edges: Sequence[Edges]) -> int:
    """Tokens that reached the host inside a period."""
    starts, ends = [edge.start_ns for edge in edges], [edge.end_ns for edge in edges]
    total = 0
    for flight in flights:
        if flight.state:
            for time_ns, size in zip(flight.state.chunk_times_ns, flight.state.chunk_sizes, strict=True):
                place = bisect_left(ends, time_ns)
                total += size if place < len(ends) and starts[place] < time_ns else 0
    return total


def _hash_outputs(loop: LoopResult) -> str:
    """Over the outputs in workload order, cut ones as far as they got."""
    return telemetry.hash_tokens(f.state.output_token_ids for f in in_order(loop.flights) if f.state)


def _last_commit_ns(flight: Flight) -> int | None:
    return max(flight.state.chunk_times_ns, default=None) if flight.state else None


def _merge_busy(busy: list[Span] | None, origin_ns: int, end_ns: int) -> RangeTimes | None:
    if busy is None:
        return None
    pairs = np.array([(span.start_ns, span.end_ns) for span in busy], dtype=np.int64).reshape(-1, 2)
    merged = intervals.merge(intervals.clip(pairs, origin_ns, end_ns)) - origin_ns
    return RangeTimes("device", merged[:, 0].tolist(), merged[:, 1].tolist())


def record_requests(loop: LoopResult, trial: int, attempt: int, kept: Kept) -> list[RequestRecord]:
    """One record a request, in workload order."""
    return [_record_request(flight, loop.origin_ns, trial, attempt, kept) for flight in in_order(loop.flights)]


def _record_request(flight: Flight, origin_ns: int, trial: int, attempt: int, kept: Kept) -> RequestRecord:
    planned, state = flight.planned, flight.state
    output = list(state.output_token_ids) if state else []
    chunks = list(zip(state.chunk_times_ns, state.chunk_sizes, strict=True)) if state else []
    chunks = [(time_ns, size) for time_ns, size in chunks if size]
    chunk_ms = [(time_ns - flight.start_ns) / 1e6 for time_ns, _ in chunks]
    reason = "error" if state is None else state.finish_reason
    ended = reason in ("stop", "length")
    return RequestRecord(
        trial=trial,
        attempt=attempt,
        request_id=planned.request_id,
        conversation=planned.conversation,
        turn=planned.turn,
        category=planned.category,
        prompt_tokens=len(planned.prompt_token_ids),
        output_tokens=len(output),
        output_sha256=telemetry.hash_tokens([output]),
        finish_reason=reason,
        start_ms=(flight.start_ns - origin_ns) / 1e6,
        ttft_ms=chunk_ms[0] if chunk_ms else None,
        e2e_ms=chunk_ms[-1] if chunk_ms and ended else None,
        accepted_lengths=list(state.accepted_lengths) if state else [],
        chunk_ms=chunk_ms,
        chunk_sizes=[size for _, size in chunks],
        num_preemptions=state.num_preemptions if state else 0,
        repeated_tail_tokens=telemetry.repeated_tail(output),
        max_tokens=planned.params.max_tokens,
        error=flight.error,
        prompt_token_ids=list(planned.prompt_token_ids) if kept.prompts else None,
        output_token_ids=output if kept.outputs else None,
        prompt_text=kept.decode(planned.prompt_token_ids) if kept.prompts and kept.decode else None,
        output_text=kept.decode(output) if kept.outputs and kept.decode else None,
    )
