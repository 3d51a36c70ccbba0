"""Block offsets: a copy reads its source when it executes, so a step needs memory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from engine_driver import tiny_config, with_variants
from stalled_device import StalledDevice
from step_recorder import Recording, decoding_requests, record, watch
from torch import Tensor

from specbench.device import staging
from specbench.device.cpu import CpuDevice
from specbench.device.staging import StagingPool
from specbench.engine import block_staging
from specbench.engine.block_staging import FullBlockStaging
from specbench.engine.forward_batch import ForwardBatch
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.step_inputs import StepRows


class ReusedStaging(FullBlockStaging):
    """Stages every step in one of ``num_buffers`` buffers, in turn."""

    def __init__(self, num_buffers: int) -> None:
        self._memory: list[Tensor | None] = [None] * num_buffers
        self._turn = 0
        super().__init__(self._take)

    def _take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self._turn = (self._turn + 1) % len(self._memory)
        size = int(np.prod(shape))
        memory = self._memory[self._turn]
        if memory is None:
            memory = self._memory[self._turn] = torch.zeros(8192, dtype=dtype)
        return memory[:size].view(shape)


def corrupted_steps(monkeypatch: pytest.MonkeyPatch, full: FullBlockStaging, device: CpuDevice) -> list[int]:
    """Steps whose block offsets on the device are not those that were staged for them; overlapped."""
    monkeypatch.setattr(block_staging, "build_full", lambda _config, _device: full)
    staged: dict[int, Tensor] = {}
    corrupted: list[int] = []

    def compare(engine: LLMEngine) -> None:
        preparation, inputs = engine._input_preparation, engine._model_runner.inputs
        build = preparation.build

        def build_and_keep(step: int, schedule: Any) -> Any:
            built = build(step, schedule)
            staged[step] = built.batch.block_offsets.clone()
            return built

        def look(batch: ForwardBatch, _rows: StepRows) -> None:
            if not torch.equal(inputs.block_offsets[:, : batch.num_requests], staged[batch.step]):
                corrupted.append(batch.step)

        preparation.build = build_and_keep  # type: ignore[method-assign]
        watch(engine, look)

    config = with_variants(tiny_config(overlap=True), block_staging="full", input_prep="rebuild")
    record(config, decoding_requests(2), prepare=compare, device=device)
    assert len(staged) > 20
    return corrupted


def test_row_2_4_one_reused_buffer_corrupts_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    assert corrupted_steps(monkeypatch, ReusedStaging(1), StalledDevice())


def test_row_2_4_fresh_or_rotated_staging_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    device = StalledDevice()
    assert corrupted_steps(monkeypatch, FullBlockStaging(device.empty_staging), device) == []
    assert corrupted_steps(monkeypatch, ReusedStaging(2), StalledDevice()) == []


def pooled_device() -> StalledDevice:
    """One whose pool takes the small tensors of a small engine, too."""
    device = StalledDevice()
    device._staging = StagingPool(pooled_from_bytes=1)
    return device


def test_row_2_4_the_devices_pool_does_not_either(monkeypatch: pytest.MonkeyPatch) -> None:
    device = pooled_device()
    assert corrupted_steps(monkeypatch, FullBlockStaging(device.empty_staging), device) == []
    assert device._staging.num_buffers < 20, "memory is used again"


def test_row_2_4_a_pool_that_does_not_count_references_is_found_in_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_num_references", lambda _buffer: 0)
    pool = StagingPool(pooled_from_bytes=1)
    assert corrupted_steps(monkeypatch, FullBlockStaging(pool.empty), StalledDevice())


def test_row_2_4_fresh_staging_serves_the_same_tokens_however_late_it_is_read() -> None:
    config = tiny_config(overlap=True)
    requests: Sequence[Any] = decoding_requests(2)
    late: Recording = record(config, requests, device=StalledDevice())
    assert late.differences(record(config, requests)) == []
