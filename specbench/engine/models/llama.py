"""The Llama family: Llama 2/3 and SmolLM2, Mistral, Qwen2 (QKV biases) and dense Qwen3 (q/k norm).

Shapes: T token rows, H hidden size, D head_dim, Hq query heads, Hkv KV heads.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.attention.base import AttentionOperator
from specbench.engine.models.base import CausalLM
from specbench.engine.models.config import ModelConfig
from specbench.engine.models.linear import Embedding, GatedLinear, Layout, Linear, PlainEmbedding, choose_layout
from specbench.engine.models.rotary import RotaryEmbedding, interleave_pairs, rotate
from specbench.errors import CheckpointError

_EMBEDDING = "model.embed_tokens.weight"
_NORM = "model.norm.weight"
_HEAD = "lm_head.weight"


class RMSNorm:
    """``x / rms(x) * weight`` over the last dimension, computed in float32.

    :param weight: float32, of a shape that the normalised rows broadcast with.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        size = weight.shape[-1]
        self._weight = weight * math.sqrt(size)
        self._offset = torch.tensor(math.sqrt(size * eps), dtype=torch.float32, device=weight.device)

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of ``x`` [..., size], in its dtype."""
        # Few and small kernels: two thirds of the time of F.rms_norm, which is not one kernel on the CPU either.
        # x / sqrt(sum(x^2) / n + eps) is sqrt(n) * x / hypot(|x|, sqrt(n * eps)); the weight holds the first factor.
        wide = x.float()
        lengths: Tensor = torch.linalg.vector_norm(wide, 2, -1, True).hypot_(self._offset)
        return (wide / lengths).mul_(self._weight).to(x.dtype)


class DecoderLayer:
    """Attention and MLP, each adding to the residual stream. Parts are set by the loader."""

    input_norm: RMSNorm
    qkv: Linear
    qk_norm: RMSNorm | None = None
    output: Linear
    mlp_norm: RMSNorm
    gate_up: GatedLinear
    down: Linear

    def __init__(self, index: int, config: ModelConfig) -> None:
        self._index = index
        self._num_heads, self._num_kv_heads = config.num_heads, config.num_kv_heads
        self._head_dim = config.head_dim
        rotated = config.num_heads + config.num_kv_heads
        self._widths = [rotated * config.head_dim, config.num_kv_heads * config.head_dim]

    def forward(self, hidden: Tensor, rotations: Tensor, attention: AttentionOperator) -> Tensor:
        """Return the residual stream [T, H] after this layer; ``rotations`` as :class:`RotaryEmbedding` gives them."""
        q, k, v = self._project(self.input_norm.forward(hidden), rotations)
        attended = attention.forward(self._index, q, k, v)
        hidden = self.output.add_to(hidden, attended)
        return self.down.add_to(hidden, self.gate_up.forward(self.mlp_norm.forward(hidden)))

    def _project(self, x: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q [T, Hq, D], k and v [T, Hkv, D], rotated."""
        qk, v = self.qkv.forward(x).split_with_sizes(self._widths, 1)
        heads = qk.view(-1, self._num_heads + self._num_kv_heads, self._head_dim)
        if self.qk_norm is not None:
            heads = self.qk_norm.forward(heads)
        q, k = rotate(heads, rotations).split_with_sizes((self._num_heads, self._num_kv_heads), 1)
        return q, k, v.view(-1, self._num_kv_heads, self._head_dim)

    def in_float32(self, layout: Layout) -> DecoderLayer:
        """See :meth:`CausalLM.in_float32`. Norms are shared: they compute in float32 anyway."""
        layer = copy.copy(self)
        layer.qkv = _widen(self.qkv, layout)
        layer.output = _widen(self.output, layout)
        gate, up, gate_bias, up_bias = self.gate_up.unpack()
        layer.gate_up = layout.gated(gate.float(), up.float(), _float(gate_bias), _float(up_bias))
        layer.down = _widen(self.down, layout)
        return layer


def _widen(linear: Linear, layout: Layout) -> Linear:
    weight, bias = linear.unpack()
    return layout.linear(weight.float(), _float(bias))


def _float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float()


@dataclass(frozen=True)
class _Part:
    """Tensors that become one piece of the model together."""

    names: tuple[str, ...]
    build: Callable[[dict[str, Tensor]], None]


