"""Accepted lengths out of a results folder, and the requests that replay them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from specbench.errors import ResultsError
from specbench.measure.driver import PlannedRequest, RequestSource
from specbench.measure.json_lines import read_lines
from specbench.measure.results_folder import REQUESTS, TRIALS
from specbench.records import RequestRecord, TrialRecord
from specbench.scenario.conflicts import REPLAY
from specbench.scenario.schema import Acceptance

_ENDED = ("stop", "length")

_Record = TypeVar("_Record", TrialRecord, RequestRecord)


def read_accepted_lengths(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return what each request of a ``run``, ``sweep`` or ``ab`` committed step by step, by its full request id.

    Of the first complete trial and those like it: the same point, the baseline's arm, no known defect put in. A request
    that several of them sent counts as the first of them recorded it.

    :raises ResultsError: no results folder, no complete trial in it, or no accepted lengths in its requests.
    """
    trials = _choose_trials(folder)
    requests: dict[tuple[int, int], list[RequestRecord]] = {}
    for request in _read_records(folder / REQUESTS, RequestRecord):
        if request.finish_reason in _ENDED:
            requests.setdefault((request.trial, request.attempt), []).append(request)
    lengths: dict[str, tuple[int, ...]] = {}
    for trial in trials:
        for request in requests.get((trial.trial, trial.attempt), ()):
            lengths.setdefault(request.request_id, _lengths_of(request, folder))
    if not lengths:
        raise ResultsError(
            f"no request of trial {trials[0].trial} ended, so there are no accepted lengths to replay",
            where=str(folder / REQUESTS),
            hint="choose another run",
        )
    return lengths


def _choose_trials(folder: Path) -> list[TrialRecord]:
    trials = _read_records(folder / TRIALS, TrialRecord)
    complete = [t for t in trials if t.status == "complete" and t.arm != "B" and t.injected is None]
    if not complete:
        raise ResultsError(
            f"none of its {len(trials)} trials is complete, so there are no accepted lengths to replay",
            where=str(folder),
            hint=f"finish it with --resume {folder}, or choose another run",
        )
    return [trial for trial in complete if trial.point == complete[0].point]


def _read_records(path: Path, kind: type[_Record]) -> list[_Record]:
    """Whole lines of a file of the folder; a torn last one is left out, and the file as it is."""
    if not os.path.isfile(path):
        raise ResultsError(
            f"{path.name} is not there, so there are no accepted lengths to replay",
            where=str(path.parent),
            hint="give the folder that `specbench run`, `sweep` or `ab` wrote",
        )
    try:
        return read_lines(path, kind).records
    except OSError as error:
        raise ResultsError(f"cannot be read: {error.strerror or error}", where=str(path)) from error


def _lengths_of(request: RequestRecord, folder: Path) -> tuple[int, ...]:
    # The context step's own token is in none of the lengths.
    recorded = 1 + sum(request.accepted_lengths)
    if recorded != request.output_tokens:
        raise ResultsError(
            f"request {request.request_id} has {request.output_tokens} output tokens, but its accepted lengths make "
            f"{recorded}: what was measured there did not tell its steps",
            where=str(folder / REQUESTS),
            hint="record the lengths with the built-in engine",
        )
    return tuple(request.accepted_lengths)


class ReplaySource:
    """The requests of ``source``, each with the lengths it replays and as many output tokens as it had.

    End tokens are ignored: content is not judged, so one that comes early must not cut what is replayed.

    :param lengths: full request id -> tokens committed by each target step, as :func:`read_accepted_lengths` gives
        them.
    """

    def __init__(self, source: RequestSource, lengths: Mapping[str, Sequence[int]]) -> None:
        self._source = source
        self._lengths = lengths

    @property
    def num_turns(self) -> Sequence[int]:
        """Turns of each conversation."""
        return self._source.num_turns

    def build(self, conversation: int, turn: int, previous_outputs: Sequence[Sequence[int]]) -> PlannedRequest:
        """The source's request, made to replay.

        :raises ResultsError: nothing was recorded of it.
        """
        planned = self._source.build(conversation, turn, previous_outputs)
        if planned.request_id not in self._lengths:
            raise ResultsError(
                f"no accepted lengths were recorded of request {planned.request_id}",
                where="acceptance.source",
                hint="record a run with the same workload, in which every request ends",
            )
        lengths = tuple(self._lengths[planned.request_id])
        params = replace(
            planned.params,
            replay_lengths=lengths,
            max_tokens=1 + sum(lengths),
            ignore_eos=True,
            stop_token_ids=(),
        )
        return replace(planned, params=params)


def replay_recorded(acceptance: Acceptance, source: RequestSource, *, warm_up: bool = False) -> RequestSource:
    """``source`` as ``acceptance`` wants it: with the lengths that ``acceptance.source`` recorded, where it replays.

    A slice is made of what this gives, so that a conversation that comes again in a later round replays its first.

    :param warm_up: of requests that were recorded nowhere: they commit one token a step.
    :raises ResultsError: the folder of ``acceptance.source`` cannot be used.
    """
    if acceptance.mode != REPLAY:
        return source
    if warm_up:
        return ReplaySource(source, _one_a_step(source))
    return ReplaySource(source, _read_lengths(str(acceptance.source)))


@lru_cache(maxsize=8)
def _read_lengths(folder: str) -> Mapping[str, tuple[int, ...]]:
    return read_accepted_lengths(Path(folder))


def _one_a_step(source: RequestSource) -> Mapping[str, tuple[int, ...]]:
    planned = [source.build(conversation, 0, ()) for conversation in range(len(source.num_turns))]
    return {p.request_id: (1,) * max(p.params.max_tokens - 1, 0) for p in planned}
