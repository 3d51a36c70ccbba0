"""What one measured window leaves: its steps, ranges, requests and evidence. A line of ``trials.jsonl`` each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from specbench.records.counts import SamplingAudit, ToggleCounts

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class StepRecord:
    """One target step of the engine. Times are ``perf_counter_ns``.

    :param num_context: context requests (prompt chunks) in the step; ``num_generation`` generation requests.
    :param num_context_tokens: prompt token rows in the step.
    :param draft_len: K, the same for every generation request of the step.
    :param num_committed: tokens committed to generation requests, tokens after an end left out.
    :param num_first_tokens: tokens committed by context requests whose prompt ended in this step.
    :param num_target_steps: generation requests that still ran (a request over its end is not counted).
    :param drafted: by draft position 1..K, how many live generation requests proposed a token there.
    :param accepted: by draft position 1..K, how many of those were accepted and committed.
    :param eligible: by draft position 1..K, how many live requests had every earlier position accepted and
        had not ended there; accepted / eligible is the conditional acceptance rate.
    :param opened: by draft position 1..K, how many live requests had not ended before it, whatever was accepted;
        accepted / opened is the joint acceptance rate. Empty: not known.
    :param num_occupied: slots held when the step was launched, those that have no row in it included. 0: not known.
    :param host_start_ns: scheduling began; ``launch_ns`` handed to the device; ``output_ns`` tokens seen by
        the host.
    :param device_start_ns: the device began the step; ``device_end_ns`` ended it.
    """

    step: int
    num_context: int
    num_generation: int
    num_context_tokens: int
    draft_len: int
    num_committed: int
    num_first_tokens: int
    num_target_steps: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    host_start_ns: int
    launch_ns: int
    device_start_ns: int
    device_end_ns: int
    output_ns: int
    eligible: tuple[int, ...] = ()
    opened: tuple[int, ...] = ()
    num_occupied: int = 0


COMPLETE = ("complete", "timeout")
"""Status of a trial that is not measured again."""
WINDOW = "window"
"""Finish reason of a request that was cut with its decode window, as planned."""
INTERRUPTED = "interrupted"
"""Status of a trial that the user cut: another attempt follows."""
FAILED = "failed"
"""Status of a trial whose point could not be measured."""
PLANNED, BUDGET = "planned", "budget"
"""Reasons of a look: the plan's, or that time was over before the plan was."""
STEP_COUNTS_BY_POSITION = ("drafted", "accepted", "eligible", "opened")
STEP_TIMES = ("host_start_ns", "launch_ns", "device_start_ns", "device_end_ns", "output_ns")


@dataclass(frozen=True)
class StepTable:
    """Steps as columns, one list a field of :class:`StepRecord`: a trial keeps thousands of them in one line.

    Times are nanoseconds since the trial's origin.
    """

    columns: dict[str, list[Any]]

    @classmethod
    def of(cls, steps: Iterable[StepRecord], origin_ns: int = 0) -> StepTable:
        """Pack ``steps``, counting times from ``origin_ns``."""
        rows = list(steps)
        columns: dict[str, list[Any]] = {}
        for name in (f.name for f in dataclasses.fields(StepRecord)):
            offset = origin_ns if name in STEP_TIMES else 0
            values = [getattr(row, name) for row in rows]
            columns[name] = [value - offset for value in values] if offset else values
        return cls(columns)

    def __len__(self) -> int:
        return len(self.columns.get("step", ()))

    def rows(self) -> list[StepRecord]:
        """Unpack; times stay counted from the origin."""
        names = [f.name for f in dataclasses.fields(StepRecord) if f.name in self.columns]
        columns = [self.columns[name] for name in names]
        rows: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        for row in rows:
            row |= {name: tuple(row[name]) for name in STEP_COUNTS_BY_POSITION if name in row}
        return [StepRecord(**row) for row in rows]


@dataclass(frozen=True)
class RangeTimes:
    """Every occurrence of one named range in a trial: nanoseconds since the trial's origin."""

    lane: str
    start_ns: list[int]
    end_ns: list[int]


@dataclass(frozen=True)
class RequestRecord:
    """One request of one trial: a line of ``requests.jsonl``. Times are milliseconds.

    :param trial: trial number in the plan; ``attempt`` counts tries of it (an interrupted trial is repeated).
    :param start_ms: since the trial's origin, when the request might be admitted; other times count from
        there.
    :param output_sha256: of the output ids, a little-endian u32 count, then u32 ids.
    :param finish_reason: ``stop``, ``length``, ``window`` (cut with its window of ``measure.windows``; times and chunks
        are those of the window), ``abort`` (cut by the user or a time limit) or ``error``.
    :param accepted_lengths: tokens committed by each target step, bonus included.
    :param chunk_ms: when each group of tokens reached the host; ``chunk_sizes`` how many tokens it had.
    :param repeated_tail_tokens: length of the repetition loop that the output ends in, 0 if none.
    """

    trial: int
    request_id: str
    category: str | None
    prompt_tokens: int
    output_tokens: int
    output_sha256: str
    finish_reason: str | None
    ttft_ms: float | None
    e2e_ms: float | None
    accepted_lengths: list[int]
    attempt: int = 0
    conversation: int = 0
    turn: int = 0
    start_ms: float = 0.0
    chunk_ms: list[float] = field(default_factory=list)
    chunk_sizes: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    repeated_tail_tokens: int = 0
    max_tokens: int | None = None
    error: str | None = None
    prompt_token_ids: list[int] | None = None
    output_token_ids: list[int] | None = None
    prompt_text: str | None = None
    output_text: str | None = None


