"""What an analysis says: points, comparisons, gates. ``analysis.json`` is one :class:`Analysis`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specbench.records.break_even import BreakEven
from specbench.records.comparison import INVALID, Comparison, Gate, Pooled
from specbench.records.counts import ToggleCounts
from specbench.records.trial import SCHEMA_VERSION, WarmUp


@dataclass(frozen=True)
class Distribution:
    """Mean and percentiles (linear interpolation between order statistics)."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True)
class RangeStats:
    """Durations of one named range in microseconds."""

    calls: int
    mean_us: float
    p50_us: float
    p99_us: float


@dataclass(frozen=True)
class Point:
    """The figures of one configuration. Definitions are in :data:`specbench.report.report.DEFINITIONS`.

    :param isl: input length in tokens, None when prompts have their own; ``mean_isl`` is what was measured.
    :param acceptance_counts: ``{drafted, eligible, opened, accepted}`` by draft position, behind the rates;
        ``{committed, target_steps}``, one number each, behind ``acceptance_length``.
    :param axes: the sweep's own coordinates of this point, scenario key in full -> value.
    :param error: why it could not be measured (status ``failed``).
    :param trial_tokens_per_s: output throughput of each trial; empty where a trial is not of this point alone.
    :param counters: what its variants counted in the steps of this point.
    :param runtime_draft_len: K by the step's batch, largest batch size -> K; empty: ``draft_len`` in every step, which
        is the largest of them else.
    :param draft_model: the draft head or draft model that was loaded, by its name or where it is; None: none.
    :param tree: ``{top_k, depth, num_nodes}`` of the draft tree; empty: one draft token follows another.
    :param min_ngram: the shortest suffix that is looked up, in tokens, ``max_ngram`` the longest; None: no lookup.
    """

    point: int
    variant: str
    model: str
    drafter: str
    acceptance: str
    workload: str
    concurrency: int
    draft_len: int
    isl: int | None
    osl: int | None
    status: str
    trials: int
    requests: int
    failed_requests: int
    steps: int
    committed_tokens: int
    prompt_tokens: int
    wall_s: float
    mean_isl: float | None = None
    mean_osl: float | None = None
    output_tokens_per_s: float | None = None
    full_batch_tokens_per_s: float | None = None
    full_batch_steps: int = 0
    mean_active_requests: float | None = None
    tokens_per_s_per_user: float | None = None
    requests_per_s: float | None = None
    acceptance_length: float | None = None
    conditional_acceptance: list[float | None] = field(default_factory=list)
    joint_acceptance: list[float | None] = field(default_factory=list)
    acceptance_counts: dict[str, list[int]] = field(default_factory=dict)
    ttft_ms: Distribution | None = None
    tpot_ms: Distribution | None = None
    itl_ms: Distribution | None = None
    e2e_ms: Distribution | None = None
    step_ms: float | None = None
    device_ms: float | None = None
    host_total_ms: float | None = None
    host_exposed_ms: float | None = None
    other_idle_ms: float | None = None
    ranges: dict[str, RangeStats] = field(default_factory=dict)
    tokens_sha256: str | None = None
    axes: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    trial_tokens_per_s: list[float] = field(default_factory=list)
    counters: ToggleCounts = field(default_factory=dict)
    runtime_draft_len: dict[str, int] = field(default_factory=dict)
    draft_model: str | None = None
    tree: dict[str, int] = field(default_factory=dict)
    min_ngram: int | None = None
    max_ngram: int | None = None


@dataclass(frozen=True)
class Analysis:
    """``analysis.json``: what every format and ``compare`` reads.

    :param kind: ``run``, ``sweep`` or ``ab``.
    :param label: what of the content is to be said, see :mod:`specbench.measure.labels`; on every report.
    :param scenario: as resolved; ``environment`` as measured on.
    :param break_even: of a sweep some of whose points speculate: where that stops paying.
    """

    schema_version: int = field(default=SCHEMA_VERSION, kw_only=True)
    kind: str
    label: str
    scenario: dict[str, Any]
    environment: dict[str, Any]
    points: list[Point]
    gates: list[Gate]
    comparisons: list[Comparison] = field(default_factory=list)
    pooled: list[Pooled] = field(default_factory=list)
    status: str = "complete"
    subject: dict[str, Any] = field(default_factory=dict)
    warmup: WarmUp | None = None
    command: str | None = None
    plan_hash: str | None = None
    started_utc: str | None = None
    specbench_version: str | None = None
    break_even: BreakEven | None = None

    @property
    def is_valid(self) -> bool:
        """False when a gate says that the figures may not be used, or a comparison is INVALID."""
        compared = all(comparison.verdict != INVALID for comparison in self.comparisons)
        return compared and all(gate.status != "fail" for gate in self.gates)
