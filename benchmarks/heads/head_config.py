"""Shapes of a draft head, and its files in the public formats: ``config.json`` beside ``model.safetensors``."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

KINDS = ("eagle3", "mtp")


@dataclass(frozen=True)
class HeadConfig:
    """Dimensions of a head, those of its target's decoder layers but for the draft vocabulary.

    :param aux_layers: decoder layers whose inputs an EAGLE-3 head reads.
    """

    kind: str
    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    num_target_layers: int
    max_positions: int
    aux_layers: tuple[int, ...]

    @property
    def attention_input(self) -> int:
        """Width of what q, k and v are projected from."""
        return self.hidden_size * (2 if self.kind == "eagle3" else 1)

    def to_json(self) -> dict[str, Any]:
        """The content of ``config.json``."""
        shape: dict[str, Any] = {
            "architectures": ["LlamaForCausalLMEagle3" if self.kind == "eagle3" else "LlamaForCausalLMMTP"],
            "model_type": "llama",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "max_position_embeddings": self.max_positions,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab_size,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
        if self.kind == "eagle3":
            layers = list(self.aux_layers)
            return shape | {
                "num_hidden_layers": 1,
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": layers},
                "norm_before_fc": True,
            }
        return shape | {"num_hidden_layers": self.num_target_layers, "num_nextn_predict_layers": 1}


def config_for_target(kind: str, directory: Path, *, draft_vocab_size: int, aux_layers: tuple[int, ...]) -> HeadConfig:
    """The head's shapes for the target whose ``config.json`` is in ``directory``."""
    target = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return HeadConfig(
        kind=kind,
        vocab_size=target["vocab_size"],
        draft_vocab_size=draft_vocab_size,
        hidden_size=target["hidden_size"],
        intermediate_size=target["intermediate_size"],
        num_heads=target["num_attention_heads"],
        num_kv_heads=target["num_key_value_heads"],
        head_dim=target["head_dim"],
        rms_norm_eps=target["rms_norm_eps"],
        rope_theta=target["rope_theta"],
        num_target_layers=target["num_hidden_layers"],
        max_positions=target["max_position_embeddings"],
        aux_layers=aux_layers,
    )


@dataclass(frozen=True)
class TargetParts:
    """What a head takes over from its target.

    :param embedding: [vocab, H]; tied models use it as the head too.
    :param output: [vocab, H], the target's head.
    :param final_norm: [H].
    """

    embedding: Tensor
    output: Tensor
    final_norm: Tensor


def read_target(directory: Path) -> TargetParts:
    """Read the tensors a head needs from a checkpoint directory with one ``model.safetensors``."""
    tensors = load_file(directory / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    output = tensors.get("lm_head.weight", embedding)
    return TargetParts(*(tensor.float() for tensor in (embedding, output, tensors["model.norm.weight"])))


def save_head(directory: Path, config: HeadConfig, tensors: dict[str, Tensor]) -> None:
    """Write a head that others can load at any moment: the files appear whole."""
    directory.mkdir(parents=True, exist_ok=True)
    whole = {
        name: (tensor.detach().to("cpu", torch.bfloat16) if tensor.is_floating_point() else tensor.cpu()).contiguous()
        for name, tensor in tensors.items()
    }
    save_file(whole, directory / "model.safetensors.part", metadata={"format": "pt"})
    os.replace(directory / "model.safetensors.part", directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config.to_json(), indent=2) + "\n", encoding="utf-8")
