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

from specbench.engine.models.tensor_source import Shape
from specbench.errors import CheckpointError


class PickleSource:
    """The tensors of one or more pickled state dicts, mapped rather than read where the file allows it.

    :raises CheckpointError: truncated, not a state dict, or one that would run code when loaded.
    """

    def __init__(self, paths: list[Path]) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._paths: dict[str, Path] = {}
        for path in paths:
            for name, tensor in _load_state_dict(path).items():
                self._tensors[name] = tensor
                self._paths[name] = path

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Shape of every tensor."""
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def file_of(self, name: str) -> Path:
        """The file a tensor is in."""
        return self._paths[name]

    def read(self, name: str) -> Tensor:
        """Return a tensor in the dtype it is stored in, on the CPU."""
        return self._tensors[name]

    def __enter__(self) -> PickleSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tensors.clear()


def _load_state_dict(path: Path) -> dict[str, Tensor]:
    def fail(what: str, hint: str) -> CheckpointError:
        return CheckpointError(what, where=str(path), hint=hint)

    try:
        loaded: Any = _load_mapped(path)
    except pickle.UnpicklingError:
        raise fail(
            "the pickle holds more than tensors, and loading it could run code: refused",
            "convert it to safetensors where you trust it, and give that directory",
        ) from None
    # Bytes that are no pickle raise whatever the unpickler stumbles over first.
    except Exception as error:
        detail = str(error).strip().splitlines() or [type(error).__name__]
        raise fail(f"cannot be read: {detail[0]}", "the file may be truncated: fetch it again") from None
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise fail("is not a state dict of tensors", "give the model's weights, not a training checkpoint")
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