class LlamaForCausalLM(CausalLM):
    """See the module and :class:`CausalLM`."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(config, dtype, device)
        self._layout: Layout = choose_layout(dtype, device)
        self._rotary = RotaryEmbedding(config, device)
        self.layers = [DecoderLayer(index, config) for index in range(config.num_layers)]
        self._embedding: Embedding
        self._norm: RMSNorm
        self.head: Linear
        self._shapes = _tensor_shapes(config)
        self._parts = {name: part for part in self._list_parts() for name in part.names}
        self._waiting: dict[str, Tensor] = {}
        self._missing = dict.fromkeys(self._shapes)

    def forward(self, token_ids: Tensor, positions: Tensor, attention: AttentionOperator) -> Tensor:
        """See :class:`CausalLM`."""
        hidden = self._embedding.forward(token_ids)
        rotations = self._rotary.rotations(positions)
        for layer in self.layers:
            hidden = layer.forward(hidden, rotations, attention)
        return self._norm.forward(hidden)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See :class:`CausalLM`."""
        return self.head.forward(hidden).float()

    def in_float32(self) -> LlamaForCausalLM:
        """See :class:`CausalLM`."""
        if self.dtype == torch.float32:
            return self
        layout = choose_layout(torch.float32, self.device)
        model = copy.copy(self)
        model.dtype, model._layout = torch.float32, layout
        model._parts = {}  # of loading, which is over; they would keep this model alive as long as its copy
        model.layers = [layer.in_float32(layout) for layer in self.layers]
        if self.config.tie_word_embeddings:
            model._embedding, model.head = layout.tied(self.head.unpack()[0].float())
        else:
            model._embedding = PlainEmbedding(self._embedding.unpack().float())
            model.head = _widen(self.head, layout)
        return model

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """See :class:`CausalLM`."""
        return dict(self._shapes)

    def load_tensor(self, name: str, tensor: Tensor) -> None:
        """See :class:`CausalLM`."""
        expected = self._shapes.get(name)
        if expected is None or name not in self._missing:
            problem = "is not a tensor of this model" if expected is None else "came twice"
            raise CheckpointError(f"tensor {name!r} {problem}", where=self.config.architecture)
        if tuple(tensor.shape) != expected:
            raise CheckpointError(
                f"tensor {name!r} has shape {list(tensor.shape)}, expected {list(expected)}",
                where=self.config.architecture,
                hint="check that the configuration and the weights belong to the same model",
            )
        self._waiting[name] = tensor.to(self.device, self.dtype)
        del self._missing[name]
        part = self._parts[name]
        # Packed as soon as it is complete, so that the plain copy of at most a few tensors is in memory.
        if all(member in self._waiting for member in part.names):
            part.build({member: self._waiting.pop(member) for member in part.names})

    def finish_loading(self) -> None:
        """See :class:`CausalLM`."""
        if self._missing:
            names = list(self._missing)
            shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            raise CheckpointError(f"tensors are missing: {shown}", where=self.config.architecture)

    def _list_parts(self) -> list[_Part]:
        parts = [_Part((_EMBEDDING,), self._build_embedding), _Part((_NORM,), self._build_norm)]
        if not self.config.tie_word_embeddings:
            parts.append(_Part((_HEAD,), self._build_head))
        for index, layer in enumerate(self.layers):
            parts += _LayerLoader(index, layer, self.config, self._layout).parts(self._shapes)
        return parts

    def _build_embedding(self, tensors: dict[str, Tensor]) -> None:
        if self.config.tie_word_embeddings:
            self._embedding, self.head = self._layout.tied(tensors[_EMBEDDING])
        else:
            self._embedding = PlainEmbedding(tensors[_EMBEDDING])

    def _build_norm(self, tensors: dict[str, Tensor]) -> None:
        self._norm = RMSNorm(tensors[_NORM].float(), self.config.rms_norm_eps)

    def _build_head(self, tensors: dict[str, Tensor]) -> None:
        self.head = self._layout.linear(tensors[_HEAD], None)


