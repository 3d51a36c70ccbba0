"""``specbench check``: is this scenario right, and what would it do? Nothing is loaded and nothing runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from specbench.cli.tables import print_comment, print_json
from specbench.device.times import SIM
from specbench.engine.models.checkpoint import find_model
from specbench.engine.optimizations.defects import known_defects
from specbench.errors import InputError, ModelNotFoundError, ScenarioError
from specbench.registry import PRESETS
from specbench.report.defects import describe_defect
from specbench.report.words import draft_len_words, tree_words
from specbench.scenario.estimate import count_requests
from specbench.scenario.lengths import longest
from specbench.scenario.loader import ScenarioFile, open_scenario
from specbench.scenario.machine import available_memory_bytes
from specbench.scenario.memory import block_bytes
from specbench.scenario.overrides import Override
from specbench.scenario.plan import RunPlan
from specbench.scenario.planner import BASE, plan_run
from specbench.scenario.questions import count_points
from specbench.scenario.resolve import ResolvedScenario, model_spec, resolve, workload_settings
from specbench.scenario.schema import json_schema
from specbench.scenario.sweep import merged_points
from specbench.scenario.units import format_bytes
from specbench.scenario.variants import naming
from specbench.workloads import mt_bench

NO_SWEEP: dict[str, Any] = {"sweep_points": None, "sweep_notes": [], "sweep_problem": None}


def check_command(
    scenario: Annotated[str | None, typer.Argument(help="The scenario file.", show_default=False)] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key, as workload.concurrency=4. Repeatable."),
    ] = None,
    variant: Annotated[
        str | None, typer.Option(metavar="V", help="A variant of the scenario, off, on, or key=value,key=value.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of scenarios, for editors.")] = False,
) -> None:
    """Check a scenario and print it with every default written out, and what it would take to run it.

    The scenario as it stands is right when its variants and every point of its sweep are. With --set it is what `run`
    would take: a variant that is wrong on top of that is named, since `run`, `sweep` and `ab` refuse it when it is
    asked for, and so is a sweep.
    """
    if schema:
        print_json(json_schema())
        return
    if scenario is None:
        hint = "specbench check scenarios/quickstart.yaml"
        raise ScenarioError("no scenario is given", where="specbench check", hint=hint)
    file = open_scenario(scenario, overrides or [])
    resolved, variants = check_scenario(file, variant)
    plan = plan_run(resolved, variant or BASE)
    summary = summarize(resolved, plan, variants)
    # A variant may set what the sweep varies, and still be right for `run`, which has one point.
    summary |= check_sweep(file) if variant is None else NO_SWEEP | {"sweep_notes": merged_points(file)}
    # A --set asks for what it makes of the scenario itself.
    beside = {} if file.overrides else variants.right
    summary["known_defects"] = find_defects({variant or "": resolved, **beside})
    if json:
        print_json({"scenario": plan.scenario, "summary": summary, "plan_sha256": plan.sha256})
        return
    print(resolved.to_yaml())
    for line in summary["known_defects"]:
        print_comment(line)
    for name, line in describe(summary):
        print(f"# {name}: {line}")


@dataclass(frozen=True)
class Variants:
    """The variants that a scenario names: those that are right, resolved, and what is wrong with the others."""

    right: dict[str, ResolvedScenario] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)


def check_scenario(file: ScenarioFile, variant: str | None) -> tuple[ResolvedScenario, Variants]:
    """Resolve the scenario, and unless a variant narrows the question every variant that it names.

    :raises InputError: whatever is wrong; of a variant that ``--set`` does not touch, only where there is no ``--set``.
    """
    changed = file.with_variant(variant)
    with naming(variant):
        resolved = resolve(changed)
    variants = Variants()
    for name in file.base.variants if variant is None else ():
        try:
            changed = file.named_variant(name)
            with naming(name, "variant"):
                variants.right[name] = resolve(changed)
        except InputError as error:
            if _is_asked(file, "variants", name):
                raise
            variants.wrong[name] = _one_line(error).removeprefix(f"variant {name}: ")
    return resolved, variants


def check_sweep(file: ScenarioFile) -> dict[str, Any]:
    """What there is to say of the scenario's sweep.

    :raises InputError: it is wrong, and not by what ``--set`` changed elsewhere.
    """
    try:
        points, problem = count_points(file), None
    except InputError as error:
        if _is_asked(file, "sweep"):
            raise
        points, problem = None, _one_line(error)
    return {"sweep_points": points, "sweep_notes": merged_points(file), "sweep_problem": problem}


def _is_asked(file: ScenarioFile, *path: str) -> bool:
    """Whether a fault at ``path`` is the file's or of a ``--set`` there, not what one elsewhere made of it."""
    place = Override(path, None, "")
    return not file.overrides or any(override.meets(place) for override in file.overrides)


