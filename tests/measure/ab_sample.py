"""Comparisons measured on a machine that does not exist: plans, and trial lines whose every figure is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from specbench.measure.blocks import list_blocks
from specbench.measure.looks import due_look, has_ended, take_look
from specbench.records import (
    Difference,
    Evidence,
    LookRecord,
    Period,
    RangeTimes,
    RequestRecord,
    StepTable,
    TrialRecord,
)
from specbench.scenario.enumeration import enumerate_trials, units_per_visit
from specbench.scenario.plan import MIRRORED, RUNS, AbSettings, ComparisonPlan, PlanPoint, RunPlan, Trial

US, MS = 1_000, 1_000_000
GAP_NS = 5 * US
"""Between a period and the next."""


@dataclass(frozen=True)
class Costs:
    """What one step takes in one arm, in microseconds, and commits.

    :param populate_us: a host range within ``prepare_us``.
    """

    device_us: float = 800.0
    prepare_us: float = 150.0
    populate_us: float = 30.0
    idle_us: float = 50.0
    tokens: int = 8

    @property
    def step_us(self) -> float:
        return self.device_us + self.prepare_us + self.idle_us

    def scaled(self, factor: float) -> Costs:
        """Every part of a step takes ``factor`` times as long."""
        names = ("device_us", "prepare_us", "populate_us", "idle_us")
        return replace(self, **{name: getattr(self, name) * factor for name in names})


Factors = Callable[[Trial, int, str], float]
"""(trial, period or 0, arm) -> how many times as long its steps take: the machine's noise."""


@dataclass(frozen=True)
class Machine:
    """Both arms' costs, and what disturbs them.

    :param evidence: of every trial, or by arm of a run (mirrored passes take ``A``'s).
    :param slow_step: (trial, index of a timed step) -> microseconds on top.
    """

    baseline: Costs = field(default_factory=Costs)
    candidate: Costs = field(default_factory=Costs)
    factors: Factors = lambda _trial, _period, _arm: 1.0
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    has_device_time: bool = True
    slow_step: Callable[[Trial, int, str], float] = lambda _trial, _step, _arm: 0.0

    def costs(self, trial: Trial, period: int, arm: str) -> Costs:
        costs = self.baseline if arm == "A" else self.candidate
        return costs.scaled(self.factors(trial, period, arm))


def make_point(index: int, variant: str, dtype: str = "bfloat16", **coordinates: Any) -> PlanPoint:
    """A point whose scenario says its dtype."""
    axes = {"concurrency": coordinates.get("workload.concurrency", 4), "draft_len": 2, "isl": None, "osl": 64}
    return PlanPoint(index, variant, axes, {"engine": {"dtype": dtype}}, dict(coordinates))


TOGGLE = Difference("optimizations.sampling_params", "refill", "signature", "bit-identical", True)


def make_comparison(index: int = 0, design: str = MIRRORED, **changes: Any) -> ComparisonPlan:
    """One candidate (point 1) against the baseline (point 0)."""
    values: dict[str, Any] = {
        "baseline": 0, "candidate": 1, "role": "candidate", "why_design": "chosen by the test",
        "differences": (TOGGLE,), "exactness": "bit-identical",
    }  # fmt: skip
    return ComparisonPlan(index=index, design=design, **{**values, **changes})


