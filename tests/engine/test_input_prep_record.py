"""Input preparation: which steps are recorded, and which go on from the record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from engine_driver import tiny_config
from torch import Tensor

from specbench.device.cpu import CpuDevice
from specbench.device.tracing import NullTracer
from specbench.engine.block_manager import BlockManager
from specbench.engine.forward_batch import ForwardBatch, InputSource
from specbench.engine.input_preparation import InputPreparation
from specbench.engine.optimizations.base import build_switch
from specbench.engine.request import Request
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.step_sampling import StepSampling
from specbench.engine.scheduler import Schedule
from specbench.engine.steady_state import SteadyStateInputs

NO_RUNNER: Any = None
"""Nothing here is run."""


class Bench:
    """Input preparation by itself: three requests that decode, and one that pads."""

    def __init__(self) -> None:
        self.config = tiny_config()
        self.device = CpuDevice(num_threads=1)
        self.blocks = blocks = BlockManager(40, 5, self.config.blocks_per_sequence, self.config.tokens_per_block)
        graphs, staging, prep, params = (
            build_switch(name, self.config, self.device)
            for name in ("graphs", "block_staging", "input_prep", "sampling_params")
        )
        self.preparation = InputPreparation(self.config, [blocks], graphs, staging, prep, NullTracer())
        graphs.current.connect(NO_RUNNER, self.preparation, StepSampling(params), graphs)
        self.requests = [self._request(slot) for slot in range(3)]
        self.padding = self._request(4)
        for slot in (0, 1, 2, 4):
            assert blocks.grow(slot, 60)
        self._step = 0

    @staticmethod
    def _request(slot: int) -> Request:
        params = SamplingParams(ignore_eos=True)
        return Request(f"r{slot}", (1, 2, 3), params, frozenset(), 99, 0, slot=slot, in_context=False, num_in_flight=1)

    def step(self, **changes: Any) -> ForwardBatch:
        """Prepare the next step of the three requests; each has a token more after it."""
        self._step += 1
        schedule = Schedule(**{"generation": list(self.requests), **changes})
        batch = self.preparation.prepare(self._step, schedule)
        for request in self.requests:
            request.output_token_ids.append(7)
        return batch

    @property
    def counters(self) -> dict[str, int]:
        return self.preparation._input_prep.read_counters()["steady_state"]


@pytest.fixture
def bench() -> Any:
    made = Bench()
    yield made
    made.device.close()


def sources(bench: Bench, schedules: list[dict[str, Any]]) -> list[InputSource]:
    return [bench.step(**changes).source for changes in schedules]


HOST, LAST_STEP = InputSource.HOST, InputSource.LAST_STEP


def test_row_2_5_a_step_with_padding_is_neither_recorded_nor_gone_on_from(bench: Bench) -> None:
    padded = {"generation": [*bench.requests, bench.padding], "num_padding": 1}
    assert sources(bench, [{}, {}, padded, padded, {}, {}]) == [HOST, LAST_STEP, HOST, HOST, HOST, LAST_STEP]
    assert bench.counters["invalidated_by_padding"] == 1
    # Its row stays where it is, whereas the device would advance it with the others.
    first, second = bench.step(**padded), bench.step(**padded)
    assert first.places is not None
    assert second.places is not None
    assert (second.places.positions - first.places.positions).tolist() == [1, 1, 1, 0]


def test_row_2_5_a_warm_up_step_is_neither_recorded_nor_gone_on_from(bench: Bench) -> None:
    warm_up = {"is_warm_up": True}
    assert sources(bench, [{}, {}, warm_up, {}, {}]) == [HOST, LAST_STEP, HOST, HOST, LAST_STEP]
    assert bench.counters["invalidated_by_warm_up"] == 1


@pytest.mark.parametrize("condition", ["num_padding", "is_warm_up"])
def test_row_2_5_without_its_conditions_such_a_step_would_be(
    bench: Bench, condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = SteadyStateInputs._obstacle
    monkeypatch.setattr(
        SteadyStateInputs,
        "_obstacle",
        lambda self, schedule: original(self, replace(schedule, num_padding=0, is_warm_up=False)),
    )
    assert sources(bench, [{}, {condition: 1}]) == [HOST, LAST_STEP]


def test_row_2_5_another_order_is_another_batch(bench: Bench) -> None:
    turned = {"generation": bench.requests[::-1]}
    assert sources(bench, [{}, {}, turned, turned, {}, {}]) == [HOST, LAST_STEP] * 3
    assert bench.counters["invalidated_by_batch_changed"] == 2


def test_a_variant_that_comes_back_starts_with_a_full_pass(bench: Bench) -> None:
    assert sources(bench, [{}, {}]) == [HOST, LAST_STEP]
    bench.preparation._input_prep.switch("rebuild")
    fewer = {"generation": bench.requests[:2]}
    assert sources(bench, [{}, fewer]) == [HOST, HOST]
    bench.preparation._input_prep.switch("steady_state")
    assert sources(bench, [{}, {}]) == [HOST, LAST_STEP]
    assert bench.counters["invalidated_by_switched"] == 1


def test_a_variant_that_does_not_forget_would_go_on_from_another_step(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SteadyStateInputs, "activate", lambda _self: None)
    sources(bench, [{}, {}])
    bench.preparation._input_prep.switch("rebuild")
    sources(bench, [{"generation": bench.requests[:2]}])
    bench.preparation._input_prep.switch("steady_state")
    stale = bench.step()
    assert stale.source is LAST_STEP
    assert stale.max_num_tokens < bench.requests[0].max_tokens_in_flight(1) - 1


def device_columns(bench: Bench, staging: str, steps: int, before: dict[int, Callable[[], object]]) -> list[Tensor]:
    """What the device has of the three requests' block offsets after each step, as far as the step reads them."""
    bench.preparation._block_staging.switch(staging)
    held = torch.full((1, 3, 2, bench.config.blocks_per_sequence), -1, dtype=torch.int32)
    found = []
    for step in range(steps):
        before.get(step, lambda: None)()
        batch = bench.step()
        if batch.block_offsets is not None:
            first = batch.first_block_column
            held[..., first : first + batch.block_offsets.shape[-1]] = batch.block_offsets
        num_columns = bench.blocks.num_columns(bench.requests[0].max_tokens_in_flight(1) - 2)
        found.append(held[..., :num_columns].clone())
        assert found[-1][0, :, 0].tolist() == bench.blocks.table[:3, :num_columns].tolist(), f"step {step}"
    return found


