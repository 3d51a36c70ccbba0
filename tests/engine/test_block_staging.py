"""Block offsets on their way to the device: how many, and into which memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from engine_driver import tiny_config, with_variants
from step_recorder import decoding_requests, record, watch
from torch import Tensor

from specbench.engine.block_manager import BlockManager
from specbench.engine.block_staging import BoundedBlockStaging, FullBlockStaging
from specbench.engine.forward_batch import ForwardBatch
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.step_inputs import StepRows

REFERENCE_COLUMNS = 262144 // 32
POISON = 10**8
SHORT = replace(decoding_requests(0)[0][1], max_tokens=12)


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory with a pattern in it, as staging memory may have."""
    return torch.full(shape, -7, dtype=dtype)


def bounded() -> BoundedBlockStaging:
    return BoundedBlockStaging(empty, can_outrun_host=False)


def pools(
    num_pools: int, num_slots: int, columns: int, tokens_per_block: int = 32, num_tokens: int = 0
) -> list[BlockManager]:
    """Pools of which every slot holds ``num_tokens`` tokens, of different sizes."""
    made = []
    for pool in range(num_pools):
        num_blocks = num_slots * max(1, -(-num_tokens // tokens_per_block)) + pool
        blocks = BlockManager(num_blocks, num_slots, columns, tokens_per_block)
        for slot in range(num_slots):
            assert blocks.grow(slot, num_tokens)
        made.append(blocks)
    return made


def test_row_2_1_full_width_at_the_reference_shape() -> None:
    staging, sources = FullBlockStaging(empty), pools(2, 256, REFERENCE_COLUMNS, num_tokens=40)
    first = staging.stage(sources, list(range(256)), 33)
    assert first.shape == (2, 256, 2, 8192)
    assert first.dtype == torch.int32
    assert first.numel() * first.element_size() == 33_554_432  # 33.55 MB, whatever the sequences' lengths
    second = staging.stage(sources, list(range(256)), 33)
    assert second.data_ptr() != first.data_ptr()
    assert staging.read_counters() == {"steps": 2, "columns": 2 * 8192, "gated_steps": 0, "bytes": 2 * 33_554_432}


def test_row_2_1_every_column_of_every_slot_in_the_callers_order() -> None:
    sources, slots = pools(2, 4, 9, tokens_per_block=8, num_tokens=50), [2, 0, 3]
    staged = FullBlockStaging(empty).stage(sources, slots, 1)
    for pool, source in enumerate(sources):
        for row, slot in enumerate(slots):
            keys, values = staged[pool, row].tolist()
            assert keys == source.table[slot].tolist()
            assert values == [block + source.num_blocks for block in keys]


def test_many_rows_are_staged_as_one_row_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are gathered some at a time; where they are divided makes no difference."""
    sources, slots = pools(1, 7, 11, tokens_per_block=4, num_tokens=40), [6, 1, 0, 5, 2]
    whole = FullBlockStaging(empty).stage(sources, slots, 1)
    for at_once in (1, 22, 33, 1000):
        monkeypatch.setattr("specbench.engine.block_manager._STAGED_AT_ONCE", at_once)
        assert torch.equal(FullBlockStaging(empty).stage(sources, slots, 1), whole)


def test_row_2_2_bytes_at_the_reference_shape() -> None:
    staging, sources = bounded(), pools(2, 256, REFERENCE_COLUMNS, num_tokens=7168)
    staged = staging.stage(sources, list(range(256)), 7168)
    assert staged.shape == (2, 256, 2, 224)
    assert staging.read_counters()["bytes"] == 256 * 2 * 224 * 4 * 2 == 917_504  # 0.92 MB
    full = FullBlockStaging(empty).stage(sources, list(range(256)), 7168)
    assert torch.equal(staged, full[..., :224])


@pytest.mark.parametrize(("max_kv_len", "columns"), [(1, 1), (8, 1), (9, 2), (16, 2), (17, 3), (64, 8), (999, 8)])
def test_row_2_2_width_holds_the_longest_sequence_and_no_more(max_kv_len: int, columns: int) -> None:
    (source,) = pools(1, 2, 8, tokens_per_block=8, num_tokens=64)
    assert bounded().num_columns([source], max_kv_len) == columns
    assert bounded().stage([source], [0, 1], max_kv_len).shape[-1] == columns
    assert source.num_columns(max_kv_len) == columns


def test_row_2_2_no_cap_is_full_width() -> None:
    (source,) = pools(1, 2, 8, tokens_per_block=8, num_tokens=20)
    assert source.num_columns() == source.num_columns(None) == 8
    offsets = np.full((1, 2, 8), -7, dtype=np.int32)
    source.write_block_offsets(offsets, [1])
    assert offsets[0, 0].tolist() == source.table[1].tolist()


class CrossAttentionBlocks:
    """Self-attention blocks with those of a fixed encoder output behind them: a source made of others."""

    def __init__(self, decoder: BlockManager, encoder: BlockManager) -> None:
        self.parts = (decoder, encoder)

    @property
    def version(self) -> int:
        return sum(part.version for part in self.parts)

    def first_changed_column(self, since: int) -> int:  # noqa: ARG002 - the encoder's columns move with the decoder's
        return 0

    def num_columns(self, max_kv_len: int | None = None) -> int:
        return sum(part.num_columns(max_kv_len) for part in self.parts)

    def write_block_offsets(
        self, offsets: Any, slots: list[int], max_kv_len: int | None = None, first_column: int = 0
    ) -> None:
        assert first_column == 0
        decoder, encoder = self.parts
        split = decoder.num_columns(max_kv_len)
        decoder.write_block_offsets(offsets[..., :split], slots, max_kv_len)
        encoder.write_block_offsets(offsets[..., split:], slots, max_kv_len)


def test_row_2_2_a_source_made_of_others_forwards_the_cap() -> None:
    decoder, encoder = pools(2, 3, 8, tokens_per_block=8, num_tokens=30)
    staged = bounded().stage([CrossAttentionBlocks(decoder, encoder)], [1, 2], 17)
    assert staged.shape == (1, 2, 2, 6)
    assert staged[0, :, 0, :3].tolist() == decoder.table[1:, :3].tolist()
    assert staged[0, :, 0, 3:].tolist() == encoder.table[1:, :3].tolist()


class ForgetsTheCap(BlockManager):
    """Counts under the cap and writes without it."""

    def write_block_offsets(self, offsets: Any, slots: list[int], *_: Any) -> None:
        super().write_block_offsets(offsets, slots)


def test_row_2_2_a_source_that_drops_the_cap_is_found() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        bounded().stage([ForgetsTheCap(8, 2, 8, 8)], [0, 1], 9)


def test_row_2_2_columns_beyond_the_bound_stay_untouched() -> None:
    widths: dict[str, list[int]] = {"full": [], "bounded": []}

    def mark(engine: LLMEngine, variant: str) -> None:
        inputs = engine._model_runner.inputs
        inputs.block_offsets.fill_(POISON)

        def look(batch: ForwardBatch, _rows: StepRows) -> None:
            touched = (inputs.block_offsets != POISON).any(dim=0).any(dim=0).any(dim=0)
            assert batch.block_offsets is not None
            assert touched[: batch.block_offsets.shape[-1]].all()
            widths[variant].append(int(touched.sum()))

        watch(engine, look)

    config = tiny_config()
    for variant in widths:
        chosen = with_variants(config, block_staging=variant, input_prep="rebuild")
        record(chosen, [([5] * 9, SHORT)], prepare=lambda engine, variant=variant: mark(engine, variant))
    assert set(widths["full"]) == {config.blocks_per_sequence}
    # 9 prompt tokens, then 10 to 21 in the cache; blocks of 8.
    assert widths["bounded"] == [-(-kv_len // 8) for kv_len in range(9, 9 + len(widths["bounded"]))]
    assert max(widths["bounded"]) < config.blocks_per_sequence


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("attention", ["cpu-paged", "torch-gather"])
@pytest.mark.parametrize("input_prep", ["rebuild", "steady_state"])
def test_row_2_2_tokens_are_those_of_full_width(attention: str, overlap: bool, input_prep: str) -> None:
    config = tiny_config(attention=attention, overlap=overlap)
    requests = decoding_requests(3)
    full, some = (
        record(with_variants(config, block_staging=variant, input_prep=input_prep), requests)
        for variant in ("full", "bounded")
    )
    assert some.differences(full) == []
    sent = {
        "full": full.counters["block_staging"]["full"]["bytes"],
        "bounded": some.counters["block_staging"]["bounded"]["bytes"],
    }
    assert 0 < sent["bounded"] < sent["full"] / 2
