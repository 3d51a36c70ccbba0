"""Decoder layers of draft heads, filled from tensors under canonical names."""

from __future__ import annotations

from torch import Tensor

from specbench.engine.drafters.base import DrafterHost
from specbench.engine.models.config import ModelConfig
from specbench.engine.models.decoder import RMSNorm, Tensors, norm_weight
from specbench.engine.models.linear import Layout
from specbench.engine.models.llama import AttentionLayer, AttentionLoader
from specbench.engine.models.tensor_shapes import layer_prefix


def move_tensors(tensors: Tensors, host: DrafterHost) -> Tensors:
    """The tensors on the engine's device, in its dtype."""
    return {name: tensor.to(host.device, host.dtype) for name, tensor in tensors.items()}


def build_norm(stored: Tensor, decoder: ModelConfig) -> RMSNorm:
    """A norm with the weight that a checkpoint holds."""
    return RMSNorm(norm_weight(stored, decoder), decoder.rms_norm_eps)


def fill_layer(layer: AttentionLayer, tensors: Tensors, prefix: str, decoder: ModelConfig, layout: Layout) -> None:
    """Fill ``layer`` with those of ``tensors`` that start with ``prefix``; others of that prefix are left alone."""
    # The loader of the Llama family knows a layer by its number.
    own = layer_prefix(0)
    renamed = {own + name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    loader = AttentionLoader(0, layer, decoder, layout)
    for part in loader.parts({name: tuple(tensor.shape) for name, tensor in renamed.items()}):
        part.build({name: renamed[name] for name in part.names})
