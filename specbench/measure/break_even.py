"""Where speculation stops paying: a sweep's points against those of the drafter none, round by round. Pure.

The unit is the round: within one, both points served the same requests, a few minutes apart at most. Verdicts of all
cells are corrected together with Holm: that any of them is wrong has probability 1 - confidence at most.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from specbench.measure.effects import WIDEST_PCT
from specbench.records import (
    COMPLETE,
    DOES_NOT_PAY,
    NOT_CLEAR,
    NOT_COMPARED,
    PAYS,
    BreakEven,
    BreakEvenCell,
    BreakEvenLine,
    Point,
    TrialRecord,
)
from specbench.scenario.axes import DRAFTER, VARIANT, is_void_for
from specbench.scenario.drafter_use import NO_DRAFTER
from specbench.scenario.plan import RunPlan
from specbench.scenario.units import parse_percent
from specbench.stats.estimate import Estimate, estimate_units, to_percent
from specbench.stats.multiplicity import holm, holm_levels

DEFAULT_CONFIDENCE = 0.95
VERDICTS = (PAYS, DOES_NOT_PAY, NOT_CLEAR, NOT_COMPARED)
OF_SPECULATION = ("drafter", "acceptance", "sweep", "variants")
"""Sections in which a point may differ from its baseline."""
FOLLOWS_K = ("max_seq_len", "max_num_tokens", "num_blocks")
"""Keys of the engine whose defaults depend on K: they differ between points that ask for the same."""
NOT_YET = "No break-even map yet: no point and its counterpart without speculation were both measured; --resume goes on"
NO_PLAIN_POINT = "No break-even map: every point speculates. With the drafter none among them there is one: "
NO_COMMON_POINT = (
    "No break-even map: no point of the drafter none is like one that speculates in all else. To have both: "
)


def map_break_even(plan: RunPlan, trials: Sequence[TrialRecord], points: Sequence[Point]) -> BreakEven | None:
    """Speedup over no speculation of each drafter and K at each concurrency, and where it stops paying.

    :param trials: one attempt each; those that were cut or failed have no part in it.
    :param points: the figures of the sweep's points, in plan order.
    :return: None for a single point, or where nothing speculates; K = 0 is no speculation, whatever the drafter.
    """
    drafting = [point for point in points if point.draft_len or point.runtime_draft_len]
    speculating = [point for point in drafting if point.drafter != NO_DRAFTER]
    if not speculating or len(points) < 2:
        return None
    confidence = _confidence(plan)
    plain = {_setting(plan, point): point for point in reversed(points) if point.drafter == NO_DRAFTER}
    pairs = [(point, plain.get(_setting(plan, point))) for point in speculating]
    if not any(baseline for _, baseline in pairs):
        return BreakEven([], confidence, _why_missing(plan, points, speculating))
    cells = _compare_cells(pairs, _log_speeds(trials), 1 - confidence)
    return BreakEven(_list_lines(speculating, cells), confidence)


def _why_missing(plan: RunPlan, points: Sequence[Point], speculating: Sequence[Point]) -> str:
    """Why no point has a baseline, and what to do about it."""
    planned = [plan.scenario if point.scenario is None else point.scenario for point in plan.points]
    is_planned = any((scenario.get("drafter") or {}).get("name") == NO_DRAFTER for scenario in planned)
    if is_planned and len(points) < len(plan.points):
        return NOT_YET
    why = NO_COMMON_POINT if any(point.drafter == NO_DRAFTER for point in points) else NO_PLAIN_POINT
    return f"{why}--set sweep.drafter={','.join(dict.fromkeys([NO_DRAFTER, *(p.drafter for p in speculating)]))}"


def _confidence(plan: RunPlan) -> float:
    written = (plan.scenario.get("measure") or {}).get("confidence")
    return DEFAULT_CONFIDENCE if written is None else parse_percent(written) / 100


def _setting(plan: RunPlan, point: Point) -> str:
    """What a point has in common with its baseline: all but the drafter and what follows from it."""
    planned = plan.points[point.point]
    data = dict(plan.scenario if planned.scenario is None else planned.scenario)
    kept = {key: value for key, value in data.items() if key not in OF_SPECULATION}
    kept["engine"] = {key: value for key, value in (data.get("engine") or {}).items() if key not in FOLLOWS_K}
    return json.dumps([kept, _own_axes(planned.coordinates, (DRAFTER, VARIANT))], sort_keys=True, default=str)


def _own_axes(coordinates: Mapping[str, Any], left_out: Sequence[str]) -> dict[str, Any]:
    return {k: v for k, v in coordinates.items() if k not in left_out and not is_void_for(NO_DRAFTER, k)}


def _log_speeds(trials: Sequence[TrialRecord]) -> pd.DataFrame:
    """[rounds, points] logarithms of output tokens a second; not a number where a point was not measured."""
    rows = [
        (trial.segment, trial.point, np.log(trial.committed_tokens / trial.wall_ns * 1e9))
        for trial in trials
        if trial.status in COMPLETE and trial.wall_ns and trial.committed_tokens
    ]
    return pd.DataFrame(rows, columns=["round", "point", "speed"]).pivot(index="round", columns="point", values="speed")


def _compare_cells(
    pairs: Sequence[tuple[Point, Point | None]], speeds: pd.DataFrame, alpha: float
) -> list[BreakEvenCell]:
    """Each point against its baseline, at the level that Holm's correction over all of them leaves to it."""
    estimates = [_estimate(point, baseline, speeds) for point, baseline in pairs]
    p_values = [None if found is None else found.p_value() for found in estimates]
    levels, adjusted = holm_levels(p_values, alpha), holm(p_values)
    return [
        _cell(*pair, found, level, p_value, p_holm)
        for pair, found, level, p_value, p_holm in zip(pairs, estimates, levels, p_values, adjusted, strict=True)
    ]


