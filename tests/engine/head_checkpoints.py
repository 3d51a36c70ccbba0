"""Writes tiny draft heads to disk in the namings that are in use, for tests that read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specbench.engine.models.config import ModelConfig
from specbench.engine.models.hf_config_writer import to_hf_config
from specbench.engine.models.presets import TINY
from specbench.engine.models.random_weights import RandomSource
from specbench.engine.models.tensor_shapes import model_shapes

DRAFT_VOCAB = 96
EAGLE3, SPECULATORS, MTP, OWN_CHECKPOINT = "eagle3", "speculators", "mtp", "own checkpoint"
Tensors = dict[str, Tensor]
Change = Callable[[dict[str, Any]], object]


def draft_ids(vocab_size: int = TINY.config.vocab_size, count: int = DRAFT_VOCAB) -> Tensor:
    """Every fifth token or so, in rising order: ids that are no row numbers."""
    stride = vocab_size // count
    return torch.arange(count) * stride + min(stride - 1, 3)


def maps_of(ids: Tensor, vocab_size: int = TINY.config.vocab_size) -> Tensors:
    """``d2t`` and ``t2d`` as checkpoints have them."""
    marks = torch.zeros(vocab_size, dtype=torch.bool)
    marks[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": marks}


def layer_tensors(config: ModelConfig, inputs: int, *, qk_norm: bool = False) -> Tensors:
    """A decoder layer of ``config`` whose attention reads ``inputs`` columns."""
    hidden, inner = config.hidden_size, config.intermediate_size
    width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (width, inputs),
        "self_attn.k_proj": (kv_width, inputs),
        "self_attn.v_proj": (kv_width, inputs),
        "self_attn.o_proj": (hidden, width),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    if qk_norm:
        shapes |= {"self_attn.q_norm": (config.head_dim,), "self_attn.k_norm": (config.head_dim,)}
    return {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}


def eagle3_tensors(target: ModelConfig = TINY.config, *, count: int = DRAFT_VOCAB, num_states: int = 3) -> Tensors:
    """An EAGLE-3 head for ``target`` under canonical names, maps included."""
    torch.manual_seed(0)
    hidden = target.hidden_size
    return {
        "fc.weight": torch.randn(hidden, num_states * hidden),
        "midlayer.hidden_norm.weight": torch.randn(hidden),
        **{f"midlayer.{name}": tensor for name, tensor in layer_tensors(target, 2 * hidden).items()},
        "norm.weight": torch.randn(hidden),
        "lm_head.weight": torch.randn(count, hidden),
        **maps_of(draft_ids(target.vocab_size, count), target.vocab_size),
    }


def mtp_tensors(target: ModelConfig = TINY.config, num_modules: int = 2) -> Tensors:
    """MTP modules for ``target`` under canonical names."""
    torch.manual_seed(0)
    hidden = target.hidden_size
    found: Tensors = {}
    for index in range(num_modules):
        module = {
            "enorm.weight": torch.randn(hidden),
            "hnorm.weight": torch.randn(hidden),
            "eh_proj.weight": torch.randn(hidden, 2 * hidden),
            "norm.weight": torch.randn(hidden),
            **layer_tensors(target, hidden),
        }
        found |= {f"modules.{index}.{name}": tensor for name, tensor in module.items()}
    return found


def target_tensors(target: ModelConfig = TINY.config) -> Tensors:
    """The weights of a target itself, under the names of its checkpoint."""
    source = RandomSource(target, model_shapes(target), seed=5, dtype=torch.float32, device=torch.device("cpu"))
    return {name: source.read(name) for name in source.shapes}


def stored_name(name: str, naming: str, first_layer: int = TINY.config.num_layers) -> str:
    """What a tensor of the canonical ``name`` is called in a checkpoint of ``naming``."""
    if naming == SPECULATORS:
        return name.replace("midlayer.", "layers.0.")
    if not name.startswith("modules."):
        return name
    _, module, rest = name.split(".", 2)
    rest = {"norm.weight": "shared_head.norm.weight", "lm_head.weight": "shared_head.head.weight"}.get(rest, rest)
    return f"model.layers.{first_layer + int(module)}.{rest}"


def head_config(naming: str, target: ModelConfig = TINY.config, *, num_modules: int = 2) -> dict[str, Any]:
    """The keys of a head's ``config.json``."""
    layer = {**to_hf_config(target), "num_hidden_layers": 1, "tie_word_embeddings": False}
    if naming == EAGLE3:
        return {
            **layer,
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": DRAFT_VOCAB,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]},
        }
    if naming == SPECULATORS:
        del layer["architectures"]
        return {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "draft_vocab_size": DRAFT_VOCAB,
            "norm_before_residual": True,
            "eagle_aux_hidden_state_layer_ids": [0, 1, 1],
            "target_hidden_size": None,
            "transformer_layer_config": layer,
        }
    own = {**to_hf_config(target), "num_nextn_predict_layers": num_modules}
    return own if naming == OWN_CHECKPOINT else {**own, "architectures": ["LlamaForCausalLMMTP"]}


def write_head(
    directory: Path,
    naming: str,
    tensors: Mapping[str, Tensor],
    *,
    target: ModelConfig = TINY.config,
    change: Change = lambda _: None,
    rename: Callable[[str], str] | None = None,
    pickled: bool = False,
) -> Path:
    """Write a head of ``tensors``, given under canonical names, in ``naming``; ``change`` edits the config's keys."""
    directory.mkdir(parents=True, exist_ok=True)
    config = head_config(naming, target)
    change(config)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    rename = rename or (lambda name: stored_name(name, naming, target.num_layers))
    stored = {rename(name): tensor.contiguous() for name, tensor in tensors.items()}
    if pickled:
        torch.save(stored, directory / "pytorch_model.bin")
    else:
        save_file(stored, directory / "model.safetensors")
    return directory
