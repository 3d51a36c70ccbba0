"""What decoder-only families share: embedding, norms, gated MLP, head, and the loading of named tensors.

Shapes: T token rows, H hidden size.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from specbench.engine.attention.base import AttentionOperator
from specbench.engine.models.base import CausalLM, HiddenTaps
from specbench.engine.models.config import ModelConfig
from specbench.engine.models.linear import Embedding, GatedLinear, Layout, Linear, PlainEmbedding, choose_layout
from specbench.engine.models.rotary import RotaryEmbedding
from specbench.engine.models.tensor_shapes import EMBEDDING, HEAD, NORM, Shapes, join_shapes, layer_prefix
from specbench.errors import CheckpointError

Tensors = dict[str, Tensor]

Layer = TypeVar("Layer", bound="DecoderLayer")


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


def norm_weight(stored: Tensor, config: ModelConfig) -> Tensor:
    """The float32 factor that a checkpoint's norm weight means."""
    return stored.float() + 1.0 if config.zero_centered_norms else stored.float()


@dataclass(frozen=True)
class Part:
    """Tensors that become one piece of the model together."""

    names: tuple[str, ...]
    build: Callable[[Tensors], None]


class DecoderLayer(ABC):
    """Norms and MLP around whatever mixes the tokens of a sequence. Parts are set by the loader."""

    input_norm: RMSNorm
    mlp_norm: RMSNorm
    gate_up: GatedLinear
    down: Linear

    @abstractmethod
    def forward(self, hidden: Tensor, rotations: Tensor, attention: Any) -> Tensor:
        """Return the residual stream [T, H] after the layer; ``rotations`` as :class:`RotaryEmbedding` gives them."""

    def add_mlp(self, hidden: Tensor) -> Tensor:
        """Return the residual stream [T, H] with the MLP's output added."""
        return self.down.add_to(hidden, self.gate_up.forward(self.mlp_norm.forward(hidden)))

    def in_float32(self: Layer, layout: Layout) -> Layer:
        """Return a copy that computes in float32 with the same weights. Norms are shared: they do so anyway."""
        layer = copy.copy(self)
        layer.widen(layout)
        return layer

    def widen(self, layout: Layout) -> None:
        """Replace every product by one with the same weight in float32."""
        gate, up, gate_bias, up_bias = self.gate_up.unpack()
        self.gate_up = layout.gated(gate.float(), up.float(), _float(gate_bias), _float(up_bias))
        self.down = widen(self.down, layout)


def widen(linear: Linear, layout: Layout) -> Linear:
    """The product with the same weight in float32."""
    weight, bias = linear.unpack()
    return layout.linear(weight.float(), _float(bias))


def _float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float()


