"""From an analysis to what every format shows. No torch."""

from __future__ import annotations

from specbench.records import INVALID, Analysis, Comparison, Gate
from specbench.report.break_even import break_even_blocks
from specbench.report.comparison import (
    arms_words,
    comparison_blocks,
    evidence,
    lead_blocks,
    verdict_line,
    why_blocks,
)
from specbench.report.comparison_summary import ab_headline, summary_blocks, told_first
from specbench.report.defects import defect_lines
from specbench.report.definitions import COMPARISON_DEFINITIONS, DEFINITIONS, HOLM, POOLED, WIDE_DEFINITIONS
from specbench.report.facts import (
    name_checkouts,
    run_facts,
    setup_facts,
    simulated_alerts,
    summarize_environment,
)
from specbench.report.layout import NUM_SHOWN_SECTIONS, Block, Facts, Quantity, Report, Section, sort_gates
from specbench.report.sweep import point_sections, sweep_blocks, sweep_headline, wide_table
from specbench.report.words import plural, tone_of

__all__ = ["DEFINITIONS", "Report", "build_report"]


def build_report(analysis: Analysis) -> Report:
    """Arrange an analysis for people."""
    analysis = name_checkouts(analysis)
    headline, sections, definitions, tone = _arrange(analysis)
    verdict, defects = _verdict(analysis), defect_lines(analysis)
    prefix = "" if verdict == "valid" or verdict in headline else f"{verdict}: "
    return Report(
        title=f"{analysis.kind}: {analysis.scenario.get('name') or 'unnamed'}",
        headline=f"{prefix}{headline}",
        label=analysis.label,
        verdict=verdict,
        alerts=_alerts(analysis),
        sections=sections,
        gates=sort_gates(_gates(analysis)),
        environment=summarize_environment(analysis.environment),
        command=analysis.command,
        definitions=definitions,
        tone="bad" if verdict == INVALID or defects else tone,
        defects=defects,
    )


Arrangement = tuple[str, tuple[Section, ...], tuple[tuple[str, str], ...], str]


def _arrange(analysis: Analysis) -> Arrangement:
    """Headline, sections, definitions and colour, by what there is to tell."""
    if analysis.comparisons or analysis.kind == "ab":
        return _comparisons(analysis)
    if analysis.kind == "sweep" or not analysis.points:
        return _sweep(analysis)
    return _run(analysis)


def _run(analysis: Analysis) -> Arrangement:
    point = analysis.points[0]
    speed = Quantity(point.output_tokens_per_s, "tok/s", 1).text
    accepted = f", acceptance length {point.acceptance_length:.2f}" if point.acceptance_length is not None else ""
    more = f" (first of {len(analysis.points)} points)" if len(analysis.points) > 1 else ""
    headline = f"{speed} at concurrency {point.concurrency}{accepted}; {analysis.label}{more}"
    sections = (Section("", (Facts(run_facts(analysis)),)), *point_sections(analysis.points))
    return headline, sections, DEFINITIONS, ""


def _sweep(analysis: Analysis) -> Arrangement:
    blocks = (*break_even_blocks(analysis.break_even), *(sweep_blocks(analysis.points) if analysis.points else ()))
    overview = Section("", blocks, anchor="overview")
    setup = Section("Setup", (Facts(setup_facts(analysis)),))
    sections = (overview, setup, *point_sections(analysis.points))
    return sweep_headline(analysis), sections, DEFINITIONS, ""


def _comparisons(analysis: Analysis) -> Arrangement:
    headline, tone = ab_headline(analysis)
    setup = Section("Setup", (Facts(setup_facts(analysis)),))
    if len(analysis.comparisons) == 1:
        sections = _single(analysis, setup)
    else:
        sections = (Section("", summary_blocks(analysis), anchor="overview"), setup, *_comparison_sections(analysis))
    return headline, (*sections, *_measured_points(analysis)), _ab_definitions(analysis), tone


