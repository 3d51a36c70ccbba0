"""What a safetensors file says of its tensors: names, types, shapes and places. No torch here.

The format is a JSON header and raw bytes; the header alone tells which tensors a checkpoint has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from specbench.engine.models.hf_config import read_json_object
from specbench.engine.models.tensor_header import TensorHeader
from specbench.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
FETCH_AGAIN = "fetch the file again"
FLOATING = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of an element, by the format's name of its type."""
INTEGER = {"I64": 8, "I32": 4, "BOOL": 1}
DTYPE_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "BOOL": "bool",
}
"""PyTorch's names of the types."""

_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class Stored:
    """One tensor in a file.

    :param dtype: a key of :data:`FLOATING` or :data:`INTEGER`.
    :param offset: of its first byte in the file.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int

    @property
    def header(self) -> TensorHeader:
        """The same as other formats have it."""
        return TensorHeader(self.path, DTYPE_NAMES[self.dtype], self.shape)


def find_safetensors(directory: Path) -> list[Path]:
    """Return the weight files of a checkpoint directory: those the index names, else every ``*.safetensors``.

    :raises CheckpointError: the index names a file that is not there.
    """
    index_path = directory / INDEX_NAME
    if not index_path.is_file():
        return sorted(directory.glob("*.safetensors"))
    weight_map = read_json_object(index_path).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError("key 'weight_map' is missing", where=str(index_path), hint=FETCH_AGAIN)
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if not (directory / name).is_file():
            raise CheckpointError(
                f"weight file {name} is named in {INDEX_NAME} but is not there", where=str(directory), hint=FETCH_AGAIN
            )
    return [directory / name for name in names]


def read_headers(paths: Iterable[Path], *, integers: bool = False) -> dict[str, Stored]:
    """Return every tensor of one or more files by name.

    :param integers: tensors of whole numbers and truth values are there as well, as in a head's vocabulary map.
    :raises CheckpointError: a file is truncated or not of this format, a tensor is in two files, or has a type that
        is not supported.
    """
    found: dict[str, Stored] = {}
    for path in paths:
        for name, stored in _read_header(path, {**FLOATING, **(INTEGER if integers else {})}).items():
            if name in found:
                raise CheckpointError(f"tensor {name!r} is also in {found[name].path.name}", where=str(path))
            found[name] = stored
    return found


def _read_header(path: Path, sizes: dict[str, int]) -> dict[str, Stored]:
    def fail(what: str, hint: str | None = FETCH_AGAIN) -> CheckpointError:
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
    return {name: _stored(name, entry, path, (8 + length, size), sizes, fail) for name, entry in entries.items()}


def _stored(name: str, entry: Any, path: Path, span: tuple[int, int], sizes: dict[str, int], fail: Any) -> Stored:
    try:
        dtype, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
        begin, end = (int(n) for n in entry["data_offsets"])
    except (TypeError, KeyError, ValueError):
        raise fail(f"the header entry of tensor {name!r} is damaged") from None
    if dtype not in sizes:
        supported = ", ".join(sizes)
        raise fail(f"tensor {name!r} is stored as {dtype}, which is not supported; supported: {supported}", None)
    start, size = span
    if begin < 0 or end - begin != prod(shape) * sizes[dtype]:
        raise fail(f"tensor {name!r} of shape {list(shape)} does not fill bytes {begin} to {end}")
    if start + end > size:
        raise fail(f"truncated: tensor {name!r} ends at byte {start + end}, the file at {size}")
    return Stored(path, dtype, shape, start + begin, end - begin)
