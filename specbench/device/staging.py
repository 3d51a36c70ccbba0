"""Staging memory that is used again, on devices whose host memory is ordinary memory.

A large buffer made anew each step is mapped by the allocator and given back to the system a step later, and most of the
time of filling it then goes into page faults. CUDA's allocator of pinned memory keeps what it has; this pool does the
same for the CPU. A step's memory must stay as it is until every copy that reads it has run, so memory is handed out
again only when nothing refers to it any more. That is asked of the reference count, not guessed from time.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

POOLED_FROM_BYTES = 128 << 10
"""Smaller tensors come from PyTorch: the C library keeps memory of that size, and maps what is larger."""
GRANULE_BYTES = 64 << 10
"""Sizes are multiples of this, so that a buffer which grows by a few columns finds its predecessor's memory."""
KEPT_TURNS = 64
"""Requests for memory that an unused buffer outlives."""


@dataclass
class _Buffer:
    """:ivar last_turn: the pool's turn when the buffer was last handed out or seen in use."""

    memory: npt.NDArray[np.uint8]
    last_turn: int


def _num_references(buffer: _Buffer) -> int:
    return sys.getrefcount(buffer.memory)


_UNUSED = _num_references(_Buffer(np.empty(0, dtype=np.uint8), 0))
"""What the interpreter at hand counts for memory that the pool alone refers to."""


class StagingPool:
    """Hands out uninitialised host tensors, in memory that nobody else has. Any thread may ask.

    A tensor's storage holds a reference to the array that it lies in, and everything that can reach the memory holds
    the storage: the tensor, its views and slices, numpy arrays made of them, a queued copy. The count of an array can
    only rise through somebody who has it already, so one that nobody has stays free until it is handed out.

    A buffer that was in use at none of the last ``kept_turns`` requests is dropped at the next one.

    :param pooled_from_bytes: smaller tensors come from ``torch.empty``.
    :param kept_turns: how many requests an unused buffer outlives.
    """

    def __init__(self, pooled_from_bytes: int = POOLED_FROM_BYTES, kept_turns: int = KEPT_TURNS) -> None:
        self._pooled_from_bytes = max(1, pooled_from_bytes)
        self._kept_turns = kept_turns
        self._lock = threading.Lock()
        self._buffers: list[_Buffer] = []
        self._turn = 0

    @property
    def num_buffers(self) -> int:
        """Buffers the pool knows of, in use or not."""
        return len(self._buffers)

    @property
    def num_bytes(self) -> int:
        """Size of them all."""
        return sum(buffer.memory.nbytes for buffer in tuple(self._buffers))

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return an uninitialised contiguous CPU tensor, in memory to which nothing else refers."""
        count = prod(shape)
        num_bytes = count * dtype.itemsize
        if num_bytes < self._pooled_from_bytes:
            return torch.empty(shape, dtype=dtype)
        with self._lock:
            # The reference that the new tensor holds is there before another thread may look at the counts.
            tensor = torch.frombuffer(self._take(num_bytes).memory, dtype=dtype, count=count)
        return tensor.view(shape)

    def _take(self, num_bytes: int) -> _Buffer:
        """The smallest free buffer that is large enough and not twice too large; else a new one."""
        self._turn += 1
        size = -(-num_bytes // GRANULE_BYTES) * GRANULE_BYTES
        found: _Buffer | None = None
        for buffer in self._buffers:
            if _num_references(buffer) > _UNUSED:
                buffer.last_turn = self._turn
            elif size <= buffer.memory.nbytes < (found.memory.nbytes if found else 2 * size):
                found = buffer
        if found is None:
            found = _Buffer(np.empty(size, dtype=np.uint8), self._turn)
            self._buffers.append(found)
        found.last_turn = self._turn
        oldest = self._turn - self._kept_turns
        if any(buffer.last_turn < oldest for buffer in self._buffers):
            self._buffers = [buffer for buffer in self._buffers if buffer.last_turn >= oldest]
        return found
