"""Fixed analyses of comparisons and sweeps for every format's test. None of the figures was measured."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

from sample import ANALYSIS, GATES, POINT

from specbench.records import (
    DOES_NOT_PAY,
    NOT_CLEAR,
    NOT_COMPARED,
    PAYS,
    Analysis,
    BreakEven,
    BreakEvenCell,
    BreakEvenLine,
    Comparison,
    Difference,
    Distribution,
    Divergence,
    Effect,
    Gate,
    Pooled,
    RangeEffect,
    Unit,
    VariantCounts,
)

SAMPLING_PARAMS = Difference("optimizations.sampling_params", "refill", "signature", "bit-identical", True)
DRAFTER = Difference("drafter.name", "none", "ngram", "numerically-equivalent", False)
DRAFT_LEN = Difference("drafter.draft_len", 0, 4, "numerically-equivalent", False)


def log_points(percent: float) -> float:
    return math.log1p(percent / 100)


def make_units(mean_pct: float, spread_pct: float, count: int, seed: int, processes: int = 1) -> list[Unit]:
    """Normal noise around an effect, one spike, BAAB and ABBA at random."""
    source = random.Random(seed)
    units = []
    for index in range(count):
        d = source.gauss(mean_pct, spread_pct) + (9 * spread_pct if index == count // 3 else 0)
        baseline = 0.25 * source.uniform(0.98, 1.02)
        units.append(
            Unit(
                unit=index,
                process=index * processes // count,
                segment=index // 4,
                first_arm=source.choice("AB"),
                elapsed_s=round(1.21 * index, 3),
                baseline_s=round(baseline, 6),
                candidate_s=round(baseline * math.exp(-d / 100), 6),
                baseline_tokens=64,
                candidate_tokens=64,
                d_pct=round(d, 6),
            )
        )
    return units


def quantiles(middle_ms: float, seed: int) -> list[float]:
    source = random.Random(seed)
    return [round(value, 4) for value in sorted(middle_ms * math.exp(source.gauss(0, 0.04)) for _ in range(101))]


COMPARISON_GATES = [
    Gate("tokens", "pass", "identical in all 40 units, 2,560 tokens"),
    Gate("other load", "warn", "other processes used 4.1% of all cores' time"),
    Gate("order effect", "pass", "ABBA minus BAAB: +0.04% (-0.20% to +0.28%)"),
    Gate("clocks", "n/a", "not readable here"),
]

FASTER = Comparison(
    index=0, role="candidate", baseline="off", candidate="on", point={}, design="mirrored",
    why_design="every difference is bit-identical and step-preserving", differences=[SAMPLING_PARAMS],
    exactness="bit-identical", token_rule="bit-identical: any difference is INVALID", label="natural", metric="time",
    n_units=40, n_processes=1, baseline_tokens_per_s=256.41, candidate_tokens_per_s=259.62, speedup_pct=1.2345,
    ci_low_pct=0.9512, ci_high_pct=1.5186, confidence=0.95, verdict="FASTER", output_changed=False, reasons=[],
    margin_pct=0.5, mde_pct=0.412, units_needed=None, scope="this process only", bound="look 3 of 5",
    alpha=0.05, p_value=2.1e-9, p_holm=None, tokens_identical=True, first_divergence=None,
    decomposition={
        "tokens_per_step": 0.0, "device": 0.0011, "host_exposed": 0.0109, "other_idle": log_points(1.2345) - 0.012,
    },
    decomposition_pct={
        "tokens_per_step": Effect(0.0, None, None), "device": Effect(0.11, -0.09, 0.31),
        "host_exposed": Effect(1.0959, 0.931, 1.261), "other_idle": Effect(0.0269, -0.11, 0.17),
    },
    ranges={
        "prepare_inputs": RangeEffect(-38.21, -40.02, -36.35, 512.3, 316.5, 8.12),
        "populate_sampling_params": RangeEffect(-71.4, -72.9, -69.8, 270.7, 77.4, 4.29),
        "device_step": RangeEffect(-0.12, -0.33, 0.09, 5890.1, 5883.0, 93.4, lane="device"),
    },
    acceptance_length={"baseline": 2.1734, "candidate": 2.1734},
    step_ms={
        "baseline": {"step_ms": 6.306, "device_ms": 5.89, "host_exposed_ms": 0.31, "other_idle_ms": 0.106},
        "candidate": {"step_ms": 6.229, "device_ms": 5.883, "host_exposed_ms": 0.242, "other_idle_ms": 0.104},
    },
    second_line={
        "hodges_lehmann_pct": 1.201, "ratio_of_sums_pct": 1.2411, "sums_disagree": False, "sign_positive": 38,
        "sign_negative": 2, "sign_p": 1.5e-9, "num_outliers": 1, "lag1": 0.08, "lag1_limit": 0.316,
        "std_dev_pct": 0.652,
    },
    gates=COMPARISON_GATES,
    in_words=["0.19 ms of host work left the step; 0.07 ms of it had been exposed, so the rest was hidden already."],
    units=make_units(1.2, 0.6, 40, 1),
    step_ms_quantiles={"baseline": quantiles(6.29, 2), "candidate": quantiles(6.21, 3)},
    measured_s=48.4, units_per_minute=49.6, planned_units=64,
    counters={
        "baseline": {
            "sampling_params": {"refill": VariantCounts(640, {"hits": 0, "appends": 46080, "copies": 3840})}
        },
        "candidate": {
            "sampling_params": {"signature": VariantCounts(640, {"hits": 633, "appends": 420, "copies": 30})}
        },
    },
)  # fmt: skip

INCONCLUSIVE = replace(
    FASTER, index=1, verdict="INCONCLUSIVE", speedup_pct=0.31, ci_low_pct=-0.22, ci_high_pct=0.84, mde_pct=0.77,
    units_needed=212, bound="look 5 of 5", p_value=0.24,
    decomposition={"tokens_per_step": 0.0, "step": log_points(0.31)},
    decomposition_pct={}, ranges={}, units=make_units(0.3, 1.4, 20, 4), n_units=20, in_words=[],
    not_computed={"device": "what the device executes is not known here"},
)  # fmt: skip

INVALID_ARM = replace(
    FASTER, index=2, verdict="INVALID", reasons=["tokens differ where they may not: request c3/t0, output token 17"],
    tokens_identical=False, first_divergence=Divergence("c3/t0", 17, 1234, 4321, 0.0312), mde_pct=None,
    in_words=["The candidate changed what was generated, so its speed says nothing."],
    gates=[Gate("tokens", "fail", "1 of 40 units differs"), *COMPARISON_GATES[1:]],
)  # fmt: skip

NGRAM = replace(
    FASTER, index=0, baseline="plain", candidate="base", design="runs", why_design="drafter.name changes shapes",
    differences=[DRAFTER, DRAFT_LEN], exactness="numerically-equivalent", metric="throughput",
    token_rule="numerically-equivalent: labelled, d from throughput", label="natural, tokens differ", n_units=8,
    n_processes=4, baseline_tokens_per_s=61.2, candidate_tokens_per_s=88.91, speedup_pct=45.28, ci_low_pct=38.9,
    ci_high_pct=51.95, scope="4 fresh processes", output_changed=False, tokens_identical=False,
    first_divergence=Divergence("ngram-004/t0", 61, 29, None, -0.0021), ranges={},
    decomposition={"tokens_per_step": 0.512, "step": log_points(45.28) - 0.512}, decomposition_pct={
        "tokens_per_step": Effect(66.86, 60.1, 73.9), "step": Effect(-12.93, -14.8, -11.0)},
    acceptance_length={"baseline": 1.0, "candidate": 2.41}, units=make_units(37.3, 3.0, 8, 5, processes=4),
    in_words=["Tokens differ from output token 61 of ngram-004/t0 on, at a near tie (logit margin -0.0021)."],
    planned_units=8, mde_pct=5.1, units_per_minute=4.2, measured_s=114.0, counters={},
)  # fmt: skip

OUTPUT_CHANGED = replace(NGRAM, index=1, candidate="lossy", output_changed=True, exactness="changes-output")

_EFFECTS = {1: (0.21, -0.11, 0.53), 2: (0.94, 0.52, 1.36), 4: (1.23, 0.95, 1.52), 8: (2.05, 1.61, 2.49)}


def at_point(index: int, concurrency: int) -> Comparison:
    speedup, low, high = _EFFECTS[concurrency]
    verdict = "INCONCLUSIVE" if low < 0 else "FASTER"
    return replace(
        FASTER, index=index, point={"workload.concurrency": concurrency}, speedup_pct=speedup, ci_low_pct=low,
        ci_high_pct=high, verdict=verdict, p_holm=0.19 if low < 0 else 0.0004, alpha=0.0125,
        decomposition={"tokens_per_step": 0.0, "step": log_points(speedup)}, decomposition_pct={},
        units=make_units(speedup, 0.7, 24, 10 + concurrency), baseline_index=2 * index, candidate_index=2 * index + 1,
    )  # fmt: skip


POOLED = Pooled(
    baseline="off", candidate="on", n_points=4, these_points=Effect(1.1, 0.91, 1.29),
    in_general=Effect(1.1, -0.13, 2.35),
    heterogeneity={"cochran_q": 31.2, "p_value": 0.00002, "i_squared": 0.89}, sign_positive=4, sign_negative=0,
    sign_p=0.125,
)  # fmt: skip


def each(index: int, role: str, differences: list[Difference], effect: tuple[float, float, float]) -> Comparison:
    speedup, low, high = effect
    verdict = "FASTER" if low > 0 else "SLOWER" if high < 0 else "INCONCLUSIVE"
    candidate = ",".join(f"{item.key}={item.candidate}" for item in differences)
    return replace(
        INCONCLUSIVE, index=index, role=role, candidate=candidate, differences=differences, speedup_pct=speedup,
        ci_low_pct=low, ci_high_pct=high, verdict=verdict, p_holm=0.003 if verdict != "INCONCLUSIVE" else 0.4,
    )  # fmt: skip


OVERLAP = Difference("optimizations.overlap", "off", "on", "numerically-equivalent", False)

AB = replace(
    ANALYSIS, kind="ab", points=[], comparisons=[FASTER], gates=[],
    command="specbench ab scenarios/quickstart.yaml --baseline off",
    scenario={
        "name": "quickstart", "model": {"source": "smollm2-135m"}, "drafter": {"name": "ngram", "draft_len": 4},
        "acceptance": {"mode": "strict", "length": None},
        "workload": {"kind": "chat80", "concurrency": 4, "osl": 96, "num_requests": 24},
    },
)  # fmt: skip

AB_SWEEP = replace(
    AB, comparisons=[at_point(index, concurrency) for index, concurrency in enumerate((1, 2, 4, 8))], pooled=[POOLED],
    command="specbench ab scenarios/quickstart.yaml --baseline off --set sweep.concurrency=1,2,4,8",
)  # fmt: skip

AB_MIXED = replace(
    AB, comparisons=[INVALID_ARM, replace(INCONCLUSIVE, p_holm=0.48), replace(NGRAM, index=3, p_holm=0.001),
                     replace(OUTPUT_CHANGED, index=4, p_holm=0.001)],
)  # fmt: skip

AB_INVALID = replace(AB, comparisons=[INVALID_ARM])
AB_RUNS = replace(AB, comparisons=[NGRAM], label="natural, tokens differ", command="specbench ab scenarios/ngram.yaml")

EACH = replace(
    AB,
    comparisons=[
        replace(FASTER, differences=[SAMPLING_PARAMS, OVERLAP], p_holm=0.001),
        each(1, "alone", [SAMPLING_PARAMS], (0.31, -0.22, 0.84)),
        each(2, "alone", [OVERLAP], (0.95, 0.61, 1.29)),
        each(3, "all but", [SAMPLING_PARAMS], (0.28, 0.02, 0.54)),
        each(4, "all but", [OVERLAP], (-0.92, -1.2, -0.64)),
        each(5, "pair", [SAMPLING_PARAMS, OVERLAP], (1.22, 0.9, 1.54)),
    ],
)

INTERRUPTED = replace(
    AB,
    status="interrupted",
    gates=[Gate("complete", "warn", "cut by the user after 3 of 64 units")],
    comparisons=[
        replace(
            FASTER, verdict="INCONCLUSIVE", n_units=1, speedup_pct=0.7, ci_low_pct=None, ci_high_pct=None, mde_pct=None,
            p_value=None, units=make_units(0.7, 0.4, 1, 6), decomposition={}, decomposition_pct={}, ranges={},
            second_line={}, bound="no look was taken", in_words=["Interrupted before its first look."],
            not_computed={"interval": "one unit has no spread; two are needed"}, acceptance_length={}, step_ms={},
            step_ms_quantiles={}, units_per_minute=None, tokens_identical=None, first_divergence=None,
        )
    ],
)  # fmt: skip

NOTHING_COMPARED = replace(
    AB, comparisons=[], status="interrupted", environment={}, subject={}, warmup=None, command=None
)


def sweep_point(index: int, concurrency: int, draft_len: int) -> Any:
    speed = 61.3 * concurrency**0.72 * (1 + 0.09 * draft_len - 0.012 * draft_len**2)
    axes = {"workload.concurrency": concurrency, "drafter.draft_len": draft_len}
    if (concurrency, draft_len) == (8, 8):
        error = "the KV cache needs 9.1 GiB and 7.8 GiB are free: lower engine.max_batch_size"
        return replace(
            POINT, point=index, concurrency=8, draft_len=8, axes=axes, status="failed", error=error, steps=0,
            output_tokens_per_s=None, tokens_per_s_per_user=None, acceptance_length=None, ttft_ms=None, tpot_ms=None,
            itl_ms=None, e2e_ms=None, step_ms=None, device_ms=None, host_exposed_ms=None, other_idle_ms=None,
            conditional_acceptance=[], joint_acceptance=[], ranges={}, tokens_sha256=None,
        )  # fmt: skip
    device = 12.1 + 0.9 * concurrency + 0.4 * draft_len
    return replace(
        POINT, point=index, concurrency=concurrency, draft_len=draft_len, axes=axes,
        output_tokens_per_s=round(speed, 3), tokens_per_s_per_user=round(speed / concurrency, 3),
        acceptance_length=round(1 + 0.3 * math.log1p(draft_len), 4),
        ttft_ms=Distribution(40.0 + concurrency, 38.0 + concurrency, 60.0, 70.0, 99.0), step_ms=round(device + 0.73, 4),
        device_ms=round(device, 4), host_exposed_ms=0.5211, other_idle_ms=round(0.73 - 0.5211, 4),
    )  # fmt: skip


_GRID = [(concurrency, draft_len) for draft_len in (2, 4, 8) for concurrency in (1, 2, 8)]
SWEEP = replace(
    ANALYSIS, kind="sweep", gates=GATES[:2], points=[sweep_point(i, *place) for i, place in enumerate(_GRID)],
    command="specbench sweep scenarios/quickstart.yaml --set sweep.concurrency=1,2,8 --set sweep.draft_len=2,4,8",
)  # fmt: skip


def break_even_cell(
    concurrency: int, point: int, speedup: float | None, width: float | None, verdict: str
) -> BreakEvenCell:
    """A cell whose interval is ``speedup`` less and more ``width``, as multiples."""
    low, high = (None, None) if speedup is None or width is None else (speedup - width, speedup + width)
    percents = [None if ratio is None else 100 * (ratio - 1) for ratio in (speedup, low, high)]
    plain = 20.0 * concurrency**0.8
    return BreakEvenCell(
        concurrency=concurrency, point=point, baseline_point=None if speedup is None else 0,
        rounds=0 if speedup is None else 5, tokens_per_s=None if speedup is None else plain * speedup,
        baseline_tokens_per_s=None if speedup is None else plain, speedup_pct=percents[0], ci_low_pct=percents[1],
        ci_high_pct=percents[2], alpha=0.01, p_value=0.004, p_holm=0.02, verdict=verdict,
        acceptance_length=None if speedup is None else 1.9 - 0.01 * concurrency,
        tokens_identical=None if speedup is None else concurrency < 16,
    )  # fmt: skip


def break_even_line(
    drafter: str, draft_len: int, cells: list[BreakEvenCell], low: int | None, high: int | None, answer: str
) -> BreakEvenLine:
    return BreakEvenLine(drafter, draft_len, {}, cells, low, high, answer)


MAP = BreakEven([
    break_even_line("ngram", 2, [
        break_even_cell(1, 3, 1.214, 0.061, PAYS), break_even_cell(4, 4, 1.052, 0.081, NOT_CLEAR),
        break_even_cell(16, 5, 0.861, 0.052, DOES_NOT_PAY)], 1, 16, "stops paying between 1 and 16, not clear at 4"),
    break_even_line("ngram", 4, [
        break_even_cell(1, 6, 1.318, 0.079, PAYS), break_even_cell(4, 7, 0.951, 0.033, DOES_NOT_PAY),
        break_even_cell(16, 8, 0.702, 0.038, DOES_NOT_PAY)], 1, 4, "stops paying between 1 and 4"),
    break_even_line("ngram+eagle3", 4, [
        break_even_cell(1, 9, 2.243, 0.114, PAYS), break_even_cell(4, 10, 1.671, 0.093, PAYS),
        break_even_cell(16, 11, 1.402, None, NOT_CLEAR)], 4, None, "pays up to 4, not clear at 16"),
    break_even_line("eagle3", 4, [
        break_even_cell(1, 12, 1.912, 0.093, PAYS), break_even_cell(4, 13, 1.471, 0.121, PAYS),
        break_even_cell(16, 14, None, None, NOT_COMPARED)], 4, None, "pays up to 4, not compared at 16"),
])  # fmt: skip


def drafter_point(index: int, drafter: str, draft_len: int, cell: BreakEvenCell) -> Any:
    """The point behind a cell, or where ``drafter`` is none the one that it is compared with."""
    axes = {
        "workload.concurrency": cell.concurrency, "drafter.name": drafter, "drafter.draft_len": draft_len
    }  # fmt: skip
    point = replace(sweep_point(index, cell.concurrency, draft_len), drafter=drafter, axes=axes)
    if cell.speedup_pct is None:
        failed = replace(SWEEP.points[-1], point=index, drafter=drafter, concurrency=cell.concurrency, axes=axes)
        return replace(failed, draft_len=draft_len)
    speed = cell.baseline_tokens_per_s if drafter == "none" else cell.tokens_per_s
    assert speed is not None
    length = 1.0 if drafter == "none" else cell.acceptance_length
    per_user = speed / cell.concurrency
    return replace(point, output_tokens_per_s=speed, tokens_per_s_per_user=per_user, acceptance_length=length)


_CELLS = [("none", 0, cell) for cell in MAP.lines[0].cells]
_CELLS += [(line.drafter, line.draft_len, cell) for line in MAP.lines for cell in line.cells]
BREAK_EVEN = replace(
    SWEEP, break_even=MAP, command="specbench sweep scenarios/drafters_sweep.yaml",
    points=[drafter_point(index, *found) for index, found in enumerate(_CELLS)],
)  # fmt: skip
"""A sweep over drafters, with every verdict, a cell without an interval and one that was not compared."""
NO_MAP = replace(SWEEP, break_even=BreakEven([], 0.95, "No break-even map: every point speculates."))

SIMULATED = replace(AB_SWEEP, label="SIMULATED, forced acceptance", comparisons=[
    replace(item, label="SIMULATED, forced acceptance") for item in AB_SWEEP.comparisons])  # fmt: skip


def captured_by(index: int, variant: str, fault: str) -> Comparison:
    """A comparison of ``real_params`` with another variant of ``capture_params``; INVALID where it has a fault."""
    exactness = "known-defect" if fault else "bit-identical"
    gate = Gate("sampling parameters", "fail" if fault else "pass", fault or "840 rows were served as they asked for")
    caught = "The known defect was caught by the gate 'sampling parameters'."
    return replace(
        INCONCLUSIVE, index=index, baseline="real_params", candidate=variant, design="runs", exactness=exactness,
        differences=[Difference("optimizations.capture_params", "real_params", variant, exactness, False)],
        verdict="INVALID" if fault else "INCONCLUSIVE", reasons=[f"sampling parameters: {fault}"] if fault else [],
        label="KNOWN DEFECT, natural" if fault else "natural", gates=[gate, *COMPARISON_GATES[1:]],
        in_words=[caught] if fault else [], tokens_identical=not fault, p_holm=0.48,
    )  # fmt: skip


_CAPTURED_AS = {"clear_after_capture": "", "leak": "420 of 840 rows were served otherwise than they asked for",
                "clear_at_copy": "400 of 820 rows were served otherwise than they asked for"}  # fmt: skip
AB_DEFECTS = replace(
    AB, label="KNOWN DEFECT, natural", command="specbench ab scenarios/capture_override.yaml --baseline real_params",
    comparisons=[captured_by(i, *item) for i, item in enumerate(_CAPTURED_AS.items())],
)  # fmt: skip
AB_DEFECT = replace(AB_DEFECTS, comparisons=[replace(AB_DEFECTS.comparisons[1], p_holm=None)])

COMPARED: dict[str, Analysis] = {
    "ab": AB,
    "ab-runs": AB_RUNS,
    "ab-sweep": AB_SWEEP,
    "ab-mixed": AB_MIXED,
    "ab-invalid": AB_INVALID,
    "ab-each": EACH,
    "ab-interrupted": INTERRUPTED,
    "ab-nothing": NOTHING_COMPARED,
    "sweep": SWEEP,
    "break-even": BREAK_EVEN,
    "simulated": SIMULATED,
    "defect": AB_DEFECT,
    "defects": AB_DEFECTS,
}
