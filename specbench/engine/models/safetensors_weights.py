"""Safetensors checkpoints, one file or shards with an index, read a tensor at a time.

The format is a JSON header and raw bytes, and is read here with plain file reads: mapping the file, as the safetensors
package does, leaves its touched pages in the process's resident memory beside the model's own copy of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from specbench.engine.models.safetensors_header import DTYPE_NAMES, FETCH_AGAIN, find_safetensors, read_headers
from specbench.engine.models.tensor_header import TensorHeader
from specbench.engine.models.tensor_source import TensorSource
from specbench.errors import CheckpointError

__all__ = ["SafetensorsSource", "find_safetensors"]


class SafetensorsSource(TensorSource):
    """The tensors of one or more safetensors files.

    :param integers: see :func:`~specbench.engine.models.safetensors_header.read_headers`.
    :raises CheckpointError: a file is truncated, is not of this format, or holds a dtype that is not supported.
    """

    def __init__(self, paths: list[Path], *, integers: bool = False) -> None:
        self._stored = read_headers(paths, integers=integers)
        self._files: dict[Path, FileIO] = {}

    @property
    def headers(self) -> Mapping[str, TensorHeader]:
        """Type and shape of every tensor."""
        return {name: stored.header for name, stored in self._stored.items()}

    def read(self, name: str) -> Tensor:
        """Return a tensor in the dtype it is stored in, on the CPU."""
        stored = self._stored[name]
        file = self._files.get(stored.path)
        if file is None:
            # Unbuffered: its reads go straight into the tensor.
            file = self._files[stored.path] = FileIO(stored.path)
        raw = torch.empty(stored.num_bytes, dtype=torch.uint8)
        file.seek(stored.offset)
        view, done = raw.numpy().data, 0
        while done < stored.num_bytes:
            count = file.readinto(view[done:])
            if not count:
                raise CheckpointError(f"truncated in tensor {name!r}", where=str(stored.path), hint=FETCH_AGAIN)
            done += count
        return raw.view(getattr(torch, DTYPE_NAMES[stored.dtype])).reshape(stored.shape)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()
