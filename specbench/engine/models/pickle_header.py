"""What a pickled checkpoint says of its tensors, without the numbers and without torch.

PyTorch keeps the pickle of a state dict apart from the numbers in it: a member ``data.pkl`` of a zip archive, or, in
files of PyTorch before 1.6, the fourth of several pickles, before the numbers. It is read here with nothing that a
pickle names imported or called: a tensor is its type and its shape, and whatever else it asks for is an empty object.
Whether a file may be loaded is for :mod:`specbench.engine.models.pickle_weights` to say.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any

from specbench.engine.models.hf_config import read_json_object
from specbench.engine.models.tensor_header import FLOATING, Shape, TensorHeader
from specbench.errors import CheckpointError

INDEX_NAME = "pytorch_model.bin.index.json"
_MEMBER = "data.pkl"
_PICKLES_BEFORE = 3
"""In files of PyTorch before 1.6: a magic number, the protocol, and sizes of types."""
_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
}
"""Type of the numbers by the class that holds them, all in module ``torch``."""
# Newer types have no class of their own: the tensor says which it is.
_NEWER_TYPES = ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


def find_pickles(directory: Path) -> list[Path]:
    """Return the ``pytorch_model*.bin`` files of a checkpoint directory.

    :raises CheckpointError: the index names a file that is not there.
    """
    index_path = directory / INDEX_NAME
    if not index_path.is_file():
        return sorted(directory.glob("pytorch_model*.bin"))
    weight_map = read_json_object(index_path).get("weight_map")
    names = sorted({str(name) for name in weight_map.values()}) if isinstance(weight_map, dict) else []
    for name in names:
        if not (directory / name).is_file():
            raise CheckpointError(f"weight file {name} is named in {INDEX_NAME} but is not there", where=str(directory))
    return [directory / name for name in names]


def read_pickle_headers(paths: Iterable[Path], *, integers: bool = False) -> dict[str, TensorHeader]:
    """Return every tensor of one or more files by name.

    :param integers: tensors of other types than floating-point ones are there as well, as in a head's vocabulary map.
    :raises CheckpointError: truncated, unreadable, no state dict of tensors, or a type that is not supported.
    """
    found = {name: header for path in paths for name, header in _read_headers(path).items()}
    if not integers:
        for name, header in found.items():
            require_floating(name, header)
    return found


def require_floating(name: str, header: TensorHeader) -> None:
    """:raises CheckpointError: a tensor of other numbers than floating-point ones."""
    if header.dtype not in FLOATING:
        what = f"tensor {name!r} is stored as {header.dtype}, which is not supported; supported: {', '.join(FLOATING)}"
        raise CheckpointError(what, where=str(header.path))


def no_state_dict(path: Path) -> CheckpointError:
    """The error for a file that holds something else than a mapping of names to tensors."""
    hint = "give the model's weights, not a training checkpoint"
    return CheckpointError("is not a state dict of tensors", where=str(path), hint=hint)


def more_than_tensors(path: Path) -> CheckpointError:
    """The error for a file that would import and call what it names."""
    return CheckpointError(
        "the pickle holds more than tensors, and loading it could run code: refused",
        where=str(path),
        hint="convert it to safetensors where you trust it, and give that directory",
    )


def unreadable(path: Path, error: Exception) -> CheckpointError:
    """The error for bytes that are no pickle of PyTorch."""
    detail = str(error).strip().splitlines() or [type(error).__name__]
    hint = "the file may be truncated: fetch it again"
    return CheckpointError(f"cannot be read: {detail[0]}", where=str(path), hint=hint)


def _read_headers(path: Path) -> dict[str, TensorHeader]:
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                member = next(name for name in archive.namelist() if name.rpartition("/")[2] == _MEMBER)
                loaded = _HeaderReader(BytesIO(archive.read(member))).load()
        else:
            with open(path, "rb") as file:
                loaded = [_HeaderReader(file).load() for _ in range(_PICKLES_BEFORE + 1)][-1]
    # Bytes that are no pickle raise whatever the reader stumbles over first.
    except Exception as error:
        raise unreadable(path, error) from None
    if not isinstance(loaded, dict):
        raise no_state_dict(path)
    for value in loaded.values():
        if isinstance(value, _Nothing):
            raise more_than_tensors(path)
        if not isinstance(value, _Tensor):
            raise no_state_dict(path)
    return {str(name): TensorHeader(path, value.dtype, value.shape) for name, value in loaded.items()}


@dataclass(frozen=True)
class _Type:
    """A type of numbers, and what holds numbers of it."""

    dtype: str


@dataclass(frozen=True)
class _Tensor:
    dtype: str
    shape: Shape


class _Nothing:
    """Stands for whatever else a pickle names: made of anything, told anything, doing nothing."""

    def __new__(cls, *_: Any, **__: Any) -> _Nothing:
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> _Nothing:
        return self

    def __setstate__(self, state: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, item: Any) -> None:
        """As a list is filled."""

    def extend(self, items: Any) -> None:
        """As a list is filled."""


def _rebuild_tensor(storage: _Type, _offset: int, size: Iterable[int], *_: Any) -> _Tensor:
    return _Tensor(storage.dtype, tuple(int(n) for n in size))


def _rebuild_typed(_storage: Any, _offset: int, size: Iterable[int], *rest: Any) -> _Tensor:
    """``rest``: stride, whether it wants a gradient, hooks, and then the type."""
    return _rebuild_tensor(rest[3], 0, size)


def _rebuild_parameter(data: Any, *_: Any) -> Any:
    return data


_GLOBALS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_typed,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
    **{("torch", name): _Type(dtype) for name, dtype in _STORAGES.items()},
    **{("torch", dtype): _Type(dtype) for dtype in (*_STORAGES.values(), *_NEWER_TYPES)},
}
"""What a state dict of plain tensors names."""


class _HeaderReader(pickle.Unpickler):
    """An unpickler that imports nothing and reads no numbers."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)

    def find_class(self, module: str, name: str) -> Any:
        return _GLOBALS.get((module, name), _Nothing)

    def persistent_load(self, pid: Any) -> Any:
        """Where the numbers of a tensor are: of ``("storage", type, ...)`` the type."""
        held = pid[1] if isinstance(pid, tuple) and len(pid) > 1 else None
        return held if isinstance(held, _Type) else _Nothing()
