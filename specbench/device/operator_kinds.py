"""What a call on tensors does, told by its name: reads a value on the host, writes in place, or neither.

The names are those of PyTorch's Python functions as a function mode sees them, double underscores dropped.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from specbench.errors import EngineError

_HOST_READS = frozenset({
    "item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__complex__", "__index__", "__array__",
    "__contains__", "__dlpack__", "is_nonzero", "equal", "allclose", "data_ptr",
    "nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount", "_local_scalar_dense",
})  # fmt: skip
"""A value, an address or a data-dependent shape becomes known to the host."""

_MAYBE_SAME = frozenset({
    "to", "float", "double", "half", "bfloat16", "int", "long", "short", "bool", "type", "type_as",
    "contiguous", "reshape", "reshape_as", "view", "view_as", "expand", "expand_as", "cpu", "cuda", "detach",
    "data", "squeeze", "flatten", "resolve_conj", "resolve_neg",
})  # fmt: skip
"""May return their argument as it is, and have done nothing then."""

FROM_HOST_DATA = frozenset({"tensor", "as_tensor"})
"""Make a tensor of host data, which may have changed when they are called again."""

OF_SHAPES = frozenset({"zeros_like", "ones_like", "full_like"})
"""Read nothing of a tensor but its shape, dtype and device."""

_DERIVING = frozenset({
    "view", "reshape", "flatten", "unsqueeze", "squeeze", "expand", "t", "transpose", "permute", "T", "mT",
    "getitem", "chunk", "split", "split_with_sizes", "unbind", "select", "narrow", "contiguous", "clone", "to",
    "float", "double", "int", "long", "bool", "add", "sub", "mul", "neg", "floordiv", "floor_divide",
    "remainder", "bitwise_and", "bitwise_or", "bitwise_left_shift", "bitwise_right_shift", "lt", "le", "gt",
    "ge", "eq", "ne", "logical_not", "logical_and", "logical_or", "minimum", "maximum", "clamp", "cat", "stack",
    "repeat", "repeat_interleave", "flip", "triu", "tril",
})  # fmt: skip

UNCHANGING = frozenset({"arange", "zeros", "ones", "full"}) | FROM_HOST_DATA | OF_SHAPES | _DERIVING
"""Functions of their arguments alone, which they leave as they are: neither random nor uninitialised."""


def raw_name(function: Any) -> str:
    """The name of what a function mode was given, overloads and double underscores as they are."""
    return str(getattr(function, "__name__", type(function).__name__)).partition(".")[0]


def call_name(function: Any) -> str:
    """The short name of what a function mode was given: ``add_``, ``linear``, ``getitem``, ``shape``."""
    name = raw_name(function)
    if name in ("__get__", "__set__"):
        return str(function.__self__.__name__)
    is_special = name.startswith("__") and name.endswith("__")
    return name[2:-2] if is_special else name


def check_capturable(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a call whose value would be frozen into the program, or that no replay can make again.

    :raises EngineError: it makes a value known to the host, or sets an attribute of a tensor.
    """
    name = raw_name(function)
    if name == "__set__":
        raise EngineError(
            f"{call_name(function)} of a tensor is set, which a captured program would not do again",
            where=_find_caller(),
            hint="write to the tensor in place",
        )
    if is_host_read(name, args, kwargs):
        raise EngineError(
            f"{name} needs the value of a tensor on the host, which a captured program would keep for ever",
            where=_find_caller(),
            hint="compute with tensors, or make the call part of a runtime operator",
        )


def is_host_read(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of the raw ``name`` makes a value, an address or a shape that depends on values known."""
    if name in ("__getitem__", "__setitem__"):
        return _selects_by_mask(args)
    if name in FROM_HOST_DATA:
        parts = (*args, *kwargs.values())
        return not isinstance(parts[0], Tensor) and any(True for _ in find_tensors(parts))
    if name == "repeat_interleave":
        num_tensors = sum(1 for _ in find_tensors((args, kwargs)))
        return kwargs.get("output_size") is None and (num_tensors > 1 or len(args) + len(kwargs) == 1)
    return name in _HOST_READS


def _selects_by_mask(args: tuple[Any, ...]) -> bool:
    """Indexing whose number of elements the mask's values decide; one number put under a mask is a ``where``."""
    indices = args[1] if isinstance(args[1], (tuple, list)) else (args[1],)
    is_masked = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)
    return is_masked and not (len(args) == 3 and (not isinstance(args[2], Tensor) or args[2].numel() == 1))


def _find_caller() -> str | None:
    """File and line of the innermost frame outside this package and PyTorch."""
    inside = (str(Path(__file__).parent), str(Path(torch.__file__).parent))
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(inside):
            return f"{frame.filename}:{frame.lineno}"
    return None


def is_same_by_chance(name: str) -> bool:
    """Whether a call of ``name`` that returned its argument has done nothing."""
    return name in _MAYBE_SAME


def written_tensors(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The arguments that a call writes, as far as that can be told; all of them where it cannot."""
    name = call_name(function)
    schema = getattr(function, "_schema", None)
    if schema is not None and not schema.is_mutable:
        return []
    # A registered operator may write to anything, a Python function may have a parameter ``inplace``.
    if isinstance(function, (OpOverload, OpOverloadPacket, FunctionType)) and name not in UNCHANGING:
        return list(find_tensors((args, kwargs)))
    written = [kwargs["out"]] if kwargs.get("out") is not None else []
    if name == "setitem" or name.endswith("_"):
        written.append(args[0])
    return list(find_tensors(written))


def find_tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in ``value``: itself, or in what :func:`parts_of` takes apart."""
    if isinstance(value, Tensor):
        yield value
    else:
        for part in parts_of(value).values():
            yield from find_tensors(part)


def parts_of(value: Any) -> dict[Any, Any]:
    """What a tuple, list, dictionary, slice or frozen dataclass holds, by place; nothing for anything else."""
    if isinstance(value, (tuple, list)):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return value
    if isinstance(value, slice):
        return {"start": value.start, "stop": value.stop, "step": value.step}
    parameters = getattr(value, "__dataclass_params__", None)
    if parameters is not None and parameters.frozen and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    return {}


def share_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors, both alive, are views of the same memory."""
    try:
        return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # a layout without storage, such as oneDNN's
        return False
