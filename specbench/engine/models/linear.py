"""Matrix products with weights, each layout as one device and dtype multiplies it fastest.

Measured on SmolLM2-135M (30 layers, 2 cores with AMX, milliseconds for all layers' products at 1 / 4 / 16 / 80 rows):

- bfloat16: ``F.linear`` 31 / 28 / 33 / 51, packed by oneDNN 26 / 23 / 26 / 33,
- float32: ``F.linear`` 23 / 40 / 61 / 116, packed 30 / 35 / 52 / 128, transposed 20 / 34 / 53 / 107.

A layout is chosen once, when the model is built: which kernel runs never depends on the step.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor


class Linear(ABC):
    """``x W^T + b`` for one weight [outputs, inputs]."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return [T, outputs] of ``x`` [T, inputs]."""

    @abstractmethod
    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return ``residual`` [T, outputs] plus the product; ``residual`` is left as it was."""

    @abstractmethod
    def unpack(self) -> tuple[Tensor, Tensor | None]:
        """Return weight [outputs, inputs] and bias [outputs], bit for bit; copies where the layout is another."""


class GatedLinear(ABC):
    """``silu(x G^T) * (x U^T)``, the first half of a gated MLP."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return [T, outputs] of ``x`` [T, inputs]."""

    @abstractmethod
    def unpack(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return gate, up and their biases, as :meth:`Linear.unpack` does."""


class Embedding(ABC):
    """Rows of a weight [vocabulary, hidden], looked up."""

    @abstractmethod
    def forward(self, token_ids: Tensor) -> Tensor:
        """Return [T, hidden] of ``token_ids`` [T] int64."""

    @abstractmethod
    def unpack(self) -> Tensor:
        """Return the weight, as :meth:`Linear.unpack` does."""


class PlainEmbedding(Embedding):
    """Rows as they are in the checkpoint."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight.contiguous()

    def forward(self, token_ids: Tensor) -> Tensor:
        """See :class:`Embedding`."""
        return F.embedding(token_ids, self._weight)

    def unpack(self) -> Tensor:
        """See :class:`Embedding`."""
        return self._weight


class Layout(ABC):
    """Builds the products of a model. Weights may be taken over or copied; the caller gives them up."""

    @abstractmethod
    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Return the product with ``weight`` [outputs, inputs] and ``bias`` [outputs]."""

    def gated(self, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None) -> GatedLinear:
        """Return the gated product; all arguments as in :meth:`linear`."""
        bias = None if gate_bias is None or up_bias is None else torch.cat([gate_bias, up_bias])
        return _FusedGatedLinear(self.linear(torch.cat([gate, up]), bias))

    def tied(self, weight: Tensor) -> tuple[Embedding, Linear]:
        """Return an embedding and a head that share ``weight`` [vocabulary, hidden] in memory."""
        embedding = weight.contiguous()
        return PlainEmbedding(embedding), _PlainLinear(embedding, None)


class _FusedGatedLinear(GatedLinear):
    """Gate and up as one product."""

    def __init__(self, gate_up: Linear) -> None:
        self._gate_up = gate_up

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self._gate_up.forward(x).chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def unpack(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        weight, bias = self._gate_up.unpack()
        gate, up = weight.chunk(2)
        gate_bias, up_bias = (None, None) if bias is None else bias.chunk(2)
        return gate, up, gate_bias, up_bias


class PlainLayout(Layout):
    """The checkpoint's own layout, for any device."""

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """See :class:`Layout`."""
        return _PlainLinear(weight.contiguous(), bias)


class _PlainLinear(Linear):
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias).add_(residual)

    def unpack(self) -> tuple[Tensor, Tensor | None]:
        return self._weight, self._bias


class TransposedLayout(Layout):
    """[inputs, outputs] in memory: the CPU's float32 products read it in order, whatever the number of rows."""

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """See :class:`Layout`."""
        return _TransposedLinear(weight.t().contiguous(), bias)


class _TransposedLinear(Linear):
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        if self._bias is None:
            return torch.mm(x, self._weight)
        return torch.addmm(self._bias, x, self._weight)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        product = torch.addmm(residual, x, self._weight)
        return product if self._bias is None else product.add_(self._bias)

    def unpack(self) -> tuple[Tensor, Tensor | None]:
        return self._weight.t(), self._bias


class PackedLayout(Layout):
    """Reordered by oneDNN into the tiles its kernels read; residual, gate and activation are fused into the product."""

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """See :class:`Layout`."""
        return _PackedLinear(_pack(weight), bias)

    def gated(self, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None) -> GatedLinear:
        """See :class:`Layout`."""
        return _PackedGatedLinear(_pack(gate), _pack(up), gate_bias, up_bias)

    def tied(self, weight: Tensor) -> tuple[Embedding, Linear]:
        """See :class:`Layout`."""
        packed = _pack(weight)
        pairs = _find_pairs(packed, weight.contiguous())
        if pairs is None:
            return super().tied(weight)
        return _PackedEmbedding(pairs, packed, weight.dtype), _PackedLinear(packed, None)


