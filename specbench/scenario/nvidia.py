"""What NVIDIA's driver libraries say, asked without torch and without a context, which would cost GPU memory."""

from __future__ import annotations

import ctypes
import os


def count_devices() -> int:
    """Devices the CUDA driver sees."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


class _NvmlMemory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def free_memory_bytes() -> int | None:
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
