"""One comparison: verdict, effect, what differs, why, and the evidence behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from specbench.records import CANDIDATE, INVALID, Comparison, Effect, RangeEffect
from specbench.report.counts import comparison_counts
from specbench.report.layout import Block, Cell, Facts, GateList, Prose, Quantity, Span, Table, sort_gates
from specbench.report.words import (
    NOT_COMPUTED,
    duration_words,
    effect_decimals,
    interval_words,
    level_words,
    p_words,
    percent,
    plural,
    point_words,
    value_words,
)

PART_NAMES = {
    "tokens_per_step": "tokens per step",
    "device": "device time",
    "host_exposed": "exposed host time",
    "other_idle": "other idle",
    "step": "time per step",
}
"""Parts of a decomposition in words."""
EFFECT_NOTE = "change: over units, each weighing alike; arms: totals, in which a slow moment weighs more"
_Value = TypeVar("_Value")


def by_arm(values: Mapping[str, _Value]) -> tuple[_Value | None, _Value | None]:
    """The baseline's and the candidate's."""
    return values.get("baseline"), values.get("candidate")


def arms_words(comparison: Comparison) -> str:
    """``on against off``, with the role and the point where there are any."""
    role = "" if comparison.role == CANDIDATE else f"{comparison.role}: "
    point = f", {point_words(comparison.point)}" if comparison.point else ""
    return f"{role}{comparison.candidate} against {comparison.baseline}{point}"


def verdict_line(comparison: Comparison) -> str:
    """Verdict, effect and interval in one line; an INVALID one claims nothing."""
    decimals = effect_decimals(comparison.ci_low_pct, comparison.ci_high_pct)
    low, high = comparison.ci_low_pct, comparison.ci_high_pct
    if comparison.speedup_pct is None:
        effect = "no effect was computed"
    elif low is None or high is None:
        effect = f"{percent(comparison.speedup_pct)} (interval not computed)"
    else:
        name = f"{level_words(comparison)} interval"
        effect = f"{percent(comparison.speedup_pct, decimals)} ({name} {interval_words(low, high, decimals)})"
    if comparison.verdict == INVALID:
        return f"{INVALID}: no claim; measured: {effect}"
    return f"{comparison.headline}: {effect}, margin {comparison.margin_pct:g}%"


def lead_blocks(comparison: Comparison) -> list[Block]:
    """What is read first: what to make of it, the effect, every key that differs, and how it was measured."""
    blocks: list[Block] = [Prose(tuple(comparison.in_words))] if comparison.in_words else []
    return [*blocks, *_measured_blocks(comparison)]


def _measured_blocks(comparison: Comparison) -> list[Block]:
    return [_result_table(comparison), _differences(comparison), Facts(_design_facts(comparison))]


def why_blocks(comparison: Comparison) -> list[Block]:
    """Where the effect comes from."""
    parts = (_decomposition, _step_table, _range_table, comparison_counts)
    return [table for table in (part(comparison) for part in parts) if table is not None]


def evidence(comparison: Comparison) -> Facts:
    """What the verdict rests on: looks, resolution, the second line."""
    return Facts(_evidence_facts(comparison), title="Evidence", folded=True)


def comparison_blocks(comparison: Comparison, *, is_told_before: bool = False) -> tuple[Block, ...]:
    """One of several comparisons, in whole; why it is INVALID comes before everything.

    :param is_told_before: what to make of it stands above all comparisons.
    """
    reasons: list[Block] = [Prose(tuple(comparison.reasons), "bad")] if comparison.reasons else []
    lead = _measured_blocks(comparison) if is_told_before else lead_blocks(comparison)
    rest = [*lead, *why_blocks(comparison), evidence(comparison)]
    gates: list[Block] = [GateList(sort_gates(comparison.gates), brief=True)] if comparison.gates else []
    return (*reasons, *rest, *gates)


def _result_table(comparison: Comparison) -> Table:
    decimals = effect_decimals(comparison.ci_low_pct, comparison.ci_high_pct)
    change = Quantity(comparison.speedup_pct, decimals=decimals, signed=True)
    span = Span(comparison.ci_low_pct, comparison.ci_high_pct, decimals)
    speeds = (Quantity(value, decimals=1) for value in _speeds(comparison))
    rows: list[tuple[Cell, ...]] = [("output tok/s", *speeds, change, span)]
    lengths = by_arm(comparison.acceptance_length)
    if any(length is not None for length in lengths):
        rows.append(("acceptance length", *(Quantity(length, decimals=3) for length in lengths), "", ""))
    interval = f"{level_words(comparison)} interval %"
    return Table("Effect", ("", "baseline", "candidate", "change %", interval), tuple(rows), note=EFFECT_NOTE)


def _speeds(comparison: Comparison) -> tuple[float | None, float | None]:
    return comparison.baseline_tokens_per_s, comparison.candidate_tokens_per_s


def _design_facts(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    facts = [
        ("baseline", comparison.baseline),
        ("candidate", comparison.candidate),
        ("role", "" if comparison.role == CANDIDATE else comparison.role),
        ("at", point_words(comparison.point)),
        ("design", ": ".join(text for text in (comparison.design, comparison.why_design) if text)),
        ("units", _units_words(comparison)),
        ("speaks of", comparison.scope),
        ("margin", f"{comparison.margin_pct:g}%: what counts as no difference"),
        ("tokens", tokens_words(comparison)),
        ("content", comparison.label),
    ]
    return tuple((name, text) for name, text in facts if text)


def _units_words(comparison: Comparison) -> str:
    planned = f" of {comparison.planned_units:,} planned" if comparison.planned_units else ""
    processes = plural(comparison.n_processes, "process")
    text = f"{plural(comparison.n_units, 'unit')}{planned}, in {processes}"
    text += f", {duration_words(comparison.measured_s)}" if comparison.measured_s else ""
    pace = comparison.units_per_minute
    return text if pace is None else f"{text}; {pace:.1f} a minute"


def tokens_words(comparison: Comparison) -> str:
    """Whether the arms gave the same tokens, else where they first part; and the rule that applies."""
    rule = f" ({comparison.token_rule})" if comparison.token_rule else ""
    if comparison.tokens_identical is None:
        return f"not compared{rule}"
    if comparison.tokens_identical:
        return f"identical{rule}"
    first = comparison.first_divergence
    if first is None:
        return f"differ{rule}"
    ids = f"{_token_words(first.baseline_token_id)} in the baseline, {_token_words(first.candidate_token_id)} in the"
    margin = "" if first.margin is None else f"; logit margin {first.margin:.4g}"
    place = f"first in request {first.request_id} at output token {first.position}"
    return f"differ: {place}: {ids} candidate{margin}{rule}"


def _token_words(token_id: int | None) -> str:
    return "the end" if token_id is None else f"id {token_id}"


def _differences(comparison: Comparison) -> Block:
    if not comparison.differences:
        return Prose(("Nothing differs between the arms.",))
    rows = tuple(
        (
            item.key,
            value_words(item.baseline),
            value_words(item.candidate),
            f"{item.exactness}, step-preserving" if item.step_preserving else item.exactness,
        )
        for item in comparison.differences
    )
    return Table("What differs", ("", "baseline", "candidate", "exactness"), rows)


def _decomposition(comparison: Comparison) -> Table | None:
    """Parts in log points x 100, whose sum is the whole effect."""
    if not comparison.decomposition:
        return None
    low, high = _points(comparison.ci_low_pct), _points(comparison.ci_high_pct)
    decimals = effect_decimals(low, high) + 1  # so that what is added up is seen to add up
    rows: list[tuple[Cell, ...]] = []
    for name, value in comparison.decomposition.items():
        effect = comparison.decomposition_pct.get(name, Effect(None, None, None))
        span = Span(_points(effect.ci_low_pct), _points(effect.ci_high_pct), decimals)
        rows.append((PART_NAMES.get(name, name.replace("_", " ")), Quantity(100 * value, "", decimals, True), span))
    whole = Quantity(100 * sum(comparison.decomposition.values()), "", decimals, True)
    rows.append(("sum: the whole effect", whole, Span(low, high, decimals)))
    interval = f"{level_words(comparison)} interval"
    note = "positive: the candidate is better"
    return Table("Where it comes from", ("", "effect", interval), tuple(rows), unit="log points x 100", note=note)


def _points(value_pct: float | None) -> float | None:
    """A percentage in hundredths of log points."""
    if value_pct is None or value_pct <= -100:
        return None
    return 100 * math.log1p(value_pct / 100)


def _step_table(comparison: Comparison) -> Table | None:
    baseline, candidate = by_arm(comparison.step_ms)
    if not baseline and not candidate:
        return None
    before, after = baseline or {}, candidate or {}
    rows = tuple(
        (
            name.removesuffix("_ms").replace("_", " "),
            Quantity(before.get(name), decimals=3),
            Quantity(after.get(name), decimals=3),
        )
        for name in dict.fromkeys([*before, *after])
    )
    return Table("Time per step", ("", "baseline", "candidate"), rows, unit="ms")


def _range_table(comparison: Comparison) -> Table | None:
    if not comparison.ranges:
        return None
    rows = tuple(_range_row(name, effect) for name, effect in comparison.ranges.items())
    header = ("", "baseline", "candidate", "change", f"{level_words(comparison)} interval", "share")
    return Table("Ranges, a step", header, rows, unit="µs, %", folded=True)


def _range_row(name: str, effect: RangeEffect) -> tuple[Cell, ...]:
    decimals = min(effect_decimals(effect.ci_low_pct, effect.ci_high_pct), 2)
    return (
        name if effect.lane == "host" else f"{name} ({effect.lane})",
        Quantity(effect.baseline_us),
        Quantity(effect.candidate_us),
        Quantity(effect.delta_pct if effect.has_baseline else None, decimals=decimals, signed=True),
        Span(effect.ci_low_pct, effect.ci_high_pct, decimals),
        Quantity(effect.share_pct, decimals=1),
    )


def _evidence_facts(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    second = comparison.second_line
    facts = [
        ("decided at", _bound_words(comparison)),
        ("p of no effect", _p_words(comparison)),
        ("could see", _resolution_words(comparison)),
        ("Hodges-Lehmann", _figure(second, "hodges_lehmann_pct")),
        ("ratio of sums", _sums_words(second)),
        ("sign test", _sign_words(second)),
        ("noise", _noise_words(second)),
        ("metric", f"{comparison.metric}; exactness {comparison.exactness}"),
        ("not computed", "; ".join(f"{name}: {why}" for name, why in comparison.not_computed.items())),
    ]
    return tuple((name, text) for name, text in facts if text)


def _bound_words(comparison: Comparison) -> str:
    usual = math.isclose(comparison.alpha, 1 - comparison.confidence)
    left = "" if usual else f"alpha {comparison.alpha:.3g} after correction"
    return "; ".join(text for text in (comparison.bound, left) if text)


def _p_words(comparison: Comparison) -> str:
    if comparison.p_value is None:
        return NOT_COMPUTED
    alone = comparison.p_holm is None or comparison.p_holm == comparison.p_value
    holm = "" if alone else f", Holm {p_words(comparison.p_holm)}"
    # Over looks it is only known up to 0.5; from there on it is given as 1.
    p_value = "> 0.5" if comparison.p_value >= 1 else p_words(comparison.p_value)
    return f"{p_value}{holm}"


def _resolution_words(comparison: Comparison) -> str:
    mde = comparison.mde_pct
    text = NOT_COMPUTED if mde is None else f"an effect of {mde:,.{effect_decimals(mde)}f}% or more"
    needed = comparison.units_needed
    return text if needed is None else f"{text}; the margin needs about {plural(needed, 'unit')} in all"


def _figure(second: Mapping[str, Any], name: str) -> str:
    return percent(second[name]) if second.get(name) is not None else ""


def _sums_words(second: Mapping[str, Any]) -> str:
    text = _figure(second, "ratio_of_sums_pct")
    apart = "; more than half a standard error from the mean: units are not alike"
    return text + apart if text and second.get("sums_disagree") else text


def _sign_words(second: Mapping[str, Any]) -> str:
    up, down = second.get("sign_positive"), second.get("sign_negative")
    if up is None or down is None:
        return ""
    return f"{up:.0f} units up, {down:.0f} down, p {p_words(second.get('sign_p'))}"


def _noise_words(second: Mapping[str, Any]) -> str:
    texts = []
    if second.get("std_dev_pct") is not None:
        texts.append(f"sd {second['std_dev_pct']:.3g}% a unit")
    if second.get("num_outliers") is not None:
        texts.append(f"{plural(int(second['num_outliers']), 'outlier')} (kept)")
    if second.get("lag1") is not None:
        limit = f" (limit {second['lag1_limit']:.2f})" if second.get("lag1_limit") is not None else ""
        texts.append(f"lag-1 {second['lag1']:+.2f}{limit}")
    return ", ".join(texts)
