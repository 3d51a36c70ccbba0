"""Messages between a process that measures and one that it started: framing, errors, settings.

A message is a magic word, a little-endian u32 count, and that many bytes of JSON. One side asks, the other answers, in
turns. Both ends may be of different commits: the framing and the fields of the first exchange never change, everything
else may, with :data:`PROTOCOL`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import typing
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from specbench.errors import EngineError, InputError, InterruptedRunError, InvalidMeasurementError, SpecbenchError

PROTOCOL = 1
"""Raised by every change of what a request or an answer means."""
MAGIC = b"\x00sbw"
MAX_MESSAGE_BYTES = 1 << 30
MAX_NOISE_BYTES = 1 << 20
"""What an interpreter may print before its server takes the pipe over."""

Message = dict[str, Any]
_Settings = TypeVar("_Settings")
_COUNT = struct.Struct("<I")


class Channel:
    """One end of a pair of pipes. The descriptors are its own from now on.

    Unbuffered: what has not been received is still in the pipe, so that ``select`` on :attr:`read_fd` tells the truth.
    """

    def __init__(self, read_fd: int, write_fd: int | None) -> None:
        self.read_fd = read_fd
        self._write_fd = write_fd
        self._closed = False

    def send(self, message: Message) -> bool:
        """Write one message; False when nobody reads any more.

        :raises ValueError: a NaN or an infinity is in it.
        """
        text = json.dumps(message, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode("utf-8")
        frame = memoryview(MAGIC + _COUNT.pack(len(text)) + text)
        assert self._write_fd is not None
        try:
            while frame:
                frame = frame[os.write(self._write_fd, frame) :]
        except BrokenPipeError:
            return False
        return True

    def receive(self, *, skip_noise: bool = False) -> Message | None:
        """Read one message; None when the other end is gone, in the middle of one or between two.

        :param skip_noise: drop what comes before the magic word: what an interpreter printed while it started.
        :raises EngineError: something else than a message arrived.
        """
        magic = self._read(len(MAGIC))
        skipped = 0
        while skip_noise and magic is not None and magic != MAGIC and skipped < MAX_NOISE_BYTES:
            more = self._read(1)
            magic = None if more is None else magic[1:] + more
            skipped += 1
        if magic is None:
            return None
        count = self._read(_COUNT.size) if magic == MAGIC else b""
        if count == b"" or (count is not None and _COUNT.unpack(count)[0] > MAX_MESSAGE_BYTES):
            raise EngineError(
                f"expected a message, found {magic + count!r}",
                where="pipe to another process",
                hint="something wrote into the pipe that belongs to the process: please report it with the scenario",
            )
        text = None if count is None else self._read(_COUNT.unpack(count)[0])
        return None if text is None else typing.cast(Message, json.loads(text))

    def _read(self, count: int) -> bytes | None:
        pieces = []
        while count:
            piece = os.read(self.read_fd, min(count, 1 << 20))
            if not piece:
                return None
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Close both descriptors."""
        if not self._closed:
            self._closed = True
            for descriptor in {self.read_fd, self._write_fd} - {None}:
                with suppress(OSError):
                    os.close(typing.cast(int, descriptor))


def pack_error(error: BaseException) -> Message:
    """An exception as plain data. One that is no :class:`SpecbenchError` is a defect, and so the engine's failure."""
    if isinstance(error, SpecbenchError):
        kind, what, where, hint = type(error).__name__, error.what, error.where, error.hint
        return {"kind": kind, "exit_code": error.exit_code, "what": what, "where": where, "hint": hint}
    what = f"{type(error).__name__}: {error}"
    return {"kind": "EngineError", "exit_code": EngineError.exit_code, "what": what, "where": None, "hint": None}


def unpack_error(data: Message) -> SpecbenchError:
    """The exception again, of the same class, or of the one with its exit code where only the other commit has it."""
    kind = _error_kinds().get(data["kind"]) or _BY_EXIT_CODE.get(data["exit_code"], EngineError)
    return kind(data["what"], where=data["where"], hint=data["hint"])


_BY_EXIT_CODE: dict[int, type[SpecbenchError]] = {
    kind.exit_code: kind for kind in (InputError, InvalidMeasurementError, EngineError, InterruptedRunError)
}


def _error_kinds() -> dict[str, type[SpecbenchError]]:
    found: dict[str, type[SpecbenchError]] = {}
    waiting: list[type[SpecbenchError]] = [SpecbenchError]
    while waiting:
        kind = waiting.pop()
        found[kind.__name__] = kind
        waiting += kind.__subclasses__()
    return found


def pack_settings(settings: Any) -> Message:
    """A frozen dataclass as plain data, in two parts.

    ``chosen`` must be understood: fields without a default or with another value than it. ``default`` is everything
    else. It is sent all the same, since another commit may have other defaults, but a commit that lacks such a field
    loses nothing.
    """
    packed: dict[str, Message] = {"chosen": {}, "default": {}}
    for item in dataclasses.fields(settings):
        value = getattr(settings, item.name)
        part = "default" if value == _default_of(item) else "chosen"
        packed[part][item.name] = pack_settings(value) if dataclasses.is_dataclass(value) else value
    return packed


def _default_of(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return item.default


def unpack_settings(kind: type[_Settings], packed: Message, where: str) -> _Settings:
    """Build a ``kind`` from :func:`pack_settings`' form.

    :raises InputError: this commit lacks a field that was chosen, or has one more that has no default.
    """
    hints = typing.get_type_hints(kind)
    unknown = [name for name in packed["chosen"] if name not in hints]
    if unknown:
        raise InputError(
            f"the specbench of this process has no {kind.__name__}.{unknown[0]}, which is "
            f"{_show(packed['chosen'][unknown[0]])} here",
            where=where,
            hint="leave it at its default for this arm, or choose a commit that has it",
        )
    values = {**{name: value for name, value in packed["default"].items() if name in hints}, **packed["chosen"]}
    fields = {name: _unpack_value(hints[name], value, f"{where}.{name}") for name, value in values.items()}
    try:
        return kind(**fields)
    except TypeError as error:
        raise InputError(f"the specbench of this process needs more to build it: {error}", where=where) from error


def _show(value: Any) -> str:
    return json.dumps(value["chosen"] if isinstance(value, Mapping) and "chosen" in value else value)


def _unpack_value(hint: Any, value: Any, where: str) -> Any:
    kinds = [kind for kind in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(kind)]
    if kinds and value is not None:
        return unpack_settings(typing.cast(type, kinds[0]), value, where)
    return _with_tuples(value)


def _with_tuples(value: Any) -> Any:
    """JSON knows no tuples, and settings no lists."""
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
