"""Keys that are well formed each, but wrong together or unknown to the registries. Needs no model and no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator

from specbench.engine.config import REJECTION
from specbench.errors import DeviceUnavailableError, WorkloadError, nearest_hint
from specbench.registry import ATTENTION, DEVICES, WORKLOADS
from specbench.scenario.draft_models import find_model_conflicts, find_name_conflicts
from specbench.scenario.draft_trees import find_tree_conflicts, rows_of
from specbench.scenario.drafter_use import LOOKUP_KEYS, has_use
from specbench.scenario.machine import cuda_problem
from specbench.scenario.masking import is_secret
from specbench.scenario.places import Issue, describe_value, shorten
from specbench.scenario.schema import Drafter, Scenario
from specbench.scenario.sim_conflicts import find_sim_conflicts
from specbench.scenario.sweep_conflicts import find_sweep_conflicts
from specbench.scenario.toggle_conflicts import find_toggle_conflicts
from specbench.scenario.variants import OFF, ON
from specbench.scenario.window_conflicts import find_window_conflicts
from specbench.scenario.yaml12 import KeyPath

REPLAY = "replay"
ACCEPTANCE_MODES = {
    "strict": "draft tokens that the target itself would choose",
    REJECTION: "by rejection sampling, which keeps the target's distribution",
    "forced": "a number that acceptance.length gives, whatever the tokens",
    REPLAY: "as many as a run recorded: acceptance.source",
}
CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""Of MT-Bench, and so of chat80."""
SYNTHETIC = "random_tokens"
RECORDED = "requests.jsonl"
"""File of a results folder that holds accepted lengths."""
DEFAULT_DRAFT_LEN = 4


def find_conflicts(scenario: Scenario) -> list[Issue]:
    """Every conflict in ``scenario``, in the order of its keys."""
    checks = (
        _names,
        _drafter,
        _acceptance,
        find_tree_conflicts,
        _process,
        _workload,
        _engine,
        find_sim_conflicts,
        find_window_conflicts,
        find_toggle_conflicts,
        _variants,
        find_sweep_conflicts,
    )
    return [issue for check in checks for issue in check(scenario)]


def draft_len_of(scenario: Scenario) -> int:
    """The largest K any step can use, defaults applied."""
    drafter = scenario.drafter
    if drafter.runtime_draft_len:
        return max(drafter.runtime_draft_len.values())
    if drafter.draft_len is not None:
        return drafter.draft_len
    if drafter.tree is not None:
        return drafter.tree.depth
    return 0 if drafter.name == "none" else DEFAULT_DRAFT_LEN


def _names(scenario: Scenario) -> Iterator[Issue]:
    yield from find_name_conflicts(scenario.drafter)
    if scenario.workload.kind not in WORKLOADS:
        yield Issue.unknown(("workload", "kind"), "workload", scenario.workload.kind, WORKLOADS)
    engine = scenario.engine
    if engine.attention not in (*ATTENTION, "auto"):
        yield Issue.unknown(("engine", "attention"), "attention backend", engine.attention, ATTENTION, ("auto",))
    if engine.device not in (*DEVICES, "auto"):
        yield Issue.unknown(("engine", "device"), "device", engine.device, DEVICES, ("auto",))


def _drafter(scenario: Scenario) -> Iterator[Issue]:
    drafter, table = scenario.drafter, scenario.drafter.runtime_draft_len
    largest = draft_len_of(scenario)
    if table is not None and not table:
        yield Issue(("drafter", "runtime_draft_len"), "is empty; allowed: {largest batch size: K}, or null")
    if drafter.name == "none" and largest > 0:
        key = "runtime_draft_len" if table else "draft_len"
        yield Issue(
            ("drafter", key),
            f"the drafter none proposes nothing, but K is {largest}",
            "drafter: none, or drafter: ngram",
        )
    if table and drafter.draft_len is not None and drafter.draft_len != largest:
        yield Issue(
            ("drafter", "draft_len"),
            f"has no effect: runtime_draft_len gives every K, {largest} at most",
            "drop one of the two",
        )
    if drafter.min_ngram > drafter.max_ngram:
        yield Issue(
            ("drafter", "min_ngram"),
            f"found {drafter.min_ngram}; allowed: max_ngram ({drafter.max_ngram}) or less",
            f"drafter.max_ngram: {drafter.min_ngram} or more, or a lower min_ngram",
        )
    for key in LOOKUP_KEYS:
        if getattr(drafter, key) != Drafter.model_fields[key].default and not has_use(drafter.name, key):
            what = f"has no effect: the drafter {drafter.name} looks nothing up"
            yield Issue(("drafter", key), what, "drop it, or drafter.name: ngram")
    yield from find_model_conflicts(drafter)


