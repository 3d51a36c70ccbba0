"""``pytorch_model.bin`` checkpoints, read without running anything they contain (``weights_only=True``)."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from specbench.engine.models.pickle_header import more_than_tensors, no_state_dict, require_floating, unreadable
from specbench.engine.models.tensor_header import TensorHeader
from specbench.engine.models.tensor_source import TensorSource


class PickleSource(TensorSource):
    """The tensors of one or more pickled state dicts, mapped rather than read where the file allows it.

    :param integers: see :func:`~specbench.engine.models.pickle_header.read_pickle_headers`.
    :raises CheckpointError: truncated, not a state dict, one that would run code when loaded, or a type of numbers that
        is not supported.
    """

    def __init__(self, paths: list[Path], *, integers: bool = False) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._paths: dict[str, Path] = {}
        for path in paths:
            for name, tensor in _load_state_dict(path).items():
                self._tensors[name] = tensor
                self._paths[name] = path
        if not integers:
            for name, header in self.headers.items():
                require_floating(name, header)

    @property
    def headers(self) -> Mapping[str, TensorHeader]:
        """Type and shape of every tensor."""
        return {
            name: TensorHeader(self._paths[name], str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            for name, tensor in self._tensors.items()
        }

    def read(self, name: str) -> Tensor:
        """Return a tensor in the dtype it is stored in, on the CPU."""
        return self._tensors[name]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tensors.clear()


def _load_state_dict(path: Path) -> dict[str, Tensor]:
    try:
        loaded: Any = _load_mapped(path)
    except pickle.UnpicklingError:
        raise more_than_tensors(path) from None
    # Bytes that are no pickle raise whatever the unpickler stumbles over first.
    except Exception as error:
        raise unreadable(path, error) from None
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise no_state_dict(path)
    return {str(name): value for name, value in loaded.items()}


def _load_mapped(path: Path) -> Any:
    with warnings.catch_warnings():
        # About the pickle protocol; what it leads to is reported as an error.
        warnings.simplefilter("ignore")
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:
            if "mmap" not in str(error):
                raise
            # Files of PyTorch before 1.6 are no archives and cannot be mapped.
            return torch.load(path, map_location="cpu", weights_only=True)
