"""``config.json`` for checkpoints that are written here. No torch."""

from __future__ import annotations

from typing import Any

from specbench.engine.models.config import ModelConfig
from specbench.engine.models.hf_config import FAMILIES
from specbench.engine.models.hf_hybrid_config import write_linear_attention


def to_hf_config(config: ModelConfig, dtype: str = "bfloat16") -> dict[str, Any]:
    """Return the ``config.json`` content that both transformers and
    :func:`~specbench.engine.models.hf_config.parse_config` read as ``config``.
    """
    family = FAMILIES[config.architecture]
    scaling = config.rope_scaling
    rope_scaling = scaling and {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
    }
    values: dict[str, Any] = {
        "architectures": [config.architecture],
        "model_type": family.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": rope_scaling,
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "torch_dtype": dtype,
    }
    if family.is_hybrid:
        return values | {"attention_bias": config.attention_bias, **write_linear_attention(config)}
    if family.qkv_bias is None:
        values["attention_bias"] = config.attention_bias
    if config.architecture == "LlamaForCausalLM":
        values["mlp_bias"] = config.mlp_bias
    else:
        values["sliding_window"] = config.sliding_window
        values["use_sliding_window"] = config.sliding_window is not None
        values["max_window_layers"] = 0 if config.sliding_window else config.num_layers
    return values