def _acceptance(scenario: Scenario) -> Iterator[Issue]:
    acceptance, most = scenario.acceptance, draft_len_of(scenario)
    path: KeyPath = ("acceptance", "mode")
    if acceptance.mode not in ACCEPTANCE_MODES:
        yield Issue(
            path,
            f"{shorten(repr(acceptance.mode))} is no acceptance mode; available: {', '.join(ACCEPTANCE_MODES)}",
            nearest_hint(acceptance.mode, ACCEPTANCE_MODES),
        )
        return
    if acceptance.source is not None:
        yield from _acceptance_source(acceptance.mode, acceptance.source)
    path = ("acceptance", "length")
    length = acceptance.length
    if acceptance.mode != "forced":
        if length is not None:
            what = f"has no effect under {acceptance.mode} acceptance"
            yield Issue(path, what, "set acceptance.mode to forced, or drop it")
    elif length is None:
        yield Issue(path, "is missing: forced acceptance needs it", "a mean such as 2.4, or rates such as [0.8, 0.6]")
    elif isinstance(length, tuple) and len(length) < most:
        what = f"found {len(length)} rates; allowed: one for each of {most} draft positions (K), or more"
        yield Issue(path, what, f"{most - len(length)} rates more, or a K of {len(length)}, or a mean")
    elif isinstance(length, (int, float)) and length > most + 1:
        hint = "length: 1.0, or a drafter" if scenario.drafter.name == "none" else "a shorter length, or a larger K"
        yield Issue(path, f"found {length}; allowed: 1 to {most + 1} (K + 1, K = {most})", hint)


def _acceptance_source(mode: str, source: str) -> Iterator[Issue]:
    path: KeyPath = ("acceptance", "source")
    if mode != REPLAY:
        yield Issue(path, f"has no effect under {mode} acceptance", "set acceptance.mode to replay, or drop it")
    elif not os.path.isfile(os.path.join(os.path.expanduser(source), RECORDED)):
        problem = f"holds no {RECORDED}" if os.path.isdir(os.path.expanduser(source)) else "no such folder"
        what = f"{problem}: {describe_value(source)}"
        yield Issue(path, what, "a results folder of specbench run, sweep or ab")


def _process(scenario: Scenario) -> Iterator[Issue]:
    process = scenario.process
    if process is None:
        return
    python, worktree = process.python, process.worktree
    if python is not None and not os.access(os.path.expanduser(python), os.X_OK):
        yield Issue(("process", "python"), f"is no program that can be run: {describe_value(python)}")
    elif python is not None and os.path.isdir(os.path.expanduser(python)):
        yield Issue(("process", "python"), f"is a folder: {describe_value(python)}", f"{python}/bin/python")
    if worktree is not None and not os.path.isdir(os.path.join(os.path.expanduser(worktree), "specbench")):
        problem = "holds no specbench" if os.path.isdir(os.path.expanduser(worktree)) else "no such folder"
        yield Issue(("process", "worktree"), f"{problem}: {describe_value(worktree)}", "the root of a checkout")
    for name, value in process.env.items():
        # What the operating system refuses: better here than when the process is started.
        if "=" in name or "\0" in name + value:
            what = f"the name of an environment variable has no =, and neither name nor value a NUL: {name!r}"
            yield Issue(("process", "env"), what)
        if is_secret(name, value):
            what = f"{name} looks like a secret, and results say in which variables arms differ"
            yield Issue(("process", "env"), what, f"export {name} before: every arm inherits it")


