"""What ``selftest`` prints: its checks, the A/A comparisons, and the smallest effects that can be seen here."""

from __future__ import annotations

from specbench.measure.selftest import PASS, SelfTest, judge_alone
from specbench.records import DELAY, EQUAL_ARMS, SWAPPED, Analysis, Comparison
from specbench.report.defects import defect_lines
from specbench.report.facts import setup_facts, simulated_alerts, summarize_environment
from specbench.report.layout import Cell, Facts, Quantity, Report, Section, Span, Table, Word, sort_gates

DEFINITIONS = (
    ("equal arms", "both arms run the same; each call of a difference among them is a false alarm"),
    (
        "known delay",
        "so many microseconds are added to each step of one arm; the interval has to hold what that makes",
    ),
    ("labels swapped", "the same delay in the other arm has to turn the sign"),
    ("smallest effect", "found eight times in ten, at the last look of a comparison of that length"),
    ("chance", "a sound instrument fails each of the intervals once in 20 selftests, the equal arms once in 60"),
)
_DECIMALS = 3


def build_selftest_report(selftest: SelfTest, analysis: Analysis) -> Report:
    """Arrange a selftest for people, for every format."""
    passed, defects = selftest.verdict == PASS, defect_lines(analysis)
    return Report(
        title=f"selftest: {analysis.scenario.get('name') or 'unnamed'}",
        headline=_headline(selftest),
        label=analysis.label,
        verdict="valid" if passed else selftest.verdict,
        alerts=(
            *simulated_alerts(analysis),
            *(f"{check.name}: {check.detail}" for check in selftest.checks if not check.passed),
        ),
        sections=(
            Section("", (_checks(selftest), _floor(selftest)), anchor="overview"),
            Section("Setup", (Facts(setup_facts(analysis)),)),
            Section("Comparisons", (_comparisons(analysis),), is_detail=True),
        ),
        gates=sort_gates(analysis.gates),
        environment=summarize_environment(analysis.environment),
        command=analysis.command,
        definitions=DEFINITIONS,
        tone="good" if passed and not defects else "bad",
        defects=defects,
    )


def _headline(selftest: SelfTest) -> str:
    arms, middle = selftest.equal_arms, selftest.floor[1]
    text = f"{selftest.verdict}: {arms.rejections} of {arms.comparisons} equal arms called different"
    if middle.smallest_pct is None:
        return text
    return f"{text}; {middle.minutes} minutes show {middle.smallest_pct:.2g}%"


def _checks(selftest: SelfTest) -> Table:
    words = {True: Word("pass", "good"), False: Word("FAIL", "bad"), None: Word("not computed", "warn")}
    rows = tuple((check.name, words[check.passed], check.detail) for check in selftest.checks)
    return Table("Checks", ("", "", ""), rows)


def _floor(selftest: SelfTest) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            "1 minute" if floor.minutes == 1 else f"{floor.minutes} minutes",
            Quantity(floor.units, decimals=0),
            Quantity(floor.smallest_pct, decimals=_DECIMALS),
            Quantity(floor.half_width_pct, decimals=_DECIMALS),
        )
        for floor in selftest.floor
    )
    deviation, pace = selftest.unit_sd_pct, selftest.units_per_minute
    note = "" if deviation is None or pace is None else f"a unit varies by {deviation:.2g}%; {pace:.1f} units a minute"
    return Table("What can be seen here", ("", "units", "smallest effect %", "half-width %"), rows, note=note)


def _comparisons(analysis: Analysis) -> Table:
    shown = [c for c in analysis.comparisons if c.role in (EQUAL_ARMS, DELAY, SWAPPED)]
    rows = tuple(_row(number, comparison) for number, comparison in enumerate(shown, 1))
    return Table("", ("", "units", "effect %", "95% interval", "p"), rows, note="each judged alone")


def _row(number: int, comparison: Comparison) -> tuple[Cell, ...]:
    p_value, low, high = judge_alone(comparison)
    return (
        f"{number} {comparison.role}",
        Quantity(comparison.n_units, decimals=0),
        Quantity(comparison.speedup_pct, decimals=_DECIMALS, signed=True),
        Span(low, high, _DECIMALS),
        Quantity(p_value, decimals=4),
    )
