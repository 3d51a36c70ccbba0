"""Names a user may type, and where their implementations live.

A registry maps a name to ``"module:attribute"`` and a one-line summary, so that listing and checking names costs
no import. The implementation is imported when it is chosen. Third parties add entries through the entry point groups
``specbench.<kind>`` (drafters, heads, models, workloads, formats, attention, devices, sim_presets, optimizations,
presets).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import entry_points
from typing import Any

from specbench.errors import UnknownNameError


@cache
def _installed() -> Any:
    """Every entry point of this environment, read once: each look is a scan of all installed packages."""
    return entry_points()


@dataclass(frozen=True)
class Entry:
    """One registered implementation: ``target`` is ``"module:attribute"``."""

    target: str
    summary: str


class Registry(Mapping[str, Entry]):
    """Name -> :class:`Entry`, built-in entries first, then entry points that do not shadow them."""

    def __init__(self, kind: str, builtin: Mapping[str, Entry]) -> None:
        self.kind = kind
        self._builtin = dict(builtin)

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        entries = dict(self._builtin)
        for point in _installed().select(group=f"specbench.{self.kind}"):
            origin = point.dist.name if point.dist else "an installed package"
            entries.setdefault(point.name, Entry(point.value, f"from {origin}"))
        return entries

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def require(self, name: str, *, where: str | None = None) -> Entry:
        """Return the entry, or raise :class:`UnknownNameError` that names the nearest one."""
        if name not in self._entries:
            raise UnknownNameError.of(self.kind.rstrip("s"), name, self._entries, where=where)
        return self._entries[name]

    def load(self, name: str, *, where: str | None = None) -> Any:
        """Import and return the implementation registered under ``name``."""
        module, _, attribute = self.require(name, where=where).target.partition(":")
        return getattr(importlib.import_module(module), attribute)


DEVICES = Registry(
    "devices",
    {
        "cpu": Entry("specbench.device.cpu:CpuDevice", "ordered worker thread over PyTorch's CPU kernels"),
        "cuda": Entry("specbench.device.cuda:CudaDevice", "CUDA streams, events and pinned memory"),
        "sim": Entry("specbench.device.sim:SimDevice", "SIMULATED: declared times, nothing computed (engine.sim)"),
    },
)

SIM_PRESETS = Registry(
    "sim_presets",
    {
        "h100-0.6b": Entry("specbench.device.sim_presets:H100_SMALL", "0.6B model on one H100: short steps"),
        "h100-8b": Entry("specbench.device.sim_presets:H100_8B", "8B model on one H100"),
        "h200-32b": Entry("specbench.device.sim_presets:H200_32B", "32B model on one H200: bound by bandwidth"),
    },
)

DRAFTERS = Registry(
    "drafters",
    {
        "none": Entry("specbench.engine.drafters.declaration:NONE", "no speculation, K = 0"),
        "ngram": Entry("specbench.engine.drafters.declaration:NGRAM", "prompt lookup inside the step"),
        "eagle3": Entry("specbench.engine.drafters.declaration:EAGLE3", "one layer over three of the target's states"),
        "mtp": Entry("specbench.engine.drafters.declaration:MTP", "modules over the target's last hidden state"),
        "draft_model": Entry(
            "specbench.engine.drafters.declaration:DRAFT_MODEL", "a small model with the target's tokenizer"
        ),
    },
)

HEADS = Registry(
    "heads",
    {
        "smollm2-135m-eagle3": Entry(
            "specbench.engine.drafters.heads:SMOLLM2_135M_EAGLE3", "eagle3 for SmolLM2-135M-Instruct, trained here"
        ),
        "smollm2-135m-mtp": Entry(
            "specbench.engine.drafters.heads:SMOLLM2_135M_MTP", "mtp for SmolLM2-135M-Instruct, trained here"
        ),
    },
)

ATTENTION = Registry(
    "attention",
    {
        "cpu-paged": Entry("specbench.engine.attention.cpu_paged:CpuPagedAttention", "strided views, CPU"),
        "torch-gather": Entry("specbench.engine.attention.torch_gather:GatherAttention", "any torch device"),
    },
)

MODELS = Registry(
    "models",
    {
        "LlamaForCausalLM": Entry("specbench.engine.models.llama:LlamaForCausalLM", "Llama, SmolLM2"),
        "MistralForCausalLM": Entry("specbench.engine.models.llama:LlamaForCausalLM", "Mistral"),
        "Qwen2ForCausalLM": Entry("specbench.engine.models.llama:LlamaForCausalLM", "Qwen2 (QKV biases)"),
        "Qwen3ForCausalLM": Entry("specbench.engine.models.llama:LlamaForCausalLM", "Qwen3 dense (q/k norm)"),
        "Qwen3NextForCausalLM": Entry(
            "specbench.engine.models.hybrid:HybridForCausalLM", "Qwen3-Next without experts: gated delta nets"
        ),
    },
)

PRESETS = Registry(
    "presets",
    {
        "tiny": Entry("specbench.engine.models.presets:TINY", "2 layers, 64 wide: for tests, random weights only"),
        "tiny-hybrid": Entry("specbench.engine.models.presets:TINY_HYBRID", "3 gated delta nets, 1 attention; random"),
        "smollm2-135m": Entry("specbench.engine.models.presets:SMOLLM2_135M", "SmolLM2-135M-Instruct, the default"),
        "smollm2-360m": Entry("specbench.engine.models.presets:SMOLLM2_360M", "SmolLM2-360M-Instruct"),
        "smollm2-1.7b": Entry("specbench.engine.models.presets:SMOLLM2_1_7B", "SmolLM2-1.7B-Instruct"),
        "llama-3.2-1b": Entry("specbench.engine.models.presets:LLAMA_3_2_1B", "Llama 3.2 1B Instruct"),
        "llama-3.1-8b": Entry("specbench.engine.models.presets:LLAMA_3_1_8B", "Llama 3.1 8B Instruct"),
        "mistral-7b": Entry("specbench.engine.models.presets:MISTRAL_7B", "Mistral 7B Instruct v0.3"),
        "qwen2.5-0.5b": Entry("specbench.engine.models.presets:QWEN2_5_0_5B", "Qwen2.5 0.5B Instruct"),
        "qwen3-0.6b": Entry("specbench.engine.models.presets:QWEN3_0_6B", "Qwen3 0.6B"),
        "qwen3-8b": Entry("specbench.engine.models.presets:QWEN3_8B", "Qwen3 8B"),
    },
)

WORKLOADS = Registry(
    "workloads",
    {
        "chat80": Entry("specbench.workloads.chat80:Chat80", "80 two-turn prompts in 8 categories, shipped"),
        "mt_bench": Entry("specbench.workloads.mt_bench:MtBench", "MT-Bench's 80 two-turn prompts"),
        "prompts": Entry("specbench.workloads.prompts:PromptFile", "your own prompts, JSONL"),
        "random_tokens": Entry("specbench.workloads.random_tokens:RandomTokens", "seeded random ids, synthetic"),
    },
)

FORMATS = Registry(
    "formats",
    {
        "json": Entry("specbench.report.formats.json:render", "analysis.json, the full schema"),
        "markdown": Entry("specbench.report.formats.markdown:render", "a report for a pull request"),
        "csv": Entry("specbench.report.formats.csv:render", "one row a point, one a comparison"),
        "html": Entry("specbench.report.formats.html:render", "one page with plots inside, no network"),
    },
)

OPTIMIZATIONS = Registry(
    "optimizations",
    {
        "sampling_params": Entry(
            "specbench.engine.optimizations.sampling_params:TOGGLE", "how sampling parameters reach the device"
        ),
        "block_staging": Entry(
            "specbench.engine.optimizations.block_staging:TOGGLE", "how many columns of block offsets are sent"
        ),
        "input_prep": Entry(
            "specbench.engine.optimizations.input_prep:TOGGLE", "how much of a step's inputs is built anew"
        ),
        "state_indices": Entry(
            "specbench.engine.optimizations.state_indices:TOGGLE", "how recurrent-state indices reach the device"
        ),
        "overlap": Entry(
            "specbench.engine.optimizations.overlap:TOGGLE", "whether step n + 1 is launched before step n is read"
        ),
        "graphs": Entry(
            "specbench.engine.optimizations.graphs:TOGGLE", "whether decode steps are captured and replayed"
        ),
        "capture_params": Entry(
            "specbench.engine.optimizations.capture_params:TOGGLE", "how captures are made to record sampling"
        ),
    },
)

ALL: dict[str, Registry] = {
    registry.kind: registry
    for registry in (
        DEVICES,
        SIM_PRESETS,
        DRAFTERS,
        HEADS,
        ATTENTION,
        MODELS,
        PRESETS,
        WORKLOADS,
        FORMATS,
        OPTIMIZATIONS,
    )
}
