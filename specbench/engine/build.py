"""Puts an engine together from its configuration: every choice is made here, none in the step."""

from __future__ import annotations

from typing import Any

import torch

from specbench import registry
from specbench.device.base import Device
from specbench.device.tracing import NullTracer, Tracer
from specbench.engine.attention.base import AttentionOperator
from specbench.engine.config import EngineConfig
from specbench.engine.drafters.base import Drafter, DrafterHost, build_drafter
from specbench.engine.drafters.none import SimulatedDrafter
from specbench.engine.input_preparation import InputPreparation
from specbench.engine.kv_cache import KVCache
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.model_runner import ModelRunner
from specbench.engine.models.checkpoint import resolve_model_config
from specbench.engine.models.config import ModelConfig
from specbench.engine.models.loading import LoadedModel, load_model, load_shape
from specbench.engine.optimizations.base import Switch, build_switch, load_toggle
from specbench.engine.optimizations.choice_points import StepPrograms
from specbench.engine.recurrence import with_recurrence
from specbench.engine.sampling.acceptance import Acceptance, build_acceptance
from specbench.engine.sampling.step_sampling import StepSampling
from specbench.engine.sampling.tree_acceptance import build_tree_acceptance
from specbench.engine.scheduler import Scheduler
from specbench.engine.simulated_runner import SimulatedRunner
from specbench.engine.tree_runner import TreeModelRunner
from specbench.errors import CapacityError, InputError

_TOGGLES = (
    "sampling_params",
    "block_staging",
    "input_prep",
    "state_indices",
    "overlap",
    "graphs",
    "capture_params",
)
"""Those with a choice point in the engine, where the model has a use for them."""


def build_engine(
    config: EngineConfig,
    *,
    tracer: Tracer | None = None,
    loaded: LoadedModel | None = None,
    device: Device | None = None,
) -> LLMEngine:
    """Load the model and return an engine that is ready to step.

    :param loaded: a model that is in memory already, to share weights between engines; must be on the device.
    :param device: an open device that others use too: ``config.device`` and ``config.num_threads`` are not looked at,
        and :meth:`LLMEngine.shutdown` leaves it open. Its ranges go to the tracer it was opened with.
    :raises CapacityError: weights or KV cache do not fit in memory.
    :raises InputError: a name no registry has, or a configuration the model cannot serve.
    """
    tracer = tracer or NullTracer()
    if device is not None:
        return _assemble(config, device, tracer, loaded, owns_device=False)
    device = open_device(config, tracer)
    try:
        return _assemble(config, device, tracer, loaded, owns_device=True)
    except BaseException:
        device.close()
        raise


def open_device(config: EngineConfig, tracer: Tracer) -> Device:
    """Open the device that ``config`` names; whoever opens it closes it.

    :raises InputError: no registry has the name, or this machine has no such device.
    """
    factory = registry.DEVICES.load(config.device, where="engine.device")
    declared = () if config.device_times is None else (config.device_times,)
    device: Device = factory(tracer, config.num_threads, *declared)
    return device


def _assemble(
    config: EngineConfig, device: Device, tracer: Tracer, loaded: LoadedModel | None, *, owns_device: bool
) -> LLMEngine:
    _check_rows(config)
    dtype: torch.dtype = getattr(torch, config.dtype)
    if loaded is None:
        loaded = _load_model(config, device, dtype)
    if device.computes:
        _check_window(config, loaded.config)
    scheduler = Scheduler(config)
    switches = _build_switches(config, loaded.config, device)
    runner = _build_runner(config, loaded, device, dtype, tracer, switches["graphs"])
    preparation = InputPreparation(
        config,
        [scheduler.blocks],
        switches["graphs"],
        switches["block_staging"],
        switches["input_prep"],
        tracer,
        num_position_rows=loaded.model.num_position_rows,
        state_indices=switches.get("state_indices"),
    )
    _connect(switches, runner, preparation)
    device.synchronize()
    switches["graphs"].current.settle()
    return LLMEngine(config, loaded, device, scheduler, preparation, runner, tracer, switches, owns_device=owns_device)


def _build_switches(config: EngineConfig, model_config: ModelConfig, device: Device) -> dict[str, Switch[Any]]:
    return {
        name: build_switch(name, config, device)
        for name in _TOGGLES
        if model_config.has_recurrent_state or not load_toggle(name).needs_recurrent_state
    }


def _build_runner(
    config: EngineConfig,
    loaded: LoadedModel,
    device: Device,
    dtype: torch.dtype,
    tracer: Tracer,
    graphs: Switch[StepPrograms],
) -> ModelRunner:
    runner_class = _choose_runner(config, device, loaded.config)
    attention = _build_attention(config, loaded.config, device, dtype)
    drafter = _build_drafter(config, loaded, device, dtype)
    acceptance = _build_acceptance(config, drafter)
    return runner_class(config, device, loaded.model, attention, drafter, acceptance, tracer, graphs)


def _connect(switches: dict[str, Switch[Any]], runner: ModelRunner, preparation: InputPreparation) -> None:
    """Give what captures steps, in every variant, the step that it is to capture."""
    graphs: Switch[StepPrograms] = switches["graphs"]
    live = StepSampling(switches["sampling_params"])
    for variant in graphs.variants.values():
        variant.connect(runner, preparation, live, switches["capture_params"])


def _choose_runner(config: EngineConfig, device: Device, model_config: ModelConfig) -> type[ModelRunner]:
    if config.drafter.tree is None:
        return ModelRunner if device.computes else SimulatedRunner
    if not device.computes or model_config.has_recurrent_state:
        what = "a model with recurrent state" if device.computes else "a device that computes nothing"
        raise InputError(f"a draft tree cannot be verified by {what}", where="drafter.tree", hint="drop it")
    return TreeModelRunner


