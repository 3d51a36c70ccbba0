"""Which tensors a pickled checkpoint names, without the tensors and without torch.

PyTorch keeps the pickle of a state dict apart from the numbers in it: a member ``data.pkl`` of a zip archive, or, in
files of PyTorch before 1.6, the fourth of several pickles, before the numbers. It is read here with nothing that a
pickle names imported or called: whatever it asks for is an empty object. Whether a file may be loaded is for
:mod:`specbench.engine.models.pickle_weights` to say.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import IO, Any

from specbench.engine.models.hf_config import read_json_object
from specbench.errors import CheckpointError

INDEX_NAME = "pytorch_model.bin.index.json"
_MEMBER = "data.pkl"
_PICKLES_BEFORE = 3
"""In files of PyTorch before 1.6: a magic number, the protocol, and sizes of types."""


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


def read_names(paths: Iterable[Path]) -> list[str]:
    """Return the name of every tensor of one or more files.

    :raises CheckpointError: truncated, unreadable, or no state dict.
    """
    return [name for path in paths for name in _read_names(path)]


def _read_names(path: Path) -> list[str]:
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                member = next(name for name in archive.namelist() if name.rpartition("/")[2] == _MEMBER)
                loaded = _NameReader(BytesIO(archive.read(member))).load()
        else:
            with open(path, "rb") as file:
                loaded = [_NameReader(file).load() for _ in range(_PICKLES_BEFORE + 1)][-1]
    # Bytes that are no pickle raise whatever the reader stumbles over first.
    except Exception as error:
        detail = str(error).strip().splitlines() or [type(error).__name__]
        hint = "the file may be truncated: fetch it again"
        raise CheckpointError(f"cannot be read: {detail[0]}", where=str(path), hint=hint) from None
    if not isinstance(loaded, dict):
        hint = "give the model's weights, not a training checkpoint"
        raise CheckpointError("is not a state dict of tensors", where=str(path), hint=hint)
    return [str(name) for name in loaded]


class _Nothing:
    """Stands for whatever a pickle names: made of anything, told anything, doing nothing."""

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


class _NameReader(pickle.Unpickler):
    """An unpickler that imports nothing and reads no numbers."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)

    def find_class(self, module: str, name: str) -> Any:
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else _Nothing

    def persistent_load(self, pid: Any) -> Any:  # noqa: ARG002 - the numbers of a tensor
        return _Nothing()
