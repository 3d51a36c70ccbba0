"""A commit of this project as an arm: a detached git worktree in a temporary folder, removed when it is left."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import specbench
from specbench.errors import EngineError, InputError
from specbench.measure.server_process import SERVER_FILE

WHERE = "--baseline-ref"
_PREFIX = "specbench-worktree-"
_PACKAGE = Path("specbench", "__init__.py")
_ENDING = (signal.SIGTERM, signal.SIGHUP)
# Set inside git's own hooks, they would send every command here to another repository.
_LOCAL_VARIABLES = (
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
)


@dataclass(frozen=True)
class Worktree:
    """A checked-out commit.

    :param path: the folder whose ``specbench`` it is: the ``worktree`` of an arm's ``process``.
    :param revision: the full hash, which outlives the folder.
    """

    path: Path
    revision: str


@dataclass(frozen=True)
class _Repository:
    """``prefix`` leads from the top to the folder that holds the package; ``.`` where they are one."""

    top: Path
    prefix: Path

    def path_in_commit(self, file: Path) -> str:
        return (self.prefix / file).as_posix()


@contextlib.contextmanager
def open_worktree(revision: str) -> Iterator[Worktree]:
    """Check ``revision`` out beside the checkout that runs, or else the one of the current folder.

    The folder goes when the block is left: by an error, Ctrl-C, SIGTERM and SIGHUP too. After a SIGKILL,
    :func:`remove_left_behind` or the system's cleaning of temporary folders do it.

    :raises InputError: no checkout, no such commit, one too old to be an arm, or no git.
    :raises EngineError: git could not check it out.
    """
    repository = _find_repository()
    commit = _resolve(repository, revision)
    _require_server(repository, revision, commit)
    with _exit_on_signals():
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        path = folder / commit[:12]
        try:
            _add(repository, path, commit)
            yield Worktree(path / repository.prefix, commit)
        finally:
            _remove(repository.top, path, folder)


def remove_left_behind(path: Path) -> None:
    """Remove the checkout of an :func:`open_worktree` whose process was killed.

    :param path: of its :class:`Worktree`. To any other folder nothing is done.
    """
    folder = next((parent for parent in path.parents if parent.name.startswith(_PREFIX)), None)
    if folder is None or ".." in path.parts or not folder.is_dir():
        return
    checkout = folder / path.relative_to(folder).parts[0]
    found = _git(checkout, "rev-parse", "--git-common-dir")
    # Of a copy that is half gone git knows nothing; then the next prune ends what the repository still says of it.
    repository = checkout / found.stdout.strip() if found.returncode == 0 else folder
    _remove(repository, checkout, folder)


def _remove(repository: Path, checkout: Path, folder: Path) -> None:
    _git(repository, "worktree", "remove", "--force", str(checkout))
    shutil.rmtree(folder, ignore_errors=True)
    if repository != folder:
        _git(repository, "worktree", "prune")


def _find_repository() -> _Repository:
    """The repository whose tracked file the running package is; else that of the current folder, if it has one."""
    if shutil.which("git") is None:
        raise InputError("git is not installed", where=WHERE, hint="install it, or set process.worktree to a checkout")
    package_parent = Path(specbench.__file__).resolve().parents[1]
    for folder in (package_parent, _top_of(Path.cwd())):
        if folder is not None and _git(folder, "ls-files", "--error-unmatch", str(_PACKAGE)).returncode == 0:
            top = _top_of(folder)
            assert top is not None
            return _Repository(top, folder.relative_to(top))
    found = _git(package_parent, "rev-parse", "--show-toplevel")
    why = f" ({_last_line(found.stderr)})" if found.returncode else ""
    raise InputError(
        f"neither {package_parent}{why} nor the current folder is a git checkout of specbench",
        where=WHERE,
        hint="run from a checkout (git clone, pip install -e .), or set process.worktree to one",
    )


def _top_of(folder: Path) -> Path | None:
    found = _git(folder, "rev-parse", "--show-toplevel")
    return Path(found.stdout.strip()).resolve() if found.returncode == 0 else None


def _resolve(repository: _Repository, revision: str) -> str:
    found = _git(repository.top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    commit = found.stdout.strip()
    if found.returncode or not commit:
        raise InputError(
            f"{revision!r} names no commit of {repository.top}",
            where=WHERE,
            hint="see `git log --oneline --all`; it may take a `git fetch`, in a shallow clone with --unshallow",
        )
    return commit


def _require_server(repository: _Repository, revision: str, commit: str) -> None:
    file = repository.path_in_commit(SERVER_FILE)
    if _git(repository.top, "cat-file", "-e", f"{commit}:{file}").returncode == 0:
        return
    listed = _git(repository.top, "log", "--diff-filter=A", "--format=%h of %cs (%s)", "HEAD", "--", file)
    first = _last_line(listed.stdout)
    raise InputError(
        f"commit {commit[:12]} ({revision}) has no {file}, which serves an arm in a process of its own",
        where=WHERE,
        hint=f"choose a commit from {first} on" if first else "no commit up to the current one has it",
    )


def _add(repository: _Repository, path: Path, commit: str) -> None:
    # A hook of the user's (building, installing) has no place in a copy that is measured and thrown away.
    made = _git(repository.top, "-c", f"core.hooksPath={os.devnull}", "worktree", "add", "--detach", str(path), commit)
    if made.returncode:
        raise EngineError(f"git could not check out {commit[:12]}: {_last_line(made.stderr)}", where=str(path))


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in ``folder``, out of the reach of a Ctrl-C that would leave it half done."""
    environment = {name: value for name, value in os.environ.items() if name not in _LOCAL_VARIABLES}
    return subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        stdin=subprocess.DEVNULL,
        env={**environment, "LC_ALL": "C"},
        start_new_session=True,
    )


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


@contextlib.contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Turn signals that end a process on the spot into an exception, so that what must be removed is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    raise SystemExit(128 + number)
