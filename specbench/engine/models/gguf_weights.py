"""Tensors of a GGUF file, dequantised in chunks of rows and under the names of the Hugging Face format."""

from __future__ import annotations

from collections.abc import Mapping
from io import FileIO
from math import prod
from types import TracebackType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specbench.engine.models.config import ModelConfig
from specbench.engine.models.gguf_config import tensor_headers, to_hf_name
from specbench.engine.models.gguf_header import GgufHeader, GgufTensor
from specbench.engine.models.tensor_header import TensorHeader
from specbench.engine.models.tensor_source import TensorSource
from specbench.errors import CheckpointError

# Values dequantised at once: the package makes several float32 temporaries of this size, which should stay in cache,
# and PyTorch copies this many without waking its other threads, which on a busy machine costs far more than the copy.
_CHUNK_ELEMENTS = 1 << 15

_RAW_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class GgufSource(TensorSource):
    """The weights of one GGUF file.

    :param dtype: what :meth:`read` returns quantised tensors in, so that no float32 copy of a whole tensor is made.
    :raises CheckpointError: the gguf package is not installed.
    """

    def __init__(self, header: GgufHeader, config: ModelConfig, dtype: torch.dtype) -> None:
        self._path = header.path
        self._config = config
        self._dtype = dtype
        self._interleaved = header.metadata.get("general.architecture") == "llama"
        self._headers = tensor_headers(header)
        named = {to_hf_name(name): tensor for name, tensor in header.tensors.items()}
        self._tensors = {name: tensor for name, tensor in named.items() if name is not None}
        self._file = FileIO(header.path)

    @property
    def headers(self) -> Mapping[str, TensorHeader]:
        """Type and shape of every tensor."""
        return self._headers

    def read(self, name: str) -> Tensor:
        """Return a tensor on the CPU: F32, F16 and BF16 as stored, quantised ones in the source's dtype."""
        tensor = self._tensors[name]
        if tensor.type_name in _RAW_DTYPES:
            values = torch.from_numpy(self._read_bytes(tensor, 0, tensor.num_bytes))
            values = values.view(_RAW_DTYPES[tensor.type_name]).reshape(tensor.shape)
        else:
            values = self._dequantize(tensor)
        return self._undo_rotary_order(name, values)

    def _read_bytes(self, tensor: GgufTensor, start: int, count: int) -> npt.NDArray[np.uint8]:
        raw = np.empty(count, np.uint8)
        self._file.seek(tensor.offset + start)
        view, done = raw.data, 0
        while done < count:
            got = self._file.readinto(view[done:])
            if not got:
                raise CheckpointError(
                    f"truncated in tensor {tensor.name!r}", where=str(self._path), hint="fetch the file again"
                )
            done += got
        return raw

    def _dequantize(self, tensor: GgufTensor) -> Tensor:
        from gguf import GGMLQuantizationType, dequantize

        kind = GGMLQuantizationType[tensor.type_name]
        values = torch.empty(prod(tensor.shape), dtype=self._dtype)
        chunk_blocks = _CHUNK_ELEMENTS // tensor.block_elements
        chunk_bytes = chunk_blocks * tensor.block_bytes
        for start in range(0, tensor.num_bytes, chunk_bytes):
            raw = self._read_bytes(tensor, start, min(chunk_bytes, tensor.num_bytes - start))
            # Blocks are independent and in order, so a chunk may be treated as one long row.
            chunk = torch.from_numpy(dequantize(raw.reshape(1, -1), kind).reshape(-1))
            first = start // tensor.block_bytes * tensor.block_elements
            values[first : first + chunk.numel()] = chunk
        return values.reshape(tensor.shape)

    def _undo_rotary_order(self, name: str, values: Tensor) -> Tensor:
        """Files of architecture llama keep the rotated pairs of q and k side by side; here halves are rotated."""
        part = name.split(".")[-2]
        if not self._interleaved or part not in ("q_proj", "k_proj"):
            return values
        heads = self._config.num_heads if part == "q_proj" else self._config.num_kv_heads
        rest = values.shape[1:]
        if values.shape[0] % (2 * heads):
            raise CheckpointError(
                f"tensor {name} of shape {list(values.shape)} does not divide into {heads} heads", where=str(self._path)
            )
        pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *rest)
        return pairs.transpose(1, 2).reshape(values.shape)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
