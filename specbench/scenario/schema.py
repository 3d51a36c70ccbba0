"""What a scenario file may hold: one model a section, every key with its meaning, unit and default.

``null`` means: the default, which :mod:`specbench.scenario.resolve` writes out. Nothing is coerced: ``"3"`` is not 3,
true is not 1. Names of registries are checked in :mod:`specbench.scenario.conflicts`, so that a third party's count.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr

from specbench.engine.config import MAX_DRAFT_LEN
from specbench.engine.tree_spec import DEFAULT_TREE_NODES, MAX_TOP_K, MAX_TREE_NODES
from specbench.scenario.fields import (
    AcceptanceLength,
    Count,
    LengthOrRange,
    Name,
    Names,
    NonEmptyText,
    NumRequests,
    Seed,
    SimTimes,
    SizeText,
    TokenIds,
    Tokens,
    WholeKeys,
)
from specbench.scenario.measure_schema import Measure, Process, Sweep
from specbench.scenario.places import Places
from specbench.scenario.section import Section

DraftLen = Annotated[int, Field(ge=0, le=MAX_DRAFT_LEN)]
NGRAM_LIMIT = 64


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
    num_nodes: Annotated[int, Field(ge=1, le=MAX_TREE_NODES)] | None = Field(
        default=None,
        description="draft tokens verified a request and step: the likeliest nodes of all; "
        f"null: {DEFAULT_TREE_NODES}, or as near to it as top_k and depth allow",
    )


class Drafter(Section):
    """Who proposes draft tokens, and how many (K)."""

    shorthand = "name"
    # Another name leaves behind what it has no use for: specbench.scenario.drafter_use.
    kept = ("model", "draft_len", "tree", "runtime_draft_len", "max_ngram", "min_ngram")
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
