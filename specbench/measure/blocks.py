"""Blocks: the trials of a plan that make units together, and are measured again together when one was cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from specbench.records import COMPLETE, TrialRecord
from specbench.scenario.enumeration import units_per_visit
from specbench.scenario.plan import RunPlan, Trial, settings_of


@dataclass(frozen=True)
class Block:
    """Consecutive trials of one comparison, process and segment: the passes of a mirrored segment, or four runs.

    :param units: units of analysis it gives.
    """

    comparison: int
    process: int
    segment: int
    trials: tuple[Trial, ...]
    units: int


def list_blocks(plan: RunPlan, process: int | None = None) -> list[Block]:
    """The blocks of an ``ab`` plan in the order they are measured; of one process, or of all."""
    blocks = []
    for (comparison, number, segment), trials in groupby(plan.trials, key=_block_of):
        if comparison is not None and process in (None, number):
            members = tuple(trials)
            units = units_per_visit(plan.comparisons[comparison], settings_of(plan))
            blocks.append(Block(comparison, number, segment, members, units))
    return blocks


def _block_of(trial: Trial) -> tuple[int | None, int, int]:
    return trial.comparison, trial.process, trial.segment


def next_attempt(block: Block, measured: Iterable[TrialRecord]) -> int:
    """Attempt number of the next try of a block: all its trials share it."""
    members = {trial.trial for trial in block.trials}
    return 1 + max((record.attempt for record in measured if record.trial in members), default=-1)


def complete_attempt(block: Block, by_trial: dict[int, list[TrialRecord]]) -> list[TrialRecord] | None:
    """The trials of the first attempt in which the whole block was measured, in plan order; None: there is none."""
    first = by_trial.get(block.trials[0].trial, [])
    for attempt in sorted(record.attempt for record in first if record.status in COMPLETE):
        found = [_find(by_trial.get(trial.trial, []), attempt) for trial in block.trials]
        records = [record for record in found if record is not None]
        if len(records) == len(found):
            return records
    return None


def _find(records: Sequence[TrialRecord], attempt: int) -> TrialRecord | None:
    return next((r for r in records if r.attempt == attempt and r.status in COMPLETE), None)


def group_by_trial(measured: Iterable[TrialRecord]) -> dict[int, list[TrialRecord]]:
    """Every record of each trial number, in the order they were written."""
    grouped: dict[int, list[TrialRecord]] = {}
    for record in measured:
        grouped.setdefault(record.trial, []).append(record)
    return grouped
