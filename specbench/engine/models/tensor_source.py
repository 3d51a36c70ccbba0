"""What every kind of checkpoint offers to the loader: names, shapes, and one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol

from torch import Tensor

from specbench.errors import CheckpointError

Shape = tuple[int, ...]

_NAMED_IN_ERROR = 4
# Buffers that old checkpoints carry and every implementation computes for itself.
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq", ".attn.masked_bias")


class TensorSource(Protocol):
    """Tensors under the names of the Hugging Face format. Use it in a ``with`` block: it may hold files open."""

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Shape of every tensor that is there."""

    def file_of(self, name: str) -> Path:
        """The file a tensor is in, for error messages."""

    def read(self, name: str) -> Tensor:
        """Return one tensor in memory of its own.

        :raises CheckpointError: the file ends early or cannot be read.
        """

    def __enter__(self) -> TensorSource: ...

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
    :raises CheckpointError: missing, unexpected or differently shaped tensors, the first few of each named.
    """
    found = source.shapes
    missing = [name for name in expected if name not in found]
    # A tied head may be stored all the same; it is the embedding.
    tied = set() if "lm_head.weight" in expected else {"lm_head.weight"}
    unexpected = [n for n in found if n not in expected and n not in tied and not n.endswith(_IGNORED_SUFFIXES)]
    unexpected = [name for name in unexpected if not is_foreign(name)]
    unlike = [name for name in expected if name in found and tuple(found[name]) != tuple(expected[name])]
    complaints = []
    if missing:
        complaints.append(f"missing {_first(missing)}")
    if unlike:
        complaints.append(
            _first(
                unlike,
                lambda n: f"{n} has shape {list(found[n])} in {source.file_of(n).name}, expected {list(expected[n])}",
            )
        )
    if unexpected:
        complaints.append(f"unexpected {_first(unexpected)}")
    if complaints:
        raise CheckpointError(
            f"the tensors do not fit the configuration: {'; '.join(complaints)}",
            where=str(where),
            hint="check that config.json (or the GGUF header) and the weights belong to the same model",
        )


def _first(names: list[str], describe: Callable[[str], str] = str) -> str:
    shown = [describe(name) for name in names[:_NAMED_IN_ERROR]]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