def _estimate(point: Point, baseline: Point | None, speeds: pd.DataFrame) -> Estimate | None:
    """The mean log ratio over the rounds that have both; None where none has."""
    if baseline is None or point.point not in speeds or baseline.point not in speeds:
        return None
    ratios = (speeds[point.point] - speeds[baseline.point]).dropna()
    return estimate_units(ratios.to_numpy(), "round") if len(ratios) else None


def _cell(
    point: Point,
    baseline: Point | None,
    found: Estimate | None,
    alpha: float,
    p_value: float | None,
    p_holm: float | None,
) -> BreakEvenCell:
    interval = None if found is None else found.interval(1 - alpha)
    low, high = (None, None) if interval is None else (interval.low_pct, interval.high_pct)
    verdict = NOT_COMPARED if found is None else NOT_CLEAR
    if interval is not None and not interval.contains(0.0):
        verdict = PAYS if interval.low > 0 else DOES_NOT_PAY
    if high is None or high > WIDEST_PCT:
        low = high = None  # a factor of ten and more is no interval to print
    known = baseline is not None and point.tokens_sha256 is not None and baseline.tokens_sha256 is not None
    return BreakEvenCell(
        concurrency=point.concurrency,
        point=point.point,
        baseline_point=None if baseline is None else baseline.point,
        rounds=0 if found is None else found.num_units,
        tokens_per_s=point.output_tokens_per_s,
        baseline_tokens_per_s=None if baseline is None else baseline.output_tokens_per_s,
        speedup_pct=None if found is None else to_percent(found.mean),
        ci_low_pct=low,
        ci_high_pct=high,
        alpha=alpha,
        p_value=p_value,
        p_holm=p_holm,
        verdict=verdict,
        acceptance_length=point.acceptance_length,
        tokens_identical=point.tokens_sha256 == baseline.tokens_sha256 if known and baseline is not None else None,
    )


def _list_lines(points: Sequence[Point], cells: Sequence[BreakEvenCell]) -> list[BreakEvenLine]:
    """The cells by drafter, K and the sweep's other axes, each line in the order of concurrency."""
    axes = _telling_axes(points)
    found: dict[str, tuple[Point, list[BreakEvenCell]]] = {}
    for point, cell in zip(points, cells, strict=True):
        own_drafts = (point.drafter, point.draft_len, point.draft_model, point.tree)
        place = repr((*own_drafts, [point.axes.get(key) for key in axes]))
        found.setdefault(place, (point, []))[1].append(cell)
    lines = []
    for point, unsorted in found.values():
        line = sorted(unsorted, key=lambda cell: cell.concurrency)
        own = {key: point.axes[key] for key in axes if key in point.axes}
        low, high, answer = find_break_even(line)
        drafts = (point.tree, point.draft_model)
        lines.append(BreakEvenLine(point.drafter, point.draft_len, own, line, low, high, answer, *drafts))
    return lines


def _telling_axes(points: Sequence[Point]) -> list[str]:
    """Axes that tell lines apart: those that take several values at one drafter, K and concurrency."""
    telling = []
    for key in dict.fromkeys(key for point in points for key in point.axes):
        values: dict[tuple[str, int, int], set[str]] = {}
        for point in points:
            place = (point.drafter, point.draft_len, point.concurrency)
            values.setdefault(place, set()).add(repr(point.axes.get(key)))
        if any(len(found) > 1 for found in values.values()):
            telling.append(key)
    return telling


def find_break_even(cells: Sequence[BreakEvenCell]) -> tuple[int | None, int | None, str]:
    """The largest concurrency at which it pays, the least at which it does not, and both in words.

    :param cells: of one line, in the order of concurrency.
    """
    at = {verdict: [cell.concurrency for cell in cells if cell.verdict == verdict] for verdict in VERDICTS}
    pays, fails = at[PAYS], at[DOES_NOT_PAY]
    rest = "".join(f", {verdict} at {_join(at[verdict])}" for verdict in (NOT_CLEAR, NOT_COMPARED) if at[verdict])
    if pays and fails and min(fails) < max(pays):
        return None, None, f"no single break-even: pays at {_join(pays)}, does not pay at {_join(fails)}{rest}"
    low, high = max(pays, default=None), min(fails, default=None)
    return low, high, f"{_answer(low, high, is_whole=not rest)}{rest}".removeprefix(", ")


def _answer(low: int | None, high: int | None, *, is_whole: bool) -> str:
    """The break-even in words; ``is_whole`` where every concurrency has its verdict."""
    if low is not None and high is not None:
        return f"stops paying between {low} and {high}"
    if low is not None:
        return "pays at every concurrency measured" if is_whole else f"pays up to {low}"
    if high is not None:
        return "pays at no concurrency measured" if is_whole else f"does not pay from {high} on"
    return ""


def _join(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers)
