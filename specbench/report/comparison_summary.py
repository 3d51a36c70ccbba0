"""Several comparisons together: one table, what pays, and the effect pooled over points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from specbench.records import ALL_BUT, ALONE, INVALID, PAIR, Analysis, Comparison, Effect, Pooled
from specbench.report.comparison import arms_words, verdict_line
from specbench.report.layout import NUM_SHOWN_SECTIONS, Block, Cell, Facts, Prose, Quantity, Span, Table, Word
from specbench.report.words import (
    NOT_COMPUTED,
    confidence_words,
    effect_decimals,
    interval_words,
    level_words,
    p_words,
    percent,
    plural,
    short_keys,
    tone_of,
    value_words,
)

STUDY_ROLES = (ALONE, ALL_BUT, PAIR)
"""Roles of ``--each``, in the order they are shown."""
PAYS_NOTE = (
    "alone: added to the baseline; all but: what it adds to all the others; pair: both together. Corrected for all "
    "comparisons of this report (Holm)."
)
EXPOSED_NOTE = (
    "host exposed: during how much of the host's preparation of a step, in the baseline, the device idles. Near 0% the "
    "work is hidden, and less of it gains nothing."
)
Column = tuple[str, Callable[[Comparison], Cell]]


def ab_headline(analysis: Analysis) -> tuple[str, str]:
    """The answer in one line, and its colour."""
    comparisons = analysis.comparisons
    if len(comparisons) == 1:
        return f"{verdict_line(comparisons[0])}; {analysis.label}", tone_of(comparisons[0].verdict)
    if not comparisons:
        return f"nothing was compared; {analysis.label}", "warn"
    counts = Counter(comparison.headline for comparison in comparisons)
    order = sorted(counts.items(), key=lambda item: (item[0] != INVALID, -item[1]))
    words = ", ".join(f"{count} {verdict}" for verdict, count in order)
    pooled = "".join(f"; {_pooled_headline(effect)}" for effect in analysis.pooled[:1])
    tone = tone_of(next(iter(counts))) if len(counts) == 1 else "bad" if INVALID in counts else ""
    return f"{words} of {len(comparisons)} comparisons{pooled}; {analysis.label}", tone


def _pooled_headline(pooled: Pooled) -> str:
    effect = pooled.these_points
    decimals = effect_decimals(effect.ci_low_pct, effect.ci_high_pct)
    interval = interval_words(effect.ci_low_pct, effect.ci_high_pct, decimals)
    return f"pooled {percent(effect.delta_pct, decimals)} ({interval})"


def summary_blocks(analysis: Analysis) -> tuple[Block, ...]:
    """What is read first where there are several comparisons."""
    words = told_first(analysis.comparisons)
    whole = [item for item in analysis.comparisons if item.role not in STUDY_ROLES]
    study = [item for item in analysis.comparisons if item.role in STUDY_ROLES]
    blocks: list[Block] = [Prose(words)] if words else []
    # Where the words stay with each comparison, the tables say whether host work is hidden.
    exposure = [] if words else [("host exposed", _exposed_words)]
    if whole:
        blocks.append(summary_table(whole, exposure))
    if study:
        blocks.append(pays_table(study, exposure))
    confidence = analysis.comparisons[0].confidence if analysis.comparisons else 0.95
    blocks += [pooled_facts(pooled, confidence) for pooled in analysis.pooled]
    return tuple(blocks)


def _subject_words(comparisons: Sequence[Comparison]) -> str:
    """Those of which one sentence speaks."""
    if len(comparisons) == 1:
        return arms_words(comparisons[0])
    names = ", ".join(dict.fromkeys(item.candidate for item in comparisons))
    return f"{names} ({len(comparisons)} comparisons)"


def told_first(comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    """What to make of each comparison, before everything else; where there are many it stays with each.

    What holds for several of them is said once.
    """
    if len(comparisons) > NUM_SHOWN_SECTIONS:
        return ()
    said_by: dict[str, list[Comparison]] = {}
    for item in comparisons:
        for line in dict.fromkeys(item.in_words):
            said_by.setdefault(line, []).append(item)
    of_all = [line for line, items in said_by.items() if len(items) == len(comparisons)]
    own = [f"{_subject_words(items)}: {line}" for line, items in said_by.items() if line not in of_all]
    return (*own, *of_all)


def summary_table(comparisons: Sequence[Comparison], further: Sequence[Column] = ()) -> Table:
    """One row a comparison, with ``further`` columns behind the effect."""
    columns: list[Column] = _point_columns(comparisons)
    columns.append(("candidate", lambda item: item.candidate))
    if len({item.baseline for item in comparisons}) > 1:
        columns.append(("baseline", lambda item: item.baseline))
    if len({item.role for item in comparisons}) > 1:
        columns.append(("role", lambda item: item.role))
    return _effects("Comparisons", columns, comparisons, further=further)


def pays_table(comparisons: Sequence[Comparison], further: Sequence[Column] = ()) -> Table:
    """The keys of a candidate, each alone, each as what it adds to the others, and pairs: what pays, best first."""
    short = short_keys(item.key for comparison in comparisons for item in comparison.differences)

    def key_words(comparison: Comparison) -> str:
        parts = [
            f"{short[item.key]}: {value_words(item.baseline)} -> {value_words(item.candidate)}"
            for item in comparison.differences
        ]
        return ", ".join(parts) or comparison.candidate

    def order(comparison: Comparison) -> tuple[int, float]:
        gain = comparison.speedup_pct
        return STUDY_ROLES.index(comparison.role), float("inf") if gain is None else -gain

    columns = [*_point_columns(comparisons), ("what", key_words), ("role", lambda item: item.role)]
    return _effects("What pays", columns, sorted(comparisons, key=order), PAYS_NOTE, further)


def _point_columns(comparisons: Sequence[Comparison]) -> list[Column]:
    keys = list(dict.fromkeys(key for item in comparisons for key in item.point))
    short = short_keys(keys)

    def column(key: str) -> Column:
        return short[key], lambda item: value_words(item.point[key]) if key in item.point else ""

    return [column(key) for key in keys]


def _effects(
    title: str,
    keys: Sequence[Column],
    comparisons: Sequence[Comparison],
    note: str = "",
    further: Sequence[Column] = (),
) -> Table:
    levels = {level_words(item) for item in comparisons}
    level = f"{levels.pop()} " if len(levels) == 1 else ""
    header = (*(name for name, _ in keys), "speedup %", f"{level}interval %", "verdict")
    if any(item.p_holm is not None for item in comparisons):
        further = [("p Holm", _p_cell), *further]
    rows = tuple(
        (*(cell(item) for _, cell in keys), *_effect_cells(item), *(cell(item) for _, cell in further))
        for item in comparisons
    )
    if any(cell is _exposed_words for _, cell in further):
        note = f"{note} {EXPOSED_NOTE}".lstrip()
    return Table(title, (*header, *(name for name, _ in further)), rows, num_keys=len(keys), note=note)


def _effect_cells(comparison: Comparison) -> tuple[Cell, ...]:
    decimals = effect_decimals(comparison.ci_low_pct, comparison.ci_high_pct)
    return (
        Quantity(comparison.speedup_pct, decimals=decimals, signed=True),
        Span(comparison.ci_low_pct, comparison.ci_high_pct, decimals),
        Word(comparison.headline, tone_of(comparison.verdict)),
    )


def _exposed_words(comparison: Comparison) -> str:
    """``6% of 409 µs``: of the baseline's host preparation."""
    times = comparison.step_ms.get("baseline", {})
    total, exposed = times.get("host_total_ms"), times.get("host_exposed_ms")
    return "-" if not total or exposed is None else f"{100 * exposed / total:.0f}% of {1e3 * total:,.0f} µs"


