"""A Python interpreter of its own: how one is started, how it dies with its parent, and a function run in one."""

from __future__ import annotations

import ctypes
import importlib
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import NoReturn

import specbench
from specbench.errors import EngineError, InterruptedRunError, SpecbenchError
from specbench.measure.interruption import StopSignal
from specbench.measure.wire import Channel, Message, pack_error, unpack_error

NOT_IMPORTABLE = 64
"""Exit status of an interpreter that cannot import what it was started for."""
POLL_S = 0.5
"""How often a waiting parent looks whether it was told to stop. Rarely: it shares the cores with what is measured."""
GRACE_S = 10.0

# With -c instead of -m it does not depend on the current folder, on PYTHONSAFEPATH or on the version of Python whose
# specbench is imported. The folder is put in front of everything when it must win, else only where it is missing.
_BOOT = f"""
import sys
folder, rank, entry, *arguments = sys.argv[1:]
sys.argv[1:] = arguments
sys.path[:] = [path for path in sys.path if path]
if folder and (rank == "first" or folder not in sys.path):
    sys.path.insert(0, folder)
module, _, attribute = entry.partition(":")
try:
    main = getattr(__import__(module, fromlist=[attribute]), attribute)
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit({NOT_IMPORTABLE})
sys.exit(main())
"""

_PR_SET_PDEATHSIG = 1


def interpreter_command(
    entry: str, arguments: Sequence[str] = (), *, python: str | None = None, checkout: str | None = None
) -> list[str]:
    """The command that runs ``entry`` (``"module:function"``, called without arguments) in an interpreter.

    :param python: the interpreter; None: this one.
    :param checkout: folder whose ``specbench`` is imported before any other. None: what ``python`` has installed; for
        this interpreter, the specbench that runs here.
    """
    folder, rank = "", "last"
    if checkout is not None:
        folder, rank = os.path.abspath(checkout), "first"
    elif python is None:
        folder = os.path.dirname(os.path.dirname(os.path.abspath(specbench.__file__)))
    return [python or sys.executable, "-c", _BOOT, folder, rank, entry, *arguments]


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux; elsewhere, do nothing)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def may_die_with_parent() -> bool:
    """True where :func:`die_with_parent` in a child is no danger: a thread may end long before its process."""
    return threading.current_thread() is threading.main_thread()


def describe_exit(status: int | None) -> str:
    """``ended with status 3``, or ``was killed by SIGKILL``; for what :func:`end_process` returns."""
    if status is None:
        return "closed its pipe, went on and was stopped"
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def exit_hint(status: int | None) -> str | None:
    """What to try, where the status of an ended process tells."""
    return "the system may have run out of memory: see `dmesg`" if status == -signal.SIGKILL else None


def end_process(process: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> int | None:
    """Wait ``grace_s`` for ``process`` and return its status; None when it had to be killed."""
    try:
        return process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def run_fresh(target: str, arguments: Sequence[str], *, stop: StopSignal) -> str:
    """Call ``target`` (``"module:attr"``) with ``arguments`` in a fresh interpreter and return what it returns.

    The child has this process's stderr, on which its stdout goes as well, and no stdin. It has a session of its own, so
    that Ctrl-C reaches it once, passed on from ``stop``: as SIGINT, and again when this process is interrupted
    a second time. It dies with this process, even with one that is killed.

    :raises SpecbenchError: what the function raised, of the same class.
    :raises InterruptedRunError: it was interrupted before it caught signals itself.
    :raises EngineError: it raised something else, or the process died.
    """
    read_fd, write_fd = os.pipe()
    parent = str(os.getpid()) if may_die_with_parent() else ""
    command = interpreter_command(f"{__name__}:_serve_call", [str(write_fd), parent, target, *arguments])
    channel = Channel(read_fd, None)
    try:
        child = _spawn(command, write_fd)
        try:
            answer = _await_answer(channel, child, stop)
        except BaseException:
            _interrupt_twice(child)
            raise
        status = end_process(child)
    finally:
        channel.close()
    if answer is None:
        raise EngineError(f"the process {describe_exit(status)}", where=target, hint=exit_hint(status))
    if "error" in answer:
        raise unpack_error(answer["error"])
    return str(answer["result"])


def _spawn(command: list[str], write_fd: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=(write_fd,), start_new_session=True
        )
    finally:
        os.close(write_fd)


def _await_answer(channel: Channel, child: subprocess.Popen[bytes], stop: StopSignal) -> Message | None:
    """The child's last message. A stop is passed on once it has said, in its first, that it can take a signal."""
    if channel.receive() is None:
        return None
    is_passed_on = False
    while not select.select([channel.read_fd], [], [], POLL_S)[0]:
        if stop.requested and not is_passed_on:
            child.send_signal(signal.SIGINT)
            is_passed_on = True
    return channel.receive()


def _interrupt_twice(child: subprocess.Popen[bytes]) -> None:
    """As a user does who does not want to wait: the second signal ends what only noted the first. Then kill it."""
    for _ in range(2):
        with suppress(subprocess.TimeoutExpired):
            child.send_signal(signal.SIGINT)
            child.wait(GRACE_S / 4)
    end_process(child, 0.0)


def _serve_call() -> int:
    """The child's side of :func:`run_fresh`."""
    descriptor, parent, target, *arguments = sys.argv[1:]
    os.set_inheritable(int(descriptor), False)
    if parent:
        die_with_parent()
        if os.getppid() != int(parent):
            return 1
    channel = Channel(int(descriptor), int(descriptor))
    for number in StopSignal.SIGNALS:
        signal.signal(number, _interrupt)
    answer = _call(channel, target, arguments)
    for number in StopSignal.SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    channel.send(answer)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    raise KeyboardInterrupt


def _call(channel: Channel, target: str, arguments: Sequence[str]) -> Message:
    module, _, attribute = target.partition(":")
    try:
        channel.send({"ready": True})
        return {"result": getattr(importlib.import_module(module), attribute)(*arguments)}
    except KeyboardInterrupt:
        return {"error": pack_error(InterruptedRunError("the process was interrupted", where=target))}
    except SpecbenchError as error:
        return {"error": pack_error(error)}
    except Exception as error:
        traceback.print_exc()
        return {"error": pack_error(error)}
