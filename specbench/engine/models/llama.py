"""The Llama family: Llama 2/3 and SmolLM2, Mistral, Qwen2 (QKV biases) and dense Qwen3 (q/k norm).

Shapes: T token rows, H hidden size, D head_dim, Hq query heads, Hkv KV heads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specbench.engine.attention.base import AttentionOperator
from specbench.engine.models.base import NO_TAPS, HiddenTaps
from specbench.engine.models.config import ModelConfig
from specbench.engine.models.decoder import (
    DecoderForCausalLM,
    DecoderLayer,
    LayerLoader,
    RMSNorm,
    Tensors,
    norm_weight,
    widen,
)
from specbench.engine.models.linear import Layout, Linear
from specbench.engine.models.rotary import interleave_leading, rotate
from specbench.engine.models.tensor_shapes import Shapes, layer_shapes


class AttentionLayer(DecoderLayer):
    """Attention and MLP, each adding to the residual stream. Parts are set by the loader.

    :param kv_layer: which of the layers with keys and values it is.
    """

    qkv: Linear
    qk_norm: RMSNorm | None = None
    output: Linear

    def __init__(self, kv_layer: int, config: ModelConfig) -> None:
        self._kv_layer = kv_layer
        self._num_heads, self._num_kv_heads = config.num_heads, config.num_kv_heads
        self._head_dim = config.head_dim
        rotated = config.num_heads + config.num_kv_heads
        self._widths = [rotated * config.head_dim, config.num_kv_heads * config.head_dim]

    def forward(self, hidden: Tensor, rotations: Tensor, attention: AttentionOperator) -> Tensor:
        """Return the residual stream [T, H] after this layer; ``rotations`` as :class:`RotaryEmbedding` gives them."""
        q, k, v = self._project(self.input_norm.forward(hidden), rotations)
        attended = attention.forward(self._kv_layer, q, k, v)
        return self.add_mlp(self.output.add_to(hidden, attended))

    def _project(self, x: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q [T, Hq, D], k and v [T, Hkv, D], rotated."""
        qk, v = self.qkv.forward(x).split_with_sizes(self._widths, 1)
        heads = qk.view(-1, self._num_heads + self._num_kv_heads, self._head_dim)
        if self.qk_norm is not None:
            heads = self.qk_norm.forward(heads)
        q, k = rotate(heads, rotations).split_with_sizes((self._num_heads, self._num_kv_heads), 1)
        return q, k, v.view(-1, self._num_kv_heads, self._head_dim)

    def widen(self, layout: Layout) -> None:
        """See :class:`DecoderLayer`."""
        super().widen(layout)
        self.qkv, self.output = widen(self.qkv, layout), widen(self.output, layout)


class LlamaForCausalLM(DecoderForCausalLM[AttentionLayer]):
    """See the module and :class:`specbench.engine.models.base.CausalLM`."""

    def forward(
        self, token_ids: Tensor, positions: Tensor, attention: AttentionOperator, taps: HiddenTaps = NO_TAPS
    ) -> Tensor:
        """See :class:`specbench.engine.models.base.CausalLM`."""
        return self.run_layers(token_ids, positions, attention, taps)

    def build_layer(self, index: int) -> AttentionLayer:
        """See :class:`DecoderForCausalLM`."""
        return AttentionLayer(index, self.config)

    def layer_shapes(self, index: int) -> Shapes:
        """See :class:`DecoderForCausalLM`."""
        return layer_shapes(self.config, index)

    def layer_loader(self, index: int) -> AttentionLoader:
        """See :class:`DecoderForCausalLM`."""
        return AttentionLoader(index, self.layers[index], self.config, self._layout)


class AttentionLoader(LayerLoader[AttentionLayer]):
    """Fills one layer from tensors under their names in the Hugging Face format."""

    def list_builders(self) -> list[tuple[tuple[str, ...], Callable[[Tensors], None]]]:
        """See :class:`LayerLoader`."""
        builders = super().list_builders()
        builders.append((("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), self._build_qkv))
        builders.append((("self_attn.o_proj",), self._build_output))
        if self._config.qk_norm:
            builders.append((("self_attn.q_norm", "self_attn.k_norm"), self._build_qk_norm))
        return builders

    def _build_qkv(self, tensors: Tensors) -> None:
        q, k, v = (self.take(tensors, f"self_attn.{name}_proj") for name in "qkv")
        bias = None
        if q[1] is not None and k[1] is not None and v[1] is not None:
            bias = self._join(q[1], k[1], v[1])
        self._layer.qkv = self._layout.linear(self._join(q[0], k[0], v[0]), bias)

    def _join(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Rows of q and k, reordered for the rotation, of v, and of the gate where there is one."""
        config = self._config
        gate: list[Tensor] = []
        if config.attention_output_gate:
            # By head, the checkpoint has the query's rows, then those of its gate.
            q, *gate = (part.flatten(0, 1) for part in q.reshape(config.num_heads, 2, config.head_dim, -1).unbind(1))
            q, *gate = (part.reshape(-1, *k.shape[1:]) for part in (q, *gate))
        return torch.cat([self._interleave(q), self._interleave(k), v, *gate])

    def _interleave(self, weight: Tensor) -> Tensor:
        return interleave_leading(weight, self._config.head_dim, self._config.rotary_dim)

    def _build_qk_norm(self, tensors: Tensors) -> None:
        config, weights = self._config, []
        for name, num_heads in (("q_norm", config.num_heads), ("k_norm", config.num_kv_heads)):
            stored = norm_weight(self.take(tensors, f"self_attn.{name}")[0], config)
            weights.append(self._interleave(stored).expand(num_heads, -1))
        self._layer.qk_norm = RMSNorm(torch.cat(weights), config.rms_norm_eps)

    def _build_output(self, tensors: Tensors) -> None:
        self._layer.output = self._layout.linear(*self.take(tensors, "self_attn.o_proj"))
