"""The machine and software a result was measured on, as ``environment.json``.

Nothing secret and nothing guessed: environment variables are read from an allow list alone, and what cannot
be read is null.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

import specbench
from specbench.scenario.masking import mask

CPU_FLAGS = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "avx_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "bf16",
    "i8mm",
    "sve",
)
"""Instruction sets that decide how fast matrix products are."""

PACKAGES = (
    "torch",
    "numpy",
    "pandas",
    "scipy",
    "transformers",
    "tokenizers",
    "safetensors",
    "gguf",
    "triton",
    "nvtx",
)
VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "GOMP_CPU_AFFINITY",
    "GOMP_SPINCOUNT",
    "OMP_WAIT_POLICY",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ATEN_CPU_CAPABILITY",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "NVIDIA_TF32_OVERRIDE",
    "PYTHONHASHSEED",
    "TOKENIZERS_PARALLELISM",
    "CI",
)
"""Variables that change speed or numbers. No other variable is ever read."""

GPU_FIELDS = ("name", "driver_version", "memory.total", "clocks.max.sm", "power.limit")


def describe_environment() -> dict[str, Any]:
    """Return the environment as plain data. Loads no torch: see :func:`describe_torch`."""
    return {
        "specbench": specbench.__version__,
        "git": describe_git(Path(specbench.__file__).parent),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "os": f"{platform.system()} {platform.release()}",
        "libc": "-".join(platform.libc_ver()) or None,
        "cpu": describe_cpu(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": describe_gpus(),
        "load_average": load_average(),
        "governor": read_governor(),
        "packages": package_versions(),
        "variables": describe_variables(),
    }


def describe_variables() -> dict[str, str]:
    """Those of :data:`VARIABLES` that are set, secrets masked."""
    return {name: mask(os.environ[name]) for name in VARIABLES if name in os.environ}


def describe_torch(num_threads: int | None = None) -> dict[str, Any]:
    """Threads and builds of the torch in this process. Imports torch: call it once the engine is up.

    :param num_threads: of the engine's device; None: those of the calling thread.
    """
    import torch

    return {
        "version": torch.__version__,
        "threads": num_threads or torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
    }


def describe_cpu() -> dict[str, Any]:
    """Model, cores and the instruction sets that matter."""
    model: str | None = None
    flags: set[str] = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = (part.strip() for part in line.partition(":"))
            if key == "model name" and model is None:
                model = value
            elif key in ("flags", "Features") and not flags:
                flags = set(value.split())
    return {
        "model": model or platform.processor() or None,
        "architecture": platform.machine(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": usable_cores(),
        "flags": [flag for flag in CPU_FLAGS if flag in flags] if flags else None,
    }


def usable_cores() -> int | None:
    """Cores that this process may run on; a container or taskset can make them fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def load_average() -> list[float] | None:
    """Load over 1, 5 and 15 minutes."""
    try:
        return [round(load, 2) for load in os.getloadavg()]
    except OSError:
        return None


def read_governor() -> str | None:
    """The CPU frequency governor, ``a+b`` where cores differ."""
    found = set()
    for path in sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")):
        with contextlib.suppress(OSError):
            found.add(path.read_text().strip())
    return "+".join(sorted(found)) or None


def package_versions() -> dict[str, str]:
    """Installed versions of the packages that figures depend on. Imports none of them."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def describe_git(directory: Path) -> dict[str, Any] | None:
    """Revision of the checkout ``directory`` belongs to, and whether files of it were changed; else None.

    ``changes_sha256`` tells one set of changes in ``directory`` from another; untracked files are not in it.
    """
    revision = _output(["git", "-C", str(directory), "rev-parse", "HEAD"])
    tracked = _output(["git", "-C", str(directory), "ls-files", "--error-unmatch", "__init__.py"])
    if not revision or not tracked:
        return None  # an installed copy that happens to lie inside somebody's repository says nothing about it
    changes = _output(["git", "-C", str(directory), "status", "--porcelain", "--untracked-files=no"])
    found: dict[str, Any] = {"revision": revision, "dirty": None if changes is None else bool(changes)}
    if changes:
        difference = _output(["git", "-C", str(directory), "diff", "--no-ext-diff", "HEAD", "--", "."])
        found["changes_sha256"] = None if difference is None else hashlib.sha256(difference.encode()).hexdigest()
    return found


def describe_gpus() -> list[dict[str, str]] | None:
    """Name, driver, memory, clocks and power limit of each NVIDIA GPU; None without the tool that tells."""
    rows = query_gpus(GPU_FIELDS)
    return None if rows is None else [dict(zip(GPU_FIELDS, row, strict=False)) for row in rows]


def query_gpus(fields: tuple[str, ...]) -> list[list[str]] | None:
    """One row a GPU of what ``nvidia-smi`` says; None where it is not installed or fails."""
    if shutil.which("nvidia-smi") is None:
        return None
    text = _output(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"])
    return None if not text else [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


IDENTITY = (
    ("cpu", "model"),
    ("cpu", "usable_cores"),
    ("memory_bytes",),
    ("gpus", "name"),
    ("gpus", "driver_version"),
    ("packages", "torch"),
    ("torch", "version"),
    ("torch", "threads"),
    ("torch", "cpu_capability"),
    ("specbench",),
    ("git", "revision"),
    ("git", "dirty"),
    ("git", "changes_sha256"),
    ("python",),
)
"""What must be equal for two halves of one run to be one run. ``gpus`` is a list: every one counts."""


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Name what makes ``second`` another machine or build: ``packages.torch: 2.6.0 -> 2.7.0``.

    What :func:`describe_torch` says is compared where both have it: it is known once the engine is up.
    """
    found = []
    for path in IDENTITY:
        if path[0] == "torch" and not (path[0] in first and path[0] in second):
            continue
        before, after = _at(first, path), _at(second, path)
        if before != after:
            found.append(f"{'.'.join(path)}: {before} -> {after}")
    return found


def _at(data: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = data
    for key in path:
        if isinstance(value, list):
            value = [item.get(key) if isinstance(item, Mapping) else None for item in value]
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
    return value


def command_line() -> str:
    """The command as typed, secrets masked."""
    program = Path(sys.argv[0]).name or "specbench"
    arguments = [mask(argument) for argument in sys.argv[1:]]
    return mask(shlex.join([program if program != "__main__.py" else "specbench", *arguments]))