class _PackedLinear(Linear):
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias
        self._product, self._product_and = _packed_products()

    def forward(self, x: Tensor) -> Tensor:
        return self._product(x, self._weight, self._bias, "none", [], "")

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        return self._product_and(x, residual, self._weight, self._bias, "add")

    def unpack(self) -> tuple[Tensor, Tensor | None]:
        return self._weight.to_dense(), self._bias


class _PackedGatedLinear(GatedLinear):
    def __init__(self, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None) -> None:
        self._gate, self._up, self._gate_bias, self._up_bias = gate, up, gate_bias, up_bias
        self._product, self._product_and = _packed_products()

    def forward(self, x: Tensor) -> Tensor:
        gate = self._product(x, self._gate, self._gate_bias, "swish", [], "")
        return self._product_and(x, gate, self._up, self._up_bias, "mul")

    def unpack(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        return self._gate.to_dense(), self._up.to_dense(), self._gate_bias, self._up_bias


class _PackedEmbedding(Embedding):
    """Rows read out of a packed weight, so that a tied head can be packed without a second copy for the lookup."""

    def __init__(self, pairs: Tensor, packed: Tensor, dtype: torch.dtype) -> None:
        self._pairs = pairs
        self._rows_per_tile = pairs.shape[2]
        # Owns the memory of the pairs.
        self._packed = packed
        self._dtype = dtype

    def forward(self, token_ids: Tensor) -> Tensor:
        tiles, rows = token_ids // self._rows_per_tile, token_ids % self._rows_per_tile
        return self._pairs[tiles, :, rows].view(self._dtype)

    def unpack(self) -> Tensor:
        return self._packed.to_dense()


def choose_layout(dtype: torch.dtype, device: torch.device) -> Layout:
    """Return the fastest layout that works for ``dtype`` on ``device``."""
    if device.type != "cpu":
        return PlainLayout()
    if dtype == torch.float32:
        return TransposedLayout()
    return PackedLayout() if _can_pack(dtype) else PlainLayout()


def _packed_products() -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """The product with a packed weight, and the same followed by an element-wise operation with a second tensor."""
    operators: Any = torch.ops.mkldnn
    return operators._linear_pointwise.default, operators._linear_pointwise.binary


def _pack(weight: Tensor) -> Tensor:
    operators: Any = torch.ops.mkldnn
    return cast(Tensor, operators._reorder_linear_weight(weight.contiguous()))


@cache
def _can_pack(dtype: torch.dtype) -> bool:
    """Try the packed products on small operands: builds, CPUs and versions differ in what they offer."""
    generator = torch.Generator().manual_seed(0)
    x, gate, up = (torch.rand(shape, generator=generator).to(dtype) for shape in ((2, 32), (48, 32), (48, 32)))
    try:
        packed = PackedLayout().gated(gate, up, None, None).forward(x)
    except (AttributeError, RuntimeError):
        return False
    return torch.allclose(packed, PlainLayout().gated(gate, up, None, None).forward(x), rtol=0.05, atol=0.05)


def _find_pairs(packed: Tensor, weight: Tensor) -> Tensor | None:
    """Return the memory of ``packed`` as [tiles, inputs / 2, rows of a tile], two neighbouring elements an int32.

    oneDNN does not promise a layout, so the one its AMX kernels use is compared with ``weight`` [rows, inputs], row by
    row. None: another layout, or a build that does not show the memory.
    """
    operators: Any = torch.ops.mkldnn
    num_rows, inputs = weight.shape
    if weight.element_size() != 2 or inputs % 2 or not hasattr(operators, "data_ptr"):
        return None
    size = operators._nbytes(packed)
    memory = (ctypes.c_char * size).from_address(operators.data_ptr(packed))
    words = torch.frombuffer(memory, dtype=torch.int32)
    for rows_per_tile in (32, 64, 48, 16):
        num_tiles = -(-num_rows // rows_per_tile)
        if num_tiles * rows_per_tile * inputs * 2 == size:
            pairs = words.view(num_tiles, inputs // 2, rows_per_tile)
            if _holds(pairs, weight.view(torch.int32)):
                return pairs
    return None


def _holds(pairs: Tensor, rows: Tensor) -> bool:
    """True when ``pairs`` [tiles, n, m] has ``rows`` [tiles * m, n] as its columns, the last tile's padding aside."""
    height = pairs.shape[2]
    return all(
        torch.equal(tile.t()[: len(rows) - start], rows[start : start + height])
        for start, tile in zip(range(0, len(rows), height), pairs, strict=True)
    )
