"""Safetensors checkpoints, one file or shards with an index, read a tensor at a time.

The format is a JSON header and raw bytes, and is read here with plain file reads: mapping the file, as the safetensors
package does, leaves its touched pages in the process's resident memory beside the model's own copy of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from specbench.engine.models.hf_config import read_json_object
from specbench.engine.models.tensor_source import Shape
from specbench.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_MAX_HEADER_BYTES = 100_000_000
_FETCH_AGAIN = "fetch the file again"


@dataclass(frozen=True)
class _Stored:
    path: Path
    dtype: torch.dtype
    shape: Shape
    offset: int
    num_bytes: int


def find_safetensors(directory: Path) -> list[Path]:
    """Return the weight files of a checkpoint directory: those the index names, else every ``*.safetensors``.

    :raises CheckpointError: the index names a file that is not there.
    """
    index_path = directory / INDEX_NAME
    if not index_path.is_file():
        return sorted(directory.glob("*.safetensors"))
    weight_map = read_json_object(index_path).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError("key 'weight_map' is missing", where=str(index_path), hint=_FETCH_AGAIN)
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if not (directory / name).is_file():
            raise CheckpointError(
                f"weight file {name} is named in {INDEX_NAME} but is not there", where=str(directory), hint=_FETCH_AGAIN
            )
    return [directory / name for name in names]


class SafetensorsSource:
    """The tensors of one or more safetensors files.

    :raises CheckpointError: a file is truncated, is not of this format, or holds a dtype that is not supported.
    """

    def __init__(self, paths: list[Path]) -> None:
        self._stored: dict[str, _Stored] = {}
        self._files: dict[Path, FileIO] = {}
        for path in paths:
            for name, stored in _read_header(path).items():
                if name in self._stored:
                    other = self._stored[name].path.name
                    raise CheckpointError(f"tensor {name!r} is also in {other}", where=str(path))
                self._stored[name] = stored

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Shape of every tensor."""
        return {name: stored.shape for name, stored in self._stored.items()}

    def file_of(self, name: str) -> Path:
        """The file a tensor is in."""
        return self._stored[name].path

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
                raise CheckpointError(f"truncated in tensor {name!r}", where=str(stored.path), hint=_FETCH_AGAIN)
            done += count
        return raw.view(stored.dtype).reshape(stored.shape)

    def __enter__(self) -> SafetensorsSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()


def _read_header(path: Path) -> dict[str, _Stored]:
    def fail(what: str, hint: str | None = _FETCH_AGAIN) -> CheckpointError:
        return CheckpointError(what, where=str(path), hint=hint)

    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
                raise fail(f"truncated or not a safetensors file: {size} bytes cannot hold its header")
            header = json.loads(file.read(length))
    except OSError as error:
        raise fail(f"cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise fail("is not a safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise fail("is not a safetensors file: its header is not an object")
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    return {name: _stored(name, entry, path, 8 + length, size, fail) for name, entry in entries.items()}


def _stored(name: str, entry: Any, path: Path, start: int, size: int, fail: Any) -> _Stored:
    try:
        dtype_name, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
        begin, end = (int(n) for n in entry["data_offsets"])
    except (TypeError, KeyError, ValueError):
        raise fail(f"the header entry of tensor {name!r} is damaged") from None
    if dtype_name not in _DTYPES:
        supported = ", ".join(_DTYPES)
        raise fail(f"tensor {name!r} is stored as {dtype_name}, which is not supported; supported: {supported}", None)
    dtype = _DTYPES[dtype_name]
    if begin < 0 or end - begin != prod(shape) * dtype.itemsize:
        raise fail(f"tensor {name!r} of shape {list(shape)} does not fill bytes {begin} to {end}")
    if start + end > size:
        raise fail(f"truncated: tensor {name!r} ends at byte {start + end}, the file at {size}")
    return _Stored(path, dtype, shape, start + begin, end - begin)
