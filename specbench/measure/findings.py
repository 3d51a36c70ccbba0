"""What is known of one comparison on the way from its units to its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from specbench.measure.looks import LooksTaken
from specbench.measure.token_rules import TokenOutcome
from specbench.measure.unit_table import FloatArray, UnitTable
from specbench.measure.units import MeasuredBlock
from specbench.records import LookRecord, RequestRecord, TrialRecord
from specbench.scenario.plan import ComparisonPlan
from specbench.stats.paired import PairedSummary
from specbench.stats.processes import ProcessEstimate


@dataclass(frozen=True, eq=False)
class Study:
    """What was measured of one comparison.

    :param units: all of them; ``looks`` those taken at it.
    """

    comparison: ComparisonPlan
    blocks: Sequence[MeasuredBlock]
    units: UnitTable
    requests: Sequence[RequestRecord]
    looks: Sequence[LookRecord]

    @cached_property
    def trials(self) -> list[TrialRecord]:
        """Of all blocks, in plan order."""
        return [trial for block in self.blocks for trial in block.trials]

    @property
    def num_starts(self) -> int:
        """Interpreters that measured it: more than its processes where one was resumed."""
        return len({(trial.process, trial.start) for trial in self.trials})


@dataclass(frozen=True, eq=False)
class Finding:
    """What its latest look saw; without a look, everything that was measured.

    :param units: those that count; ``log_ratios`` [n] theirs. ``summary`` and ``effect`` are None without any.
    :param p_difference: over looks, not corrected for other comparisons; ``p_holm`` is. None was not computed.
    :param levels: what the correction leaves to the difference, and to each side of the equivalence test.
    """

    study: Study
    units: UnitTable
    tokens: TokenOutcome
    taken: LooksTaken
    log_ratios: FloatArray = field(default_factory=lambda: np.empty(0))
    summary: PairedSummary | None = None
    effect: ProcessEstimate | None = None
    p_difference: float | None = None
    p_equivalence: float | None = None
    p_holm: float | None = None
    levels: tuple[float, float] = (0.05, 0.05)