def _workload(scenario: Scenario) -> Iterator[Issue]:
    workload, kind = scenario.workload, scenario.workload.kind
    if kind not in WORKLOADS:
        return
    synthetic = kind == SYNTHETIC
    text_only = {key: getattr(workload, key) for key in ("path", "categories", "turns", "system_prompt")}
    text_only["shuffle"] = workload.shuffle or None
    if synthetic:
        for key, value in text_only.items():
            if value is not None:
                yield Issue(("workload", key), f"has no effect on {SYNTHETIC}, which has no text", "drop it")
        if workload.num_requests == "all":
            yield Issue(("workload", "num_requests"), f"{SYNTHETIC} has no end; allowed: a count")
    elif workload.isl is not None:
        yield Issue(
            ("workload", "isl"),
            f"{kind} has prompts of its own lengths",
            f"drop it, or set workload.kind to {SYNTHETIC}",
        )
    yield from _workload_file(scenario)
    if workload.categories is not None and kind in ("chat80", "mt_bench"):
        for index, name in enumerate(workload.categories):
            if name not in CATEGORIES:
                yield Issue.unknown(("workload", "categories", index), "category", name, CATEGORIES)
    if workload.categories == ():
        yield Issue(("workload", "categories"), "is empty; allowed: one category or more, or null for all")


def _workload_file(scenario: Scenario) -> Iterator[Issue]:
    path, kind = scenario.workload.path, scenario.workload.kind
    if kind == "prompts" and path is None:
        yield Issue(("workload", "path"), "is missing: the workload prompts reads a JSONL file")
    if kind == "chat80" and path is not None:
        yield Issue(
            ("workload", "path"),
            "has no effect on chat80, which is shipped",
            "drop it, or set workload.kind to prompts",
        )
    elif path is not None and kind != SYNTHETIC and not os.path.isfile(path):
        problem = "is a folder" if os.path.isdir(path) else "no such file"
        yield Issue(("workload", "path"), f"{problem}: {describe_value(path)}", error=WorkloadError)


def _engine(scenario: Scenario) -> Iterator[Issue]:
    engine, concurrency = scenario.engine, scenario.workload.concurrency
    if engine.max_batch_size is not None and concurrency > engine.max_batch_size:
        yield Issue(
            ("workload", "concurrency"),
            f"{concurrency} requests at once are over engine.max_batch_size, {engine.max_batch_size}",
            f"set engine.max_batch_size to {concurrency} or more",
        )
    if engine.kv_cache is not None and engine.num_blocks is not None:
        yield Issue(("engine", "num_blocks"), "kv_cache sets the same thing", "drop one of the two")
    rows = (engine.max_batch_size or concurrency) * rows_of(scenario.drafter, draft_len_of(scenario))
    if engine.max_num_tokens is not None and engine.max_num_tokens < rows:
        drafts = "K" if scenario.drafter.tree is None else "num_nodes"
        yield Issue(
            ("engine", "max_num_tokens"),
            f"{engine.max_num_tokens} token rows a step do not hold a full batch, "
            f"max_batch_size * ({drafts} + 1) = {rows}",
            f"set it to {rows} or more, or to null",
        )
    if engine.device == "cuda" and (problem := cuda_problem()) is not None:
        yield Issue(("engine", "device"), problem, "engine.device: cpu", DeviceUnavailableError)
    if engine.attention == "cpu-paged" and engine.device == "cuda":
        yield Issue(("engine", "attention"), "cpu-paged runs on the cpu only", "engine.attention: auto")


def _variants(scenario: Scenario) -> Iterator[Issue]:
    for name in scenario.variants:
        if name in (OFF, ON):
            yield Issue(("variants", name), f"{OFF} and {ON} are taken: they switch the toggles of study")
