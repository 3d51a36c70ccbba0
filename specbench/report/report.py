"""What every format shows: quantities with units, in tables, built from an analysis. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.records import Analysis, Distribution, Gate, Point

DEFINITIONS: tuple[tuple[str, str], ...] = (
    ("total", "committed tokens / wall time, from the first admission to the last commit"),
    (
        "full batch",
        "the same over steps in which every slot holds a live request; left out are the first fill, until all of them "
        "generate, and the tail",
    ),
    ("per user", "full batch / concurrency"),
    ("TTFT", "from the moment a request may be admitted to its first token"),
    ("TPOT", "(E2E - TTFT) / (output tokens - 1)"),
    ("ITL", "gap between chunks; a step may commit several tokens, and the gap is not divided by them"),
    ("E2E", "from the moment a request may be admitted to its last token"),
    (
        "acceptance length",
        "tokens a request and target step, bonus token included; each step weighs the same",
    ),
    ("conditional", "rate at a draft position where every position before it was accepted"),
    ("joint", "rate at which a position and every one before it were accepted, requests that had ended left out"),
    ("step", "wall time / engine steps, prefill included = device + host exposed + other idle"),
    ("device", "the device executes something (on the CPU: the worker, dispatch included)"),
    ("host exposed", "the host prepares while the device idles; host total is all of it, hidden or not"),
    ("other idle", "the rest: neither computes (waking up, the load generator)"),
)
NOT_MEASURED = "not measured"
NO_SPLIT = "what the device executes is not known here: it needs captured steps or a profiler, so the step is not split"


@dataclass(frozen=True)
class Quantity:
    """One number with its unit; ``value`` None was not measured."""

    value: float | None
    unit: str = ""
    decimals: int | None = None

    @property
    def number(self) -> str:
        """The number alone: given decimals, or about four figures."""
        if self.value is None:
            return "-"
        if self.decimals is not None:
            return f"{self.value:,.{self.decimals}f}"
        size = abs(self.value)
        decimals = 1 if size >= 100 else 2 if size >= 1 else 3
        return f"{self.value:,.{decimals}f}"

    @property
    def text(self) -> str:
        """Number and unit."""
        if self.value is None:
            return NOT_MEASURED
        return f"{self.number} {self.unit}".rstrip()


Cell = Quantity | str


@dataclass(frozen=True)
class Table:
    """Rows under a header. The first column names the row; ``unit`` holds for every quantity of the table."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    unit: str = ""
    note: str = ""

    @property
    def heading(self) -> str:
        """Title and unit."""
        return f"{self.title} [{self.unit}]" if self.unit else self.title

    def texts(self) -> list[list[str]]:
        """Cells as text; the unit is the table's."""
        return [[cell if isinstance(cell, str) else cell.number for cell in row] for row in self.rows]

    def is_words(self, column: int) -> bool:
        """True for a column without a quantity."""
        return all(isinstance(row[column], str) for row in self.rows)


@dataclass(frozen=True)
class Section:
    """Everything about one point."""

    title: str
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Report:
    """One result, ready to be rendered.

    :param verdict: ``valid``, ``interrupted`` or ``INVALID``; ``alerts`` says why, most serious first.
    """

    title: str
    headline: str
    label: str
    verdict: str
    alerts: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    gates: tuple[Gate, ...]
    environment: tuple[tuple[str, str], ...]
    command: str | None = None
    definitions: tuple[tuple[str, str], ...] = field(default=DEFINITIONS)


def build_report(analysis: Analysis) -> Report:
    """Arrange an analysis for people."""
    several = len(analysis.points) > 1
    return Report(
        title=f"{analysis.kind}: {analysis.scenario.get('name') or 'unnamed'}",
        headline=_headline(analysis),
        label=analysis.label,
        verdict=_verdict(analysis),
        alerts=_alerts(analysis),
        facts=_facts(analysis),
        sections=tuple(Section(_point_title(point, several), _point_tables(point)) for point in analysis.points),
        gates=sort_gates(analysis.gates),
        environment=summarize_environment(analysis.environment),
        command=analysis.command,
    )


def _headline(analysis: Analysis) -> str:
    point = analysis.points[0]
    speed = Quantity(point.output_tokens_per_s, "tok/s", 1).text
    accepted = f", acceptance length {point.acceptance_length:.2f}" if point.acceptance_length is not None else ""
    more = f" (first of {len(analysis.points)} points)" if len(analysis.points) > 1 else ""
    return f"{speed} at concurrency {point.concurrency}{accepted}; {analysis.label}{more}"


