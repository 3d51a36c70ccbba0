"""The dense hybrid family (Qwen3-Next without experts): gated delta net layers between full attention layers.

Full attention here has q/k norm, rotates the leading part of each head and scales its output by a gate. All layers
have a gated MLP; blocks of experts are not built.

Shapes: T token rows, H hidden size, D head_dim, Hq query heads, Hkv KV heads; C channels of the convolution, Hv value
heads and Dv elements of each in a gated delta net.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.engine.attention.base import AttentionOperator
from specbench.engine.models.base import NO_TAPS, HiddenTaps
from specbench.engine.models.config import LINEAR_ATTENTION, LinearAttention, ModelConfig
from specbench.engine.models.decoder import (
    DecoderForCausalLM,
    DecoderLayer,
    LayerLoader,
    RMSNorm,
    Tensors,
    widen,
)
from specbench.engine.models.linear import Layout, Linear
from specbench.engine.models.llama import AttentionLayer, AttentionLoader
from specbench.engine.models.rotary import rotate_leading
from specbench.engine.models.tensor_shapes import Shapes, layer_shapes
from specbench.engine.recurrence import HybridOperator


class GatedAttentionLayer(AttentionLayer):
    """Attention over keys and values, with a gate on its output."""

    def __init__(self, kv_layer: int, config: ModelConfig) -> None:
        super().__init__(kv_layer, config)
        self._widths.append(config.num_heads * config.head_dim if config.attention_output_gate else 0)

    def forward(self, hidden: Tensor, rotations: Tensor, attention: AttentionOperator) -> Tensor:
        """See :class:`AttentionLayer`."""
        qk, v, gate = self.qkv.forward(self.input_norm.forward(hidden)).split_with_sizes(self._widths, 1)
        heads = qk.view(-1, self._num_heads + self._num_kv_heads, self._head_dim)
        if self.qk_norm is not None:
            heads = self.qk_norm.forward(heads)
        q, k = rotate_leading(heads, rotations).split_with_sizes((self._num_heads, self._num_kv_heads), 1)
        attended = attention.forward(self._kv_layer, q, k, v.view(-1, self._num_kv_heads, self._head_dim))
        if gate.shape[1]:
            attended = attended * torch.sigmoid(gate)
        return self.add_mlp(self.output.add_to(hidden, attended))


class GatedDeltaLayer(DecoderLayer):
    """A gated delta net and MLP: projections, the recurrence over each sequence, a gated norm of each head's output.

    :param state_layer: which of the layers with recurrent state it is.
    """

    projection: Linear
    conv_weight: Tensor
    decay_rate: Tensor
    decay_bias: Tensor
    head_norm: RMSNorm
    output: Linear

    def __init__(self, state_layer: int, shape: LinearAttention) -> None:
        self._state_layer = state_layer
        self._heads = (shape.num_value_heads, shape.value_head_dim)
        self._widths = [shape.conv_width, shape.value_width, shape.num_value_heads, shape.num_value_heads]

    def forward(self, hidden: Tensor, rotations: Tensor, attention: AttentionOperator) -> Tensor:  # noqa: ARG002
        """Return the residual stream [T, H] after this layer; positions are in the order of its rows alone."""
        assert isinstance(attention, HybridOperator), "the model's forward refuses any other"
        x = self.input_norm.forward(hidden)
        qkv, gate, beta, step = self.projection.forward(x).split_with_sizes(self._widths, 1)
        g = self.decay_rate * F.softplus(step.float() + self.decay_bias)
        output = attention.recurrence.forward(self._state_layer, qkv, g, beta.float().sigmoid(), self.conv_weight)
        gated = self.head_norm.forward(output) * F.silu(gate.float()).view(-1, *self._heads)
        return self.add_mlp(self.output.add_to(hidden, gated.flatten(1).to(x.dtype)))

    def widen(self, layout: Layout) -> None:
        """See :class:`DecoderLayer`."""
        super().widen(layout)
        self.projection, self.output = widen(self.projection, layout), widen(self.output, layout)


class HybridForCausalLM(DecoderForCausalLM[AttentionLayer | GatedDeltaLayer]):
    """See the module and :class:`specbench.engine.models.base.CausalLM`."""

    def forward(
        self, token_ids: Tensor, positions: Tensor, attention: AttentionOperator, taps: HiddenTaps = NO_TAPS
    ) -> Tensor:
        """See :class:`specbench.engine.models.base.CausalLM`.

        :param attention: a :class:`HybridOperator` where the model has layers with recurrent state.
        :raises TypeError: it is none.
        """
        if self.config.has_recurrent_state and not isinstance(attention, HybridOperator):
            raise TypeError(f"{type(attention).__name__} holds no recurrent state: see with_recurrence")
        return self.run_layers(token_ids, positions, attention, taps)

    def build_layer(self, index: int) -> AttentionLayer | GatedDeltaLayer:
        """See :class:`DecoderForCausalLM`."""
        shape = self.config.linear_attention
        if shape is None:
            return GatedAttentionLayer(index, self.config)
        num_before = shape.layer_types[:index].count(LINEAR_ATTENTION)
        if shape.layer_types[index] == LINEAR_ATTENTION:
            return GatedDeltaLayer(num_before, shape)
        return GatedAttentionLayer(index - num_before, self.config)

    def layer_shapes(self, index: int) -> Shapes:
        """See :class:`DecoderForCausalLM`."""
        return layer_shapes(self.config, index)

    def layer_loader(self, index: int) -> LayerLoader[Any]:
        """See :class:`DecoderForCausalLM`."""
        layer = self.layers[index]
        if isinstance(layer, GatedDeltaLayer):
            return _GatedDeltaLoader(index, layer, self.config, self._layout)
        return AttentionLoader(index, layer, self.config, self._layout)


class _GatedDeltaLoader(LayerLoader[GatedDeltaLayer]):
    """Fills a :class:`GatedDeltaLayer`."""

    def list_builders(self) -> list[tuple[tuple[str, ...], Callable[[Tensors], None]]]:
        builders = super().list_builders()
        builders.append((("linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"), self._build_projection))
        builders.append((("linear_attn.A_log", "linear_attn.dt_bias"), self._build_decay))
        builders.append((("linear_attn.conv1d",), self._build_conv))
        builders.append((("linear_attn.norm",), self._build_head_norm))
        builders.append((("linear_attn.out_proj",), self._build_output))
        return builders

    def _build_projection(self, tensors: Tensors) -> None:
        """By key head, the checkpoint has q, k, v and the gate z, and b and a; here each lies together."""
        shape, hidden = self._config.linear_attention, self._config.hidden_size
        assert shape is not None
        groups = shape.num_value_heads // shape.num_key_heads
        value_rows = groups * shape.value_head_dim
        qkvz = self.take(tensors, "linear_attn.in_proj_qkvz")[0].reshape(shape.num_key_heads, -1, hidden)
        ba = self.take(tensors, "linear_attn.in_proj_ba")[0].reshape(shape.num_key_heads, -1, hidden)
        parts = (
            *qkvz.split_with_sizes([shape.key_head_dim, shape.key_head_dim, value_rows, value_rows], 1),
            *ba.split_with_sizes([groups, groups], 1),
        )
        self._layer.projection = self._layout.linear(torch.cat([part.flatten(0, 1) for part in parts]), None)

    def _build_decay(self, tensors: Tensors) -> None:
        self._layer.decay_rate = -tensors[f"{self._prefix}linear_attn.A_log"].float().exp()
        self._layer.decay_bias = tensors[f"{self._prefix}linear_attn.dt_bias"].float()

    def _build_conv(self, tensors: Tensors) -> None:
        # [channels, 1, taps] -> [taps, channels]: a row of the step is all channels of one token.
        weight = self.take(tensors, "linear_attn.conv1d")[0]
        self._layer.conv_weight = weight.squeeze(1).t().float().contiguous()

    def _build_head_norm(self, tensors: Tensors) -> None:
        stored = self.take(tensors, "linear_attn.norm")[0].float()
        self._layer.head_norm = RMSNorm(stored, self._config.rms_norm_eps)

    def _build_output(self, tensors: Tensors) -> None:
        self._layer.output = self._layout.linear(*self.take(tensors, "linear_attn.out_proj"))
