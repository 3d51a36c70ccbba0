"""Prompt lookup against plain decoding on text that repeats: a paired figure.

    python benchmarks/ngram_pairs.py [--scenario scenarios/ngram.yaml] [--baseline plain] [--pairs 8] [--out results/x]

Both arms share one process and one copy of the weights. A unit is one run of the whole workload in each arm, with equal
requests and seeds, in randomised ABBA order; d is the log ratio of throughputs (committed tokens per second), for
verifying K + 1 rows may flip near ties in bfloat16 and the arms' tokens may differ. The interval is a paired t on d.
One process: it speaks of this process only.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from specbench.engine.build import build_engine
from specbench.engine.models.loading import LoadedModel, load_model
from specbench.engine.sampling.params import SamplingParams
from specbench.measure.clock import SystemClock
from specbench.measure.driver import ClosedLoop, RequestSource
from specbench.measure.environment import describe_environment, describe_torch
from specbench.measure.interruption import StopSignal
from specbench.measure.load import ContentSource, WarmUpSource, build_content
from specbench.measure.observation import without_collection
from specbench.measure.subject import BuiltinSubject
from specbench.scenario.loader import load_scenario
from specbench.scenario.resolve import ResolvedScenario, longest, resolve
from specbench.stats.estimate import to_percent
from specbench.stats.paired import pair_units, summarize_pairs


@dataclass
class Arm:
    """One configuration and its engine."""

    name: str
    subject: BuiltinSubject
    source: RequestSource
    concurrency: int

    def run(self, source: RequestSource | None = None) -> dict[str, Any]:
        """Run the workload once; seconds from the first admission to the last commit, tokens, acceptance."""
        loop = ClosedLoop(self.subject, source or self.source, self.concurrency, SystemClock(), StopSignal())
        with without_collection():
            flights = [flight.state for flight in loop.run().flights if flight.state]
        start = min(state.admitted_ns for state in flights)  # type: ignore[attr-defined]
        end = max(state.chunk_times_ns[-1] for state in flights)
        accepted = [length for state in flights for length in state.accepted_lengths]
        self.subject.drain()
        return {
            "seconds": (end - start) / 1e9,
            "tokens": sum(len(state.output_token_ids) for state in flights),
            "acceptance_length": sum(accepted) / len(accepted),
            "outputs": [state.output_token_ids for state in flights],
        }


def build_arm(name: str, resolved: ResolvedScenario, loaded: LoadedModel) -> Arm:
    """Build the engine of one arm around weights that are in memory."""
    scenario = resolved.scenario
    engine = build_engine(resolved.engine, loaded=loaded)
    content = build_content(scenario, loaded.config.vocab_size, loaded.directory)
    params = SamplingParams(max_tokens=longest(scenario.workload.osl), ignore_eos=scenario.sampling.ignore_eos)
    concurrency = scenario.workload.concurrency
    return Arm(name, BuiltinSubject(engine, None), ContentSource(content, params), concurrency)


def measure(arms: tuple[Arm, Arm], pairs: int, rng: random.Random) -> list[dict[str, dict[str, Any]]]:
    """Run ABBA or BAAB, at random, until there are ``pairs`` units; one line a unit on stderr."""
    units: list[dict[str, dict[str, Any]]] = []
    order: list[Arm] = []
    while len(units) < pairs:
        if not order:
            first = rng.randrange(2)
            order = [arms[first], arms[1 - first], arms[1 - first], arms[first]]
        unit = {arm.name: arm.run() for arm in (order.pop(0), order.pop(0))}
        units.append(unit)
        shown = ", ".join(f"{name} {r['tokens'] / r['seconds']:.1f} tok/s" for name, r in sorted(unit.items()))
        print(f"pair {len(units)} of {pairs}: {shown}", file=sys.stderr, flush=True)
    return units


def summarize(units: list[dict[str, dict[str, Any]]], baseline: str, candidate: str) -> dict[str, Any]:
    """Figures of the comparison; outputs are compared and then dropped."""
    same = sum(
        first == second
        for unit in units
        for first, second in zip(unit[baseline].pop("outputs"), unit[candidate].pop("outputs"), strict=True)
    )
    pairs = pair_units(
        [unit[baseline]["seconds"] for unit in units],
        [unit[candidate]["seconds"] for unit in units],
        baseline_tokens=[unit[baseline]["tokens"] for unit in units],
        candidate_tokens=[unit[candidate]["tokens"] for unit in units],
    )
    summary = summarize_pairs(pairs)
    interval = summary.estimate.interval()
    figures: dict[str, Any] = {"speedup_pct": to_percent(summary.estimate.mean), "n_units": len(units)}
    if interval is not None:
        figures |= {"ci_low_pct": to_percent(interval.low), "ci_high_pct": to_percent(interval.high)}
    for name in (baseline, candidate):
        tokens, seconds = (sum(unit[name][key] for unit in units) for key in ("tokens", "seconds"))
        figures[name] = {"tokens_per_s": tokens / seconds, "acceptance_length": units[0][name]["acceptance_length"]}
    return figures | {"equal_outputs": same, "units": units}


def main() -> None:
    """Measure, print, and write JSON where ``--out`` says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="scenarios/ngram.yaml")
    parser.add_argument("--baseline", default="plain")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=None, help="file for the figures, JSON")
    args = parser.parse_args()
    plain = resolve(load_scenario(args.scenario, args.set, variant=args.baseline))
    drafted = resolve(load_scenario(args.scenario, args.set))
    environment = describe_environment()
    num_threads = drafted.engine.num_threads or torch.get_num_threads()
    loaded = load_model(plain.engine.model, getattr(torch, plain.engine.dtype), torch.device(plain.engine.device))
    arms = (build_arm(args.baseline, plain, loaded), build_arm(drafted.scenario.drafter.name, drafted, loaded))
    for arm in arms:
        arm.run(WarmUpSource(arm.source, 2))  # type: ignore[arg-type]
    units = measure(arms, args.pairs, random.Random(args.seed))
    figures = summarize(units, arms[0].name, arms[1].name)
    for arm in arms:
        arm.subject.close()
    printed = {key: value for key, value in figures.items() if key != "units"}
    print(json.dumps(printed, indent=2))
    if args.out:
        environment["torch"] = describe_torch(num_threads)
        report = {"figures": figures, "engine": asdict(drafted.engine), "environment": environment}
        args.out.write_text(json.dumps(report, indent=2, default=str) + "\n")


if __name__ == "__main__":
    main()
