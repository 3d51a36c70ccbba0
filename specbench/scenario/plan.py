"""What a plan is: the points, trials and comparisons of a command, fixed and hashed before the first unit."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from specbench.errors import InputError
from specbench.records import Difference

NOT_MEASURED = ("name", "study", "sweep", "variants")
"""Scenario keys that say what is compared, not how the engine runs: no variant sets them, and they are left out of the
hash of a plan, since they change nothing in what one point measures."""
SET_APART = (*NOT_MEASURED, "measure", "process", "optimizations")
"""Scenario keys that are neither swept nor compared like the others: those above, how it is measured, and two whose
entries go by names of their own."""
MIRRORED, RUNS = "mirrored", "runs"
TOGGLES = "optimizations."
"""What a scenario key in full begins with where it names a toggle."""
PERIOD_STEPS = 2
"""Timed steps of a mirrored period. What disturbs a machine lasts for many steps: short periods cancel it."""
SEGMENT_STEPS = 144
"""Steps of a mirrored segment, guards included."""


@dataclass(frozen=True)
class PlanPoint:
    """One configuration that is measured.

    :param axes: its coordinates: concurrency, draft_len, isl, osl (tokens; a range as [low, high]).
    :param scenario: as resolved, in plain data, secrets masked; None: the plan's own.
    :param coordinates: of the sweep, scenario key in full -> value.
    """

    index: int
    variant: str
    axes: dict[str, Any]
    scenario: dict[str, Any] | None = None
    coordinates: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """One measured window.

    :param point: index of its :class:`PlanPoint`; of the baseline's for a mirrored pass, which runs both arms.
    :param segment: which stretch of work; trials of one segment replay the same requests.
    :param pass_: pass of a mirrored segment (0, 1), place among the four runs of a unit (0 to 3), 0 elsewhere.
    :param mask: which arm each period of a mirrored pass runs (``ABBABAAB``), a quad after the other; None elsewhere.
    :param seed: of request sampling; with the workload's own seed it fixes every input of the trial.
    :param comparison: index of its :class:`ComparisonPlan`, None in ``run`` and ``sweep``.
    :param arm: ``A`` or ``B`` for a run of a ``runs`` design, None elsewhere.
    :param process: number of the fresh process that measures it.
    """

    trial: int
    point: int
    segment: int
    pass_: int
    mask: str | None
    seed: int
    comparison: int | None = None
    arm: str | None = None
    process: int = 0


@dataclass(frozen=True)
class ComparisonPlan:
    """One candidate against the baseline, at one point.

    :param baseline: index of the baseline's :class:`PlanPoint`; ``candidate`` likewise.
    :param role: see :class:`specbench.records.Comparison`.
    :param design: ``mirrored`` or ``runs``; ``why_design`` in words.
    :param exactness: the weakest of the differences' (``bit-identical`` where nothing differs, as in A/A).
    :param injected: arm -> a known defect put into it, by ``selftest`` and tests; None: none.
    :param segment_requests: requests of one run of a ``runs`` unit, set when the plan is sized; None: not known yet, or
        ``mirrored``, whose segments end with their last period.
    """

    index: int
    baseline: int
    candidate: int
    role: str
    design: str
    why_design: str
    differences: tuple[Difference, ...]
    exactness: str
    injected: dict[str, dict[str, Any]] | None = None
    segment_requests: int | None = None


@dataclass(frozen=True)
class AbSettings:
    """How comparisons are measured and judged; all of it fixed before the first unit.

    :param margin: what counts as no difference, as a fraction.
    :param budget_s: wall time that the command may measure for, warm-up included.
    :param num_looks: planned looks; ``anytime`` True looks after every block with the confidence sequence instead.
    :param processes: fresh processes, one after the other; 1: inside the calling one.
    :param period_steps: timed steps of a period; ``guard_steps`` are run before them after each switch, in no figure.
    :param quads_per_segment: quads of a mirrored segment: the units it gives.
    :param segment_requests: requests of one run of a ``runs`` unit; None: the calibration chooses.
    :param max_units: units of each comparison at which it ends (where designs differ, of the one that has most: see
        :func:`specbench.scenario.enumeration.planned_units`); None: the calibration chooses.
    :param stop_early: False measures to the last unit whatever a look says (``selftest``).
    :param seed: of orders and masks.
    """

    margin: float = 0.005
    confidence: float = 0.95
    budget_s: float = 120.0
    num_looks: int = 5
    anytime: bool = False
    processes: int = 1
    period_steps: int = PERIOD_STEPS
    guard_steps: int = 1
    quads_per_segment: int = 12
    segment_requests: int | None = None
    max_units: int | None = None
    stop_early: bool = True
    seed: int = 0


@dataclass(frozen=True)
class RunPlan:
    """What a command will do.

    :param warmup_requests: run once by each engine before its first trial, in no figure.
    :param scenario: as resolved, in plain data.
    :param kind: ``run``, ``sweep`` or ``ab``.
    :param settings: of ``ab``; ``max_units`` and ``segment_requests`` are set by then.
    :param calibration: what the plan's size was reckoned from: ``{seconds_per_block: [...], ...}``.
    """

    points: tuple[PlanPoint, ...]
    trials: tuple[Trial, ...]
    warmup_requests: int
    scenario: dict[str, Any]
    kind: str = "run"
    comparisons: tuple[ComparisonPlan, ...] = ()
    settings: AbSettings | None = None
    calibration: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def trials_by_comparison(self) -> Counter[int | None]:
        """How many trials each comparison has; in ``run`` and ``sweep`` all are those of None."""
        return Counter(trial.comparison for trial in self.trials)

    @cached_property
    def sha256(self) -> str:
        """Hash of the canonical JSON of the plan: equal plans measure the same thing."""
        measured = {key: value for key, value in self.scenario.items() if key not in NOT_MEASURED}
        plan = {
            "kind": self.kind,
            "points": self.points,
            "trials": self.trials,
            "warmup_requests": self.warmup_requests,
            "scenario": measured,
            "comparisons": self.comparisons,
            "settings": self.settings,
            "calibration": self.calibration,
        }
        text = json.dumps(plan, sort_keys=True, separators=(",", ":"), allow_nan=False, default=asdict)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Question:
    """What ``ab``, ``sweep`` or ``selftest`` asks, before calibration sizes the plan: ``question.json``.

    :param settings: of ``ab``; None for ``sweep``.
    :param repeats: rounds of a sweep.
    :param notes: what the asker should be told before it starts.
    """

    kind: str
    points: tuple[PlanPoint, ...]
    comparisons: tuple[ComparisonPlan, ...]
    settings: AbSettings | None
    warmup_requests: int
    scenario: dict[str, Any]
    repeats: int = 1
    notes: tuple[str, ...] = ()

    @cached_property
    def sha256(self) -> str:
        """Hash of the canonical JSON: names the results folder."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


def settings_of(plan: RunPlan) -> AbSettings:
    """The settings of an ``ab`` plan.

    :raises InputError: the plan is not one of comparisons.
    """
    if plan.settings is None:
        raise InputError(f"a plan of kind {plan.kind} compares nothing", where="plan.settings")
    return plan.settings
