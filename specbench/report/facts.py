"""What was measured and on what, in a few lines: model, workload, engine, environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from specbench.records import Analysis, Difference, Point
from specbench.report.words import draft_len_words, lookup_words, plural, setting_words, tree_words

CHECKOUT = "process.worktree"
Pairs = tuple[tuple[str, str], ...]


def run_facts(analysis: Analysis) -> Pairs:
    """The set-up of a run, as its first point saw it."""
    point = analysis.points[0]
    draft = _join(draft_len_words(point.draft_len, point.runtime_draft_len), tree_words(point.tree))
    facts = [
        ("model", _model(point.model, analysis.subject)),
        ("drafter", _join(drafter_words(point), draft, f"{point.acceptance} acceptance")),
        ("workload", _join(point.workload, _lengths(point), f"concurrency {point.concurrency}")),
        ("engine", _engine(analysis.subject)),
        ("variant", point.variant),
        ("measured", _measured(point)),
        ("warm-up", _warmup(analysis)),
        ("content", analysis.label),
    ]
    return tuple((name, text) for name, text in facts if text)


def setup_facts(analysis: Analysis) -> Pairs:
    """What all points or arms of a sweep or a comparison have in common; what differs is not in it."""
    varied = _varied_keys(analysis)
    facts = [
        ("model", "" if _varies("model", varied) else _model(*_model_of(analysis))),
        ("drafter", _drafter(analysis, varied)),
        ("workload", _workload(analysis.scenario.get("workload") or {}, varied)),
        ("engine", _engine(analysis.subject, varied)),
        ("warm-up", _warmup(analysis) if analysis.warmup else ""),
        ("content", analysis.label),
        ("started", analysis.started_utc or ""),
    ]
    return tuple((name, text) for name, text in facts if text)


def simulated_alerts(analysis: Analysis) -> tuple[str, ...]:
    """That device times are declared, and which they are; nothing of a device that computes."""
    engine = analysis.subject.get("engine") or {}
    times = engine.get("device_times")
    if times is None:
        return ()
    declared = analysis.scenario.get("engine") or {}
    preset = declared.get("sim") if isinstance(declared, Mapping) else None
    name = f"{preset}: " if isinstance(preset, str) and not _varies("engine.sim", _varied_keys(analysis)) else ""
    numbers = ", ".join(f"{key} {value:g}" for key, value in times.items())
    return (f"SIMULATED: no device was measured and no token computed; its times are declared ({name}{numbers})",)


def name_checkouts(analysis: Analysis) -> Analysis:
    """Arms that ran another checkout, named by its folder alone (the commit, for ``--baseline-ref``), not by where it
    lies on the machine, with its revision where the analysis knows it; what ran the installed specbench, by that one's.
    """
    process = analysis.subject.get("process") or {}
    known = {str(PurePath(process.get("imported_from") or "").parent): _specbench(process)}
    here = _specbench(analysis.environment)

    def name(place: Any) -> Any:
        if isinstance(place, str):
            return _join(PurePath(place).name, known.get(place))
        return f"none: {here}" if here else place

    def rename(item: Difference) -> Difference:
        is_checkout = item.key == CHECKOUT
        return replace(item, baseline=name(item.baseline), candidate=name(item.candidate)) if is_checkout else item

    compared = [replace(item, differences=[rename(one) for one in item.differences]) for item in analysis.comparisons]
    return replace(analysis, comparisons=compared)


def _specbench(environment: Mapping[str, Any]) -> str:
    """``0.1.0, git 0123456789ab with changes``: the specbench that ran the command."""
    git = environment.get("git") or {}
    revision, dirty = git.get("revision"), " with changes" if git.get("dirty") else ""
    return _join(environment.get("specbench"), f"git {revision[:12]}{dirty}" if revision else None)


def _varied_keys(analysis: Analysis) -> frozenset[str]:
    keys = [key for point in analysis.points for key in point.axes]
    for comparison in analysis.comparisons:
        keys += [*comparison.point, *(difference.key for difference in comparison.differences)]
    return frozenset(keys)


def _varies(key: str, varied: frozenset[str]) -> bool:
    return any(name == key or name.startswith(f"{key}.") or key.startswith(f"{name}.") for name in varied)


def _model_of(analysis: Analysis) -> tuple[str, Mapping[str, Any]]:
    model = analysis.scenario.get("model")
    source = model.get("source") if isinstance(model, dict) else model
    return str(source or ""), analysis.subject


def drafter_words(point: Point) -> str:
    """``eagle3, smollm2-135m-eagle3``: the drafter, its head or model, and what it looks up."""
    return _join(point.drafter, point.draft_model, lookup_words(point.min_ngram, point.max_ngram))


def _drafter(analysis: Analysis, varied: frozenset[str]) -> str:
    """What the points draft with in common; of several drafters, each that has more to it than its name."""
    told = {_join(drafter_words(point), tree_words(point.tree)): point.drafter for point in analysis.points}
    several = "; ".join(words for words, name in told.items() if words != name)
    drafter = analysis.scenario.get("drafter") or {}
    if not isinstance(drafter, dict) or _varies("drafter.name", varied):
        return several
    return "; ".join((_common_drafter(analysis, drafter, varied), *([several] if several and len(told) > 1 else [])))


def _common_drafter(analysis: Analysis, drafter: Mapping[str, Any], varied: frozenset[str]) -> str:
    scenario = analysis.scenario
    acceptance = scenario.get("acceptance") or {}
    is_varied = _varies("drafter.draft_len", varied) or _varies("drafter.runtime_draft_len", varied)
    shown_len = "" if is_varied else draft_len_words(drafter.get("draft_len"), _runtime_draft_len(scenario))
    tree = drafter.get("tree")
    if isinstance(tree, dict) and not _varies("drafter.tree", varied):
        shown_len = _join(shown_len, tree_words(tree))
    mode = acceptance.get("mode") if isinstance(acceptance, dict) and not _varies("acceptance", varied) else None
    model = "" if _varies("drafter.model", varied) else _common(analysis, "draft_model") or drafter.get("model")
    lookup = lookup_words(_common(analysis, "min_ngram"), _common(analysis, "max_ngram"))
    return _join(drafter.get("name"), model, lookup, shown_len, f"{mode} acceptance" if mode else "")


def _common(analysis: Analysis, name: str) -> Any:
    """What all points have; None where they differ."""
    values = {getattr(point, name) for point in analysis.points}
    return values.pop() if len(values) == 1 else None


def _runtime_draft_len(scenario: Mapping[str, Any]) -> Mapping[Any, int] | None:
    drafter = scenario.get("drafter")
    return drafter.get("runtime_draft_len") if isinstance(drafter, dict) else None


def _workload(workload: Any, varied: frozenset[str]) -> str:
    if not isinstance(workload, dict):
        return str(workload)
    shown = [str(workload.get("kind") or "")]
    for key, name in (("isl", "ISL"), ("osl", "OSL cap"), ("num_requests", "requests"), ("concurrency", "concurrency")):
        value = workload.get(key)
        if value is not None and not _varies(f"workload.{key}", varied):
            shown.append(f"{name} {setting_words(value)}")
    return _join(*shown)


def _model(name: str, subject: Mapping[str, Any]) -> str:
    size = subject.get("num_parameters")
    random = "seeded random weights" if subject.get("weights") == "random" else None
    source = str(subject.get("model") or "") if random is None else ""
    shown = source if source.startswith(name) else _join(name, source)
    return _join(shown, f"{_count(size)} parameters" if size else None, random)


def _count(number: float) -> str:
    """``135M``, ``8.0B``, ``120k``: two or three figures."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f}{unit}" if number < 10 * size else f"{number / size:.0f}{unit}"
    return f"{number:.0f}"


