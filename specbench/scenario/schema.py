"""What a scenario file may hold: one model a section, every key with its meaning, unit and default.

``null`` means: the default, which :mod:`specbench.scenario.resolve` writes out. Nothing is coerced: ``"3"`` is not 3,
true is not 1. Names of registries are checked in :mod:`specbench.scenario.conflicts`, so that a third party's count.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, PrivateAttr, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from specbench.engine.config import MAX_DRAFT_LEN
from specbench.engine.tree_spec import MAX_TOP_K, MAX_TREE_NODES
from specbench.scenario.fields import (
    MAX_COUNT,
    AcceptanceLength,
    BudgetText,
    ConfidenceText,
    Count,
    DurationText,
    EnvironmentValue,
    LengthOrRange,
    MarginText,
    Name,
    Names,
    NonEmptyText,
    NumRequests,
    Seed,
    SimTimes,
    SizeText,
    StepRangeText,
    SweepValues,
    TokenCounts,
    TokenIds,
    Tokens,
    WholeKeys,
)
from specbench.scenario.places import Places

DraftLen = Annotated[int, Field(ge=0, le=MAX_DRAFT_LEN)]
NGRAM_LIMIT = 64


class Section(BaseModel):
    """One mapping of a scenario.

    ``shorthand`` names the key that a bare text stands for (``model: tiny``). ``kept`` are the keys that stay when an
    override puts a bare text over the section, since they mean the same whatever the text chooses.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    shorthand: ClassVar[str | None] = None
    kept: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return {cls.shorthand: value} if isinstance(value, str) and cls.shorthand else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        if cls.shorthand is None:
            return schema
        text = {"type": "string", "description": f"short for {{{cls.shorthand}: ...}}"}
        return {"anyOf": [text, schema]}


class Model(Section):
    """The weights that are served: target and, later, its draft layers."""

    shorthand = "source"
    source: NonEmptyText = Field(
        default="smollm2-135m",
        description="a preset (`specbench list presets`), a checkpoint directory, a .gguf file or a hub id; "
        "random:PRESET is short for weights: random",
    )
    weights: Literal["auto", "random"] = Field(
        default="auto", description="auto: read the checkpoint; random: seeded random weights of that shape"
    )
    seed: Seed = Field(default=0, description="seed of random weights")
    revision: NonEmptyText | None = Field(
        default=None, description="hub revision: a branch, tag or commit; null: the default"
    )


class Tree(Section):
    """Drafts that branch: a tree a request, grown to the drafter's likeliest tokens."""

    top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K)] = Field(
        default=4, description="nodes expanded on each level, and children of each"
    )
    depth: Annotated[int, Field(ge=1, le=MAX_DRAFT_LEN)] = Field(
        default=4, description="levels, and so K: the most draft tokens that a step accepts"
    )
    num_nodes: Annotated[int, Field(ge=1, le=MAX_TREE_NODES)] = Field(
        default=12, description="draft tokens verified a request and step: the likeliest nodes of all"
    )


class Drafter(Section):
    """Who proposes draft tokens, and how many (K)."""

    shorthand = "name"
    name: NonEmptyText = Field(
        default="none",
        description="a drafter (`specbench list drafters`), or a pair: ngram+eagle3 looks up first, and asks the head "
        "where that finds nothing",
    )
    model: NonEmptyText | None = Field(
        default=None,
        description="eagle3, mtp: a head (`specbench list heads`), a directory or a hub id; null: the head that ships "
        "for the model, or the modules its checkpoint carries; draft_model: a model, as model.source",
    )
    draft_len: DraftLen | None = Field(
        default=None, description="K, draft tokens a request and step; null: 0 for drafter none, else 4"
    )
    tree: Tree | None = Field(default=None, description="eagle3: drafts branch; null: one token follows another")
    runtime_draft_len: Annotated[dict[Count, DraftLen] | None, WholeKeys] = Field(
        default=None,
        description="K by the step's batch size, {largest batch size: K}; above all of them K is 0; null: draft_len",
    )
    max_ngram: Annotated[int, Field(ge=1, le=NGRAM_LIMIT)] = Field(
        default=3, description="ngram: longest suffix looked up, in tokens"
    )
    min_ngram: Annotated[int, Field(ge=1, le=NGRAM_LIMIT)] = Field(
        default=1, description="ngram: shortest suffix looked up, in tokens"
    )


class Acceptance(Section):
    """Which draft tokens are committed."""

    shorthand = "mode"
    mode: NonEmptyText = Field(
        default="strict",
        description="strict: those the target itself would choose; rejection: by rejection sampling, which keeps the "
        "target's distribution; forced: a number; replay: as many as were recorded",
    )
    length: AcceptanceLength | None = Field(
        default=None,
        description="forced: mean tokens committed a step, bonus included (1 to K + 1), "
        "or conditional acceptance rates by draft position",
    )
    source: NonEmptyText | None = Field(
        default=None,
        description="replay: results folder whose accepted lengths are replayed; null, in `specbench ab` alone: "
        "those that the baseline records first",
    )