def _verdict(analysis: Analysis) -> str:
    if not analysis.is_valid:
        return "INVALID"
    return "valid" if analysis.status == "complete" else analysis.status


def _alerts(analysis: Analysis) -> tuple[str, ...]:
    failed = [f"INVALID: {gate.name}: {gate.detail}" for gate in analysis.gates if gate.status == "fail"]
    cut = [
        f"{gate.name}: {gate.detail}" for gate in analysis.gates if gate.name == "complete" and gate.status == "warn"
    ]
    return (*failed, *cut)


def _facts(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    point, engine = analysis.points[0], analysis.subject.get("engine", {})
    draft = f", K = {point.draft_len}" if point.draft_len else ""
    facts = [
        ("model", _model(point, analysis.subject)),
        ("drafter", f"{point.drafter}{draft}, {point.acceptance} acceptance"),
        ("workload", f"{point.workload}, {_lengths(point)}, concurrency {point.concurrency}"),
        (
            "engine",
            _join(engine.get("device"), engine.get("dtype"), _overlap(engine), engine.get("attention")),
        ),
        ("variant", point.variant),
        ("measured", _measured(point)),
        ("warm-up", _warmup(analysis)),
        ("content", analysis.label),
    ]
    return tuple((name, text) for name, text in facts if text)


def _model(point: Point, subject: Mapping[str, Any]) -> str:
    size = subject.get("num_parameters")
    random = "seeded random weights" if subject.get("weights") == "random" else None
    source = str(subject.get("model") or "") if random is None else ""
    name = source if source.startswith(point.model) else _join(point.model, source)
    return _join(name, f"{_count(size)} parameters" if size else None, random)


def _count(number: float) -> str:
    """``135M``, ``8.0B``, ``120k``: two or three figures."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f}{unit}" if number < 10 * size else f"{number / size:.0f}{unit}"
    return f"{number:.0f}"


def _join(*parts: Any) -> str:
    return ", ".join(str(part) for part in parts if part)


def _overlap(engine: Mapping[str, Any]) -> str:
    return f"overlap {'on' if engine['overlap'] else 'off'}" if "overlap" in engine else ""


def _lengths(point: Point) -> str:
    isl = point.isl if point.isl is not None else point.mean_isl
    osl = point.mean_osl
    mean_in = "ISL" if point.isl is not None else "mean ISL"
    texts = [f"{mean_in} {isl:,.0f}"] if isl is not None else []
    texts += [f"mean OSL {osl:,.0f}"] if osl is not None else []
    return ", ".join(texts)


def _measured(point: Point) -> str:
    trials = f"{point.trials} trials, " if point.trials > 1 else ""
    counts = ", ".join(
        _plural(count, noun)
        for count, noun in ((point.requests, "request"), (point.committed_tokens, "token"), (point.steps, "step"))
    )
    pace = "" if point.requests_per_s is None else f", {point.requests_per_s * 60:.1f} requests a minute"
    return f"{trials}{counts} in {point.wall_s:.1f} s{pace}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _warmup(analysis: Analysis) -> str:
    warmup = analysis.warmup
    if warmup is None:
        return "none"
    done = f"{_plural(warmup.requests, 'request')}, {_plural(warmup.tokens, 'token')}"
    return f"{done} in {warmup.seconds:.1f} s, in no figure"


def _point_title(point: Point, several: bool) -> str:
    return f"{point.variant}, concurrency {point.concurrency}, K = {point.draft_len}" if several else ""


def _point_tables(point: Point) -> tuple[Table, ...]:
    tables = [_throughput_table(point), _latency_table(point), _acceptance_table(point)]
    tables += [_step_table(point), _range_table(point)]
    return tuple(table for table in tables if table is not None)


def _throughput_table(point: Point) -> Table:
    full = ""
    if point.mean_active_requests is not None:
        full = f"{point.mean_active_requests:.2f} active requests, "
        full += f"{point.full_batch_steps:,} of {point.steps:,} steps"
    rows: tuple[tuple[Cell, ...], ...] = (
        ("total", Quantity(point.output_tokens_per_s, decimals=1), ""),
        ("full batch", Quantity(point.full_batch_tokens_per_s, decimals=1), full),
        ("per user", Quantity(point.tokens_per_s_per_user, decimals=1), ""),
    )
    return Table("Throughput", ("", "mean", ""), rows, unit="tok/s")


def _latency_table(point: Point) -> Table:
    rows = [
        _distribution_row("TTFT", point.ttft_ms),
        _distribution_row("TPOT", point.tpot_ms),
        _distribution_row("ITL", point.itl_ms),
        _distribution_row("E2E", point.e2e_ms),
    ]
    return Table("Latency", ("", "mean", "p50", "p90", "p95", "p99"), tuple(rows), unit="ms")


def _distribution_row(name: str, values: Distribution | None) -> tuple[Cell, ...]:
    if values is None:
        return (name, *[Quantity(None)] * 5)
    return (name, *(Quantity(getattr(values, key)) for key in ("mean", "p50", "p90", "p95", "p99")))


def _acceptance_table(point: Point) -> Table | None:
    if not point.conditional_acceptance:
        return None
    positions = tuple(str(i + 1) for i in range(len(point.conditional_acceptance)))
    rows: tuple[tuple[Cell, ...], ...] = (
        ("conditional", *(Quantity(rate, decimals=3) for rate in point.conditional_acceptance)),
        ("joint", *(Quantity(rate, decimals=3) for rate in point.joint_acceptance)),
    )
    length = Quantity(point.acceptance_length, decimals=3).number
    return Table("Acceptance by draft position", ("", *positions), rows, note=f"length: {length} tokens a step")


def _step_table(point: Point) -> Table | None:
    if point.step_ms is None:
        return None
    rows = [
        ("device", point.device_ms),
        ("host exposed", point.host_exposed_ms),
        ("other idle", point.other_idle_ms),
        ("step", point.step_ms),
        ("host total, hidden or not", point.host_total_ms),
    ]
    shown = tuple((name, Quantity(value, decimals=3), _share(value, point.step_ms)) for name, value in rows)
    return Table("Time per step", ("", "ms", "% of step"), shown, note=NO_SPLIT if point.device_ms is None else "")


def _share(value: float | None, step_ms: float) -> Quantity:
    return Quantity(None if value is None else value / step_ms * 100, decimals=1)


def _range_table(point: Point) -> Table | None:
    if not point.ranges:
        return None
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            name,
            Quantity(stats.calls, decimals=0),
            *(Quantity(v) for v in (stats.mean_us, stats.p50_us, stats.p99_us)),
        )
        for name, stats in point.ranges.items()
    )
    return Table("Ranges", ("", "calls", "mean", "p50", "p99"), rows, unit="µs")


def summarize_environment(environment: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The environment in a few lines; what is unknown is left out."""
    cpu, git, torch = (environment.get(key) or {} for key in ("cpu", "git", "torch"))
    cores = f"{cpu['usable_cores']} cores" if cpu.get("usable_cores") else None
    memory = environment.get("memory_bytes")
    revision = git.get("revision")
    dirty = " with changes" if git.get("dirty") else ""
    threads = f"{torch['threads']} threads" if torch.get("threads") else None
    packages = environment.get("packages") or {}
    lines = [
        ("CPU", _join(cpu.get("model"), cores, " ".join(cpu.get("flags") or ()))),
        ("memory", f"{memory / 2**30:.1f} GiB" if memory else ""),
        ("GPU", "; ".join(_join(*gpu.values()) for gpu in environment.get("gpus") or ())),
        ("OS", _join(environment.get("os"), environment.get("libc"))),
        ("Python", environment.get("python") or ""),
        ("torch", _join(torch.get("version") or packages.get("torch"), threads)),
        (
            "specbench",
            _join(environment.get("specbench"), f"git {revision[:12]}{dirty}" if revision else None),
        ),
        ("governor", environment.get("governor") or ""),
        ("load before", ", ".join(f"{load:g}" for load in environment.get("load_average") or ())),
    ]
    return tuple((name, text) for name, text in lines if text)


GATE_ORDER = ("fail", "warn", "pass", "n/a")


def sort_gates(gates: Sequence[Gate]) -> tuple[Gate, ...]:
    """Most serious first, else in their own order."""
    return tuple(sorted(gates, key=lambda gate: GATE_ORDER.index(gate.status)))


def count_gates(gates: Sequence[Gate]) -> str:
    """``2 warn, 9 pass, 3 n/a``: only what occurs."""
    counts = ((status, sum(gate.status == status for gate in gates)) for status in GATE_ORDER)
    return ", ".join(f"{count} {status}" for status, count in counts if count)