class _LayerLoader:
    """Fills one layer from tensors under their names in the Hugging Face format."""

    def __init__(self, index: int, layer: DecoderLayer, config: ModelConfig, layout: Layout) -> None:
        self._prefix = _layer_prefix(index)
        self._layer = layer
        self._config = config
        self._layout = layout

    def parts(self, shapes: dict[str, tuple[int, ...]]) -> list[_Part]:
        """The layer's parts; names that ``shapes`` lacks (biases) are left out."""
        builders: list[tuple[tuple[str, ...], Callable[[dict[str, Tensor]], None]]] = [
            (("input_layernorm",), self._build_input_norm),
            (("post_attention_layernorm",), self._build_mlp_norm),
            (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), self._build_qkv),
            (("self_attn.o_proj",), self._build_output),
            (("mlp.gate_proj", "mlp.up_proj"), self._build_gate_up),
            (("mlp.down_proj",), self._build_down),
        ]
        if self._config.qk_norm:
            builders.append((("self_attn.q_norm", "self_attn.k_norm"), self._build_qk_norm))
        parts = []
        for modules, build in builders:
            names = [f"{self._prefix}{module}.{kind}" for kind in ("weight", "bias") for module in modules]
            parts.append(_Part(tuple(name for name in names if name in shapes), build))
        return parts

    def _take(self, tensors: dict[str, Tensor], module: str) -> tuple[Tensor, Tensor | None]:
        return tensors[f"{self._prefix}{module}.weight"], tensors.get(f"{self._prefix}{module}.bias")

    def _build_input_norm(self, tensors: dict[str, Tensor]) -> None:
        self._layer.input_norm = self._norm(tensors, "input_layernorm")

    def _build_mlp_norm(self, tensors: dict[str, Tensor]) -> None:
        self._layer.mlp_norm = self._norm(tensors, "post_attention_layernorm")

    def _norm(self, tensors: dict[str, Tensor], module: str) -> RMSNorm:
        return RMSNorm(self._take(tensors, module)[0].float(), self._config.rms_norm_eps)

    def _build_qkv(self, tensors: dict[str, Tensor]) -> None:
        q, k, v = (self._take(tensors, f"self_attn.{name}_proj") for name in "qkv")
        head_dim = self._config.head_dim
        weight = torch.cat([interleave_pairs(q[0], head_dim), interleave_pairs(k[0], head_dim), v[0]])
        bias = None
        if q[1] is not None and k[1] is not None and v[1] is not None:
            bias = torch.cat([interleave_pairs(q[1], head_dim), interleave_pairs(k[1], head_dim), v[1]])
        self._layer.qkv = self._layout.linear(weight, bias)

    def _build_qk_norm(self, tensors: dict[str, Tensor]) -> None:
        config = self._config
        weights = []
        for name, num_heads in (("q_norm", config.num_heads), ("k_norm", config.num_kv_heads)):
            weight = interleave_pairs(self._take(tensors, f"self_attn.{name}")[0].float(), config.head_dim)
            weights.append(weight.expand(num_heads, -1))
        self._layer.qk_norm = RMSNorm(torch.cat(weights), config.rms_norm_eps)

    def _build_output(self, tensors: dict[str, Tensor]) -> None:
        self._layer.output = self._layout.linear(*self._take(tensors, "self_attn.o_proj"))

    def _build_gate_up(self, tensors: dict[str, Tensor]) -> None:
        gate, up = self._take(tensors, "mlp.gate_proj"), self._take(tensors, "mlp.up_proj")
        self._layer.gate_up = self._layout.gated(gate[0], up[0], gate[1], up[1])

    def _build_down(self, tensors: dict[str, Tensor]) -> None:
        self._layer.down = self._layout.linear(*self._take(tensors, "mlp.down_proj"))


def _layer_prefix(index: int) -> str:
    return f"model.layers.{index}."


def _tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {_EMBEDDING: (config.vocab_size, config.hidden_size)}
    for index in range(config.num_layers):
        shapes |= {f"{_layer_prefix(index)}{name}": shape for name, shape in _layer_shapes(config).items()}
    shapes[_NORM] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes[_HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    products = [
        ("self_attn.q_proj", width, hidden, config.attention_bias),
        ("self_attn.k_proj", kv_width, hidden, config.attention_bias),
        ("self_attn.v_proj", kv_width, hidden, config.attention_bias),
        ("self_attn.o_proj", hidden, width, config.attention_output_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    ]
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    for name, outputs, inputs, has_bias in products:
        shapes[f"{name}.weight"] = (outputs, inputs)
        if has_bias:
            shapes[f"{name}.bias"] = (outputs,)
    return shapes
