"""Names and shapes of a draft head's weights. No torch here.

Canonical names are those of EAGLE-3 checkpoints (``fc``, ``midlayer``, ``norm``, ``lm_head``), and ``modules.{i}.``
with the names of a DeepSeek module behind it.

Shapes: H the head's hidden size, Ht the target's, Vd the draft vocabulary, V the target's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specbench.engine.drafters.head_config import HeadConfig
    from specbench.engine.models.config import ModelConfig

Shapes = dict[str, tuple[int, ...]]


def eagle3_shapes(config: HeadConfig) -> Shapes:
    """Of one layer over (embedding, hidden state), side by side: q, k and v take 2H columns."""
    decoder, hidden = config.decoder, config.decoder.hidden_size
    shapes: Shapes = {"embed_tokens.weight": (config.vocab_size, hidden)} if config.has_embedding else {}
    shapes["fc.weight"] = (hidden, config.num_hidden_states * config.target_hidden_size)
    shapes["midlayer.hidden_norm.weight"] = (hidden,)
    shapes |= {f"midlayer.{name}": shape for name, shape in _layer_shapes(decoder, 2 * hidden).items()}
    shapes["norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (config.draft_vocab_size, hidden)
    return shapes


def mtp_shapes(config: HeadConfig) -> Shapes:
    """Of modules: norms of embedding and hidden state, the product that joins them, a decoder layer, the last norm."""
    decoder, hidden = config.decoder, config.decoder.hidden_size
    module: Shapes = {"embed_tokens.weight": (config.vocab_size, hidden)} if config.has_embedding else {}
    module |= {"enorm.weight": (hidden,), "hnorm.weight": (hidden,), "eh_proj.weight": (hidden, 2 * hidden)}
    module |= _layer_shapes(decoder, hidden)
    module["norm.weight"] = (hidden,)
    if config.has_lm_head:
        module["lm_head.weight"] = (config.draft_vocab_size, hidden)
    return {f"modules.{i}.{name}": shape for i in range(config.num_modules) for name, shape in module.items()}


def _layer_shapes(decoder: ModelConfig, inputs: int) -> Shapes:
    """Of a decoder layer whose attention reads ``inputs`` columns."""
    hidden, inner = decoder.hidden_size, decoder.intermediate_size
    width, kv_width = decoder.num_heads * decoder.head_dim, decoder.num_kv_heads * decoder.head_dim
    products = [
        ("self_attn.q_proj", width, inputs, decoder.attention_bias),
        ("self_attn.k_proj", kv_width, inputs, decoder.attention_bias),
        ("self_attn.v_proj", kv_width, inputs, decoder.attention_bias),
        ("self_attn.o_proj", hidden, width, decoder.attention_output_bias),
        ("mlp.gate_proj", inner, hidden, decoder.mlp_bias),
        ("mlp.up_proj", inner, hidden, decoder.mlp_bias),
        ("mlp.down_proj", hidden, inner, decoder.mlp_bias),
    ]
    shapes: Shapes = {f"{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
    if decoder.qk_norm:
        shapes |= {f"self_attn.{name}.weight": (decoder.head_dim,) for name in ("q_norm", "k_norm")}
    for name, outputs, columns, has_bias in products:
        shapes[f"{name}.weight"] = (outputs, columns)
        if has_bias:
            shapes[f"{name}.bias"] = (outputs,)
    return shapes
