"""Block offsets: attention finds what it reads, also where device lengths run ahead of the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engine_driver import ngram, tiny_config, with_variants
from step_recorder import decoding_requests, record, watch

from specbench.device.cpu import CpuDevice
from specbench.engine import block_staging
from specbench.engine.block_manager import BlockManager
from specbench.engine.block_staging import BoundedBlockStaging
from specbench.engine.config import EngineConfig
from specbench.engine.forward_batch import ForwardBatch
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.step_inputs import StepRows

POISON = 10**8


class ReadsBeyondError(Exception):
    """Attention would read block offsets that were not sent."""


def check_bounds(engine: LLMEngine) -> None:
    """Poison every column that a step did not send, then look at each offset that attention is going to read."""
    inputs, config = engine._model_runner.inputs, engine.config
    sent = [0]

    def look(batch: ForwardBatch, rows: StepRows) -> None:
        if batch.block_offsets is not None:
            sent[0] = batch.first_block_column + batch.block_offsets.shape[-1]
        inputs.block_offsets[..., sent[0] :] = POISON
        kv_lens = [chunk.end for chunk in batch.context] + rows.kv_lens.tolist()
        for row, kv_len in enumerate(kv_lens):
            read = inputs.block_offsets[:, row, :, : -(-kv_len // config.tokens_per_block)]
            if int(read.max()) >= 2 * config.num_blocks:
                raise ReadsBeyondError(f"step {batch.step}, request {row}, {kv_len} tokens, {sent[0]} columns")

    watch(engine, look)


@pytest.fixture
def ungated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded staging that trusts the host's count whatever runs ahead of it."""
    monkeypatch.setattr(
        block_staging,
        "build_bounded",
        lambda _config, device: BoundedBlockStaging(device.empty_staging, can_outrun_host=False),
    )


def speculating(overlap: bool, **changes: object) -> EngineConfig:
    return with_variants(tiny_config(drafter=ngram(4), overlap=overlap, **changes), block_staging="bounded")


def repeating_requests() -> list[tuple[list[int], Any]]:
    return [([7, 8, 9] * 4, replace(decoding_requests(0)[0][1], seed=seed, max_tokens=40)) for seed in range(5)]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.usefixtures("ungated")
def test_row_2_3_without_the_gate_speculation_reads_beyond(overlap: bool) -> None:
    with pytest.raises(ReadsBeyondError):
        record(speculating(overlap), repeating_requests(), prepare=check_bounds)


@pytest.mark.parametrize("overlap", [False, True])
def test_row_2_3_gated_steps_are_staged_in_full(overlap: bool) -> None:
    config = speculating(overlap)
    found = record(config, repeating_requests(), prepare=check_bounds)
    assert any(len(output) > 20 for output in found.outputs)
    counters = found.counters["block_staging"]["bounded"]
    assert counters["gated_steps"] == counters["steps"] == len(found.steps)
    assert counters["columns"] == counters["steps"] * config.blocks_per_sequence


@pytest.mark.parametrize(
    "drafter", [ngram(4), replace(ngram(4), runtime_draft_len=((1, 4),)), replace(ngram(4), draft_len=0)]
)
def test_row_2_3_any_drafter_closes_the_gate(drafter: Any) -> None:
    device = CpuDevice(num_threads=1)
    try:
        staging = block_staging.build_bounded(tiny_config(drafter=drafter), device)
        assert staging.cap(9) is None
        assert block_staging.build_bounded(tiny_config(), device).cap(9) == 9
    finally:
        device.close()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("input_prep", ["rebuild", "steady_state"])
def test_row_2_3_plain_decoding_stays_within_the_bound(overlap: bool, input_prep: str) -> None:
    config = with_variants(tiny_config(overlap=overlap), block_staging="bounded", input_prep=input_prep)
    found = record(config, decoding_requests(1), prepare=check_bounds)
    counters = found.counters["block_staging"]["bounded"]
    assert counters["gated_steps"] == 0
    assert counters["columns"] < counters["steps"] * config.blocks_per_sequence / 2


def test_row_2_3_a_bound_one_block_short_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        BlockManager,
        "num_columns",
        lambda self, cap=None: self.blocks_per_sequence if cap is None else max(1, cap // 8),
    )
    with pytest.raises(ReadsBeyondError):
        record(with_variants(tiny_config(), block_staging="bounded"), decoding_requests(1), prepare=check_bounds)