@pytest.mark.parametrize("staging", ["full", "bounded"])
def test_row_2_5_a_block_given_long_before_it_is_read_is_sent_in_time(bench: Bench, staging: str) -> None:
    ahead = {5: lambda: bench.blocks.grow(1, 80), 20: lambda: bench.blocks.grow(2, 100)}
    found = device_columns(bench, staging, steps=90, before=ahead)
    assert found[-1].shape[-1] == 12
    assert bench.counters["hits"] == 89


def test_row_2_5_a_block_given_under_full_staging_is_sent_under_bounded(bench: Bench) -> None:
    """Full staging has sent columns further right than bounded staging reads; what changes there is not forgotten."""
    switch = bench.preparation._block_staging.switch
    changes = {3: lambda: switch("bounded"), 5: lambda: bench.blocks.grow(0, 100), 60: lambda: switch("full")}
    device_columns(bench, "full", steps=90, before=changes)
    assert bench.counters["hits"] == 89


def test_row_2_5_a_step_sends_the_columns_from_the_first_new_block_on(bench: Bench) -> None:
    """Blocks of 8, 60 tokens owned: 8 columns, of which the first step reads one."""
    sent = {}
    for _ in range(70):
        last = [request.num_tokens for request in bench.requests]
        bench.blocks.grow(1, 61 if last[1] > 30 else 60)
        batch = bench.step()
        if batch.block_offsets is not None:
            sent[last[1]] = (batch.first_block_column, batch.block_offsets.shape[-1])
    assert sent[3] == (0, 1)
    assert {tokens: columns for tokens, columns in sent.items() if tokens > 3} == {
        8 * column + 1: (column, 1) for column in range(1, 9)
    }