def _p_cell(comparison: Comparison) -> str:
    return "-" if comparison.p_holm is None else p_words(comparison.p_holm)


def pooled_facts(pooled: Pooled, confidence: float) -> Facts:
    """The pooled effect in both readings, whether points differ, and the sign test over points."""
    points = plural(pooled.n_points, "point")
    facts = [
        (f"these {points}", _effect_words(pooled.these_points, confidence)),
        ("points like them", _effect_words(pooled.in_general, confidence)),
        ("heterogeneity", _heterogeneity_words(pooled)),
        ("sign test", f"{pooled.sign_positive} points up, {pooled.sign_negative} down, p {p_words(pooled.sign_p)}"),
        ("not computed", "; ".join(f"{name}: {why}" for name, why in pooled.not_computed.items())),
    ]
    title = f"Pooled: {pooled.candidate} against {pooled.baseline}, every point weighing the same"
    return Facts(tuple((name, text) for name, text in facts if text), title=title)


def _effect_words(effect: Effect, confidence: float) -> str:
    decimals = effect_decimals(effect.ci_low_pct, effect.ci_high_pct)
    interval = interval_words(effect.ci_low_pct, effect.ci_high_pct, decimals)
    return f"{percent(effect.delta_pct, decimals)} ({confidence_words(confidence)} interval {interval})"


def _heterogeneity_words(pooled: Pooled) -> str:
    found = pooled.heterogeneity
    if found is None:
        return NOT_COMPUTED
    return (
        f"Cochran's Q {found['cochran_q']:.2f}, p {p_words(found['p_value'])}, "
        f"{100 * found['i_squared']:.0f}% of the spread is more than noise"
    )