class Workload(Section):
    """What is asked of the engine."""

    shorthand = "kind"
    kept = ("num_requests", "osl", "concurrency", "seed")
    kind: NonEmptyText = Field(default="chat80", description="a workload (`specbench list workloads`)")
    path: NonEmptyText | None = Field(
        default=None,
        description="JSONL file of prompts or mt_bench; looked for beside the scenario, then in the current folder",
    )
    num_requests: NumRequests | None = Field(
        default=None,
        description="requests (turns of conversations): all, or a count; null: 16 for random_tokens, else all",
    )
    isl: LengthOrRange | None = Field(
        default=None, description="random_tokens: input length in tokens, or [low, high]; null: 128"
    )
    osl: LengthOrRange | None = Field(
        default=None, description="output length in tokens, or [low, high]; text kinds: the cap a turn; null: 128"
    )
    categories: Names | None = Field(default=None, description="text kinds: only these categories; null: every one")
    turns: Annotated[int, Field(ge=1, le=100)] | None = Field(
        default=None, description="text kinds: most turns of a conversation; null: as the data has them"
    )
    concurrency: Annotated[int, Field(ge=1, le=65536)] = Field(default=1, description="requests in flight at once")
    seed: Seed = Field(default=0, description="seed of random tokens, of ranges and of the shuffle")
    shuffle: bool = Field(default=False, description="text kinds: shuffle the prompts by the seed")
    system_prompt: str | None = Field(
        default=None, description="text kinds: system message put before every conversation"
    )


class Sampling(Section):
    """How each token is chosen. All of temperature, top_k and top_p null: greedy."""

    temperature: Annotated[float, Field(ge=0, le=1000)] | None = Field(
        default=None, description="0: greedy; null: unset"
    )
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        default=None, description="tokens kept; 0: all; 1: greedy"
    )
    top_p: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="probability mass kept; 0: greedy"
    )
    seed: Seed = Field(default=0, description="each request draws with a seed made of this, workload.seed and its id")
    ignore_eos: bool | None = Field(
        default=None, description="go on past end tokens; null: true for random_tokens, else false"
    )
    stop_token_ids: TokenIds = Field(default=(), description="further token ids that end a request")


class Engine(Section):
    """Where and how the engine runs."""

    device: NonEmptyText = Field(default="auto", description="auto (cuda where there is one), or one of `list devices`")
    dtype: Literal["bfloat16", "float32", "float16"] = Field(default="bfloat16", description="of weights and KV cache")
    max_batch_size: Annotated[int, Field(ge=1, le=65536)] | None = Field(
        default=None, description="slots: requests the engine holds at once; null: workload.concurrency"
    )
    max_seq_len: Tokens | None = Field(
        default=None,
        description="tokens a request may reach, prompt and output; null: isl + osl for random_tokens, "
        "else 4096 or the model's limit",
    )
    tokens_per_block: Annotated[int, Field(ge=1, le=4096)] = Field(default=32, description="tokens a KV block holds")
    kv_cache: SizeText | None = Field(
        default=None, description="size of the KV cache, as 2GiB; null: room for max_batch_size requests of max_seq_len"
    )
    num_blocks: Annotated[int, Field(ge=1, le=10**9)] | None = Field(
        default=None, description="KV blocks, instead of kv_cache"
    )
    max_num_tokens: Tokens | None = Field(
        default=None,
        description="token rows a step may carry, prompt chunks included; null: 512 on the CPU, 2048 on CUDA, and more "
        "where the batch needs it",
    )
    attention: NonEmptyText = Field(default="auto", description="auto, or one of `specbench list attention`")
    num_threads: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        default=None, description="CPU threads of the device's kernels; null: PyTorch's own choice"
    )
    sim: SimTimes | None = Field(
        default=None,
        description="device sim: its declared times, a preset (`specbench list sim_presets`) or five numbers: base_us, "
        "us_per_row and us_per_kv_token of a step, us_per_copy and bytes_per_us of a copy",
    )


class Sweep(Section):
    """Points of `specbench sweep`: lists of `concurrency` to `osl` and of `grid` crossed, those of `zip` in step."""

    concurrency: SweepValues | None = Field(default=None, description="values of workload.concurrency")
    drafter: SweepValues | None = Field(
        default=None, description="values of drafter.name; none drafts nothing, so that its K is 0 and not crossed"
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


class Scenario(Section):
    """One question to the engine, in full."""

    name: Name | None = Field(default=None, description="names the results folder; null: the file's name")
    model: Model = Field(default=Model(), description="weights")
    drafter: Drafter = Field(default=Drafter(), description="who proposes draft tokens")
    acceptance: Acceptance = Field(default=Acceptance(), description="which draft tokens are committed")
    workload: Workload = Field(default=Workload(), description="what is asked")
    sampling: Sampling = Field(default=Sampling(), description="how tokens are chosen")
    engine: Engine = Field(default=Engine(), description="where and how it runs")
    process: Process | None = Field(
        default=None, description="ab: an interpreter of its own for what is measured; null: specbench's own"
    )
    optimizations: dict[NonEmptyText, NonEmptyText] = Field(
        default={}, description="{toggle: variant}; a toggle that is not named has its production variant on the device"
    )
    study: Names | None = Field(
        default=None,
        description="toggles that the variants off and on switch; null: every host-side one (not overlap, graphs, "
        "capture_params)",
    )
    sweep: Sweep = Field(default=Sweep(), description="points of `specbench sweep`")
    variants: dict[Name, dict[str, Any]] = Field(
        default={}, description="{variant: {scenario key in full or nested: value}}"
    )
    measure: Measure = Field(default=Measure(), description="how much is measured")

    _places: Places = PrivateAttr(default_factory=lambda: Places("scenario"))

    @property
    def places(self) -> Places:
        """Where each key came from, for messages."""
        return self._places

    def with_places(self, places: Places) -> Scenario:
        """The same scenario, knowing where its keys came from."""
        self._places = places
        return self


def json_schema() -> dict[str, Any]:
    """JSON schema of a scenario file, for editors."""
    schema = Scenario.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "specbench scenario"
    return schema