@dataclass(frozen=True)
class Evidence:
    """What was seen of the machine during one measured window; None where it cannot be read.

    :param other_cpu_fraction: share of all cores' time that other processes used.
    :param client_ms: time the load generator itself took between steps (building later turns, showing
        progress).
    :param cpu_throttle_events: thermal throttle events counted by the kernel.
    :param gpu: ``{sm_mhz_min, sm_mhz_max, temperature_c, throttle_reasons}``, sampled at both ends.
    """

    gc_collections: int = 0
    gc_ms: float = 0.0
    load_average_start: float | None = None
    load_average_end: float | None = None
    other_cpu_fraction: float | None = None
    client_ms: float = 0.0
    governor: str | None = None
    cpu_mhz_start: float | None = None
    cpu_mhz_end: float | None = None
    cpu_throttle_events: int | None = None
    gpu: dict[str, Any] | None = None


@dataclass(frozen=True)
class WarmUp:
    """Requests run before the first measured window; they are in no figure."""

    requests: int
    tokens: int
    steps: int
    seconds: float


@dataclass(frozen=True)
class Period:
    """A stretch of steps that ran in one arm of a mirrored pass. Times are nanoseconds since the trial's origin.

    :param arm: ``A`` (the baseline) or ``B``.
    :param quad: number of the quad within the segment, 0 first; a quad is four periods, ``ABBA`` or ``BAAB``.
    :param first_step: index into the trial's step table of the first timed step; ``num_steps`` are timed.
    :param num_guard_steps: steps run just before, after the switch, and in no figure.
    :param start_ns: the device was idle, the timed steps began; ``end_ns`` it was idle again.
    """

    arm: str
    quad: int
    first_step: int
    num_steps: int
    num_guard_steps: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Divergence:
    """Where the two arms' outputs first differ, in workload order.

    :param position: index among the request's output tokens; the ids are None where an output ended there.
    :param margin: logit of the baseline's token minus that of the candidate's, in a float32 forward of the same
        weights over the common prefix; None where it was not computed.
    """

    request_id: str
    position: int
    baseline_token_id: int | None
    candidate_token_id: int | None
    margin: float | None = None


@dataclass(frozen=True)
class TrialRecord:
    """One measured window: a line of ``trials.jsonl``. All figures are computed from these lines alone.

    A line keeps every step, range and busy interval of the window, about 0.5 kB a step: an hour of 10 ms steps takes
    some 200 MB on disk, and several times that in memory, where the trials of a run stay until it is analysed. Bound it
    with ``measure.timeout`` or a smaller workload.

    :param point: index of the plan's point; ``axes`` names its coordinates (concurrency, draft_len, ...).
    :param pass_: pass of a mirrored segment, 0 elsewhere; ``mask`` says which arm each period ran.
    :param status: ``complete``, ``interrupted`` (by the user), ``timeout`` (by ``measure.timeout``) or ``failed``.
    :param subject: what was measured, as the subject describes itself, ``capabilities`` included.
    :param label: what of the content is to be said, see :mod:`specbench.measure.labels`.
    :param wall_ns: from the first admission (the origin) to the last commit; of a mirrored pass, the sum of its timed
        periods; of a decode window, its timed steps.
    :param device_busy: merged intervals in which the device executed something; None where it cannot be seen.
    :param planned_requests: requests of the workload; fewer lines than that means that the trial was cut.
    :param comparison: index of the plan's comparison, None outside ``ab``; ``arm`` is ``A`` (the baseline) or
        ``B``, None for a mirrored pass, which runs both.
    :param process: number of the fresh process; ``start`` counts interpreters that measured for it: a resumed command
        is another one.
    :param periods: of a mirrored pass, in order.
    :param counters: what the variants that stood counted in the timed steps, both arms of a pass; None: what was
        measured does not tell it.
    :param sampling_audit: rows of all steps from the start of the trial on, by what they asked of the sampler and what
        they were served with; None: what was measured does not tell it.
    :param divergence: of the block whose last trial this is, None where both arms' tokens are equal.
    :param injected: known defect put into an arm on purpose, by ``selftest`` and tests.
    :param error: why the point failed (status ``failed``).
    """

    schema_version: int = field(default=SCHEMA_VERSION, kw_only=True)
    trial: int
    point: int
    segment: int
    pass_: int
    mask: str | None
    seed: int
    attempt: int
    status: str
    started_utc: str
    variant: str
    axes: dict[str, Any]
    label: str
    subject: dict[str, Any]
    wall_ns: int
    planned_requests: int
    committed_tokens: int
    tokens_sha256: str | None
    output_tokens_per_s: float | None
    acceptance_length: float | None
    steps: StepTable
    device_busy: RangeTimes | None
    ranges: dict[str, RangeTimes]
    evidence: Evidence
    warmup: WarmUp | None = None
    plan_hash: str | None = None
    comparison: int | None = None
    arm: str | None = None
    process: int = 0
    start: int = 0
    periods: list[Period] = field(default_factory=list)
    divergence: Divergence | None = None
    injected: dict[str, Any] | None = None
    counters: ToggleCounts | None = None
    sampling_audit: list[SamplingAudit] | None = None
    error: str | None = None


@dataclass(frozen=True)
class LookRecord:
    """One look at a comparison while it ran: a line of ``looks.jsonl``. Log points; None was not computed.

    :param units: units (processes, where there are several) seen at this look; ``look`` counts from 1.
    :param is_last: the comparison ends here whatever is seen: all alpha left was spent.
    :param settled: the verdict needs no more units, so that the comparison stopped.
    :param reason: ``planned``, or ``budget`` where time was over before the plan was.
    """

    comparison: int
    look: int
    units: int
    is_last: bool
    verdict: str
    mean: float
    low: float | None
    high: float | None
    settled: bool
    reason: str = "planned"
