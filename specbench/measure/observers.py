"""Who looks on while a plan is measured. None of them changes what is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from specbench.records import TrialRecord
from specbench.scenario.plan import PlanPoint


@dataclass(frozen=True)
class ComparisonProgress:
    """What is known of one comparison so far: shown, never decided upon. Percentages; None is not known yet.

    :param verdict: of the latest look, None before the first.
    """

    label: str
    units: int
    mean_pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None
    verdict: str | None = None


@dataclass(frozen=True)
class SessionProgress:
    """How far a command is.

    :param units_planned: at most; a verdict may come earlier.
    :param elapsed_s: since the session began to measure; ``budget_s`` what it may take.
    """

    units_done: int
    units_planned: int
    elapsed_s: float
    budget_s: float
    comparisons: tuple[ComparisonProgress, ...]


class SessionObserver(Protocol):
    """Shows what happens between measured windows."""

    def announce(self, line: str) -> None:
        """What begins, in one line."""
        ...

    def show(self, progress: SessionProgress) -> None:
        """How far it is: between blocks, and seldom enough that reckoning it costs little beside them."""
        ...

    def trial_done(self, point: PlanPoint, trial: TrialRecord) -> None:
        """A trial is on disk."""
        ...

    def finish(self) -> None:
        """Nothing more will come."""
        ...


class SilentObserver:
    """Shows nothing."""

    def announce(self, line: str) -> None:
        pass

    def show(self, progress: SessionProgress) -> None:
        pass

    def trial_done(self, point: PlanPoint, trial: TrialRecord) -> None:
        pass

    def finish(self) -> None:
        pass
