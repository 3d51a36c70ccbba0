"""What every kind of checkpoint offers to the loader: names, types, shapes, and one tensor at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from specbench.engine.models.tensor_header import Shape, TensorHeader, check_headers
from specbench.errors import CheckpointError


class TensorSource(ABC):
    """Tensors under the names of the Hugging Face format. Use it in a ``with`` block: it may hold files open."""

    @property
    @abstractmethod
    def headers(self) -> Mapping[str, TensorHeader]:
        """File, type and shape of every tensor that is there."""

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Shape of every tensor that is there."""
        return {name: header.shape for name, header in self.headers.items()}

    def file_of(self, name: str) -> Path:
        """The file a tensor is in, for error messages."""
        return self.headers[name].path

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """Return one tensor in memory of its own.

        :raises CheckpointError: the file ends early or cannot be read.
        """

    def __enter__(self) -> TensorSource:
        return self

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def check_tensors(
    expected: Mapping[str, Shape],
    source: TensorSource,
    where: Path,
    *,
    is_foreign: Callable[[str], bool] = lambda _: False,
) -> None:
    """Compare the checkpoint with the model's tensors.

    :param is_foreign: whether a tensor, by its name, is there for something else and may be.
    :raises CheckpointError: see :func:`~specbench.engine.models.tensor_header.check_headers`.
    """
    check_headers(expected, source.headers, where, is_foreign=is_foreign)


def check_finite(name: str, tensor: Tensor, path: Path, dtype: torch.dtype) -> None:
    """Refuse weights that a computation in ``dtype`` cannot start from. Reads the tensor once.

    :param name: as the file has it.
    :param path: the file, for the message.
    :raises CheckpointError: NaN, infinity, or a number that ``dtype`` cannot hold.
    """
    if not tensor.numel():
        return
    largest = torch.finfo(dtype).max
    # One reduction, which NaN passes through: a twentieth of the time of asking every value.
    low, high = (float(bound) for bound in torch.aminmax(tensor))
    if -largest <= low and high <= largest:
        return
    wide = tensor.double()
    count = int((~wide.isfinite()).sum())
    if count:
        what = f"tensor {name!r}: {count} of {tensor.numel()} values are not finite (NaN or infinity)"
        hint = "fetch the file again, or choose weights of another step of training"
    else:
        count = int((wide.abs() > largest).sum())
        name_of_type = str(dtype).removeprefix("torch.")
        what = (
            f"tensor {name!r}: {count} of {tensor.numel()} values are beyond {largest:.4g}, the most of {name_of_type}"
        )
        hint = "set engine.dtype to bfloat16 or float32"
    raise CheckpointError(what, where=str(path), hint=hint)
