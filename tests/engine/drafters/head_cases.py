"""Tiny draft heads, and engines that draft with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from specbench.engine.attention.base import AttentionOperator
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.attention.torch_gather import GatherAttention
from specbench.engine.config import DrafterSpec
from specbench.engine.drafters import eagle3, mtp
from specbench.engine.drafters.base import DrafterHost, DrafterNeeds, TargetRows
from specbench.engine.drafters.head_config import HeadConfig
from specbench.engine.drafters.head_weights import LoadedHead
from specbench.engine.kv_cache import KVCache
from specbench.engine.models.base import NO_TAPS, CausalLM, HiddenTaps
from specbench.engine.models.config import ModelConfig
from tests.engine.engine_driver import tiny_config, tiny_model

TAPPED = (0, 1, 1)


def decoder_config(**changes: object) -> ModelConfig:
    values: dict[str, object] = {
        "architecture": "LlamaForCausalLM", "vocab_size": 512, "hidden_size": 48, "intermediate_size": 80,
        "num_layers": 1, "num_heads": 6, "num_kv_heads": 3, "head_dim": 8, "max_position_embeddings": 2048,
    }  # fmt: skip
    return ModelConfig(**{**values, **changes})  # type: ignore[arg-type]


def eagle3_head(seed: int = 0, **changes: object) -> LoadedHead:
    """A random head for the tiny model, with 100 draft tokens and an embedding of its own (its width differs)."""
    decoder = decoder_config()
    config = HeadConfig(
        kind="eagle3", decoder=decoder, target_hidden_size=64, vocab_size=512, draft_vocab_size=100,
        hidden_layers=TAPPED, has_embedding=True, **changes,
    )  # type: ignore[arg-type]  # fmt: skip
    source = torch.Generator().manual_seed(seed)
    width, heads, inner = decoder.hidden_size, decoder.num_heads * 8, decoder.intermediate_size
    shapes = {
        "fc.weight": (width, 3 * 64), "midlayer.self_attn.q_proj.weight": (heads, 2 * width),
        "midlayer.self_attn.k_proj.weight": (24, 2 * width), "midlayer.self_attn.v_proj.weight": (24, 2 * width),
        "midlayer.self_attn.o_proj.weight": (width, heads), "midlayer.mlp.gate_proj.weight": (inner, width),
        "midlayer.mlp.up_proj.weight": (inner, width), "midlayer.mlp.down_proj.weight": (width, inner),
        "lm_head.weight": (100, width), "embed_tokens.weight": (512, width),
    }  # fmt: skip
    tensors = {name: torch.randn(shape, generator=source) * 0.3 for name, shape in shapes.items()}
    for name in ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm"):
        tensors[f"{name}.weight"] = 1 + 0.1 * torch.randn(width, generator=source)
    return LoadedHead(config, tensors, _draw_vocabulary(source))


def _draw_vocabulary(source: torch.Generator) -> Tensor:
    """The ids of 100 draft tokens."""
    return torch.randperm(512, generator=source)[:100].sort().values


def mtp_head(seed: int = 0, *, num_modules: int = 1, reduced: bool = False, own_ends: bool = False) -> LoadedHead:
    """Random modules for the tiny model, under canonical names.

    :param reduced: with 100 draft tokens; ``own_ends``: with an embedding and a head of their own.
    """
    decoder = decoder_config(hidden_size=64, num_layers=num_modules)
    source = torch.Generator().manual_seed(seed)
    inner, rows = decoder.intermediate_size, 100 if reduced else 512
    shapes = {
        "eh_proj.weight": (64, 128), "self_attn.q_proj.weight": (48, 64), "self_attn.k_proj.weight": (24, 64),
        "self_attn.v_proj.weight": (24, 64), "self_attn.o_proj.weight": (64, 48), "mlp.gate_proj.weight": (inner, 64),
        "mlp.up_proj.weight": (inner, 64), "mlp.down_proj.weight": (64, inner),
    }  # fmt: skip
    if own_ends:
        shapes |= {"embed_tokens.weight": (512, 64), "lm_head.weight": (rows, 64)}
    tensors = {}
    for index in range(num_modules):
        module = {name: torch.randn(shape, generator=source) * 0.3 for name, shape in shapes.items()}
        for name in ("enorm", "hnorm", "input_layernorm", "post_attention_layernorm", "norm"):
            module[f"{name}.weight"] = 1 + 0.1 * torch.randn(64, generator=source)
        tensors |= {f"modules.{index}.{name}": tensor for name, tensor in module.items()}
    config = HeadConfig(
        kind="mtp", decoder=decoder, target_hidden_size=64, vocab_size=512, draft_vocab_size=rows,
        num_modules=num_modules, has_embedding=own_ends, has_lm_head=own_ends,
    )  # fmt: skip
    return LoadedHead(config, tensors, _draw_vocabulary(source) if reduced else None)


class DenseAttention(AttentionOperator):
    """Over one whole sequence, without a cache."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        self.num_groups, self.scale = num_heads // num_kv_heads, head_dim**-0.5

    def prepare(self, metadata: AttentionMetadata) -> None:
        raise NotImplementedError

    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # noqa: ARG002
        k, v = (heads.repeat_interleave(self.num_groups, 1) for heads in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * self.scale
        hidden = torch.ones(scores.shape[1:]).tril().logical_not()
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v).flatten(1)