def _single(analysis: Analysis, setup: Section) -> tuple[Section, ...]:
    """One comparison: its answer first, then what was measured, then why and how sure."""
    only = analysis.comparisons[0]
    rest = (*why_blocks(only), evidence(only))
    return (
        Section("", tuple(lead_blocks(only)), anchor=f"comparison-{only.index}"),
        setup,
        Section("Why, and how sure", rest),
    )


def _comparison_sections(analysis: Analysis) -> tuple[Section, ...]:
    is_told = bool(told_first(analysis.comparisons))
    return tuple(
        Section(
            arms_words(item),
            comparison_blocks(item, is_told_before=is_told),
            headline=verdict_line(item),
            tone=tone_of(item.verdict),
            anchor=f"comparison-{item.index}",
            is_detail=len(analysis.comparisons) > NUM_SHOWN_SECTIONS,
        )
        for item in analysis.comparisons
    )


def _measured_points(analysis: Analysis) -> tuple[Section, ...]:
    """What the arms reached, for those who want more than the effect."""
    points = [point for point in analysis.points if point.steps]
    if not points:
        return ()
    blocks: tuple[Block, ...] = (wide_table(points, "Arms"), Facts(WIDE_DEFINITIONS))
    return (Section("What the arms reached", blocks, is_detail=True, folded=True),)


def _ab_definitions(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    corrected = len(analysis.comparisons) > 1 and any(item.p_holm is not None for item in analysis.comparisons)
    extra = [*([HOLM] if corrected else []), *([POOLED] if analysis.pooled else [])]
    return (*COMPARISON_DEFINITIONS, *extra)


def _verdict(analysis: Analysis) -> str:
    if not analysis.is_valid:
        return INVALID
    return "valid" if analysis.status == "complete" else analysis.status


def _gates(analysis: Analysis) -> list[Gate]:
    """Those of the whole; of a single comparison its own too, each once."""
    if len(analysis.comparisons) != 1:
        return analysis.gates
    own = analysis.comparisons[0].gates
    return [*_apart_from_comparisons(analysis), *own]


def _apart_from_comparisons(analysis: Analysis) -> list[Gate]:
    """Gates that no comparison has: the others are the worst of its comparisons', which say more."""
    names = {gate.name for item in analysis.comparisons for gate in item.gates}
    return [gate for gate in analysis.gates if gate.name not in names]


def _alerts(analysis: Analysis) -> tuple[str, ...]:
    """That the device was none, then why the figures may not be used, then what was cut short."""
    several = len(analysis.comparisons) > 1
    own = _apart_from_comparisons(analysis)
    failed = [f"{INVALID}: {gate.name}: {gate.detail}" for gate in own if gate.status == "fail"]
    failed += _invalid_lines(analysis.comparisons) if several else _reasons(analysis.comparisons)
    cut = [f"{gate.name}: {gate.detail}" for gate in own if gate.name == "complete" and gate.status == "warn"]
    return (*simulated_alerts(analysis), *failed, *cut)


def _reasons(comparisons: list[Comparison]) -> list[str]:
    return [f"{INVALID}: {reason}" for item in comparisons for reason in _reasons_of(item)]


def _reasons_of(comparison: Comparison) -> list[str]:
    if comparison.verdict != INVALID:
        return []
    return comparison.reasons or ["no reason was recorded"]


def _invalid_lines(comparisons: list[Comparison]) -> list[str]:
    """Why comparisons are INVALID; what one gate says of one pair at several points is told of the first of them."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for item in comparisons:
        for reason in _reasons_of(item):
            key = (item.role, item.baseline, item.candidate, reason.partition(":")[0])
            found.setdefault(key, []).append(f"{INVALID}: {arms_words(item)}: {reason}")
    return [f"{lines[0]}{_likewise(len(lines) - 1)}" for lines in found.values()]


def _likewise(others: int) -> str:
    return f"; likewise at {plural(others, 'more point')}" if others else ""
