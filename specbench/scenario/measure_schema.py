"""What a scenario file may say of how it is measured: points, windows, amounts, processes of its own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specbench.scenario.fields import (
    MAX_COUNT,
    BudgetText,
    ConfidenceText,
    Count,
    DurationText,
    EnvironmentValue,
    MarginText,
    NonEmptyText,
    Seed,
    StepRangeText,
    SweepValues,
    TokenCounts,
)
from specbench.scenario.section import Section


class Sweep(Section):
    """Points of `specbench sweep`: lists of `concurrency` to `osl` and of `grid` crossed, those of `zip` in step."""

    concurrency: SweepValues | None = Field(default=None, description="values of workload.concurrency")
    drafter: SweepValues | None = Field(
        default=None,
        description="drafters: names, or mappings with a name and other keys of drafter; each keeps of the scenario's "
        "drafter and of other lists what it has a use for, so that none has K = 0, not crossed",
    )
    draft_len: SweepValues | None = Field(default=None, description="values of drafter.draft_len")
    isl: SweepValues | None = Field(default=None, description="values of workload.isl, in tokens")
    osl: SweepValues | None = Field(default=None, description="values of workload.osl, in tokens")
    grid: dict[str, SweepValues] = Field(
        default={}, description="scenario key in full: its values, crossed with the rest"
    )
    zip: dict[str, SweepValues] = Field(
        default={}, description="scenario key in full: its values, all lists of one length"
    )


class Windows(Section):
    """Full-batch decoding, timed from a KV cache that is filled without computing; labelled `synthetic cache`."""

    kv_len: TokenCounts = Field(description="tokens that each context has when the window begins; one point a value")
    steps: Count = Field(default=400, description="decode steps that are timed, every slot busy")


class Measure(Section):
    """How much is measured."""

    warmup_requests: Annotated[int, Field(ge=0, le=10_000)] | None = Field(
        default=None, description="requests run first, not measured; null: workload.concurrency, 2 at least"
    )
    repeats: Annotated[int, Field(ge=1, le=10_000)] = Field(default=1, description="trials, each the whole workload")
    steps: StepRangeText | None = Field(default=None, description="A-B: only these steps are profiled; null: all")
    timeout: DurationText | None = Field(
        default=None, description="a trial is ended after this long, as 5m; null: never"
    )
    seed: Seed = Field(default=0, description="seed of orders and masks of `ab`, `sweep` and `selftest`")
    design: Literal["auto", "mirrored", "runs"] = Field(
        default="auto",
        description="ab: mirrored: every step is timed in both arms; runs: whole runs by turns; "
        "auto: mirrored wherever it holds",
    )
    margin: MarginText = Field(default="0.5%", description="ab: what counts as no difference")
    confidence: ConfidenceText = Field(
        default="95%",
        description="of intervals and tests, over all comparisons of an ab and all cells of a break-even map",
    )
    budget: BudgetText = Field(
        default="2m", description="ab: time to measure in, warm-up included, as 5m; the fewest units may take longer"
    )
    processes: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1, description="ab: fresh processes to spread units over; 4 or more show what a process does"
    )
    looks: Annotated[int, Field(ge=1, le=100)] = Field(
        default=5, description="ab: times at which a comparison may end early, the end of its plan included"
    )
    anytime: bool = Field(default=False, description="ab: look after every block of units, at the cost of wider limits")
    period_steps: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None, description="ab, mirrored: timed steps of a period; null: 2, or 8 where steps overlap"
    )
    guard_steps: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        default=None,
        description="ab, mirrored: steps after each switch that are in no figure; the first one fills buffers anew; "
        "null: 1, or 2 where steps overlap, so that the first timed step is prepared while another runs",
    )
    quads_per_segment: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        default=None,
        description="ab, mirrored: units a segment gives, four periods each; null: 144 steps, or a window's",
    )
    segment_requests: Count | None = Field(
        default=None, description="ab, runs: requests of one run; null: chosen by what a request takes"
    )
    windows: Windows | None = Field(
        default=None, description="decode windows at given context lengths, instead of whole requests; random_tokens"
    )
    max_units: Annotated[int, Field(ge=2, le=MAX_COUNT)] | None = Field(
        default=None, description="ab: units at which a comparison ends, in whole segments; null: what the budget holds"
    )


class Process(Section):
    """An arm of `specbench ab` in an interpreter of its own: another build, environment or commit. Empty: just that."""

    python: NonEmptyText | None = Field(
        default=None, description="path of the interpreter; null: the one that runs specbench"
    )
    env: dict[NonEmptyText, EnvironmentValue] = Field(
        default={}, description="{environment variable: value}, set on top of those that specbench has; no secrets"
    )
    worktree: NonEmptyText | None = Field(
        default=None, description="folder of a checkout whose specbench is measured; null: the installed one"
    )