class LayerLoader(Generic[Layer]):
    """Fills one layer from tensors under their names in the Hugging Face format; a family adds its own parts."""

    def __init__(self, index: int, layer: Layer, config: ModelConfig, layout: Layout) -> None:
        self._prefix = layer_prefix(index)
        self._layer = layer
        self._config = config
        self._layout = layout

    def list_builders(self) -> list[tuple[tuple[str, ...], Callable[[Tensors], None]]]:
        """Modules that become one piece together, and what builds it."""
        return [
            (("input_layernorm",), self._build_input_norm),
            (("post_attention_layernorm",), self._build_mlp_norm),
            (("mlp.gate_proj", "mlp.up_proj"), self._build_gate_up),
            (("mlp.down_proj",), self._build_down),
        ]

    def parts(self, shapes: Shapes) -> list[Part]:
        """The layer's parts; names that ``shapes`` lacks (biases) are left out."""
        parts = []
        for modules, build in self.list_builders():
            names = [f"{self._prefix}{module}{kind}" for kind in (".weight", ".bias", "") for module in modules]
            parts.append(Part(tuple(name for name in names if name in shapes), build))
        return parts

    def take(self, tensors: Tensors, module: str) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of a module of the layer."""
        return tensors[f"{self._prefix}{module}.weight"], tensors.get(f"{self._prefix}{module}.bias")

    def _norm(self, tensors: Tensors, module: str) -> RMSNorm:
        return RMSNorm(norm_weight(self.take(tensors, module)[0], self._config), self._config.rms_norm_eps)

    def _build_input_norm(self, tensors: Tensors) -> None:
        self._layer.input_norm = self._norm(tensors, "input_layernorm")

    def _build_mlp_norm(self, tensors: Tensors) -> None:
        self._layer.mlp_norm = self._norm(tensors, "post_attention_layernorm")

    def _build_gate_up(self, tensors: Tensors) -> None:
        gate, up = self.take(tensors, "mlp.gate_proj"), self.take(tensors, "mlp.up_proj")
        self._layer.gate_up = self._layout.gated(gate[0], up[0], gate[1], up[1])

    def _build_down(self, tensors: Tensors) -> None:
        self._layer.down = self._layout.linear(*self.take(tensors, "mlp.down_proj"))


class DecoderForCausalLM(CausalLM, Generic[Layer]):
    """A decoder whose layers a family builds; see :class:`CausalLM`.

    :ivar layers: in order; ``head`` the product that gives logits.
    """

    head: Linear
    _embedding: Embedding
    _norm: RMSNorm

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(config, dtype, device)
        self._layout: Layout = choose_layout(dtype, device)
        self._rotary = RotaryEmbedding(config, device)
        self.layers: list[Layer] = [self.build_layer(index) for index in range(config.num_layers)]
        self._shapes = join_shapes(config, [self.layer_shapes(index) for index in range(config.num_layers)])
        self._parts = {name: part for part in self._list_parts() for name in part.names}
        self._waiting: Tensors = {}
        self._missing = dict.fromkeys(self._shapes)

    @abstractmethod
    def build_layer(self, index: int) -> Layer:
        """Return an empty layer."""

    @abstractmethod
    def layer_shapes(self, index: int) -> Shapes:
        """Shapes of a layer's tensors by name within the layer, in the family's order."""

    @abstractmethod
    def layer_loader(self, index: int) -> LayerLoader[Any]:
        """Return what fills the layer."""

    def run_layers(
        self, token_ids: Tensor, positions: Tensor, attention: AttentionOperator, taps: HiddenTaps
    ) -> Tensor:
        """Embed, run every layer, and norm; arguments as of :meth:`CausalLM.forward`."""
        hidden = self._embedding.forward(token_ids)
        rotations = self._rotary.rotations(positions)
        for index, layer in enumerate(self.layers):
            taps.see(index, hidden)
            hidden = layer.forward(hidden, rotations, attention)
        return self._norm.forward(hidden)

    def embed(self, token_ids: Tensor) -> Tensor:
        """See :class:`CausalLM`."""
        return self._embedding.forward(token_ids)

    def head_rows(self, token_ids: Tensor | None) -> Tensor:
        """See :class:`CausalLM`."""
        weight, _ = self.head.unpack()
        return weight.clone() if token_ids is None else weight[token_ids.to(weight.device)]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See :class:`CausalLM`."""
        return self.head.forward(hidden).float()

    def in_float32(self) -> DecoderForCausalLM[Layer]:
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
            model.head = widen(self.head, layout)
        return model

    def expected_tensors(self) -> Shapes:
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

    def _list_parts(self) -> list[Part]:
        parts = [Part((EMBEDDING,), self._build_embedding), Part((NORM,), self._build_norm)]
        if not self.config.tie_word_embeddings:
            parts.append(Part((HEAD,), self._build_head))
        for index in range(self.config.num_layers):
            parts += self.layer_loader(index).parts(self._shapes)
        return parts

    def _build_embedding(self, tensors: Tensors) -> None:
        if self.config.tie_word_embeddings:
            self._embedding, self.head = self._layout.tied(tensors[EMBEDDING])
        else:
            self._embedding = PlainEmbedding(tensors[EMBEDDING])

    def _build_norm(self, tensors: Tensors) -> None:
        self._norm = RMSNorm(norm_weight(tensors[NORM], self.config), self.config.rms_norm_eps)

    def _build_head(self, tensors: Tensors) -> None:
        self.head = self._layout.linear(tensors[HEAD], None)
