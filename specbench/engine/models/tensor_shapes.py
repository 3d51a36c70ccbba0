"""Names and shapes of a model's weights, by its configuration. No torch here.

Names are those of the Hugging Face format.
"""

from __future__ import annotations

from specbench.engine.models.config import LINEAR_ATTENTION, LinearAttention, ModelConfig
from specbench.engine.models.tensor_header import Shape

Shapes = dict[str, Shape]

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def layer_prefix(index: int) -> str:
    """What the names of a layer's tensors start with."""
    return f"model.layers.{index}."


def model_shapes(config: ModelConfig) -> Shapes:
    """Every weight of a model of the families that are built here."""
    return join_shapes(config, [layer_shapes(config, index) for index in range(config.num_layers)])


def join_shapes(config: ModelConfig, layers: list[Shapes]) -> Shapes:
    """Every weight of a model with the ``layers``, whose names are those within a layer."""
    shapes: Shapes = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for index, layer in enumerate(layers):
        shapes |= {f"{layer_prefix(index)}{name}": shape for name, shape in layer.items()}
    shapes[NORM] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def layer_shapes(config: ModelConfig, index: int = 0, *, inputs: int | None = None) -> Shapes:
    """A layer's weights by name within the layer.

    :param inputs: columns that attention over keys and values reads; None: those of the residual stream.
    """
    linear = config.linear_attention
    if linear is not None and linear.layer_types[index] == LINEAR_ATTENTION:
        mixer = _gated_delta_shapes(linear, config.hidden_size)
    else:
        mixer = _attention_shapes(config, config.hidden_size if inputs is None else inputs)
    return _norm_shapes(config) | mixer | _mlp_shapes(config)


def _norm_shapes(config: ModelConfig) -> Shapes:
    return {f"{name}.weight": (config.hidden_size,) for name in ("input_layernorm", "post_attention_layernorm")}


def _attention_shapes(config: ModelConfig, inputs: int) -> Shapes:
    """Attention over keys and values."""
    width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    products = [
        ("q_proj", width * (2 if config.attention_output_gate else 1), inputs, config.attention_bias),
        ("k_proj", kv_width, inputs, config.attention_bias),
        ("v_proj", kv_width, inputs, config.attention_bias),
        ("o_proj", config.hidden_size, width, config.attention_output_bias),
    ]
    shapes: Shapes = {}
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    for name, outputs, columns, has_bias in products:
        shapes[f"self_attn.{name}.weight"] = (outputs, columns)
        if has_bias:
            shapes[f"self_attn.{name}.bias"] = (outputs,)
    return shapes


def _mlp_shapes(config: ModelConfig) -> Shapes:
    """A gated MLP."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: Shapes = {}
    for name, outputs, inputs in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
        shapes[f"mlp.{name}_proj.weight"] = (outputs, inputs)
        if config.mlp_bias:
            shapes[f"mlp.{name}_proj.bias"] = (outputs,)
    return shapes


def _gated_delta_shapes(shape: LinearAttention, hidden: int) -> Shapes:
    num_heads = shape.num_value_heads
    return {
        "linear_attn.dt_bias": (num_heads,),
        "linear_attn.A_log": (num_heads,),
        "linear_attn.conv1d.weight": (shape.conv_width, 1, shape.conv_kernel),
        "linear_attn.in_proj_qkvz.weight": (shape.conv_width + shape.value_width, hidden),
        "linear_attn.in_proj_ba.weight": (2 * num_heads, hidden),
        "linear_attn.norm.weight": (shape.value_head_dim,),
        "linear_attn.out_proj.weight": (hidden, shape.value_width),
    }
