"""What recording ranges costs: the engine with its recorder against the same without, a mirrored comparison of its own.

    python benchmarks/instrumentation.py [--scenario scenarios/quickstart.yaml] [--segments 12] [--out results/x.json]

Arm A marks no range, arm B records them all, as every measurement does; the tracer is exchanged where a comparison of
toggles switches a variant. Two figures: B's time over A's, and the host's part of it alone, from the time that the host
takes from the start of a step to its launch, which every step keeps in both arms. The first has the noise of the whole
step, the second does not: the ranges on the host are ``schedule``, ``prepare_inputs``, ``populate_sampling_params`` and
``launch``; those on the device are as many and cost the same each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from specbench.device.tracing import NullTracer, RangeRecorder, Tracer
from specbench.measure.arms import Arms
from specbench.measure.clock import SystemClock
from specbench.measure.environment import describe_environment, describe_torch
from specbench.measure.interruption import StopSignal
from specbench.measure.slices import EndlessSource
from specbench.measure.subject import BuiltinSubject
from specbench.measure.trials import TrialContext, measure_pass
from specbench.measure.units import MeasuredBlock, gather_units
from specbench.scenario.enumeration import complement, draw_mask
from specbench.scenario.plan import Trial
from specbench.scenario.questions import ask_selftest, resolved_points
from specbench.stats.estimate import estimate_units, to_percent

SWITCH = "tracer"


class SwitchableTracer:
    """Hands every range to one of two tracers."""

    def __init__(self, recorder: RangeRecorder) -> None:
        self.tracers: dict[str, Tracer] = {"off": NullTracer(), "on": recorder}
        self.current: Tracer = recorder

    def range(self, name: str, lane: str = "host", detail: str = "") -> AbstractContextManager[None]:
        """See :class:`specbench.device.tracing.Tracer`."""
        return self.current.range(name, lane, detail)

    def step_started(self, step: int, detail: str) -> None:
        """See :class:`specbench.device.tracing.Tracer`."""
        self.current.step_started(step, detail)

    def step_ended(self, step: int) -> None:
        """See :class:`specbench.device.tracing.Tracer`."""
        self.current.step_ended(step)


class TracedSubject:
    """A subject whose only choice is its tracer."""

    def __init__(self, inner: BuiltinSubject, tracer: SwitchableTracer) -> None:
        self._inner = inner
        self._tracer = tracer

    def switch(self, choices: Mapping[str, str]) -> None:
        """Exchange the tracer."""
        self._inner.settle()
        self._tracer.current = self._tracer.tracers[choices[SWITCH]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def host_us(blocks: Sequence[MeasuredBlock]) -> dict[str, list[float]]:
    """By arm: mean microseconds from the start of a step to its launch, a unit each."""
    sums: dict[tuple[int, int, str], list[float]] = {}
    for block in blocks:
        for record in block.trials:
            columns = record.steps.columns
            for period in record.periods:
                steps = range(period.first_step, period.first_step + period.num_steps)
                took = [(columns["launch_ns"][i] - columns["host_start_ns"][i]) / 1e3 for i in steps]
                sums.setdefault((block.segment, period.quad, period.arm), []).extend(took)
    units = sorted({(segment, quad) for segment, quad, _ in sums})
    return {arm: [sum(v := sums[(*unit, arm)]) / len(v) for unit in units] for arm in ("A", "B")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print one line, write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="scenarios/quickstart.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--segments", type=int, default=12)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    question = ask_selftest(options.scenario, options.set, num_aa=1)
    settings, pair = question.settings, question.comparisons[0]
    assert settings is not None
    recorder = RangeRecorder()
    tracer = SwitchableTracer(recorder)
    points = list(zip(question.points, resolved_points(question), strict=True))
    arms = Arms(points, lambda line: print(line, file=sys.stderr), tracer, recorder)
    blocks = []
    try:
        arm = arms.open(pair.baseline)
        assert isinstance(arm.subject, BuiltinSubject)
        subject: Any = TracedSubject(arm.subject, tracer)
        context = TrialContext(subject, SystemClock(), StopSignal(), None, arm.content.label)
        choices = {"A": {SWITCH: "off"}, "B": {SWITCH: "on"}}
        for segment in range(-1, options.segments):  # the first one warms up
            mask = draw_mask(settings.quads_per_segment, settings.seed, 0, 0, segment)
            records = []
            for pass_, order in enumerate((mask, complement(mask))):
                trial = Trial(2 * segment + pass_, pair.baseline, segment, pass_, order, segment + 1, 0)
                source = EndlessSource(arm.source(trial.seed), max(segment, 0) * arm.concurrency)
                found = measure_pass(context, arm.point, trial, 0, source, arm.concurrency, choices, settings)
                records.append(found.record)
            if segment >= 0:
                blocks.append(MeasuredBlock(0, segment, tuple(records)))
        threads = arm.subject.num_threads
    finally:
        arms.close()
    units = gather_units(blocks, "mirrored", details=False)
    estimate = estimate_units(-units.pair("time").log_ratios)
    interval = estimate.interval()
    host = host_us(blocks)
    added = estimate_units([on - off for off, on in zip(host["A"], host["B"], strict=True)])
    added_interval = added.interval()
    step_us = float(units.baseline.time_ns.sum() / units.baseline.steps.sum() / 1e3)
    result = {
        "host_us_added": added.mean,
        "host_us_added_low": added_interval.low if added_interval else None,
        "host_us_added_high": added_interval.high if added_interval else None,
        "host_added_pct_of_step": 100 * added.mean / step_us,
        "cost_pct": to_percent(estimate.mean),
        "ci_low_pct": interval.low_pct if interval else None,
        "ci_high_pct": interval.high_pct if interval else None,
        "units": len(units),
        "step_ms": step_us / 1e3,
        "scenario": question.scenario,
        "environment": {**describe_environment(), "torch": describe_torch(threads)},
    }
    span = f"[{result['ci_low_pct']:+.3f}%, {result['ci_high_pct']:+.3f}%]" if interval else "no interval"
    print(
        f"recording ranges costs {result['cost_pct']:+.3f}% {span}, {len(units)} units, step {result['step_ms']:.2f} ms"
    )
    reach = f"[{added_interval.low:+.1f}, {added_interval.high:+.1f}]" if added_interval else ""
    print(f"host side: {added.mean:+.1f} us a step {reach}, {result['host_added_pct_of_step']:+.3f}% of it")
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2, default=str) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