def dense_forward(model: CausalLM, token_ids: list[int], taps: HiddenTaps = NO_TAPS) -> Tensor:
    """[T, H] after the final norm, over one whole sequence."""
    config = model.config
    dense = DenseAttention(config.num_heads, config.num_kv_heads, config.head_dim)
    return model.forward(torch.tensor(token_ids), torch.arange(len(token_ids)), dense, taps)


def target_states(token_ids: list[int], layers: tuple[int, ...]) -> list[Tensor]:
    """What enters these layers of the tiny model, [T, H] each."""
    taps = HiddenTaps(layers)
    dense_forward(tiny_model().model, token_ids, taps)
    return [taps.states[layer] for layer in layers]


@contextmanager
def using_head(head: LoadedHead) -> Iterator[None]:
    """Whoever builds a drafter of the head's kind meanwhile finds ``head``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr({"eagle3": eagle3, "mtp": mtp}[head.config.kind], "load_head", lambda *_: head)
        yield


def heads_for(name: str) -> LoadedHead | None:
    """A tiny head for the drafter ``name``; None where it takes none."""
    return {"eagle3": eagle3_head, "mtp": mtp_head}[name]() if name in ("eagle3", "mtp") else None


def tiny_host(spec: DrafterSpec) -> DrafterHost:
    """What a drafter is built for in an engine of the tiny model."""
    config, device = tiny_config(drafter=spec), torch.device("cpu")

    def build_attention(num_layers: int, num_heads: int, num_kv_heads: int, head_dim: int) -> AttentionOperator:
        cache = KVCache(
            num_layers=num_layers, num_blocks=config.num_blocks, tokens_per_block=config.tokens_per_block,
            num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=torch.float32, device=device,
        )  # fmt: skip
        return GatherAttention(cache, num_heads=num_heads)

    return DrafterHost(config, tiny_model().model, device, torch.float32, build_attention)


def last_rows(needs: DrafterNeeds, slots: list[int], lens: list[int]) -> TargetRows:
    """The rows of a step in which each of ``slots``, now of ``lens`` tokens, had one row."""
    source, count = torch.Generator().manual_seed(0), len(slots)
    positions = torch.tensor(lens, dtype=torch.int64) - 2
    metadata = AttentionMetadata(
        num_context=0, context_query_lens=[], context_kv_lens=[], num_generation=count, rows_per_generation=1,
        generation_kv_lens=positions + 1, block_table=torch.arange(count, dtype=torch.int32).unsqueeze(1),
        positions=positions,
    )  # fmt: skip
    return TargetRows(
        token_ids=torch.zeros(count, dtype=torch.int64), positions=positions,
        slots=torch.tensor(slots, dtype=torch.int64), hidden=torch.randn(count, 64, generator=source),
        tapped=tuple(torch.randn(count, 64, generator=source) for _ in needs.hidden_layers),
        ends=torch.arange(count), requests=None, metadata=metadata,
    )  # fmt: skip