def _join(*parts: Any) -> str:
    return ", ".join(str(part) for part in parts if part)


def _engine(subject: Mapping[str, Any], varied: frozenset[str] = frozenset()) -> str:
    engine = subject.get("engine") or {}
    shown = {key: engine.get(key) for key in ("device", "dtype", "attention")}
    overlap = _overlap(subject)
    if overlap is not None and not _varies("optimizations.overlap", varied):
        shown["overlap"] = f"overlap {overlap}"
    kept = {key: text for key, text in shown.items() if not _varies(f"engine.{key}", varied)}
    if not _varies("optimizations.graphs", varied):
        kept["graphs"] = _graphs(subject)
    return _join(*(kept.get(key) for key in ("device", "dtype", "overlap", "graphs", "attention")))


def _graphs(subject: Mapping[str, Any]) -> str | None:
    """``captured steps`` where decode steps are captured and replayed, and for which batch sizes: an engine captures
    those that its points may have, and several engines together those of all of them.
    """
    toggle = (subject.get("toggles") or {}).get("graphs")
    if toggle is None:
        return None
    if toggle["variant"] != "captured":
        return "eager steps"
    by_point = subject.get("captured_batch_sizes") or {}
    sets = ((subject.get("captured_steps") or {}).get("sets") or {}).values()
    groups = by_point.values() if by_point else (captured["batch_sizes"] for captured in sets)
    sizes = sorted({size for group in groups for size in group})
    whose = ", over all points" if by_point else ""
    return f"captured steps (batch {', '.join(map(str, sizes))}{whose})" if sizes else "captured steps"


