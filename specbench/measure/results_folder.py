"""The folder a run leaves behind, and its promise: a trial that was measured is on disk before the next
starts.

A trial's request lines are written and synced first, its own line last: the trial line is what makes both
count. After a kill, a torn last line and request lines without their trial are set aside in ``*.torn`` files
and measured again.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType

from specbench import encoding
from specbench.errors import ResultsError, StorageError
from specbench.measure.json_lines import read_lines, set_aside
from specbench.records import COMPLETE, RequestRecord, TrialRecord

SCENARIO = "scenario.yaml"
ENVIRONMENT = "environment.json"
QUESTION = "question.json"
PLAN = "plan.json"
ARMS = "arms.json"
TRIALS = "trials.jsonl"
REQUESTS = "requests.jsonl"
ANALYSIS = "analysis.json"
SELFTEST = "selftest.json"
REPORT = "report.md"


def folder_name(scenario_name: str, short_hash: str, now: datetime) -> str:
    """``20260131T120000Z-quickstart-1a2b3c4d``."""
    stamp = now.astimezone(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", scenario_name).strip("-.") or "run"
    return f"{stamp}-{plain}-{short_hash[:8]}"


def create_folder(exact: Path | None, parent: Path, name: str) -> Path:
    """Create the folder of a new run: ``exact`` if given (new or empty), else ``parent/name``.

    :raises ResultsError: it cannot be created or written, or ``exact`` holds something.
    """
    if exact is None:
        return _create_numbered(parent, name)
    try:
        exact.mkdir(parents=True, exist_ok=True)
        taken = sorted(item.name for item in exact.iterdir())
    except OSError as error:
        raise _unusable(exact, error) from error
    if taken:
        raise ResultsError(
            f"the folder holds {taken[0]} already; a run never overwrites another",
            where=f"--out {exact}",
            hint=f"another folder, or --resume {exact} to finish the run in it",
        )
    _probe(exact)
    return exact


def _create_numbered(parent: Path, name: str) -> Path:
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        path = parent / f"{name}{suffix}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if parent.is_dir():
                continue
            raise ResultsError("is a file, not a folder", where=str(parent), hint="--out FOLDER") from None
        except OSError as error:
            raise _unusable(path, error) from error
        _probe(path)
        return path
    raise ResultsError("too many runs of this name started in this second", where=str(parent))


def _probe(path: Path) -> None:
    """Write a little and take it back: a read-only or full disk is found before anything is measured."""
    probe = path / ".probe"
    try:
        with probe.open("wb") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        probe.unlink()
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> ResultsError:
    return ResultsError(
        f"the results folder cannot be written: {error.strerror or error}",
        where=str(path),
        hint="--out with a folder that you may write to and that has space",
    )


@dataclass(frozen=True)
class Contents:
    """Whole lines of a results folder; ``requests`` are those of its trials alone."""

    trials: list[TrialRecord]
    requests: list[RequestRecord]


class ResultsFolder:
    """An open results folder. Enter it to lock the folder and to append trials.

    :param path: an existing folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._trials: io.FileIO | None = None
        self._requests: io.FileIO | None = None
        self.contents = Contents([], [])

    def __enter__(self) -> ResultsFolder:
        try:
            # Unbuffered: a line that failed to be written must not be written later, when the file is closed.
            self._trials = io.FileIO(self.path / TRIALS, "a+")
            self._lock(self._trials)
            self.contents = self._recover()
            self._requests = io.FileIO(self.path / REQUESTS, "a+")
        except OSError as error:
            self._close()
            raise _unusable(self.path, error) from error
        except ResultsError:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        for file in (self._trials, self._requests):
            if file is not None:
                with contextlib.suppress(OSError):  # everything that counts was synced before
                    file.close()

    def _lock(self, file: io.FileIO) -> None:
        try:
            import fcntl
        except ImportError:  # no advisory locks on this system
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return  # a file system without locks
            raise ResultsError(
                "another specbench process writes to this folder",
                where=str(self.path),
                hint="wait for it to end",
            ) from None

    def _recover(self) -> Contents:
        """Read what is whole, set aside what is not."""
        trials = read_lines(self.path / TRIALS, TrialRecord)
        if trials.torn:
            set_aside(self.path / TRIALS, trials.texts, [trials.torn])
        known = {(trial.trial, trial.attempt) for trial in trials.records}
        found = read_lines(self.path / REQUESTS, RequestRecord)
        counted = [(request.trial, request.attempt) in known for request in found.records]
        if found.torn or not all(counted):
            orphans = [text for text, counts in zip(found.texts, counted, strict=True) if not counts]
            whole = [text for text, counts in zip(found.texts, counted, strict=True) if counts]
            set_aside(self.path / REQUESTS, whole, [*orphans, *([found.torn] if found.torn else [])])
        requests = [request for request, counts in zip(found.records, counted, strict=True) if counts]
        return Contents(trials.records, requests)

    def append(self, trial: TrialRecord, requests: Sequence[RequestRecord]) -> None:
        """Write one measured trial and its requests, and sync both.

        :raises StorageError: it could not be written; everything before it is intact.
        """
        assert self._trials is not None, "enter the folder first"
        assert self._requests is not None
        end = self._requests.seek(0, io.SEEK_END)
        self._append_lines(self._requests, [encoding.dumps(request) for request in requests])
        try:
            self._append_lines(self._trials, [encoding.dumps(trial)])
        except StorageError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._requests.fileno(), end)
            raise
        self.contents.trials.append(trial)
        self.contents.requests.extend(requests)

    def _append_lines(self, file: io.FileIO, lines: Iterable[str]) -> None:
        end = file.seek(0, io.SEEK_END)
        data = memoryview("".join(line + "\n" for line in lines).encode("utf-8"))
        try:
            while data:
                data = data[os.write(file.fileno(), data) :]
            os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), end)  # takes no space: no torn line is left behind
            raise not_stored(Path(os.fsdecode(file.name)), error) from error

    def discard_unmeasured(self, *, keep_folder: bool) -> None:
        """Take back what a new command wrote before it found that its input is wrong; after a trial, do nothing.

        :param keep_folder: the folder was there before: it stays, empty as it was.
        """
        if self.contents.trials or _size(self.path / TRIALS):
            return
        for name in (SCENARIO, ENVIRONMENT, QUESTION, ARMS, PLAN, TRIALS, REQUESTS):
            with contextlib.suppress(OSError):
                (self.path / name).unlink()
        if not keep_folder:
            with contextlib.suppress(OSError):
                self.path.rmdir()  # stays if there is anything else in it

    def next_attempt(self, trial: int) -> int:
        """Attempt number of the next try of a trial."""
        return 1 + max((t.attempt for t in self.contents.trials if t.trial == trial), default=-1)

    def is_done(self, trial: int) -> bool:
        """True when a line of the trial counts as measured to its end."""
        return any(t.trial == trial and t.status in COMPLETE for t in self.contents.trials)

    def write(self, name: str, text: str) -> Path:
        """Write a whole file at once: to a temporary name, synced, then renamed over the old one.

        :raises StorageError: it could not be written; an older version is intact.
        """
        path = self.path / name
        temporary = self.path / f".{name}.part"
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise not_stored(path, error) from error
        return path


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def not_stored(path: Path, error: OSError) -> StorageError:
    """A file of a folder could not be written: what to say, and how to go on."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return StorageError(
        "no space is left on the disk" if full else f"writing failed: {error.strerror or error}",
        where=str(path),
        hint=f"free some space, then go on with --resume {path.parent}; what was measured before is kept",
    )