def make_plan(
    design: str = MIRRORED,
    units: int = 20,
    *,
    comparisons: Sequence[ComparisonPlan] | None = None,
    points: Sequence[PlanPoint] | None = None,
    dtype: str = "bfloat16",
    exactness: str = "bit-identical",
    **settings: Any,
) -> RunPlan:
    """A plan of ``units`` units a comparison, over all its processes."""
    chosen = tuple(comparisons or [make_comparison(design=design, exactness=exactness)])
    of_plan = AbSettings(max_units=units, **{"period_steps": 4, "quads_per_segment": 2, "seed": 7, **settings})
    visits = [-(-units // (units_per_visit(item, of_plan) * of_plan.processes)) for item in chosen]
    return RunPlan(
        points=tuple(points or [make_point(0, "off", dtype), make_point(1, "on", dtype)]),
        trials=enumerate_trials(chosen, of_plan, visits, [0] * len(chosen)),
        warmup_requests=0,
        scenario={"name": "sample", "engine": {"dtype": dtype}},
        kind="ab",
        comparisons=chosen,
        settings=of_plan,
    )


def measure_trials(plan: RunPlan, machine: Machine | Sequence[Machine] | None = None) -> list[TrialRecord]:
    """A complete line for every trial of the plan; ``machine`` may be one a comparison."""
    machines = machine or Machine()
    records = []
    for trial in plan.trials:
        assert trial.comparison is not None
        chosen = machines if isinstance(machines, Machine) else machines[trial.comparison]
        records.append(_measure_pass(plan, trial, chosen) if trial.mask else _measure_run(plan, trial, chosen))
    return records


def _measure_pass(plan: RunPlan, trial: Trial, machine: Machine) -> TrialRecord:
    assert plan.settings is not None
    assert trial.mask is not None
    log = _StepLog(machine)
    periods = []
    for number, arm in enumerate(trial.mask):
        costs = machine.costs(trial, number, arm)
        log.now_ns += GAP_NS
        for _ in range(plan.settings.guard_steps):
            log.step(costs, trial, arm, is_timed=False)
        start_ns, first = log.now_ns, len(log)
        for _ in range(plan.settings.period_steps):
            log.step(costs, trial, arm)
        periods.append(
            Period(arm, number // 4, first, len(log) - first, plan.settings.guard_steps, start_ns, log.now_ns)
        )
    wall_ns = sum(period.end_ns - period.start_ns for period in periods)
    timed = [i for period in periods for i in range(period.first_step, period.first_step + period.num_steps)]
    tokens = sum(log.columns["num_committed"][i] for i in timed)
    return _record(plan, trial, log, wall_ns, tokens, machine.evidence.get("A", Evidence()), periods=periods)


def _measure_run(plan: RunPlan, trial: Trial, machine: Machine, steps: int = 8) -> TrialRecord:
    assert trial.arm is not None
    log = _StepLog(machine)
    costs = machine.costs(trial, 0, trial.arm)
    for _ in range(steps):
        log.step(costs, trial, trial.arm)
    tokens = sum(log.columns["num_committed"])
    return _record(plan, trial, log, log.now_ns, tokens, machine.evidence.get(trial.arm, Evidence()), arm=trial.arm)


class _StepLog:
    """Steps one after the other: the host prepares, the device runs, and then nothing happens for a while."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.now_ns = 0
        self.columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        self.busy = RangeTimes("device", [], [])
        self.ranges = {name: RangeTimes("host", [], []) for name in ("prepare_inputs", "populate_sampling_params")}
        self.ranges |= {"wait_output": RangeTimes("host", [], []), "target_forward": RangeTimes("device", [], [])}

    def __len__(self) -> int:
        return len(self.columns["step"])

    def step(self, costs: Costs, trial: Trial, arm: str, *, is_timed: bool = True) -> None:
        start = self.now_ns
        launch = start + round(costs.prepare_us * US)
        done = launch + round(costs.device_us * US)
        extra = self.machine.slow_step(trial, len(self), arm) if is_timed else 0.0
        self.now_ns = done + round((costs.idle_us + extra) * US)
        spans = {"prepare_inputs": (start, launch), "wait_output": (launch, done), "target_forward": (launch, done)}
        spans["populate_sampling_params"] = (start, start + round(costs.populate_us * US))
        for name, (begin, end) in spans.items():
            if end > begin:
                self.ranges[name].start_ns.append(begin)
                self.ranges[name].end_ns.append(end)
        self.busy.start_ns.append(launch)
        self.busy.end_ns.append(done)
        values = {
            "step": len(self), "num_context": 0, "num_generation": 4, "num_context_tokens": 0, "draft_len": 2,
            "num_committed": costs.tokens, "num_first_tokens": 0, "num_target_steps": 4, "drafted": [4, 4],
            "accepted": [2, 2], "host_start_ns": start, "launch_ns": launch, "device_start_ns": launch,
            "device_end_ns": done, "output_ns": self.now_ns, "eligible": [4, 2], "opened": [4, 4], "num_occupied": 4,
        }  # fmt: skip
        for name, value in values.items():
            self.columns[name].append(value)


_COLUMNS = (
    "step", "num_context", "num_generation", "num_context_tokens", "draft_len", "num_committed", "num_first_tokens",
    "num_target_steps", "drafted", "accepted", "host_start_ns", "launch_ns", "device_start_ns", "device_end_ns",
    "output_ns", "eligible", "opened", "num_occupied",
)  # fmt: skip

SUBJECT = {
    "name": "sample",
    "capabilities": {"token_ids": True, "steps": True, "device_time": True},
    "engine": {"device": "cpu", "dtype": "bfloat16"},
}

BLIND = {**SUBJECT, "capabilities": {"token_ids": True, "steps": False, "device_time": False}}


def _record(
    plan: RunPlan, trial: Trial, log: _StepLog, wall_ns: int, tokens: int, evidence: Evidence, **changes: Any
) -> TrialRecord:
    point = plan.points[trial.point]
    named = {"model": "sample-1b", "drafter": "ngram", "acceptance": "strict", "workload": "chat80"}
    return TrialRecord(
        trial=trial.trial, point=trial.point, segment=trial.segment, pass_=trial.pass_, mask=trial.mask,
        seed=trial.seed, attempt=0, status="complete", started_utc=_utc(trial.trial), variant=point.variant,
        axes={**named, **point.axes}, label="natural", subject=SUBJECT, wall_ns=wall_ns, planned_requests=4,
        committed_tokens=tokens, tokens_sha256=f"segment {trial.segment}", output_tokens_per_s=tokens / wall_ns * 1e9,
        acceptance_length=2.0, steps=StepTable(log.columns),
        device_busy=log.busy if log.machine.has_device_time else None, ranges=log.ranges, evidence=evidence,
        comparison=trial.comparison, process=trial.process, **changes,
    )  # fmt: skip


def _utc(seconds: int) -> str:
    minutes, second = divmod(seconds, 60)
    return f"2026-01-31T{12 + minutes // 60:02}:{minutes % 60:02}:{second:02}Z"


def make_requests(trials: Sequence[TrialRecord], **changes: Any) -> list[RequestRecord]:
    """Four ended requests a trial."""
    values: dict[str, Any] = {
        "category": None, "prompt_tokens": 10, "output_tokens": 64, "output_sha256": "", "finish_reason": "length",
        "ttft_ms": 5.0, "e2e_ms": 50.0, "accepted_lengths": [2] * 32, "chunk_ms": [5.0, 50.0], "chunk_sizes": [1, 63],
        "max_tokens": 64,
    }  # fmt: skip
    return [
        RequestRecord(trial=t.trial, attempt=t.attempt, request_id=f"c{i}/t0", **{**values, **changes})
        for t in trials
        for i in range(4)
    ]


def swap_labels(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The same lines with A called B and B called A."""
    other = {"A": "B", "B": "A", None: None}
    return [
        replace(
            trial,
            arm=other[trial.arm],
            periods=[replace(period, arm=other[period.arm]) for period in trial.periods],  # type: ignore[arg-type]
        )
        for trial in trials
    ]


def run_looks(
    plan: RunPlan, trials: Sequence[TrialRecord], *, budget_blocks: int | None = None
) -> tuple[list[TrialRecord], list[LookRecord]]:
    """What a command does: block after block, a look when one is due, nothing more of what settled.

    :param budget_blocks: the budget is over after so many blocks of all comparisons together.
    """
    by_number = {trial.trial: trial for trial in trials}
    measured: list[TrialRecord] = []
    looks: list[LookRecord] = []
    done: set[int] = set()
    units = [0] * len(plan.comparisons)
    settings = plan.settings
    assert settings is not None
    blocks = list_blocks(plan)
    for number, block in enumerate(blocks):
        if block.comparison in done:
            continue
        if budget_blocks is not None and number >= budget_blocks:
            break
        measured += [by_number[trial.trial] for trial in block.trials]
        units[block.comparison] += block.units
        seen = units[block.comparison]
        if settings.processes > 1:
            later = any(b.process == block.process and b.comparison == block.comparison for b in blocks[number + 1 :])
            if later:
                continue
            seen = block.process + 1
        if due_look(plan, block.comparison, seen, looks):
            looks.append(take_look(plan, block.comparison, measured, looks))
            if has_ended(plan, block.comparison, looks):
                done.add(block.comparison)
    if budget_blocks is not None:
        for comparison in range(len(plan.comparisons)):
            if comparison not in done:
                looks.append(take_look(plan, comparison, measured, looks, is_last=True, reason="budget"))
    return measured, looks


def run_from_log_ratios(plan: RunPlan, log_ratios: Sequence[float], comparison: int = 0) -> list[TrialRecord]:
    """Lines of a ``runs`` design whose units have these very log ratios: no steps, whole runs of 10 s."""
    assert plan.comparisons[comparison].design == RUNS
    log = _StepLog(Machine())
    log.columns, log.ranges = {}, {}
    records = []
    values = iter(log_ratios)
    for block in list_blocks(plan):
        if block.comparison != comparison:
            continue
        shift = next(values)
        for trial in block.trials:
            wall_ns = round(10_000 * MS * (1.0 if trial.arm == "A" else float(np.exp(-shift))))
            record = _record(plan, trial, log, wall_ns, 1000, Evidence(), arm=trial.arm)
            records.append(replace(record, subject=BLIND, device_busy=None))
    return records
