"""The straight line of calls that a recording replays, and how it is put together.

Results that are the same at every replay are kept, calls whose results nobody reads are left out. A register is deleted
after its last use, so that its memory is free again where it is in an eager program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from specbench.device.operator_kinds import FROM_HOST_DATA, OF_SHAPES, UNCHANGING, share_memory
from specbench.device.replay_source import Names, Uses, register_name
from specbench.errors import EngineError

_MAX_KEPT_BYTES = 1 << 16
"""Larger results are made at every replay, even where they are the same."""


@dataclass(frozen=True)
class Call:
    """One call as the program made it.

    :param given: the tensors among its arguments; ``written`` those that it may write to.
    :param is_opaque: a runtime operator, of which nothing else is known.
    """

    name: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: list[Tensor]
    written: list[Tensor]
    is_opaque: bool = False

    @property
    def is_pure(self) -> bool:
        """Whether it does nothing but return what follows from its arguments."""
        return self.name in UNCHANGING and not self.written and not self.is_opaque

    @property
    def reads_host_data(self) -> bool:
        """Whether it makes a tensor of host data, which may be other data at a replay."""
        return self.name in FROM_HOST_DATA and not self.given and not self.is_opaque


@dataclass
class _Entry:
    """One call as it is replayed.

    :param text: its source.
    :param results: the register of each result.
    :param left: what its results are assigned to.
    :param is_pure: nobody misses it when nobody reads its results.
    :param values: its results, where they are the same at every replay if nobody writes to them and those of
        ``sources`` are; else None.
    """

    name: str
    text: str
    uses: Uses
    results: list[int]
    left: str
    is_pure: bool
    sources: frozenset[int] = frozenset()
    values: tuple[Tensor, ...] | None = None


class ReplayProgram:
    """Collects calls in order."""

    def __init__(self) -> None:
        self._names = Names()
        self._entries: list[_Entry] = []
        self._memory: list[int] = []  # by register, the first register with the same memory
        self._written: set[int] = set()  # memory that a call writes to
        self._maybe_same: set[int] = set()  # registers with values

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the calls, in order."""
        return tuple(entry.name for entry in self._entries)

    def is_buffer(self, given: list[Tensor]) -> bool:
        """Whether ``given`` is one tensor that the program found, and did not make."""
        return len(given) == 1 and self._names.find_register(given[0]) is None

    def append(self, call: Call, result: Any) -> None:
        """Add a call that has been made.

        :param result: what is new of what it returned: a tensor, a tuple or list of tensors, or None.
        :raises EngineError: it is something else.
        """
        made = (result,) if isinstance(result, Tensor) else () if result is None else result
        if not isinstance(made, (tuple, list)) or not all(isinstance(tensor, Tensor) for tensor in made):
            raise EngineError(
                f"found a result of type {type(result).__name__}; allowed: a tensor, a tuple of tensors, None",
                where=f"operator {call.name}",
            )
        uses = Uses()
        if call.reads_host_data:
            text = f"{self._names.bind(result.clone())}.clone()"
        else:
            text = self._names.express_call(call.function, call.args, call.kwargs, uses)
        places = self._note_memory(call, made)
        results = [self._names.add_register(tensor) for tensor in made]
        self._memory += [results[0] + index if place is None else place for index, place in enumerate(places)]
        left = ", ".join(map(register_name, results))
        if results:
            left += " = " if isinstance(result, Tensor) else ", = "
        entry = _Entry(call.name, text, uses, results, left, call.is_pure)
        if call.is_pure and call.name != "as_tensor":  # which may share its memory with the host
            self._keep_values(entry, call, tuple(made))
        self._entries.append(entry)

    def _note_memory(self, call: Call, made: Any) -> list[int | None]:
        """Where each result's memory was first seen, None for new memory; and what the call writes to."""
        registers = [(tensor, self._names.find_register(tensor)) for tensor in call.given]
        known = [(tensor, self._memory[register]) for tensor, register in registers if register is not None]
        self._written.update(place for tensor, place in known if any(tensor is other for other in call.written))
        return [next((place for other, place in known if share_memory(tensor, other)), None) for tensor in made]

    def _keep_values(self, entry: _Entry, call: Call, made: tuple[Tensor, ...]) -> None:
        if call.name in OF_SHAPES and len(call.given) == 1:
            can_change = False
        else:
            entry.sources = frozenset(entry.uses.registers)
            can_change = entry.uses.has_buffers or not entry.sources <= self._maybe_same
        if not can_change and sum(tensor.nbytes for tensor in made) <= _MAX_KEPT_BYTES:
            entry.values = made
            self._maybe_same.update(entry.results)

    def finish(self, result: Any) -> tuple[str, dict[str, Any]]:
        """Source of a function ``replay`` that returns ``result``, and the globals it needs."""
        uses = Uses()
        returned = self._names.express(result, uses)
        self._written.update(self._memory[register] for register in uses.registers)  # whoever gets them may write
        kept = self._fold()
        self._drop_unread(uses)
        lines = ["def replay():"]
        for entry, deleted in zip(self._entries, self._find_last_uses(uses.registers | kept), strict=True):
            lines.append(f"    {entry.left}{entry.text}")
            if deleted:
                lines.append("    del " + ", ".join(map(register_name, sorted(deleted))))
        source = "\n".join([*lines, f"    return {returned}", ""])
        # What was bound for calls that were left out is not kept alive.
        names = set(re.findall(r"\b[cr]\d+\b", source))
        return source, {name: value for name, value in self._names.bound.items() if name in names}

    def _fold(self) -> set[int]:
        """Leave out calls whose results are the same at every replay, and bind these; return their registers."""
        folded: set[int] = set()
        entries = []
        for entry in self._entries:
            is_written = any(self._memory[register] in self._written for register in entry.results)
            if entry.values is not None and entry.sources <= folded and not is_written:
                folded.update(entry.results)
                for register, value in zip(entry.results, entry.values, strict=True):
                    self._names.bound[register_name(register)] = value
            else:
                entries.append(entry)
        self._entries = entries
        return folded

    def _drop_unread(self, returned: Uses) -> None:
        """Leave out pure calls whose results nobody reads."""
        needed = set(returned.registers)
        entries = []
        for entry in reversed(self._entries):
            if not entry.is_pure or not needed.isdisjoint(entry.results):
                needed |= entry.uses.registers
                entries.append(entry)
        self._entries = entries[::-1]

    def _find_last_uses(self, kept: set[int]) -> list[list[int]]:
        """By call, the registers that it is the last to use; ``kept`` ones stay."""
        last: dict[int, int] = {}
        for index, entry in enumerate(self._entries):
            last.update(dict.fromkeys([*entry.uses.registers, *entry.results], index))
        deleted: list[list[int]] = [[] for _ in self._entries]
        for register, index in last.items():
            if register not in kept:
                deleted[index].append(register)
        return deleted
