"""Gates of a comparison that rest on what was seen of the machine and of the requests, by arm where that can be told.

A mirrored pass runs both arms by turns within seconds, so what its evidence shows met both of them alike; whole runs
have evidence of their own arm each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from specbench.measure import gates
from specbench.measure.gates import FAIL, NOT_APPLICABLE, OTHER_LOAD_LIMIT, PASS, WARN, Measured
from specbench.measure.units import MeasuredBlock
from specbench.records import Evidence, Gate, RequestRecord, TrialRecord
from specbench.scenario.plan import MIRRORED, ComparisonPlan
from specbench.stats.contrasts import group_difference

CLOCK_GAP = 0.001
"""Relative difference of the arms' mean clocks above which they did not run alike."""
UNLIKE_LOAD, UNLIKE_LOAD_RATIO = 0.1, 3.0
"""Share of all cores' time that others used beside one arm, and how many times that beside the other arm, from which
the arms cannot be compared. Less is no proof: an arm that waits leaves more of the machine to others."""
UNLIKE_SHARE = 0.25
"""Share of an arm's runs that were throttled, beyond the other arm's, from which the arms cannot be compared."""
MIN_UNLIKE_RUNS = 2
CLEAR_P = 0.01
SHARED = "both arms ran by turns within each pass, so what is seen of a pass is seen of both alike"
STEP_COLUMNS = ("num_context", "num_generation", "num_context_tokens", "draft_len", "num_committed")


@dataclass(frozen=True, eq=False)
class Witnessed:
    """Trials of one comparison that count, and their requests."""

    comparison: ComparisonPlan
    blocks: Sequence[MeasuredBlock]
    requests: Sequence[RequestRecord]

    @cached_property
    def trials(self) -> list[TrialRecord]:
        """In plan order."""
        return [trial for block in self.blocks for trial in block.trials]

    @property
    def measured(self) -> Measured:
        """For the gates that ``run`` has as well."""
        return Measured(self.trials, self.requests)

    @property
    def is_mirrored(self) -> bool:
        """True when every trial ran both arms."""
        return self.comparison.design == MIRRORED

    def evidence(self, arm: str) -> list[Evidence]:
        """Of the runs of one arm."""
        return [trial.evidence for trial in self.trials if trial.arm == arm]


def gate_same_steps(seen: Witnessed) -> Gate:
    """Did both passes of every segment run the same steps?"""
    name = "same steps"
    if not seen.is_mirrored:
        steps = [sum(len(t.steps) for t in seen.trials if t.arm == arm) for arm in ("A", "B")]
        return Gate(name, NOT_APPLICABLE, f"whole runs: {steps[0]} steps against {steps[1]}")
    unlike = shifted = total = 0
    for block in seen.blocks:
        first, second = (_timed_steps(trial) for trial in block.trials)
        total += len(first[0])
        unlike += first != second
        periods = [[(p.quad, p.first_step, p.num_steps) for p in trial.periods] for trial in block.trials]
        shifted += periods[0] != periods[1]
    if unlike or shifted:
        what = "ran other steps" if unlike else "cut their steps into other periods"
        detail = f"{unlike or shifted} of {len(seen.blocks)} segments {what} in their second pass than in their first"
        return Gate(name, FAIL, detail)
    return Gate(name, PASS, f"{total} steps of {len(seen.blocks)} segments, alike in both passes")


def _timed_steps(trial: TrialRecord) -> list[list[object]]:
    end = max((period.first_step + period.num_steps for period in trial.periods), default=0)
    return [trial.steps.columns.get(name, [])[:end] for name in STEP_COLUMNS]


def gate_captures(seen: Witnessed) -> Gate:
    """Did capture or compilation happen in a window? Then that window did other work."""
    gate = gates.gate_captures(seen.measured)
    if gate.status == NOT_APPLICABLE:
        detail = "steps run eagerly: no variant has anything to capture, before the window or in it"
        return Gate(gate.name, gate.status, detail)
    if gate.status != WARN:
        return gate
    return Gate(gate.name, FAIL, gate.detail)


def gate_collection(seen: Witnessed) -> Gate:
    """Did the garbage collector run in a window? Its units are kept."""
    gate = gates.gate_collection(seen.measured)
    if gate.status != WARN:
        return gate
    touched = [str(block.segment) for block in seen.blocks if any(t.evidence.gc_collections for t in block.trials)]
    shown = ", ".join(touched[:5]) + (", ..." if len(touched) > 5 else "")
    return Gate(gate.name, WARN, f"{gate.detail}; kept: the units of segment {shown}")


def gate_other_load(seen: Witnessed) -> Gate:
    """Did other processes use the machine, and the arms unlike?"""
    gate = gates.gate_other_load(seen.measured)
    if gate.status == NOT_APPLICABLE:
        return gate
    if seen.is_mirrored:
        note = f"; {SHARED}: load in one arm's periods alone would show as outliers"
        return Gate(gate.name, gate.status, gate.detail + (note if gate.status == WARN else ""))
    shares = [[e.other_cpu_fraction for e in seen.evidence(arm) if e.other_cpu_fraction is not None] for arm in "AB"]
    if not all(shares):
        return gate
    means = [float(np.mean(values)) for values in shares]
    detail = (
        f"{gate.detail}; on average {means[0] * 100:.1f}% beside the baseline, {means[1] * 100:.1f}% beside the other"
    )
    less, more = sorted(means)
    if more - less <= OTHER_LOAD_LIMIT or not _differ_clearly(*shares):
        return Gate(gate.name, gate.status, detail)
    if more > UNLIKE_LOAD and more >= UNLIKE_LOAD_RATIO * less:
        return Gate(gate.name, FAIL, f"{detail}: other work ran beside one arm alone")
    return Gate(gate.name, WARN, f"{detail}: an arm that waits leaves more to others, or they took it from that arm")


