"""What this machine has, asked without torch: free memory and whether CUDA can be used."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_memory_bytes(device: str) -> int | None:
    """Bytes that can be allocated now on ``device``; None where that cannot be told."""
    if device == "cuda":
        return _free_gpu_bytes()
    known = [size for size in (_free_host_bytes(), _free_cgroup_bytes()) if size is not None]
    return min(known) if known else None


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
    """Devices the CUDA driver sees; needs no context, so costs no GPU memory."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


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


class _NvmlMemory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def _free_gpu_bytes() -> int | None:
    """Free bytes of the first visible GPU, from the management library; None where it cannot say."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle, memory = ctypes.c_void_p(), _NvmlMemory()
    if library.nvmlInit_v2() != 0:
        return None
    try:
        if first.isdecimal():
            found = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(first)), ctypes.byref(handle))
        else:
            found = library.nvmlDeviceGetHandleByUUID(first.encode(), ctypes.byref(handle))
        if found != 0 or library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0:
            return None
        return int(memory.free)
    finally:
        library.nvmlShutdown()
