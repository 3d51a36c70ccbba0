"""Header of a GGUF file: metadata and tensor table. No torch, no numpy.

Read here rather than with the gguf package's reader, which wraps each of the 100,000 strings of a vocabulary in arrays
and takes seconds over it; checking a scenario has half of one. The package dequantises (:mod:`.gguf_weights`).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from specbench.errors import CheckpointError

# Tensor type -> (name, elements in a quantisation block, bytes of that block).
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}

# Metadata value type -> struct code; 8 is a string and 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_SHORT_ARRAY = 64
_VERSIONS = (2, 3)


@dataclass(frozen=True)
class GgufTensor:
    """One row of the tensor table. ``shape`` is as torch has it (the file stores it reversed)."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int
    block_elements: int
    block_bytes: int


@dataclass(frozen=True)
class LongArray:
    """Where a metadata array lies that was skipped; :meth:`GgufHeader.array` reads it."""

    item_type: int
    count: int
    offset: int


@dataclass(frozen=True)
class GgufHeader:
    """Metadata and tensor table of the file at ``path``."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor] = field(repr=False)

    def array(self, key: str) -> list[Any]:
        """Return a metadata array in full (strings as ``str``), or an empty list where there is none."""
        value = self.metadata.get(key, [])
        if not isinstance(value, LongArray):
            return list(value)
        with _open_cursor(self.path) as cursor:
            cursor.position = value.offset
            return list(cursor.items(value.item_type, value.count))


def read_header(path: Path) -> GgufHeader:
    """Read the header of a GGUF file.

    :raises CheckpointError: not a GGUF file, truncated, or of a version, byte order or tensor type not supported.
    """
    with _open_cursor(path) as cursor:
        if cursor.take(4) != b"GGUF":
            raise cursor.fail("is not a GGUF file")
        version = cursor.number("I")
        if version not in _VERSIONS:
            raise cursor.fail(f"GGUF version {version} is not supported; supported: 2 and 3, little endian")
        num_tensors, num_values = cursor.number("Q"), cursor.number("Q")
        metadata = {}
        for _ in range(num_values):
            key = cursor.string()
            metadata[key] = cursor.value(cursor.number("I"))
        rows = [cursor.tensor_row() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise cursor.fail(f"general.alignment is {alignment!r}")
        start = -(-cursor.position // alignment) * alignment
        tensors = {name: _tensor(cursor, name, shape, kind, start + at) for name, shape, kind, at in rows}
    return GgufHeader(path, metadata, tensors)


def _tensor(cursor: _Cursor, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GgufTensor:
    if kind not in TENSOR_TYPES:
        supported = ", ".join(name for name, _, _ in TENSOR_TYPES.values())
        raise cursor.fail(f"tensor {name!r} has type {kind}, which is not supported; supported: {supported}")
    type_name, block_elements, block_bytes = TENSOR_TYPES[kind]
    if not shape or shape[-1] % block_elements:
        raise cursor.fail(f"tensor {name!r} of shape {list(shape)} is not made of whole {type_name} blocks")
    num_bytes = prod(shape) // block_elements * block_bytes
    if offset + num_bytes > cursor.size:
        raise cursor.fail(
            f"truncated: tensor {name!r} ends at byte {offset + num_bytes}, the file at {cursor.size}",
            "fetch the file again",
        )
    return GgufTensor(name, type_name, shape, offset, num_bytes, block_elements, block_bytes)


def _open_cursor(path: Path) -> _Cursor:
    try:
        with open(path, "rb") as file:
            return _Cursor(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), path)
    except (OSError, ValueError) as error:
        detail = error.strerror if isinstance(error, OSError) else "the file is empty"
        raise CheckpointError(f"cannot be read: {detail}", where=str(path)) from None


class _Cursor:
    """A position in the mapped file; every read checks the end. Close it (or use ``with``) to drop the mapping."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.size = len(data)
        self.position = 0

    def __enter__(self) -> _Cursor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.data.close()

    def fail(self, what: str, hint: str | None = None) -> CheckpointError:
        return CheckpointError(what, where=str(self.path), hint=hint)

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > self.size:
            raise self.fail(f"truncated: the header needs byte {end}, the file has {self.size}", "fetch the file again")
        found = self.data[self.position : end]
        self.position = end
        return found

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        raw = self.take(self.number("Q"))
        # A vocabulary may hold pieces that are no UTF-8 on their own; keys always are.
        return raw.decode("utf-8", "surrogateescape")

    def value(self, kind: int) -> Any:
        """A metadata value; long arrays are stepped over and returned as :class:`LongArray`."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(self._code(kind))
        item_type, count = self.number("I"), self.number("Q")
        if count <= _SHORT_ARRAY:
            return list(self.items(item_type, count))
        found = LongArray(item_type, count, self.position)
        self._skip(item_type, count)
        return found

    def items(self, kind: int, count: int) -> Iterator[Any]:
        if kind == _STRING:
            for _ in range(count):
                yield self.string()
        else:
            code = self._code(kind)
            width = struct.calcsize("<" + code)
            yield from struct.unpack(f"<{count}{code}", self.take(width * count))

    def _skip(self, kind: int, count: int) -> None:
        if kind != _STRING:
            self._advance(struct.calcsize("<" + self._code(kind)) * count)
            return
        # The hot loop of reading a header: a vocabulary and its merges are some 100,000 to 400,000 strings.
        data, position, limit = self.data, self.position, self.size - 8
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if position > limit:
                break
            position += 8 + unpack(data, position)[0]
        else:
            self._advance(position - self.position)
            return
        self.take(self.size)

    def _advance(self, count: int) -> None:
        if self.position + count > self.size:
            self.take(count)
        self.position += count

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self.fail(f"metadata value of type {kind} at byte {self.position} is not supported or damaged")
        return _SCALARS[kind]

    def tensor_row(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape as torch has it, type and offset in the data section."""
        name = self.string()
        num_dims = self.number("I")
        if not 1 <= num_dims <= 4:
            raise self.fail(f"tensor {name!r} has {num_dims} dimensions: the header is damaged")
        shape = tuple(reversed([self.number("Q") for _ in range(num_dims)]))
        return name, shape, self.number("I"), self.number("Q")
