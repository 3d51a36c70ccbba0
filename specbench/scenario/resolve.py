"""Scenario -> the same scenario with every default written out, and the engine configuration it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from specbench.device.times import SIM, DeviceTimes, TimesPreset
from specbench.engine.config import RANDOM_PREFIX, AcceptanceSpec, EngineConfig, ModelSpec
from specbench.engine.drafters.declaration import DraftWeights
from specbench.engine.models.checkpoint import resolve_model_config
from specbench.engine.models.config import ModelConfig
from specbench.errors import InputError
from specbench.registry import PRESETS, SIM_PRESETS
from specbench.scenario.applicable import default_study
from specbench.scenario.conflicts import SYNTHETIC, draft_len_of
from specbench.scenario.draft_models import drafter_spec, find_draft_weights, positions_of
from specbench.scenario.draft_trees import rows_of, written_tree
from specbench.scenario.lengths import DEFAULT_LEN, default_seq_len, find_length_issues, length_limit
from specbench.scenario.machine import available_memory_bytes, settle_device
from specbench.scenario.measure_schema import Measure
from specbench.scenario.memory import MemoryNeed, block_bytes, memory_need, require_memory
from specbench.scenario.places import Issue, raise_issues
from specbench.scenario.schema import Acceptance, Engine, Scenario, Workload
from specbench.scenario.section import Section
from specbench.scenario.toggle_conflicts import complete_optimizations
from specbench.scenario.units import parse_size
from specbench.scenario.windows import most_output_tokens, needed_seq_len
from specbench.scenario.yaml12 import dump_yaml, to_plain
from specbench.workloads.base import WorkloadSettings

DEFAULT_NUM_REQUESTS = 16
DEFAULT_NUM_TOKENS = {"cpu": 512, "cuda": 2048}
"""Rows of a step by device. On a CPU wider steps gain nothing, and their activations take memory: 60 MiB more at 2048
rows of SmolLM2-135M (benchmarks/startup.py)."""
DEFAULT_WARMUP_REQUESTS = 2

_S = TypeVar("_S", bound=Section)


@dataclass(frozen=True)
class ResolvedScenario:
    """What will run. ``scenario`` has no default left open; ``engine`` is what the engine is built from.

    :param draft: what the drafter keeps; None for one without weights, and where nothing is computed.
    """

    scenario: Scenario
    model: ModelConfig
    engine: EngineConfig
    memory: MemoryNeed
    draft: DraftWeights | None = None

    def to_yaml(self) -> str:
        """The text of ``scenario.yaml`` in a results folder; loading it gives the same scenario."""
        return dump_yaml(to_plain(self.scenario.model_dump()))


def model_spec(scenario: Scenario) -> ModelSpec:
    """Which weights ``scenario`` names, the ``random:`` shorthand taken apart."""
    model = scenario.model
    is_random = model.source.startswith(RANDOM_PREFIX)
    source = model.source.removeprefix(RANDOM_PREFIX)
    if not source:
        raise_issues([Issue.at("model.source", "a preset is missing after random:")], scenario.places, "model.source")
    # Presets that nobody published weights for: said in the result, not only known to the loader.
    is_random |= source in PRESETS and not PRESETS.load(source).has_weights
    return ModelSpec(source, "random" if is_random else model.weights, model.seed, model.revision)


def resolve(
    scenario: Scenario,
    model: ModelConfig | None = None,
    *,
    available_memory: Callable[[str], int | None] = available_memory_bytes,
) -> ResolvedScenario:
    """Write out every default and build the engine configuration.

    :param model: shape of the model; None: read it for :func:`model_spec` (no weights, no torch).
    :param available_memory: free bytes of a device by name, None where unknown.
    :raises ScenarioError: lengths or sizes that do not go together.
    :raises CapacityError: it does not fit in memory.
    :raises ModelNotFoundError: no such model or draft head here.
    :raises CheckpointError: a draft head that is unreadable, or made for another model.
    """
    spec = model_spec(scenario)
    model = model or resolve_model_config(spec)
    complete = _write_defaults(scenario, spec, model)
    raise_issues(find_length_issues(complete, model), scenario.places, str(scenario.places.root))
    draft = find_draft_weights(complete.drafter, spec, model, complete.engine, scenario.places)
    complete = _write_num_blocks(complete, model, draft)
    engine = build_engine_config(complete)
    need = memory_need(engine, model, draft)
    require_memory(need, engine, available_memory(engine.device))
    return ResolvedScenario(complete, model, engine, need, draft)


def build_engine_config(scenario: Scenario) -> EngineConfig:
    """The engine configuration of a scenario that :func:`resolve` has completed."""
    engine = scenario.engine
    if engine.max_seq_len is None or engine.max_batch_size is None or engine.num_blocks is None:
        raise InputError("the scenario is not resolved", where="engine")
    return EngineConfig(
        model=model_spec(scenario),
        device=engine.device,
        max_seq_len=engine.max_seq_len,
        max_batch_size=engine.max_batch_size,
        num_blocks=engine.num_blocks,
        dtype=engine.dtype,
        tokens_per_block=engine.tokens_per_block,
        max_num_tokens=engine.max_num_tokens or EngineConfig.max_num_tokens,
        attention=engine.attention,
        num_threads=engine.num_threads,
        drafter=drafter_spec(scenario.drafter),
        acceptance=_acceptance_spec(scenario.acceptance),
        optimizations=tuple(sorted(scenario.optimizations.items())),
        device_times=_device_times(engine.sim),
    )


def _device_times(sim: str | dict[str, float] | None) -> DeviceTimes | None:
    if isinstance(sim, str):
        preset: TimesPreset = SIM_PRESETS.load(sim, where="engine.sim")
        return preset.times
    return None if sim is None else DeviceTimes.of(sim)


def workload_settings(scenario: Scenario) -> WorkloadSettings:
    """The workload section of a resolved scenario, as workloads take it; of windows, what fills the first."""
    workload, windows = scenario.workload, scenario.measure.windows
    if windows is not None:
        osl = most_output_tokens(windows, draft_len_of(scenario))
        return WorkloadSettings(
            workload.kind, num_requests=workload.concurrency, isl=windows.kv_len[0], osl=osl, seed=workload.seed
        )
    return WorkloadSettings(
        kind=workload.kind,
        path=workload.path,
        num_requests=None if workload.num_requests in ("all", None) else int(workload.num_requests),
        isl=workload.isl or DEFAULT_LEN,
        osl=workload.osl or DEFAULT_LEN,
        categories=workload.categories,
        turns=workload.turns,
        seed=workload.seed,
        shuffle=workload.shuffle,
        system_prompt=workload.system_prompt,
    )


def _acceptance_spec(acceptance: Acceptance) -> AcceptanceSpec:
    length = acceptance.length
    if isinstance(length, tuple):
        return AcceptanceSpec(acceptance.mode, rates=length)
    return AcceptanceSpec(acceptance.mode, length=length)


def _write_defaults(scenario: Scenario, spec: ModelSpec, model: ModelConfig) -> Scenario:
    workload = _complete_workload(scenario.workload, windowed=scenario.measure.windows is not None)
    sampling = scenario.sampling
    if sampling.ignore_eos is None:
        # Made-up tokens hold no ends.
        sampling = _changed(sampling, ignore_eos=workload.kind == SYNTHETIC or scenario.engine.device == SIM)
    drafter = _changed(scenario.drafter, draft_len=draft_len_of(scenario), tree=written_tree(scenario.drafter.tree))
    engine = _complete_engine(scenario, workload, model)
    study = tuple(default_study(spec.source)) if scenario.study is None else scenario.study
    complete: Scenario = scenario.model_copy(
        update={
            "model": _changed(scenario.model, source=spec.source, weights=spec.weights),
            "workload": workload,
            "sampling": sampling,
            "drafter": drafter,
            "engine": engine,
            "study": study,
            "optimizations": complete_optimizations(scenario.optimizations, spec.source, engine.device),
            "measure": _complete_measure(scenario.measure, workload.concurrency),
        }
    )
    return complete.with_places(scenario.places)


def _complete_workload(workload: Workload, *, windowed: bool) -> Workload:
    if windowed:
        return workload  # lengths and requests are the windows'
    synthetic = workload.kind == SYNTHETIC
    return _changed(
        workload,
        num_requests=workload.num_requests or (DEFAULT_NUM_REQUESTS if synthetic else "all"),
        isl=(workload.isl or DEFAULT_LEN) if synthetic else None,
        osl=workload.osl or DEFAULT_LEN,
    )


def _complete_measure(measure: Measure, concurrency: int) -> Measure:
    """Warm up with the batch that is measured: every shape of a step is then known before the first figure."""
    if measure.warmup_requests is not None:
        return measure
    return _changed(measure, warmup_requests=max(DEFAULT_WARMUP_REQUESTS, concurrency))


def _complete_engine(scenario: Scenario, workload: Workload, model: ModelConfig) -> Engine:
    engine, windows, draft_len = scenario.engine, scenario.measure.windows, draft_len_of(scenario)
    rows = rows_of(scenario.drafter, draft_len)
    device = settle_device(engine.device)
    batch = engine.max_batch_size or workload.concurrency
    attention = engine.attention
    if attention == "auto":
        attention = "cpu-paged" if device == "cpu" else "torch-gather"
    return _changed(
        engine,
        device=device,
        max_batch_size=batch,
        max_seq_len=engine.max_seq_len
        or (needed_seq_len(windows, draft_len) if windows else default_seq_len(workload, length_limit(model, device))),
        max_num_tokens=engine.max_num_tokens or max(_default_num_tokens(device), batch * rows),
        attention=attention,
    )


def _default_num_tokens(device: str) -> int:
    return DEFAULT_NUM_TOKENS.get(device, DEFAULT_NUM_TOKENS["cuda"])


def _write_num_blocks(scenario: Scenario, model: ModelConfig, draft: DraftWeights | None) -> Scenario:
    """Turn ``kv_cache``, or the lack of it, into a number of blocks."""
    engine = scenario.engine
    sequence = positions_of(scenario.drafter, draft_len_of(scenario), engine.max_seq_len or 0)
    per_sequence = -(-sequence // engine.tokens_per_block)
    size = block_bytes(model, engine.dtype, engine.tokens_per_block, draft)
    key, blocks = "num_blocks", engine.num_blocks
    if engine.kv_cache is not None:
        key, blocks = "kv_cache", parse_size(engine.kv_cache) // size
    if blocks is None:
        blocks = (engine.max_batch_size or 1) * per_sequence
    if blocks < per_sequence:
        what = f"room for {blocks} of the {per_sequence} KV blocks that one request of max_seq_len"
        what += f" {engine.max_seq_len} takes"
        enough = str(per_sequence) if key == "num_blocks" else f"{-(-per_sequence * size // 2**20)}MiB"
        hint = f"{enough} or more, or a lower engine.max_seq_len"
        raise_issues([Issue.at(f"engine.{key}", what, hint)], scenario.places, str(scenario.places.root))
    complete: Scenario = scenario.model_copy(update={"engine": _changed(engine, num_blocks=blocks, kv_cache=None)})
    return complete.with_places(scenario.places)


def _changed(section: _S, **values: Any) -> _S:
    return section.model_copy(update=values)
