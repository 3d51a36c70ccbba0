"""What this machine has, asked without torch: free memory and whether CUDA can be used."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_memory_bytes(device: str) -> int | None:
    """Bytes that can be allocated now on ``device``; None where that cannot be told."""
    if device == "cuda":
        from specbench.scenario import nvidia

        return nvidia.free_memory_bytes()
    known = [size for size in (_free_host_bytes(), _free_cgroup_bytes()) if size is not None]
    return min(known) if known else None


def settle_device(name: str) -> str:
    """The device that ``engine.device`` means: ``auto`` is cuda where that can be used, else cpu."""
    if name != "auto":
        return name
    return "cuda" if cuda_problem() is None else "cpu"


@cache
def cuda_problem() -> str | None:
    """Why ``engine.device: cuda`` cannot be used here, or None when it can."""
    try:
        torch_version = version("torch")
    except PackageNotFoundError:
        return "PyTorch is not installed"
    if torch_version.endswith("+cpu"):
        return f"the installed PyTorch ({torch_version}) is built without CUDA"
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    return None if _cuda_device_count() > 0 else "no CUDA device is present"


def _cuda_device_count() -> int:
    # ctypes is for machines that get this far.
    from specbench.scenario import nvidia

    return nvidia.count_devices()


def _free_host_bytes() -> int | None:
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.virtual_memory().available)


def _free_cgroup_bytes() -> int | None:
    """Room below a container's memory limit (cgroup v2), page cache counted as room."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        stats = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return max(int(limit) - used + int(stats.get("inactive_file", 0)), 0)
