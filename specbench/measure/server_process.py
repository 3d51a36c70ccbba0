"""The process that an arm's subject lives in: started, greeted, asked, and never left behind."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from specbench.errors import EngineError, InputError
from specbench.measure.fresh_process import (
    NOT_IMPORTABLE,
    describe_exit,
    end_process,
    exit_hint,
    interpreter_command,
    may_die_with_parent,
)
from specbench.measure.wire import PROTOCOL, Channel, Message, unpack_error
from specbench.scenario.masking import mask

SERVER_FILE = Path("specbench", "measure", "subject_server.py")
CLOCK_CHECKS = 5
STDERR_LINES = 12
_STDERR_BYTES = 16_384


class ProcessSettings(Protocol):
    """The ``process`` section of a scenario: what an arm's process is started with.

    ``worktree`` is a checkout of specbench whose package is imported; without it, ``python`` has one installed.
    """

    @property
    def python(self) -> str | None: ...

    @property
    def env(self) -> Mapping[str, str]: ...

    @property
    def worktree(self) -> str | None: ...


class ServerProcess:
    """The process at the other end of the pipe. It never outlives this object, nor this process.

    :raises InputError: it cannot be started with these settings, or its specbench cannot serve this one.
    """

    def __init__(self, settings: ProcessSettings) -> None:
        self._where = _describe(settings)
        self._stderr: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = _spawn(settings, self._stderr)
        except BaseException:
            self._stderr.close()
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._channel = Channel(os.dup(self._process.stdout.fileno()), os.dup(self._process.stdin.fileno()))
        self._process.stdin.close()
        self._process.stdout.close()
        self._is_broken = False
        self._kill = weakref.finalize(self, _release, self._process, self._channel, self._stderr)
        try:
            self.hello = self._shake_hands()
            self.round_trip_ns = self._check_clock()
        except BaseException:
            self._kill()
            raise

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def ask(self, operation: str, **arguments: Any) -> Message:
        """Have one operation done and return its answer.

        :raises SpecbenchError: what the operation raised there.
        :raises EngineError: the process died; its status and last words are in the message.
        """
        answer = self._exchange({"op": operation, **arguments})
        if answer is None:
            raise self._death()
        if "error" in answer:
            raise unpack_error(answer["error"])
        return answer

    def _exchange(self, request: Message, *, skip_noise: bool = False) -> Message | None:
        if self._is_broken or not self._kill.alive:
            raise EngineError("the process of this arm has ended", where=self._where)
        # Whatever interrupts the exchange, Ctrl-C included, leaves half of it in the pipe.
        self._is_broken = True
        answer = self._channel.receive(skip_noise=skip_noise) if self._channel.send(request) else None
        self._is_broken = answer is None
        return answer

    def _death(self) -> EngineError:
        status = end_process(self._process)
        said = self._last_words()
        return EngineError(
            f"the process of this arm {describe_exit(status)}" + (f"; the last it said:\n{said}" if said else ""),
            where=self._where,
            hint=exit_hint(status),
        )

    def _last_words(self) -> str:
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(size - _STDERR_BYTES, 0))
        lines = self._stderr.read().decode("utf-8", errors="replace").splitlines()
        return "\n".join(f"    {mask(line)}" for line in lines[-STDERR_LINES:])

    def _shake_hands(self) -> Message:
        hello = {"op": "hello", "protocol": PROTOCOL, "die_with_parent": may_die_with_parent()}
        answer = self._exchange(hello, skip_noise=True)
        if answer is None and end_process(self._process) == NOT_IMPORTABLE:
            raise InputError(
                f"its interpreter has no specbench that can serve an arm:\n{self._last_words()}",
                where=self._where,
                hint="install this specbench there, or name a checkout of it in process.worktree",
            )
        if answer is None:
            raise self._death()
        if "error" in answer:
            raise unpack_error(answer["error"])
        if answer["protocol"] != PROTOCOL:
            raise InputError(
                f"its specbench {answer['specbench']} ({answer['imported_from']}) speaks protocol "
                f"{answer['protocol']}, this one speaks {PROTOCOL}",
                where=self._where,
                hint="compare commits whose specbench/measure/wire.py has the same PROTOCOL",
            )
        return answer

    def _check_clock(self) -> int:
        """Require one clock on both sides; return the shortest round trip in nanoseconds.

        :raises EngineError: the other side's time does not lie between two readings of ours.
        """
        round_trips = []
        for _ in range(CLOCK_CHECKS):
            before_ns = time.perf_counter_ns()
            now_ns = self.ask("now")["now_ns"]
            after_ns = time.perf_counter_ns()
            if not before_ns <= now_ns <= after_ns:
                raise EngineError(
                    f"its clock reads {(now_ns - before_ns) / 1e6:+.3f} ms against this process's, "
                    f"{(after_ns - before_ns) / 1e6:.3f} ms later it was asked for",
                    where=self._where,
                    hint="both processes must run on one machine and in one time namespace",
                )
            round_trips.append(after_ns - before_ns)
        return min(round_trips)

    def close(self) -> None:
        """End it: with its consent where it still answers, else by force.

        :raises EngineError: the engine failed while it was released.
        """
        if not self._kill.alive:
            return
        try:
            if not self._is_broken:
                self.ask("close")
                end_process(self._process)
        finally:
            self._kill()


def _describe(settings: ProcessSettings) -> str:
    parts = [f"{key} {value}" for key in ("python", "worktree") if (value := getattr(settings, key))]
    return f"process ({', '.join(parts)})" if parts else "process"


def _spawn(settings: ProcessSettings, stderr: BinaryIO) -> subprocess.Popen[bytes]:
    """Start the server in a session of its own, where Ctrl-C does not reach it."""
    if settings.worktree is not None and not Path(settings.worktree, SERVER_FILE).is_file():
        raise InputError(
            f"{settings.worktree} has no {SERVER_FILE}, which serves an arm",
            where="process.worktree",
            hint="name a checkout of specbench at a commit that has this file",
        )
    command = interpreter_command(
        "specbench.measure.subject_server:main", python=settings.python, checkout=settings.worktree
    )
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **settings.env},
            start_new_session=True,
        )
    except OSError as error:
        raise InputError(
            f"{command[0]} cannot be started: {error.strerror}",
            where="process.python",
            hint="name the Python of an environment, as venv/bin/python",
        ) from error


def _release(process: subprocess.Popen[bytes], channel: Channel, stderr: BinaryIO) -> None:
    process.kill()
    process.wait()
    channel.close()
    stderr.close()
