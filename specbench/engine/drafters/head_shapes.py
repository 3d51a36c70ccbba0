"""Names and shapes of a draft head's weights. No torch here.

Canonical names are those of EAGLE-3 checkpoints (``fc``, ``midlayer``, ``norm``, ``lm_head``), and ``modules.{i}.``
with the names of a DeepSeek module behind it.

Shapes: H the head's hidden size, Ht the target's, Vd the draft vocabulary, V the target's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.engine.models.tensor_shapes import Shapes, layer_shapes

if TYPE_CHECKING:
    from specbench.engine.drafters.head_config import HeadConfig


def eagle3_shapes(config: HeadConfig) -> Shapes:
    """Of one layer over (embedding, hidden state), side by side: q, k and v take 2H columns."""
    decoder, hidden = config.decoder, config.decoder.hidden_size
    shapes: Shapes = {"embed_tokens.weight": (config.vocab_size, hidden)} if config.has_embedding else {}
    shapes["fc.weight"] = (hidden, config.num_hidden_states * config.target_hidden_size)
    shapes["midlayer.hidden_norm.weight"] = (hidden,)
    shapes |= {f"midlayer.{name}": shape for name, shape in layer_shapes(decoder, inputs=2 * hidden).items()}
    shapes["norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (config.draft_vocab_size, hidden)
    return shapes


def mtp_shapes(config: HeadConfig) -> Shapes:
    """Of modules: norms of embedding and hidden state, the product that joins them, a decoder layer, the last norm."""
    decoder, hidden = config.decoder, config.decoder.hidden_size
    module: Shapes = {"embed_tokens.weight": (config.vocab_size, hidden)} if config.has_embedding else {}
    module |= {"enorm.weight": (hidden,), "hnorm.weight": (hidden,), "eh_proj.weight": (hidden, 2 * hidden)}
    module |= layer_shapes(decoder)
    module["norm.weight"] = (hidden,)
    if config.has_lm_head:
        module["lm_head.weight"] = (config.draft_vocab_size, hidden)
    return {f"modules.{i}.{name}": shape for i in range(config.num_modules) for name, shape in module.items()}
