"""Captured programs of a device that has no graphs: a program is run once, its tensor operations are written down.

A replay makes the same calls in the same order over the same buffers, without the Python between them:

- what was a branch, a shape or a number of the host stays as it was in the recording,
- tensors that the program found are read, and written, where they are: buffers, weights, a cache,
- tensors that the program made are made again.

Calls are seen as the program makes them, so that a composite operator stays one call. What cannot change is done once:
views of buffers, and what is made of the host's numbers alone and never written to. Reading a value on the host is an
error, because it would be frozen with the rest. A *runtime operator* (:func:`runtime_operator`) is the way out: one
opaque call, made again at every replay with its tensors as they are then, and free to look at them.

Calls that PyTorch hands to function modes are seen: its functions, methods of tensors, registered operators. What an
extension binds in another way is not, and must be part of a runtime operator.

What a program keeps for later must lie in buffers that were there before: an attribute that it sets to a tensor of its
own is not set again. Threads, random numbers and the autocast or gradient mode are the caller's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, handle_torch_function

from specbench.device.operator_kinds import (
    call_name,
    check_capturable,
    find_tensors,
    is_same_by_chance,
    raw_name,
    share_memory,
    written_tensors,
)
from specbench.device.replay_program import Call, ReplayProgram
from specbench.errors import EngineError

Function = TypeVar("Function", bound=Callable[..., Any])


class Recording:
    """A program as it was recorded.

    :ivar operators: short names of the calls that a replay makes, in order.
    :ivar source: the calls as Python, for a reader.
    """

    def __init__(self, operators: tuple[str, ...], source: str, bound: dict[str, Any]) -> None:
        self.operators = operators
        self.source = source
        exec(compile(source, "<recorded program>", "exec"), bound)
        # Taken out of its own globals: no cycle, so that buffers go with the last reference to the recording.
        self._replay: Callable[[], Any] = bound.pop("replay")

    def replay(self) -> Any:
        """Make the recorded calls again, in the calling thread; return what the program returned, of this replay."""
        if torch.is_inference_mode_enabled():
            return self._replay()
        with torch.inference_mode():
            return self._replay()


def record(program: Callable[[], Any]) -> Recording:
    """Run ``program`` once in the calling thread, in inference mode, and record its tensor operations.

    :raises EngineError: it reads a tensor's value on the host or sets an attribute of a tensor, outside a runtime
        operator; or another recording runs in this thread.
    """
    if _CURRENT.recorder is not None:
        raise EngineError("a program is recorded inside another recording", where="device recording")
    recorder = _Recorder()
    with torch.inference_mode(), recorder:
        _CURRENT.recorder = recorder
        try:
            result = program()
        finally:
            _CURRENT.recorder = None
    return recorder.finish(result)


def runtime_operator(name: str) -> Callable[[Function], Function]:
    """Make a function or method one opaque call in a recording; elsewhere it is what it was.

    It runs again at every replay. Tensors among its arguments, also in tuples, lists, dictionaries and frozen
    dataclasses, are then those of the replay; all other arguments are those of the recording. It returns a tensor, a
    tuple of tensors, named or not, or None, and may write to its arguments.

    :param name: what it is called among the operators.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def operator(*args: Any, **kwargs: Any) -> Any:
            if _CURRENT.recorder is None:
                if _CURRENT.names is not None:
                    _CURRENT.names.append(name)
                return function(*args, **kwargs)
            return handle_torch_function(operator, (), *args, **kwargs)

        operator.__dict__[_OPERATOR] = (name, function)
        return cast(Function, operator)

    return decorate


_OPERATOR = "_runtime_operator"


class _Current(threading.local):
    """The recording that runs in this thread, or the list that takes the names of operators meanwhile."""

    recorder: _Recorder | None = None
    names: list[str] | None = None


_CURRENT = _Current()


class _Recorder(TorchFunctionMode):
    """Sees the calls of a program and writes them down."""

    def __init__(self) -> None:
        super().__init__()
        self._program = ReplayProgram()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        operator = getattr(func, _OPERATOR, None)
        if operator is not None:
            return self._call_operator(operator, args, kwargs)
        check_capturable(func, args, kwargs)
        result = func(*args, **kwargs)
        self._note(func, args, kwargs, result)
        return result

    def _call_operator(
        self, operator: tuple[str, Callable[..., Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        name, function = operator
        _CURRENT.recorder = None  # operators inside it are part of it
        try:
            result = function(*args, **kwargs)
        finally:
            _CURRENT.recorder = self
        given = list(find_tensors((args, kwargs)))
        self._program.append(Call(name, function, args, kwargs, given, written=given, is_opaque=True), result)
        return result

    def _note(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Write down a call of PyTorch that has been made."""
        given, made = list(find_tensors((args, kwargs))), list(find_tensors(result))
        if not _computes(function, given, result):
            return
        call = Call(call_name(function), function, args, kwargs, given, written_tensors(function, args, kwargs))
        returns_given = bool(made) and all(any(tensor is other for other in given) for tensor in made)
        if not call.written:
            if returns_given and is_same_by_chance(call.name):
                return
            if made and self._program.is_buffer(given) and all(share_memory(tensor, given[0]) for tensor in made):
                return  # a view of a buffer: the same at every replay, and an argument like any other
        self._program.append(call, None if returns_given else result)

    def finish(self, result: Any) -> Recording:
        """What was written down, with ``result`` returned at the end."""
        source, bound = self._program.finish(result)
        return Recording(self._program.operators, source, bound)


class CallNames(TorchFunctionMode):
    """Names the calls that a program makes, for devices that capture it by other means, and refuses host reads.

    :ivar operators: short names, in order. A call that gives neither a tensor nor None is none. A runtime operator is
        named before the calls that it makes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __enter__(self) -> CallNames:
        _CURRENT.names = self.operators
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *details: Any) -> None:
        super().__exit__(*details)  # type: ignore[no-untyped-call]
        _CURRENT.names = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        check_capturable(func, args, kwargs)
        result = func(*args, **kwargs)
        if _computes(func, list(find_tensors((args, kwargs))), result):
            self.operators.append(call_name(func))
        return result


def _computes(function: Any, given: list[Tensor], result: Any) -> bool:
    """Whether a call did something with tensors; others ask for a shape or a dtype, or set a mode of the host."""
    if result is None:
        return bool(given) and raw_name(function) != "__get__"
    return any(True for _ in find_tensors(result))
