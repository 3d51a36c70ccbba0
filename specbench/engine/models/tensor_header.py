"""What the files of a checkpoint say of a tensor, and whether that fits a configuration. No torch here.

Scenarios are checked by this and weights are loaded by it, so that both refuse the same checkpoints in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from specbench.errors import CheckpointError

Shape = tuple[int, ...]

FLOATING = ("float64", "float32", "float16", "bfloat16")
WHOLE = ("int64", "int32", "int16", "int8", "uint8", "bool")
_SAME_MODEL = "check that config.json and the weights belong to the same model"
_SAME_GGUF = "check that the GGUF header and the tensors belong to the same model"

_NAMED_IN_ERROR = 4
# Buffers that old checkpoints carry and every implementation computes for itself.
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq", ".attn.masked_bias")


@dataclass(frozen=True)
class TensorHeader:
    """One tensor in a file.

    :param dtype: as PyTorch names it, ``float32``.
    """

    path: Path
    dtype: str
    shape: Shape


def check_headers(
    expected: Mapping[str, Shape],
    found: Mapping[str, TensorHeader],
    where: Path,
    *,
    hint: str | None = None,
    whole: Collection[str] = (),
    is_foreign: Callable[[str], bool] = lambda _: False,
) -> None:
    """Compare the tensors of a checkpoint with those that its configuration calls for.

    :param hint: what to try; None: where configuration and weights of a model are.
    :param whole: those of ``expected`` that hold whole numbers; the others hold floating-point ones.
    :param is_foreign: whether a tensor, by its name, is there for something else and may be.
    :raises CheckpointError: missing, unexpected or differently shaped tensors, or numbers of another kind; the first
        few of each named.
    """
    # A tied head may be stored all the same; it is the embedding.
    tied = set() if "lm_head.weight" in expected else {"lm_head.weight"}
    unexpected = [n for n in found if n not in expected and n not in tied and not n.endswith(_IGNORED_SUFFIXES)]
    both = [name for name in expected if name in found]
    complaints = {
        "missing ": [name for name in expected if name not in found],
        "": [
            *(_describe_shape(n, found[n], expected[n]) for n in both if found[n].shape != tuple(expected[n])),
            *(_describe_type(n, found[n], n in whole) for n in both if not _is_kind(found[n], n in whole)),
        ],
        "unexpected ": [name for name in unexpected if not is_foreign(name)],
    }
    told = "; ".join(f"{kind}{_first(names)}" for kind, names in complaints.items() if names)
    if told:
        raise CheckpointError(
            f"the tensors do not fit the configuration: {told}", where=str(where), hint=hint or _hint_for(where)
        )


def _hint_for(where: Path) -> str:
    return _SAME_GGUF if where.suffix == ".gguf" else _SAME_MODEL


def _is_kind(header: TensorHeader, is_whole: bool) -> bool:
    return header.dtype in (WHOLE if is_whole else FLOATING)


def _describe_shape(name: str, header: TensorHeader, expected: Shape) -> str:
    return f"{name} has shape {list(header.shape)} in {header.path.name}, expected {list(expected)}"


def _describe_type(name: str, header: TensorHeader, is_whole: bool) -> str:
    held = "whole numbers" if is_whole else "floating-point numbers"
    return f"{name} is stored as {header.dtype} in {header.path.name}; it holds {held}"


def _first(told: list[str]) -> str:
    rest = len(told) - _NAMED_IN_ERROR
    return ", ".join(told[:_NAMED_IN_ERROR]) + (f" and {rest} more" if rest > 0 else "")
