"""Seeded random weights: a model of any size with nothing to download.

Each tensor is a function of (seed, its name) alone, so that order does not matter and a change of one layer's shape
leaves the others as they were. Linear layers keep the variance of their input (deviation ``1 / sqrt(inputs)``), those
that write into the residual stream are scaled down by ``sqrt(2 layers)``, and the logits get a deviation of about 2,
far from uniform.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from specbench.engine.models.config import ModelConfig
from specbench.engine.models.tensor_header import Shape, TensorHeader
from specbench.engine.models.tensor_source import TensorSource

_LOGIT_DEVIATION = 2.0
_BIAS_DEVIATION = 0.02
# With tied embeddings, a token's own embedding in the residual stream favours the token itself: without this gain,
# which lets the MLPs outweigh it, greedy text is one token over and over.
_MLP_GAIN = 8.0
# Logarithm of a recurrent head's decay rate: memories of one token to hundreds of them.
_DECAY_RATES = (-5.0, 0.0)
_CHUNK_ELEMENTS = 1 << 22


class RandomSource(TensorSource):
    """Random tensors of the shapes a model expects, generated on ``device`` in ``dtype``.

    Equal seeds give equal tensors on one kind of device; CPU and CUDA have generators of their own.
    """

    def __init__(
        self,
        config: ModelConfig,
        shapes: Mapping[str, Shape],
        *,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._config = config
        self._shapes = dict(shapes)
        self._seed = seed
        self._dtype = dtype
        self._device = device

    @property
    def headers(self) -> Mapping[str, TensorHeader]:
        """Type and shape of every tensor, and a name in place of a file."""
        dtype = str(self._dtype).removeprefix("torch.")
        return {name: TensorHeader(Path(f"random:{name}"), dtype, shape) for name, shape in self._shapes.items()}

    def read(self, name: str) -> Tensor:
        """Return the tensor of this name."""
        shape = self._shapes[name]
        if name.endswith("norm.weight"):
            is_centered = self._config.zero_centered_norms and not name.endswith("linear_attn.norm.weight")
            return torch.full(shape, 0.0 if is_centered else 1.0, dtype=self._dtype, device=self._device)
        deviation = self._deviation(name, shape)
        digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        generator = torch.Generator(self._device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        if name.endswith("A_log"):
            rates = torch.empty(shape, dtype=torch.float32, device=self._device)
            return rates.uniform_(*_DECAY_RATES, generator=generator).to(self._dtype)
        values = torch.empty(math.prod(shape), dtype=self._dtype, device=self._device)
        # In chunks: values are drawn in float32 for every dtype, and a whole float32 copy would be a peak of memory.
        for start in range(0, values.numel(), _CHUNK_ELEMENTS):
            chunk = values[start : start + _CHUNK_ELEMENTS]
            drawn = torch.empty(chunk.shape, dtype=torch.float32, device=self._device)
            chunk.copy_(drawn.normal_(0.0, deviation, generator=generator))
        return values.reshape(shape)

    def _deviation(self, name: str, shape: Shape) -> float:
        if name.endswith(".bias"):
            return _BIAS_DEVIATION
        if "embed_tokens" in name or "lm_head" in name:
            return _LOGIT_DEVIATION / math.sqrt(shape[-1])
        deviation = 1.0 / math.sqrt(shape[-1])
        depth = math.sqrt(2 * self._config.num_layers)
        if "o_proj" in name or "out_proj" in name:
            return deviation / depth
        return deviation * _MLP_GAIN / depth if "down_proj" in name else deviation

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