def _one_line(error: InputError) -> str:
    head = f"{error.where}: {error.what}" if error.where else error.what
    return " ".join(f"{head} (try: {error.hint})".split() if error.hint else head.split())


def find_defects(chosen: Mapping[str, ResolvedScenario]) -> list[str]:
    """A line for each known defect that the scenario, or one of its variants, chooses.

    :param chosen: by the variant that each was resolved with, empty for none.
    """
    places: dict[tuple[str, str], list[str]] = {}
    for name, resolved in chosen.items():
        for defect in known_defects(resolved.scenario.optimizations).items():
            places.setdefault(defect, []).append(name)
    return [describe_defect(*defect, names) for defect, names in places.items()]


def summarize(resolved: ResolvedScenario, plan: RunPlan, variants: Variants) -> dict[str, Any]:
    """What running it would take, as plain data. Sizes in bytes, lengths in tokens."""
    engine, model, scenario = resolved.engine, resolved.model, resolved.scenario
    requests = _requests(resolved)
    longest_output = longest(workload_settings(scenario).osl)
    windows = scenario.measure.windows
    block = block_bytes(model, engine.dtype, engine.tokens_per_block, resolved.draft)
    return {
        "model": scenario.model.source,
        "architecture": model.architecture,
        "parameters": model.num_parameters,
        "layers": model.num_layers,
        "weights": _weights(resolved),
        "device": engine.device,
        "dtype": engine.dtype,
        "weights_bytes": resolved.memory.weights_bytes,
        "draft_weights_bytes": resolved.memory.draft_weights_bytes,
        "kv_cache_bytes": resolved.memory.kv_cache_bytes,
        "state_bytes": resolved.memory.state_bytes,
        "workspace_bytes": resolved.memory.workspace_bytes,
        "available_bytes": available_memory_bytes(engine.device),
        "num_blocks": engine.num_blocks,
        "tokens_per_block": engine.tokens_per_block,
        "kv_bytes_per_token": block // engine.tokens_per_block,
        "draft_len": engine.drafter.max_draft_len,
        "runtime_draft_len": dict(engine.drafter.runtime_draft_len) or None,
        "tree": None if scenario.drafter.tree is None else scenario.drafter.tree.model_dump(),
        "drafter": engine.drafter.name,
        "draft_model": None if resolved.draft is None else resolved.draft.source,
        "draft_parameters": None if resolved.draft is None else resolved.draft.num_parameters,
        "concurrency": scenario.workload.concurrency,
        "trials": len(plan.trials),
        "warmup_requests": plan.warmup_requests,
        "requests_per_trial": requests,
        "max_output_tokens_per_trial": None if requests is None else requests * longest_output,
        "variants": list(variants.right),
        "wrong_variants": variants.wrong,
        "windows": None if windows is None else {"kv_len": list(windows.kv_len), "steps": windows.steps},
    }


