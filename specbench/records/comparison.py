"""What a comparison of two arms says: effect, interval, verdict, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specbench.records.counts import ToggleCounts
from specbench.records.trial import Divergence

INVALID = "INVALID"
CANDIDATE, ALONE, ALL_BUT, PAIR = "candidate", "alone", "all but", "pair"
"""Roles of a comparison in ``ab``: what was asked, and with ``--each`` what its parts contribute."""
EQUAL_ARMS, DELAY, SWAPPED = "A/A", "delay", "swapped"
"""Roles of a comparison in ``selftest``."""
NEXT_TO_NONE = 0.01
"""Of the candidate's time in a range: a baseline with less of it does not do that work, as without a drafter drafting,
and what it takes more there is no change of it."""


@dataclass(frozen=True)
class Gate:
    """One check of what could spoil the figures.

    :param status: ``pass``, ``warn``, ``fail`` (the figures may not be used) or ``n/a`` (cannot be seen,
        or does not apply).
    :param detail: the figure it was judged by, in words.
    """

    name: str
    status: str
    detail: str


@dataclass(frozen=True)
class Effect:
    """A change with its interval in percent; None was not computed."""

    delta_pct: float | None
    ci_low_pct: float | None
    ci_high_pct: float | None


@dataclass(frozen=True)
class RangeEffect:
    """Change of the time a named range takes a step, candidate against baseline: negative takes less.

    :param delta_pct: None as well where the baseline has next to none of the range.
    :param baseline_us: mean microseconds a step in the baseline; ``candidate_us`` likewise.
    :param share_pct: the baseline's range as a percentage of its step: an upper limit on what
        removing it could gain.
    """

    delta_pct: float | None
    ci_low_pct: float | None
    ci_high_pct: float | None
    baseline_us: float
    candidate_us: float
    share_pct: float | None = None
    lane: str = "host"

    @property
    def has_baseline(self) -> bool:
        """Whether the baseline has enough of the range for a change of it to say something."""
        return self.baseline_us > 0 and self.baseline_us >= NEXT_TO_NONE * self.candidate_us


@dataclass(frozen=True)
class Difference:
    """One scenario key in which the arms differ.

    :param key: in full; toggles as ``optimizations.NAME``.
    :param exactness: what the change does to the output, and ``step_preserving`` whether every step keeps its
        schedule and commits.
    """

    key: str
    baseline: Any
    candidate: Any
    exactness: str
    step_preserving: bool


@dataclass(frozen=True)
class Unit:
    """One unit of analysis: a quad over both passes of a mirrored segment, or four runs.

    :param first_arm: ``A`` or ``B``: which arm the (first pass of the) unit began with.
    :param elapsed_s: when it began, since the comparison's first unit.
    :param d_pct: log ratio as a percentage, positive where the candidate is faster.
    """

    unit: int
    process: int
    segment: int
    first_arm: str
    elapsed_s: float
    baseline_s: float
    candidate_s: float
    baseline_tokens: int
    candidate_tokens: int
    d_pct: float


@dataclass(frozen=True)
class Comparison:
    """One candidate against the baseline at one point.

    :param role: ``candidate``; with ``--each`` also ``alone`` (baseline plus one key), ``all but`` (the
        baseline is the candidate minus one key) and ``pair``; ``A/A``, ``delay`` and ``swapped`` in ``selftest``.
    :param point: sweep coordinates of both arms, scenario key in full -> value; empty outside a sweep.
    :param design: ``mirrored`` or ``runs``; ``why_design`` says why it was chosen.
    :param label: what of the content is to be said (see :mod:`specbench.measure.labels`); empty where no unit was
        measured.
    :param metric: ``time`` (identical tokens) or ``throughput`` (tokens differ).
    :param verdict: as printed, without ``OUTPUT CHANGED: ``, which ``output_changed`` says.
    :param reasons: why INVALID.
    :param ci_low_pct: the interval at the stopping look's bound; ``alpha`` is what the family's correction left to it.
    :param scope: what the interval speaks of (``this process only``, ``4 fresh processes``).
    :param bound: which look decided, in words.
    :param units_needed: in all, for INCONCLUSIVE.
    :param p_value: over looks, uncorrected for other comparisons; ``p_holm`` corrected.
    :param decomposition: log points that add up to the mean: tokens_per_step, device, host_exposed and other_idle, or
        tokens_per_step and step where the device's time is not known; ``decomposition_pct`` each with its interval.
    :param second_line: robust figures: ``{hodges_lehmann_pct, ratio_of_sums_pct, sums_disagree, sign_positive,
        sign_negative, sign_p, num_outliers, lag1, lag1_limit, std_dev_pct}``.
    :param step_ms_quantiles: percentiles 0 to 100 of step times by arm, for plots.
    :param counters: arm -> what its variants counted in the timed steps.
    :param in_words: what to make of it: hidden work, token differences, what was corrected for.
    """

    index: int
    role: str
    baseline: str
    candidate: str
    point: dict[str, Any]
    design: str
    why_design: str
    differences: list[Difference]
    exactness: str
    token_rule: str
    label: str
    metric: str
    n_units: int
    n_processes: int
    baseline_tokens_per_s: float | None
    candidate_tokens_per_s: float | None
    speedup_pct: float | None
    ci_low_pct: float | None
    ci_high_pct: float | None
    confidence: float
    verdict: str
    output_changed: bool
    reasons: list[str]
    margin_pct: float
    mde_pct: float | None
    units_needed: int | None
    scope: str
    bound: str
    alpha: float
    p_value: float | None
    p_holm: float | None
    tokens_identical: bool | None
    first_divergence: Divergence | None
    decomposition: dict[str, float]
    decomposition_pct: dict[str, Effect]
    ranges: dict[str, RangeEffect]
    acceptance_length: dict[str, float | None]
    step_ms: dict[str, dict[str, float | None]]
    second_line: dict[str, float | int | bool | None]
    gates: list[Gate]
    in_words: list[str]
    units: list[Unit] = field(default_factory=list)
    step_ms_quantiles: dict[str, list[float]] = field(default_factory=dict)
    measured_s: float = 0.0
    units_per_minute: float | None = None
    planned_units: int = 0
    not_computed: dict[str, str] = field(default_factory=dict)
    baseline_index: int = 0
    candidate_index: int = 0
    counters: dict[str, ToggleCounts] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """The verdict as printed first."""
        changed = self.output_changed and self.verdict != INVALID
        return f"OUTPUT CHANGED: {self.verdict}" if changed else self.verdict


@dataclass(frozen=True)
class Pooled:
    """The equal-weight mean effect of one candidate over the points of a sweep.

    :param these_points: for the points that were measured; ``in_general`` for points like them.
    :param heterogeneity: ``{cochran_q, p_value, i_squared}``; None was not computed.
    """

    baseline: str
    candidate: str
    n_points: int
    these_points: Effect
    in_general: Effect
    heterogeneity: dict[str, float] | None
    sign_positive: int
    sign_negative: int
    sign_p: float | None
    not_computed: dict[str, str] = field(default_factory=dict)
