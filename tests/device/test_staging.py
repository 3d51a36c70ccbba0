"""Staging memory that is used again: when nobody refers to it, and never while somebody does."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.device import staging
from specbench.device.cpu import CpuDevice
from specbench.device.sim import SimDevice
from specbench.device.staging import GRANULE_BYTES, POOLED_FROM_BYTES, StagingPool

SHAPE = (2, POOLED_FROM_BYTES // 4)


def test_memory_that_nobody_refers_to_is_handed_out_again() -> None:
    pool = StagingPool()
    first = pool.empty(SHAPE, torch.int32)
    assert (first.shape, first.dtype, first.is_contiguous()) == (SHAPE, torch.int32, True)
    address = first.data_ptr()
    del first
    assert pool.empty(SHAPE, torch.int32).data_ptr() == address
    assert pool.num_buffers == 1


def test_two_tensors_that_are_in_use_share_nothing() -> None:
    pool = StagingPool()
    first, second = pool.empty(SHAPE, torch.int32), pool.empty(SHAPE, torch.int32)
    first.fill_(1)
    second.fill_(2)
    assert bool((first == 1).all())
    assert pool.num_buffers == 2


HOLDERS: dict[str, Callable[[Tensor], Any]] = {
    "the tensor": lambda tensor: tensor,
    "a slice": lambda tensor: tensor[1, 5:7],
    "a view of another type": lambda tensor: tensor.view(torch.uint8),
    "a detached alias": lambda tensor: tensor.detach(),
    "its storage": lambda tensor: tensor.untyped_storage(),
    "a numpy view": lambda tensor: tensor.numpy(),
    "a slice of a numpy view": lambda tensor: tensor.numpy()[1, 5:7][::2],
    "a memoryview": lambda tensor: memoryview(tensor.numpy()),
    "a tensor over a numpy view": lambda tensor: torch.from_numpy(tensor.numpy()[0]),
    "a closure": lambda tensor: lambda: tensor,
    "an iterator": lambda tensor: iter(tensor.numpy()),
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=list(HOLDERS))
def test_memory_is_not_handed_out_while_something_refers_to_it(holder: Callable[[Tensor], Any]) -> None:
    pool = StagingPool()
    tensor = pool.empty(SHAPE, torch.int32)
    address, held = tensor.data_ptr(), holder(tensor)
    del tensor
    gc.collect()
    assert pool.empty(SHAPE, torch.int32).data_ptr() != address
    del held
    gc.collect()
    assert {pool.empty(SHAPE, torch.int32).data_ptr() for _ in range(3)} <= {address, *others(pool, address)}
    both = [pool.empty(SHAPE, torch.int32) for _ in range(2)]
    assert address in {tensor.data_ptr() for tensor in both}
    assert pool.num_buffers == 2


def others(pool: StagingPool, address: int) -> set[int]:
    return {buffer.memory.ctypes.data for buffer in pool._buffers} - {address}


class Gate:
    """Holds a device up until it is opened."""

    def __init__(self, device: CpuDevice) -> None:
        self._opened = threading.Event()
        device.launch(self._opened.wait, "held up")

    def open(self) -> None:
        self._opened.set()


def corrupted_copies(device: CpuDevice, num_steps: int = 6) -> int:
    """Steps whose copy, executed after all were staged, did not bring what was staged for it."""
    gate = Gate(device)
    destinations = []
    for step in range(num_steps):
        staged = device.empty_staging(SHAPE, torch.int32)
        staged.fill_(step)
        destinations.append(torch.full(SHAPE, -1, dtype=torch.int32))
        device.copy_async(destinations[-1][:, 1:], staged[:, 1:])
        del staged
    gate.open()
    device.synchronize()
    return sum(not bool((found[:, 1:] == step).all()) for step, found in enumerate(destinations))


@pytest.fixture
def device() -> Any:
    made = CpuDevice(num_threads=1)
    yield made
    made.close()


def test_row_2_4_memory_is_not_handed_out_while_a_copy_is_queued(device: CpuDevice) -> None:
    assert corrupted_copies(device) == 0
    assert device._staging.num_buffers == 6
    assert corrupted_copies(device) == 0
    assert device._staging.num_buffers == 6, "what the first six copies read is free once they have run"


def test_row_2_4_a_pool_that_does_not_count_references_is_found(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_num_references", lambda _buffer: 0)
    assert corrupted_copies(device) == 5


def test_row_2_4_a_pool_that_counts_one_reference_too_few_is_found(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_UNUSED", staging._UNUSED + 1)
    assert corrupted_copies(device) > 0


def test_the_simulated_device_has_the_same_memory() -> None:
    assert SimDevice.empty_staging is CpuDevice.empty_staging


def test_small_tensors_are_not_pooled() -> None:
    pool = StagingPool()
    small = pool.empty((POOLED_FROM_BYTES // 4 - 1,), torch.int32)
    assert small.shape == (POOLED_FROM_BYTES // 4 - 1,)
    assert pool.empty((0, 5), torch.int64).shape == (0, 5)
    assert pool.num_buffers == 0
    assert StagingPool(pooled_from_bytes=0).empty((0, 5), torch.int64).shape == (0, 5)


def test_a_growing_buffer_finds_its_predecessors_memory() -> None:
    pool = StagingPool()
    for columns in range(200, 260):
        pool.empty((256, 2, columns), torch.int32)
    assert pool.num_buffers < 10
    assert pool.num_bytes < 10 * (256 * 2 * 260 * 4 + GRANULE_BYTES)


def test_memory_much_too_large_is_left_alone() -> None:
    pool = StagingPool()
    large = pool.empty((64, POOLED_FROM_BYTES), torch.uint8)
    address = large.data_ptr()
    del large
    assert pool.empty((1, POOLED_FROM_BYTES), torch.uint8).data_ptr() != address
    assert pool.empty((33, POOLED_FROM_BYTES), torch.uint8).data_ptr() == address


def test_the_smallest_that_is_large_enough_is_taken() -> None:
    pool = StagingPool()
    held = [pool.empty((rows, POOLED_FROM_BYTES), torch.uint8) for rows in (7, 5, 6)]
    addresses = [tensor.data_ptr() for tensor in held]
    del held
    taken = [pool.empty((5, POOLED_FROM_BYTES), torch.uint8) for _ in range(3)]
    assert [tensor.data_ptr() for tensor in taken] == [addresses[1], addresses[2], addresses[0]]


def test_unused_memory_is_dropped_and_memory_in_use_is_not() -> None:
    pool = StagingPool(kept_turns=4)
    burst = [pool.empty(SHAPE, torch.int32) for _ in range(8)]
    kept = burst[3].fill_(42)
    del burst
    for _ in range(4):
        pool.empty(SHAPE, torch.int32)
    assert pool.num_buffers == 8
    for _ in range(4):
        pool.empty(SHAPE, torch.int32)
    assert pool.num_buffers == 2, "the one in use and the one that goes round"
    assert bool((kept == 42).all())


def test_dropped_memory_in_use_stays_whole() -> None:
    pool = StagingPool()
    tensor = pool.empty(SHAPE, torch.int32).fill_(7)
    del pool
    gc.collect()
    assert bool((tensor == 7).all())


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["take", "slice", "numpy", "queue", "drop", "run"]),
        st.integers(0, 63),
        st.sampled_from([8, 9, 15, 16, 17, 40, 64]),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_whatever_is_held_keeps_what_was_written_to_it(actions: list[tuple[str, int, int]]) -> None:
    """Each tensor is filled with a number of its own; whatever reaches its memory goes on reading that number."""
    pool = StagingPool(pooled_from_bytes=1, kept_turns=3)
    held: list[tuple[int, Any]] = []
    queued: list[tuple[int, Callable[[], Tensor]]] = []
    for number, (action, index, size) in enumerate(actions):
        if action == "take":
            held.append((number, pool.empty((size, 8192), torch.int32).fill_(number)))
        elif action == "run":
            for written, copy in queued:
                assert bool((copy() == written).all())
            queued.clear()
        elif held:
            written, holder = held[index % len(held)]
            if action == "drop":
                del held[index % len(held)]
            elif action == "queue" and isinstance(holder, Tensor):
                queued.append((written, holder.clone))
            elif action in ("slice", "numpy"):
                made = holder.numpy() if action == "numpy" and isinstance(holder, Tensor) else holder[index % 7 :]
                held.append((written, made))
            del holder
        for written, holder in held:
            assert bool((holder == written).all())
            del holder
    assert all(bool((copy() == written).all()) for written, copy in queued)


def test_two_threads_are_never_given_the_same_memory() -> None:
    pool, wrong = StagingPool(), []

    def take_turns(mark: int) -> None:
        for turn in range(200):
            tensor = pool.empty((1, POOLED_FROM_BYTES), torch.uint8)
            tensor.fill_((mark * 50 + turn) % 256)
            if not bool((tensor == (mark * 50 + turn) % 256).all()):
                wrong.append((mark, turn))
            del tensor

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=take_turns, args=(mark,)) for mark in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
    assert pool.num_buffers <= 4
