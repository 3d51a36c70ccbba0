"""How small an effect can be told from none, against what people do now: an A/A on one engine, machine and sitting.

    python benchmarks/resolution.py [--scenario scenarios/quickstart.yaml] [--minutes 5] [--rounds 3] [--out FILE]

Both arms are the same configuration. Three ways to compare them, each given the same minutes of measuring:

mirrored      specbench: quads over both passes of mirrored segments, paired t on log ratios
unpaired      the same measurements, the arms' times compared as two independent samples (Welch's t on logs)
independent   whole runs of the workload, arms by turns, fresh request seeds each, Welch's t on log throughputs

Mirrored and independent take turns in ``--rounds`` slices, so that the hour is the same for both. What is reported is
the half-width of the 95% interval, as a percentage; the true effect is 0.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.measure.arm_loads import ArmLoads
from specbench.measure.arms import Arms, OpenArm
from specbench.measure.clock import SystemClock
from specbench.measure.environment import describe_environment, describe_torch
from specbench.measure.interruption import StopSignal
from specbench.measure.recording import Kept
from specbench.measure.subject import BuiltinSubject
from specbench.measure.trials import measure_run
from specbench.measure.units import MeasuredBlock, gather_units
from specbench.scenario.enumeration import complement, draw_mask
from specbench.scenario.plan import AbSettings, ComparisonPlan, Trial
from specbench.scenario.questions import ask_selftest
from specbench.stats.contrasts import group_difference
from specbench.stats.estimate import Estimate, estimate_units, to_percent


@dataclass
class Samples:
    """What was measured so far.

    :param blocks: of the mirrored design; ``throughputs`` of independent runs by arm, tokens per second.
    """

    blocks: list[MeasuredBlock] = field(default_factory=list)
    mirrored_s: float = 0.0
    throughputs: dict[str, list[float]] = field(default_factory=lambda: {"A": [], "B": []})
    independent_s: float = 0.0
    segments: int = 0
    runs: int = 0


def measure_mirrored(
    loads: ArmLoads, settings: AbSettings, pair: ComparisonPlan, samples: Samples, until_s: float
) -> None:
    """Mirrored segments until so many seconds of them are measured in all."""
    while samples.mirrored_s < until_s:
        started = time.monotonic()
        mask = draw_mask(settings.quads_per_segment, settings.seed, 0, 0, samples.segments)
        records = []
        for pass_, arms in enumerate((mask, complement(mask))):
            seed = samples.segments + 1
            trial = Trial(2 * samples.segments + pass_, pair.baseline, samples.segments, pass_, arms, seed, 0)
            records.append(loads.measure_pass(settings, pair, trial, 0, None).record)
        samples.blocks.append(MeasuredBlock(0, samples.segments, tuple(records)))
        samples.segments += 1
        samples.mirrored_s += time.monotonic() - started


def measure_independent(arm: OpenArm, samples: Samples, until_s: float) -> None:
    """Whole runs by turns (A B A B ...), each with seeds of its own, until so many seconds are measured in all."""
    context = arm.context(SystemClock(), StopSignal(), None, Kept())
    while samples.independent_s < until_s:
        started = time.monotonic()
        name = "AB"[samples.runs % 2]
        trial = Trial(samples.runs, arm.point.index, 0, 0, None, 1_000_003 + samples.runs, 0, arm=name)
        found = measure_run(context, arm.point, trial, 0, arm.source(trial.seed), arm.concurrency)
        samples.throughputs[name].append(found.record.output_tokens_per_s or math.nan)
        samples.runs += 1
        samples.independent_s += time.monotonic() - started


def half_width_pct(estimate: Estimate) -> float | None:
    """Of the 95% interval."""
    interval = estimate.interval()
    return None if interval is None else to_percent(interval.half_width)


def spread_pct(values: Sequence[float]) -> float:
    """Largest over smallest, minus 1."""
    return 100 * (max(values) / min(values) - 1)


def summarize(samples: Samples) -> dict[str, Any]:
    """Half-widths of all three analyses."""
    units = gather_units(samples.blocks, "mirrored", details=False)
    paired = estimate_units(units.pair("time").log_ratios)
    times = [[math.log(value) for value in arm.time_ns] for arm in (units.baseline, units.candidate)]
    logs = {arm: [math.log(value) for value in values] for arm, values in samples.throughputs.items()}
    found = {
        "mirrored": (paired, len(units), samples.mirrored_s),
        "unpaired": (group_difference(times[0], times[1]), len(units), samples.mirrored_s),
        "independent": (group_difference(logs["B"], logs["A"]), samples.runs, samples.independent_s),
    }
    rows = {
        name: {
            "effect_pct": to_percent(estimate.mean),
            "half_width_pct": half_width_pct(estimate),
            "samples": count,
            "minutes": seconds / 60,
        }
        for name, (estimate, count, seconds) in found.items()
    }
    narrow = rows["mirrored"]["half_width_pct"]
    for row in rows.values():
        row["times_mirrored"] = row["half_width_pct"] / narrow if narrow and row["half_width_pct"] else None
    every = [value for values in samples.throughputs.values() for value in values]
    return {"ways": rows, "independent_runs_tokens_per_s": samples.throughputs, "runs_spread_pct": spread_pct(every)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="scenarios/quickstart.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    question = ask_selftest(options.scenario, options.set, num_aa=1)
    assert question.settings is not None
    pair = question.comparisons[0]
    arms = Arms.of(question, lambda line: print(line, file=sys.stderr))
    samples = Samples()
    try:
        loads = ArmLoads(arms, SystemClock(), StopSignal(), Kept())
        loads.prepare(pair, question.warmup_requests)
        arm = loads.open(pair.baseline)
        for turn in range(1, options.rounds + 1):
            until_s = options.minutes * 60 * turn / options.rounds
            measure_mirrored(loads, question.settings, pair, samples, until_s)
            measure_independent(arm, samples, until_s)
            print(f"round {turn} of {options.rounds}", file=sys.stderr)
        assert isinstance(arm.subject, BuiltinSubject)
        threads = arm.subject.num_threads
    finally:
        arms.close()
    result = {
        **summarize(samples),
        "scenario": question.scenario,
        "design": {
            "period_steps": question.settings.period_steps,
            "guard_steps": question.settings.guard_steps,
            "quads_per_segment": question.settings.quads_per_segment,
        },
        "environment": {**describe_environment(), "torch": describe_torch(threads)},
    }
    for name, row in result["ways"].items():
        times = f"{row['times_mirrored']:.1f}x" if row["times_mirrored"] else "-"
        width = f"{row['half_width_pct']:.3f}%" if row["half_width_pct"] else "-"
        print(f"{name:<12} +/- {width:>9}  {times:>7}  {row['samples']:>4} samples  effect {row['effect_pct']:+.3f}%")
    print(f"independent runs differ by {result['runs_spread_pct']:.1f}% from the slowest to the fastest")
    if options.out is not None:
        with tempfile.NamedTemporaryFile("w", dir=options.out.parent, delete=False, encoding="utf-8") as file:
            json.dump(result, file, indent=2, default=str)
        Path(file.name).replace(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
