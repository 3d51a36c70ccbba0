"""Where the outputs of two arms first differ, and whose token is whose."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from specbench.measure.trials import MeasuredTrial
from specbench.records import Divergence

BASELINE = "A"
Margin = Callable[[Sequence[int], int, int], float]
"""Prefix, one token, another: logit of the first minus that of the second."""


def find_divergence(first: MeasuredTrial, second: MeasuredTrial, margin: Margin | None = None) -> Divergence | None:
    """Where two trials over the same requests first differ, in workload order; None where they do not.

    The trials are two runs, one of each arm, or the two passes of a segment, each of which ran both arms: there a token
    belongs to the arm that ran the step in which it was committed, guard steps to the period after them. Of a trial
    that was cut by the clock, only what the other has too is compared.

    :param margin: prefix and two tokens to the difference of their logits; None leaves it out. No step may be in
        flight.
    """
    whole = first.record.status == second.record.status == "complete"
    found = first_difference(first.outputs, second.outputs, whole=whole)
    if found is None:
        return None
    if not _baseline_is_first(found, first, second):
        ours, theirs = found.baseline_token_id, found.candidate_token_id
        found = replace(found, baseline_token_id=theirs, candidate_token_id=ours)
    return replace(found, margin=_measure_margin(found, first, margin))


def first_difference(
    ours: Mapping[str, Sequence[int]], theirs: Mapping[str, Sequence[int]], *, whole: bool = True
) -> Divergence | None:
    """The first request whose output ids differ, and where, ``ours`` taken for the baseline.

    :param ours: output ids by request id, in workload order.
    :param whole: False: that one output is longer than the other, or is there alone, is no difference.
    """
    for request_id in dict.fromkeys((*ours, *theirs)):
        one, other = ours.get(request_id, ()), theirs.get(request_id, ())
        position = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        if position is None and whole and len(one) != len(other):
            position = min(len(one), len(other))
        if position is not None:
            return Divergence(request_id, position, _token_at(one, position), _token_at(other, position))
    return None


def _token_at(output: Sequence[int], position: int) -> int | None:
    return output[position] if position < len(output) else None


def _baseline_is_first(found: Divergence, first: MeasuredTrial, second: MeasuredTrial) -> bool:
    """Did the baseline commit the first trial's token (or not commit it, where its output ended)?"""
    arm = _arm_of(first, found)
    return arm == BASELINE if arm is not None else _arm_of(second, found) != BASELINE


def _arm_of(trial: MeasuredTrial, found: Divergence) -> str | None:
    """The arm that committed the token in question in ``trial``; None where there is no such token."""
    if trial.record.arm is not None:
        return trial.record.arm
    request = next((request for request in trial.requests if request.request_id == found.request_id), None)
    if request is None:
        return None
    ends_ms = [period.end_ns / 1e6 for period in trial.record.periods]
    num_tokens = 0
    for chunk_ms, size in zip(request.chunk_ms, request.chunk_sizes, strict=True):
        num_tokens += size
        if found.position < num_tokens:
            period = bisect_left(ends_ms, request.start_ms + chunk_ms)
            return trial.record.periods[period].arm if period < len(ends_ms) else None
    return None


def _measure_margin(found: Divergence, trial: MeasuredTrial, margin: Margin | None) -> float | None:
    """Logit of the baseline's token minus that of the candidate's, both chosen from the same prefix."""
    ours, theirs = found.baseline_token_id, found.candidate_token_id
    if margin is None or ours is None or theirs is None:
        return None
    output = trial.outputs[found.request_id]
    return margin([*trial.prompts[found.request_id], *output[: found.position]], ours, theirs)
