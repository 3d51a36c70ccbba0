"""The keys of a ``config.json`` that only hybrid models have: layers with recurrent state. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.engine.models.config import FULL_ATTENTION, LINEAR_ATTENTION, LinearAttention, ModelConfig
from specbench.engine.models.config_reader import ConfigReader

HYBRID_DEFAULTS: dict[str, Any] = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "full_attention_interval": 4,
    "decoder_sparse_step": 1,
    "num_experts": 512,
    "mlp_only_layers": [],
    "partial_rotary_factor": 0.25,
}


def read_linear_attention(reader: ConfigReader) -> LinearAttention | None:
    """The layers with recurrent state; None where the configuration has none.

    :raises CheckpointError: malformed keys, experts, or no layer that attends to keys and values.
    """
    num_layers = reader.integer("num_hidden_layers")
    _refuse_experts(reader, num_layers)
    layer_types = _layer_types(reader, num_layers)
    if LINEAR_ATTENTION not in layer_types:
        return None
    if FULL_ATTENTION not in layer_types:
        raise reader.fail("no layer has full attention: a model of recurrent layers alone is not supported")
    key_heads, value_heads = reader.integer("linear_num_key_heads"), reader.integer("linear_num_value_heads")
    if value_heads % key_heads:
        raise reader.fail(f"linear_num_value_heads {value_heads} is not a multiple of linear_num_key_heads {key_heads}")
    return LinearAttention(
        layer_types=layer_types,
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_head_dim=reader.integer("linear_key_head_dim"),
        value_head_dim=reader.integer("linear_value_head_dim"),
        conv_kernel=reader.integer("linear_conv_kernel_dim"),
    )


def read_partial_rotary_factor(reader: ConfigReader, rope: Mapping[str, Any]) -> float:
    """The part of a head that is rotated.

    :raises CheckpointError: not above 0 and at most 1.
    """
    value = rope.get("partial_rotary_factor", reader.get("partial_rotary_factor"))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise reader.fail(f"partial_rotary_factor must be above 0 and at most 1, found {value!r}")
    return float(value)


def write_linear_attention(config: ModelConfig) -> dict[str, Any]:
    """The keys for ``config``, of a family that may have layers with recurrent state."""
    shape = config.linear_attention
    values: dict[str, Any] = {
        "layer_types": [FULL_ATTENTION] * config.num_layers if shape is None else list(shape.layer_types),
        "partial_rotary_factor": config.partial_rotary_factor,
        "num_experts": 0,
    }
    if shape is not None:
        values |= {
            "linear_conv_kernel_dim": shape.conv_kernel,
            "linear_key_head_dim": shape.key_head_dim,
            "linear_value_head_dim": shape.value_head_dim,
            "linear_num_key_heads": shape.num_key_heads,
            "linear_num_value_heads": shape.num_value_heads,
        }
    return values


def _layer_types(reader: ConfigReader, num_layers: int) -> tuple[str, ...]:
    named = reader.get("layer_types")
    if named is None:
        interval = reader.integer("full_attention_interval")
        return tuple(LINEAR_ATTENTION if (layer + 1) % interval else FULL_ATTENTION for layer in range(num_layers))
    kinds = (FULL_ATTENTION, LINEAR_ATTENTION)
    if not isinstance(named, list) or len(named) != num_layers or any(kind not in kinds for kind in named):
        raise reader.fail(f"layer_types must be {num_layers} of {' or '.join(kinds)}, found {named!r}")
    return tuple(named)


def _refuse_experts(reader: ConfigReader, num_layers: int) -> None:
    num_experts, dense = reader.get("num_experts"), reader.get("mlp_only_layers") or []
    if num_experts == 0:
        return
    step = reader.integer("decoder_sparse_step")
    if not isinstance(dense, list):
        raise reader.fail(f"mlp_only_layers must be a list of layers, found {dense!r}")
    if any((layer + 1) % step == 0 and layer not in dense for layer in range(num_layers)):
        raise reader.fail(
            f"layers of {num_experts} experts are not supported", "use a dense model, such as the preset tiny-hybrid"
        )
