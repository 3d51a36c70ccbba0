"""From what a loop did to the lines that are kept: one trial, one line a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specbench.device.tracing import Span
from specbench.measure import intervals, telemetry
from specbench.measure.driver import Flight, LoopResult
from specbench.measure.subject import Telemetry
from specbench.records import RangeTimes, RequestRecord, StepTable

Decode = Callable[[Sequence[int]], str]


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
    """One measured window in numbers: everything a trial line says beyond its place in the plan."""

    wall_ns: int
    committed_tokens: int
    tokens_sha256: str | None
    steps: StepTable
    device_busy: RangeTimes | None
    ranges: dict[str, RangeTimes]

    @property
    def output_tokens_per_s(self) -> float | None:
        """Committed tokens over wall time."""
        return self.committed_tokens / self.wall_ns * 1e9 if self.wall_ns > 0 else None


def record_window(loop: LoopResult, found: Telemetry, has_token_ids: bool) -> Window:
    """Cut what the subject recorded to the window: from the first admission to the last commit."""
    commits = [_last_commit_ns(flight) for flight in loop.flights]
    end_ns = max((commit for commit in commits if commit is not None), default=loop.origin_ns)
    # A step that ended later (launched ahead, for a request that turned out to have ended) committed nothing.
    steps = StepTable.of((step for step in found.steps if step.output_ns <= end_ns), loop.origin_ns)
    ordered = sorted(loop.flights, key=lambda flight: (flight.planned.conversation, flight.planned.turn))
    outputs = [flight.state.output_token_ids for flight in ordered if flight.state]
    return Window(
        wall_ns=end_ns - loop.origin_ns,
        committed_tokens=sum(len(output) for output in outputs),
        tokens_sha256=telemetry.hash_tokens(outputs) if has_token_ids else None,
        steps=steps,
        device_busy=_merge_busy(found.busy, loop.origin_ns, end_ns),
        ranges=telemetry.gather_ranges(found.spans, loop.origin_ns, end_ns),
    )


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
    ordered = sorted(loop.flights, key=lambda flight: (flight.planned.conversation, flight.planned.turn))
    return [_record_request(flight, loop.origin_ns, trial, attempt, kept) for flight in ordered]


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
