"""Keys that are wrong together, or that no registry knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.errors import InputError
from specbench.scenario import conflicts
from specbench.scenario.loader import load_scenario
from specbench.workloads.chat80 import DATA_FILE

Refusal = Callable[..., InputError]
Write = Callable[[str], Path]


@pytest.mark.parametrize(
    ("text", "key", "what"),
    [
        (
            "drafter: {name: ngran}",
            "drafter.name",
            "unknown drafter 'ngran'; allowed: draft_model, eagle3, mtp, ngram, none",
        ),
        ("workload: {kind: mtbench}", "workload.kind", "unknown workload 'mtbench'; allowed: chat80, mt_bench"),
        ("engine: {attention: paged}", "engine.attention", "unknown attention backend 'paged'; allowed: auto, cpu"),
        ("engine: {device: gpu}", "engine.device", "unknown device 'gpu'; allowed: auto, cpu, cuda"),
        ("drafter: {name: none, draft_len: 4}", "drafter.draft_len", "the drafter none proposes nothing, but K is 4"),
        (
            "drafter: {name: none, runtime_draft_len: {4: 2}}",
            "drafter.runtime_draft_len",
            "the drafter none proposes nothing, but K is 2",
        ),
        ("drafter: {name: ngram, runtime_draft_len: {}}", "drafter.runtime_draft_len", "is empty"),
        (
            "drafter: {name: ngram, draft_len: 3, runtime_draft_len: {4: 2}}",
            "drafter.draft_len",
            "has no effect: runtime_draft_len gives every K, 2 at most",
        ),
        ("drafter: {name: ngram, min_ngram: 4}", "drafter.min_ngram", "found 4; allowed: max_ngram (3) or less"),
        ("acceptance: strickt", "acceptance.mode", "'strickt' is no acceptance mode; available: strict, rejection"),
        (
            "acceptance: {mode: rejection, length: 2}",
            "acceptance.length",
            "has no effect under rejection acceptance",
        ),
        ("acceptance: {mode: replay, length: 2}", "acceptance.length", "has no effect under replay acceptance"),
        ("acceptance: {source: x}", "acceptance.source", "has no effect under strict acceptance"),
        ("acceptance: {mode: replay, source: x}", "acceptance.source", "no such folder: 'x'"),
        ("acceptance: {mode: replay, source: /}", "acceptance.source", "holds no requests.jsonl: '/'"),
        ("process: {python: /none}", "process.python", "is no program that can be run: '/none'"),
        ("process: {python: /}", "process.python", "is a folder: '/'"),
        ("process: {worktree: /none}", "process.worktree", "no such folder: '/none'"),
        ("process: {worktree: /}", "process.worktree", "holds no specbench: '/'"),
        ("process: {env: {A=B: x}}", "process.env", "the name of an environment variable has no ="),
        ("acceptance: {length: 2}", "acceptance.length", "has no effect under strict acceptance"),
        ("acceptance: forced", "acceptance.length", "is missing: forced acceptance needs it"),
        (
            "drafter: ngram\nacceptance: {mode: forced, length: 5.5}",
            "acceptance.length",
            "found 5.5; allowed: 1 to 5 (K + 1, K = 4)",
        ),
        ("acceptance: {mode: forced, length: 1.5}", "acceptance.length", "found 1.5; allowed: 1 to 1 (K + 1, K = 0)"),
        (
            "drafter: ngram\nacceptance: {mode: forced, length: [0.5, 0.5]}",
            "acceptance.length",
            "found 2 rates; allowed: one for each of 4 draft positions",
        ),
        ("workload: {isl: 5}", "workload.isl", "chat80 has prompts of its own lengths"),
        ("workload: {kind: prompts}", "workload.path", "is missing: the workload prompts reads a JSONL file"),
        ("workload: {kind: prompts, path: no.jsonl}", "workload.path", "no such file: 'no.jsonl'"),
        ("workload: {kind: prompts, path: /}", "workload.path", "is a folder: '/'"),
        ("workload: {kind: chat80, path: x}", "workload.path", "has no effect on chat80"),
        ("workload: {categories: [maths]}", "workload.categories[0]", "unknown category 'maths'; allowed: coding"),
        ("workload: {categories: []}", "workload.categories", "is empty"),
        ("workload: {kind: random_tokens, path: x}", "workload.path", "has no effect on random_tokens"),
        ("workload: {kind: random_tokens, categories: [x]}", "workload.categories", "has no effect on random_tokens"),
        ("workload: {kind: random_tokens, turns: 2}", "workload.turns", "has no effect on random_tokens"),
        ("workload: {kind: random_tokens, shuffle: true}", "workload.shuffle", "has no effect on random_tokens"),
        ("workload: {kind: random_tokens, system_prompt: x}", "workload.system_prompt", "has no effect on random"),
        ("workload: {kind: random_tokens, num_requests: all}", "workload.num_requests", "random_tokens has no end"),
        (
            "workload: {concurrency: 9}\nengine: {max_batch_size: 4}",
            "workload.concurrency",
            "9 requests at once are over engine.max_batch_size, 4",
        ),
        ("engine: {kv_cache: 1GiB, num_blocks: 5}", "engine.num_blocks", "kv_cache sets the same thing"),
        (
            "drafter: ngram\nworkload: {concurrency: 10}\nengine: {max_num_tokens: 49}",
            "engine.max_num_tokens",
            "49 token rows a step do not hold a full batch, max_batch_size * (K + 1) = 50",
        ),
        ("sweep: {concurrency: [1, 0]}", "sweep.concurrency[1]", "found 0; allowed: 1 or more"),
        ("sweep: {draft_len: [1, 99]}", "sweep.draft_len[1]", "found 99; allowed: 16 or less"),
        (
            "sweep: {grid: {workload.osl: [x]}}",
            "sweep.grid.workload.osl[0]",
            "found 'x' (text); allowed: a whole number",
        ),
        ("sweep: {grid: {workload.os: [1]}}", "sweep.grid.workload.os", "is no scenario key that can be swept"),
        (
            "sweep: {zip: {workload.osl: [1, 2], workload.seed: [1]}}",
            "sweep.zip",
            "lists of unequal length (workload.osl: 2, workload.seed: 1)",
        ),
        (
            "sweep: {grid: {measure.margin: ['1%']}}",
            "sweep.grid.measure.margin",
            "is no scenario key that can be swept",
        ),
        ("sweep: {grid: {process.python: [x]}}", "sweep.grid.process.python", "is no scenario key that can be swept"),
        (
            "sweep: {osl: [1, 2], grid: {workload.osl: [3]}}",
            "sweep.grid.workload.osl",
            "sweep.osl sweeps workload.osl as well",
        ),
        (
            "sweep: {grid: {workload.osl: [3]}, zip: {workload.osl: [4]}}",
            "sweep.zip.workload.osl",
            "sweep.grid.workload.osl sweeps workload.osl as well",
        ),
        ("sweep: {osl: [2, 1, 2]}", "sweep.osl", "holds a value twice"),
        ("sweep: {osl: []}", "sweep.osl", "found a list, []; allowed: a list of values to try"),
        ("sweep: {grid: {variant: [plain]}}", "sweep.grid.variant[0]", "'plain' (text): no such variant"),
        ("sweep: {zip: {variant: [4]}}", "sweep.zip.variant[0]", "found 4; allowed: a variant"),
        (
            "sweep: {grid: {optimizations.sampling_params: [refil]}}",
            "sweep.grid.optimizations.sampling_params[0]",
            "found 'refil' (text); allowed: refill, signature",
        ),
        ("sweep: {grid: {optimizations.x: [y]}}", "sweep.grid.optimizations.x", "is no scenario key that can be"),
    ],
)
def test_each_conflict_names_its_key_and_the_values(refusal: Refusal, text: str, key: str, what: str) -> None:
    error = refusal(text)
    assert error.where is not None
    assert error.where.rsplit(": ", 1)[-1] == key
    assert error.what.startswith(what)


@pytest.mark.parametrize(
    "text",
    [
        "drafter: {name: ngram, draft_len: 0}",
        "drafter: {name: ngram, draft_len: 16}",
        "drafter: {name: ngram, draft_len: 6, runtime_draft_len: {4: 6, 8: 2}}",
        "drafter: ngram\nacceptance: {mode: forced, length: 5}",
        "drafter: {name: ngram, draft_len: 2}\nacceptance: {mode: forced, length: [0.5, 0.5, 0.1]}",
        "acceptance: {mode: forced, length: 1}",
        "workload: {concurrency: 10}\nengine: {max_batch_size: 10, max_num_tokens: 10}",
        "workload: {categories: [math], turns: 1, shuffle: true, system_prompt: ''}",
        "workload: {kind: random_tokens, isl: [1, 9], osl: 1, shuffle: false}",
        "sweep: {concurrency: 4, grid: {sampling.top_k: [1, 5]}, zip: {workload.isl: [1], workload.osl: [2]}}",
    ],
)
def test_the_edge_of_what_goes_together_is_accepted(write: Write, text: str) -> None:
    load_scenario(write(text))


def test_conflicts_come_together(refusal: Refusal) -> None:
    error = refusal("drafter: ngran\nacceptance: rejectoin\nworkload: {isl: 3}\nengine: {device: gpu}\n")
    keys = [line.split(": ")[1] for line in str(error).splitlines()[1:]]
    assert sorted(keys) == ["acceptance.mode", "drafter.name", "engine.device", "workload.isl"]


def test_categories_are_those_of_the_shipped_prompts() -> None:
    rows = [json.loads(line) for line in DATA_FILE.read_text(encoding="utf-8").splitlines()]
    assert {row["category"] for row in rows} == set(conflicts.CATEGORIES)


def test_the_attention_of_the_cpu_is_refused_on_cuda(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "cuda_problem", lambda: None)
    error = refusal("engine: {device: cuda, attention: cpu-paged}")
    assert error.what == "cpu-paged runs on the cpu only"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("drafter: {name: ngram, min_ngram: 5}", "drafter.max_ngram: 5 or more, or a lower min_ngram"),
        ("drafter: ngram\nacceptance: {mode: forced, length: [0.5]}", "3 rates more, or a K of 1, or a mean"),
        ("drafter: none\nacceptance: {mode: forced, length: 2}", "length: 1.0, or a drafter"),
        ("drafter: ngram\nacceptance: {mode: forced, length: 9}", "a shorter length, or a larger K"),
        ("drafter: {name: eagle3, max_ngram: 5}", "drop it, or drafter.name: ngram"),
    ],
)
def test_a_conflict_of_drafts_says_what_to_try(refusal: Refusal, text: str, hint: str) -> None:
    assert refusal(text).hint == hint