def describe(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """The summary in sentences, (heading, line)."""
    size = {key: format_bytes(summary[key]) for key in summary if key.endswith("_bytes") and summary[key] is not None}
    requests, tokens = summary["requests_per_trial"], summary["max_output_tokens_per_trial"]
    work = "requests: known once the data is here" if requests is None else f"{requests} requests"
    most = "" if tokens is None else f", {tokens} output tokens at most"
    drafts = draft_len_words(summary["draft_len"], summary["runtime_draft_len"]) or "K = 0"
    drafts += f", {tree_words(summary['tree'])}" if summary["tree"] else ""
    lines = [
        (
            "model",
            f"{summary['model']}, {summary['architecture']}, {summary['parameters'] / 1e6:.1f}M parameters, "
            f"{summary['layers']} layers; weights: {summary['weights']}",
        ),
        ("memory", _memory_line(summary, size)),
        (
            "plan",
            f"{summary['trials']} trial(s), each {work} at concurrency {summary['concurrency']}, "
            f"{drafts}{most}; {summary['warmup_requests']} requests before, to warm up",
        ),
    ]
    if summary["draft_model"] is not None:
        size_words = f"{summary['draft_parameters'] / 1e6:.1f}M parameters"
        lines.insert(1, ("drafter", f"{summary['drafter']}: {summary['draft_model']}, {size_words}"))
    if summary["device"] == SIM:
        lines.insert(0, ("SIMULATED", "device times are declared (engine.sim), and nothing is computed"))
    windows = summary["windows"]
    if windows:
        contexts = ", ".join(f"{kv_len:,}" for kv_len in windows["kv_len"])
        lines.append(("windows", f"{windows['steps']} decode steps each from a synthetic cache of {contexts} tokens"))
    if (summary["sweep_points"] or 1) > (len(windows["kv_len"]) if windows else 1):
        notes = "".join(f"; {note}" for note in summary["sweep_notes"])
        lines.append(("sweep", f"{summary['sweep_points']} points, each is right as well; run leaves them out{notes}"))
    if summary["sweep_problem"]:
        lines.append(("sweep", f"{summary['sweep_problem']}; refused with this --set"))
    if summary["variants"]:
        lines.append(("variants", f"{', '.join(summary['variants'])}: each is right as well"))
    wrong = summary["wrong_variants"].items()
    return lines + [(f"variant {name}", f"{problem}; refused with this --set") for name, problem in wrong]


def _memory_line(summary: dict[str, Any], size: dict[str, str]) -> str:
    available = f"{size.get('available_bytes', 'unknown')} available on {summary['device']}"
    blocks = f"{summary['num_blocks']} blocks of {summary['tokens_per_block']} tokens"
    if summary["device"] == SIM:
        return f"no weights, no KV cache; the books of {blocks} take {size['kv_cache_bytes']}; {available}"
    state = f"recurrent state {size['state_bytes']}, " if summary["state_bytes"] else ""
    draft = f"draft weights {size['draft_weights_bytes']}, " if summary["draft_weights_bytes"] else ""
    return (
        f"weights {size['weights_bytes']}, {draft}KV cache {size['kv_cache_bytes']} ({blocks}, "
        f"{summary['kv_bytes_per_token'] / 1024:.1f} KiB a token), {state}"
        f"workspace {size['workspace_bytes']}; {available}"
    )


def _requests(resolved: ResolvedScenario) -> int | None:
    """Requests of one trial, or None while MT-Bench has not been pulled."""
    settings = workload_settings(resolved.scenario)
    if settings.kind == mt_bench.MtBench.kind and settings.path is None and not mt_bench.pulled_file().is_file():
        return None
    return count_requests(settings)


def _weights(resolved: ResolvedScenario) -> str:
    """Where the weights come from, without asking the network.

    :raises ModelNotFoundError: a directory without weights.
    """
    if resolved.engine.device == SIM:
        return "none are loaded"
    spec = model_spec(resolved.scenario)
    if spec.weights == "random":
        return f"random, seed {spec.seed}"
    if spec.source not in PRESETS:
        return find_model(spec).source if os.path.exists(os.path.expanduser(spec.source)) else "from the hub"
    try:
        return find_model(spec).source
    except ModelNotFoundError:
        return f"not on this machine (specbench pull {spec.source})"