def _overlap(subject: Mapping[str, Any]) -> str | None:
    """The variant that stood; of older results, what the engine was configured for."""
    toggle = (subject.get("toggles") or {}).get("overlap")
    if toggle is not None:
        return str(toggle["variant"])
    configured = (subject.get("engine") or {}).get("overlap")
    return None if configured is None else ("on" if configured else "off")


def _lengths(point: Point) -> str:
    isl = point.isl if point.isl is not None else point.mean_isl
    osl = point.mean_osl
    mean_in = "ISL" if point.isl is not None else "mean ISL"
    texts = [f"{mean_in} {isl:,.0f}"] if isl is not None else []
    texts += [f"mean OSL {osl:,.0f}"] if osl is not None else []
    return ", ".join(texts)


def _measured(point: Point) -> str:
    trials = f"{point.trials:,} trials, " if point.trials > 1 else ""
    counts = ", ".join(
        plural(count, noun)
        for count, noun in ((point.requests, "request"), (point.committed_tokens, "token"), (point.steps, "step"))
    )
    pace = "" if point.requests_per_s is None else f", {point.requests_per_s * 60:.1f} requests a minute"
    return f"{trials}{counts} in {point.wall_s:.1f} s{pace}"


def _warmup(analysis: Analysis) -> str:
    warmup = analysis.warmup
    if warmup is None:
        return "none"
    done = f"{plural(warmup.requests, 'request')}, {plural(warmup.tokens, 'token')}"
    return f"{done} in {warmup.seconds:.1f} s, in no figure"


def summarize_environment(environment: Mapping[str, Any]) -> Pairs:
    """The environment in a few lines; what is unknown is left out."""
    cpu, torch = (environment.get(key) or {} for key in ("cpu", "torch"))
    cores = f"{cpu['usable_cores']} cores" if cpu.get("usable_cores") else None
    memory = environment.get("memory_bytes")
    threads = f"{torch['threads']} threads" if torch.get("threads") else None
    packages = environment.get("packages") or {}
    lines = [
        ("CPU", _join(cpu.get("model"), cores, " ".join(cpu.get("flags") or ()))),
        ("memory", f"{memory / 2**30:.1f} GiB" if memory else ""),
        ("GPU", "; ".join(_join(*gpu.values()) for gpu in environment.get("gpus") or ())),
        ("OS", _join(environment.get("os"), environment.get("libc"))),
        ("Python", environment.get("python") or ""),
        ("torch", _join(torch.get("version") or packages.get("torch"), threads)),
        ("specbench", _specbench(environment)),
        ("governor", environment.get("governor") or ""),
        ("load before", ", ".join(f"{load:g}" for load in environment.get("load_average") or ())),
    ]
    return tuple((name, text) for name, text in lines if text)