def _differ_clearly(first: Sequence[float], second: Sequence[float]) -> bool:
    difference = group_difference(list(first), list(second))
    p_value = difference.p_value()
    if p_value is None:  # no spread at all: equal within each arm, two runs of each at least
        return min(len(first), len(second)) >= MIN_UNLIKE_RUNS and difference.mean != 0
    return p_value < CLEAR_P


def gate_clocks(seen: Witnessed) -> Gate:
    """Clocks, temperature and throttling: alike in both arms?"""
    gate = gates.gate_clocks(seen.measured)
    if seen.is_mirrored:
        return Gate(gate.name, gate.status, f"{gate.detail}; {SHARED}")
    by_arm = [seen.evidence(arm) for arm in ("A", "B")]
    throttled = [[_is_throttled(item) for item in evidence] for evidence in by_arm]
    if _throttled_unlike(*throttled):
        counts = " against ".join(f"{sum(arm)} of {len(arm)}" for arm in throttled)
        return Gate(gate.name, FAIL, f"arms throttled unlike each other: {counts} runs; {gate.detail}")
    clocks = [_mean([mhz for item in evidence for mhz in _clocks(item)]) for evidence in by_arm]
    if clocks[0] is None or clocks[1] is None:
        return gate
    gap = abs(clocks[0] - clocks[1]) / clocks[0]
    detail = f"{gate.detail}; {clocks[0]:.1f} MHz against {clocks[1]:.1f} MHz, {gap * 100:.2f}% apart{_warmth(by_arm)}"
    if gap > CLOCK_GAP and gate.status != FAIL:
        return Gate(gate.name, WARN, detail)
    return Gate(gate.name, gate.status if gate.status != NOT_APPLICABLE else PASS, detail)


def _is_throttled(evidence: Evidence) -> bool:
    reasons = (evidence.gpu or {}).get("throttle_reasons") or 0
    return bool(evidence.cpu_throttle_events or reasons)


def _throttled_unlike(baseline: Sequence[bool], candidate: Sequence[bool]) -> bool:
    if not baseline or not candidate:
        return False
    gap = abs(sum(baseline) / len(baseline) - sum(candidate) / len(candidate))
    return gap > UNLIKE_SHARE and abs(sum(baseline) - sum(candidate)) >= MIN_UNLIKE_RUNS


def _clocks(evidence: Evidence) -> list[float]:
    """Of the GPU where there is one, else of the CPU."""
    if evidence.gpu:
        found = [evidence.gpu.get("sm_mhz_min"), evidence.gpu.get("sm_mhz_max")]
    else:
        found = [evidence.cpu_mhz_start, evidence.cpu_mhz_end]
    return [float(mhz) for mhz in found if mhz]


def _warmth(by_arm: Sequence[Sequence[Evidence]]) -> str:
    degrees = [
        _mean([float(e.gpu["temperature_c"]) for e in arm if e.gpu and e.gpu.get("temperature_c")]) for arm in by_arm
    ]
    if degrees[0] is None or degrees[1] is None:
        return ""
    return f"; {degrees[0]:.1f} against {degrees[1]:.1f} degrees C"


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def gate_cut_trials(seen: Witnessed) -> Gate:
    """Did every trial get to its end? One that ``measure.timeout`` cut compares what fitted into that time."""
    cut = sum(trial.status != "complete" for trial in seen.trials)
    if cut:
        return Gate("cut trials", WARN, f"{cut} of {len(seen.trials)} were cut by measure.timeout")
    return Gate("cut trials", PASS, f"0 of {len(seen.trials)}")


def gate_token_counts(seen: Witnessed) -> Gate:
    """Do the steps' counts and the requests' outputs say the same?"""
    if seen.is_mirrored:
        return Gate("token counts", NOT_APPLICABLE, "a pass ends with its last period, whatever is in flight then")
    return gates.gate_token_counts(seen.measured)


def judge_machine(seen: Witnessed) -> list[Gate]:
    """Every gate of this module, in the order of the report."""
    return [gate(seen) for gate in GATES]


def _of_run(gate: Callable[[Measured], Gate]) -> Callable[[Witnessed], Gate]:
    return lambda seen: gate(seen.measured)


GATES: tuple[Callable[[Witnessed], Gate], ...] = (
    gate_same_steps,
    gate_cut_trials,
    gate_token_counts,
    _of_run(gates.gate_requests),
    _of_run(gates.gate_sampling_parameters),
    _of_run(gates.gate_content),
    _of_run(gates.gate_degeneration),
    gate_captures,
    _of_run(gates.gate_eager_fallbacks),
    gate_collection,
    _of_run(gates.gate_preemptions),
    _of_run(gates.gate_prefix_cache),
    _of_run(gates.gate_declared_times),
    _of_run(gates.gate_profiler),
    gate_other_load,
    gate_clocks,
)
