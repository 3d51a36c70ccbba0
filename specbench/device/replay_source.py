"""Recorded values and calls as Python source.

Tensors that a program makes are registers, local variables of one function; everything else that it uses is bound to a
global name of that function.
"""

from __future__ import annotations

import dataclasses
import weakref
from dataclasses import dataclass, field
from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any

from torch import Tensor

from specbench.device.operator_kinds import find_tensors, parts_of

_INLINE = (int, bool, str, type(None))


@dataclass
class Uses:
    """What an expression takes: registers, and tensors that are none."""

    registers: set[int] = field(default_factory=set)
    has_buffers: bool = False


class Names:
    """Names for the values of a program.

    :ivar bound: global name -> value.
    """

    def __init__(self) -> None:
        self.bound: dict[str, Any] = {}
        self._names_by_id: dict[int, str] = {}
        self._registers: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._num_registers = 0

    def add_register(self, tensor: Tensor) -> int:
        """Make ``tensor`` a register. It is not kept alive: a recording needs no more memory than its program."""
        register = self._num_registers
        self._num_registers += 1
        self._registers[id(tensor)] = (weakref.ref(tensor), register)
        return register

    def find_register(self, tensor: Tensor) -> int | None:
        """The register that ``tensor`` is, None when the program did not make it."""
        reference, register = self._registers.get(id(tensor), (None, 0))
        return register if reference is not None and reference() is tensor else None

    def bind(self, value: Any) -> str:
        """A global name for ``value``, which is kept alive."""
        name = self._names_by_id.get(id(value))
        if name is None:
            name = self._names_by_id[id(value)] = f"c{len(self.bound)}"
            self.bound[name] = value
        return name

    def express(self, value: Any, uses: Uses) -> str:
        """Source that gives ``value`` again: run-time tensors in it are read, all else is as it is now."""
        if isinstance(value, Tensor) and (register := self.find_register(value)) is not None:
            uses.registers.add(register)
            return register_name(register)
        if _is_inline(value):
            return repr(value)
        tensors = list(find_tensors(value))
        if any(self.find_register(tensor) is not None for tensor in tensors):
            return self._express_parts(value, uses)
        uses.has_buffers |= bool(tensors)
        return self.bind(_copy(value))

    def _express_parts(self, value: Any, uses: Uses) -> str:
        texts = {place: self.express(part, uses) for place, part in parts_of(value).items()}
        listed = ", ".join(texts.values())
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self.express(key, uses)}: {text}" for key, text in texts.items()) + "}"
        if isinstance(value, slice):
            return f"slice({listed})"
        if type(value) is list:
            return f"[{listed}]"
        if type(value) is tuple:
            return f"({listed},)"
        if isinstance(value, tuple):  # a named one; PyTorch's own kind takes its parts as one sequence
            return f"{self.bind(type(value))}({listed if hasattr(value, '_fields') else f'({listed},)'})"
        named = ", ".join(f"{item.name}={texts[item.name]}" for item in dataclasses.fields(value) if item.init)
        return f"{self.bind(type(value))}({named})"

    def express_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], uses: Uses) -> str:
        """Source of one call, in the form that takes the least time."""
        texts = [self.express(value, uses) for value in args]
        name = getattr(function, "__name__", None)
        if isinstance(function, WrapperDescriptorType) and name == "__getitem__":
            return f"{texts[0]}[{texts[1]}]"
        if isinstance(function, WrapperDescriptorType) and name == "__setitem__":
            return f"{texts[0]}[{texts[1]}] = {texts[2]}"
        if name == "__get__":
            return f"{texts[0]}.{function.__self__.__name__}"
        texts += [f"{key}={self.express(value, uses)}" for key, value in kwargs.items()]
        if isinstance(function, MethodDescriptorType):
            return f"{texts[0]}.{name}({', '.join(texts[1:])})"
        return f"{self.bind(getattr(function, '_op', function))}({', '.join(texts)})"


def register_name(register: int) -> str:
    """The local variable of a register."""
    return f"r{register}"


def _is_inline(value: Any) -> bool:
    """Whether the compiler keeps a literal of ``value`` as a constant."""
    if type(value) is tuple:
        return all(_is_inline(part) for part in value)
    return type(value) in _INLINE


def _copy(value: Any) -> Any:
    """``value`` as it is now: host lists may be written again before a replay."""
    if type(value) is list:
        return [_copy(part) for part in value]
    if type(value) is dict:
        return {key: _copy(part) for key, part in value.items()}
    return tuple(_copy(part) for part in value) if type(value) is tuple else value
