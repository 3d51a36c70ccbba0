"""Frozen result types that every layer above shares. No torch here.

:mod:`specbench.encoding` turns them into plain dictionaries and back. A value that was not measured is
``None`` (JSON ``null``), never 0 or NaN.
"""

from __future__ import annotations

from specbench.records.analysis import Analysis, Distribution, Point, RangeStats
from specbench.records.comparison import (
    ALL_BUT,
    ALONE,
    CANDIDATE,
    DELAY,
    EQUAL_ARMS,
    INVALID,
    PAIR,
    SWAPPED,
    Comparison,
    Difference,
    Effect,
    Gate,
    Pooled,
    RangeEffect,
    Unit,
)
from specbench.records.counts import ToggleCounts, VariantCounts
from specbench.records.trial import (
    BUDGET,
    COMPLETE,
    FAILED,
    PLANNED,
    SCHEMA_VERSION,
    STEP_COUNTS_BY_POSITION,
    STEP_TIMES,
    WINDOW,
    Divergence,
    Evidence,
    LookRecord,
    Period,
    RangeTimes,
    RequestRecord,
    StepRecord,
    StepTable,
    TrialRecord,
    WarmUp,
)

__all__ = [
    "ALL_BUT",
    "ALONE",
    "BUDGET",
    "CANDIDATE",
    "COMPLETE",
    "DELAY",
    "EQUAL_ARMS",
    "FAILED",
    "INVALID",
    "PAIR",
    "PLANNED",
    "SCHEMA_VERSION",
    "STEP_COUNTS_BY_POSITION",
    "STEP_TIMES",
    "SWAPPED",
    "WINDOW",
    "Analysis",
    "Comparison",
    "Difference",
    "Distribution",
    "Divergence",
    "Effect",
    "Evidence",
    "Gate",
    "LookRecord",
    "Period",
    "Point",
    "Pooled",
    "RangeEffect",
    "RangeStats",
    "RangeTimes",
    "RequestRecord",
    "StepRecord",
    "StepTable",
    "ToggleCounts",
    "TrialRecord",
    "Unit",
    "VariantCounts",
    "WarmUp",
]
