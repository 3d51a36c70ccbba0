"""The tables of one point: throughput, latency, acceptance, time per step, ranges, counts."""

from __future__ import annotations

from specbench.records import Distribution, Point
from specbench.report.counts import point_counts
from specbench.report.layout import Cell, Quantity, Table

_SEEN_GAP = 1e-3
NO_SPLIT = "what the device executes is not known here: it needs captured steps or a profiler, so the step is not split"


def point_tables(point: Point) -> tuple[Table, ...]:
    """Everything that is known of a point; a table without a figure is left out."""
    tables = [_throughput_table(point), _latency_table(point), _acceptance_table(point)]
    tables += [_step_table(point), _range_table(point), point_counts(point)]
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
    note = f"length: {Quantity(point.acceptance_length, decimals=3).number} tokens a step{_cut_words(point)}"
    share = drafting_share(point)
    if share is not None:
        note += f"; drafting takes {share * 100:.1f}% of the device's time"
    return Table("Acceptance by draft position", ("", *positions), rows, note=note)


def _cut_words(point: Point) -> str:
    """Why the length is below what the rates add up to, where it is: each is of the requests that went on to it."""
    rates = [rate for rate in point.joint_acceptance if rate is not None]
    whole = 1 + sum(rates)
    if point.acceptance_length is None or len(rates) < len(point.joint_acceptance):
        return ""
    if whole - point.acceptance_length < _SEEN_GAP:
        return ""
    why = "a request's last step ends at its output cap or stop token, and positions behind that are in no rate"
    why += "; nor are those above a step's K" if point.runtime_draft_len else ""
    return f" (1 + the joint rates come to {whole:.3f}: {why})"


def drafting_share(point: Point) -> float | None:
    """The range ``draft`` as a fraction of the device's steps; None where it was not seen in every one of them.

    A captured step that is replayed shows no ranges inside it.
    """
    draft, step = point.ranges.get("draft"), point.ranges.get("device_step")
    if draft is None or step is None or draft.calls != step.calls:
        return None
    return draft.mean_us / step.mean_us


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
    return Table("Ranges", ("", "calls", "mean", "p50", "p99"), rows, unit="µs", folded=True)