def _build_acceptance(config: EngineConfig, drafter: Drafter) -> Acceptance:
    if config.drafter.tree is None:
        return build_acceptance(config.acceptance, config.drafter.max_draft_len, drafter.vocabulary.token_ids)
    return build_tree_acceptance(config.acceptance)


def _build_attention(
    config: EngineConfig, model_config: ModelConfig, device: Device, dtype: torch.dtype
) -> AttentionOperator:
    if device.computes:
        _require_memory(
            device,
            config.num_blocks * config.tokens_per_block * model_config.kv_bytes_per_token(dtype.itemsize),
            f"a KV cache of {config.num_blocks} blocks takes",
            where="engine.num_blocks",
            hint="lower workload.concurrency, engine.max_seq_len or engine.kv_cache",
        )
        num_states = config.drafter.max_draft_len + 1
        _require_memory(
            device,
            model_config.state_bytes(config.max_batch_size + 1, num_states, dtype.itemsize),
            f"{num_states} recurrent states for each of {config.max_batch_size} slots take",
            where="engine.max_batch_size",
            hint="lower workload.concurrency or drafter.draft_len",
        )
    attention = _attention_over(
        config,
        model_config.num_kv_layers,
        model_config.num_heads,
        model_config.num_kv_heads,
        model_config.head_dim,
        device,
        dtype,
    )
    return with_recurrence(attention, model_config, config.max_batch_size, config.drafter.max_draft_len + 1)


def _build_drafter(config: EngineConfig, loaded: LoadedModel, device: Device, dtype: torch.dtype) -> Drafter:
    if not device.computes:
        return SimulatedDrafter(config.drafter)

    def build_attention(num_layers: int, num_heads: int, num_kv_heads: int, head_dim: int) -> AttentionOperator:
        cells = config.num_blocks * config.tokens_per_block
        _require_memory(
            device,
            cells * 2 * num_layers * num_kv_heads * head_dim * dtype.itemsize,
            f"the drafter's KV cache of {config.num_blocks} blocks takes",
            where="engine.num_blocks",
            hint="lower workload.concurrency, engine.max_seq_len or engine.kv_cache",
        )
        return _attention_over(config, num_layers, num_heads, num_kv_heads, head_dim, device, dtype)

    host = DrafterHost(config, loaded.model, device.torch_device, dtype, build_attention)
    drafter = build_drafter(config.drafter, host)
    if config.acceptance.mode == "rejection":
        rows = (config.max_batch_size + 1) * config.drafter.max_draft_len
        _require_memory(
            device,
            rows * drafter.vocabulary.size * torch.float32.itemsize,
            f"the probabilities of {rows} draft tokens take",
            where="engine.max_batch_size",
            hint="lower workload.concurrency or drafter.draft_len, or use strict acceptance",
        )
    return drafter


def _attention_over(
    config: EngineConfig,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    device: Device,
    dtype: torch.dtype,
) -> AttentionOperator:
    """Attention of ``num_layers`` layers over a KV cache of their own, laid out in the engine's blocks."""
    cache = KVCache(
        num_layers=num_layers,
        num_blocks=config.num_blocks + config.num_padding_blocks,
        num_padding_blocks=config.num_padding_blocks,
        tokens_per_block=config.tokens_per_block,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        # Where nothing is computed, the cache has a shape and no memory.
        device=device.torch_device if device.computes else torch.device("meta"),
    )
    backend = registry.ATTENTION.load(config.attention, where="engine.attention")
    attention: AttentionOperator = backend(cache, num_heads=num_heads)
    return attention


def _load_model(config: EngineConfig, device: Device, dtype: torch.dtype) -> LoadedModel:
    if not device.computes:
        return load_shape(config.model, dtype)
    _check_weights(config, device, dtype)
    return load_model(config.model, dtype, device.torch_device)


def _check_weights(config: EngineConfig, device: Device, dtype: torch.dtype) -> None:
    _require_memory(
        device,
        resolve_model_config(config.model).num_parameters * dtype.itemsize,
        f"the weights as {config.dtype} take",
        where="model",
        hint="choose a smaller model, or engine.dtype=bfloat16",
    )


def _require_memory(device: Device, size: int, what: str, *, where: str, hint: str) -> None:
    available = device.memory_bytes()
    if size > available:
        message = f"{what} {size / 2**30:.2f} GiB, {available / 2**30:.2f} GiB are free"
        raise CapacityError(message, where=where, hint=hint)


def _check_rows(config: EngineConfig) -> None:
    rows = config.max_batch_size * config.drafter.max_rows
    if rows > config.max_num_tokens:
        raise CapacityError(
            f"{config.max_batch_size} requests with {config.drafter.max_rows - 1} draft tokens take {rows} rows, "
            f"a step may carry {config.max_num_tokens}",
            where="engine.max_num_tokens",
            hint=f"set engine.max_num_tokens to {rows} or more",
        )


def _check_window(config: EngineConfig, model_config: ModelConfig) -> None:
    if config.max_seq_len > model_config.max_position_embeddings:
        raise InputError(
            f"{config.max_seq_len} is beyond the model's {model_config.max_position_embeddings} positions",
            where="engine.max_seq_len",
            hint=f"set it to {model_config.max_position_embeddings} or less",
        )
    window = model_config.sliding_window
    if window is not None and config.max_seq_len > window:
        raise InputError(
            f"{config.max_seq_len} is beyond the model's sliding window of {window} tokens, which is not built",
            where="engine.max_seq_len",
            hint=f"set it to {window} or less",
        )
