"""Input preparation: a steady step made from the one before is, buffer by buffer, what a full pass would have made."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
import torch
from engine_driver import ngram, tiny_config, tiny_model
from stalled_device import StalledDevice
from step_recorder import Change, Recording, decoding_requests, record
from torch import Tensor

from specbench.device.cpu import CpuDevice
from specbench.device.tracing import NullTracer
from specbench.engine import steady_state
from specbench.engine.attention.base import AttentionOperator
from specbench.engine.block_manager import BlockManager
from specbench.engine.config import EngineConfig
from specbench.engine.device_state import DeviceState
from specbench.engine.forward_batch import ForwardBatch, InputSource
from specbench.engine.input_preparation import InputPreparation
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.models.base import CausalLM
from specbench.engine.models.loading import LoadedModel
from specbench.engine.optimizations.base import build_switch
from specbench.engine.request import Request
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.scheduler import Schedule
from specbench.engine.steady_state import SteadyStateInputs
from specbench.engine.step_inputs import StepInputs, StepRows

Engine = Callable[[LLMEngine], object]


def with_prep(config: EngineConfig, variant: str, **others: str) -> EngineConfig:
    return replace(config, optimizations=(("input_prep", variant), *others.items()))


def shuffle_now_and_then(seed: int) -> Engine:
    """Put the generation requests of a third of the steps in another order."""

    def install(engine: LLMEngine) -> None:
        rng, original = random.Random(seed), engine._scheduler.schedule

        def schedule() -> Schedule:
            made = original()
            shuffled = list(made.generation)
            if rng.random() < 0.3:
                rng.shuffle(shuffled)
            return replace(made, generation=shuffled)

        engine._scheduler.schedule = schedule  # type: ignore[method-assign]

    return install


def tight(config: EngineConfig) -> EngineConfig:
    """A pool that holds the longest request and little else: requests are preempted."""
    return replace(config, max_seq_len=64, num_blocks=13)


def compare(config: EngineConfig, seed: int, **options: Any) -> tuple[Recording, list[str]]:
    """Run the same requests in both variants; return the steady one and what differs."""
    requests = decoding_requests(seed)
    steady, full = (record(with_prep(config, each), requests, **options) for each in ("steady_state", "rebuild"))
    return steady, steady.differences(full)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("staging", ["full", "bounded"])
def test_row_2_5_equals_the_full_pass_in_every_buffer_at_every_step(seed: int, staging: str, overlap: bool) -> None:
    config, requests = tiny_config(overlap=overlap), decoding_requests(seed)
    steady, full = (
        record(with_prep(config, each, block_staging=staging), requests) for each in ("steady_state", "rebuild")
    )
    assert steady.differences(full) == []
    assert {int(step["slots"].shape[0]) for step in steady.steps} >= {1, 2, 3, 4}
    counters = steady.counters["input_prep"]["steady_state"]
    assert counters["hits"] > counters["full_passes"] > 0
    assert counters["hits"] + counters["full_passes"] == len(steady.steps)
    assert full.counters["input_prep"]["rebuild"] == {"full_passes": len(full.steps)}
    assert min(counters["invalidated_by_context"], counters["invalidated_by_batch_changed"]) > 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_row_2_5_holds_through_preemption_and_other_orders(seed: int, overlap: bool) -> None:
    steady, differences = compare(tight(tiny_config(overlap=overlap)), seed, prepare=shuffle_now_and_then(seed))
    assert differences == []
    assert steady.num_preemptions > 0
    assert steady.counters["input_prep"]["steady_state"]["hits"] > 0


def test_row_2_5_a_steady_step_sends_only_what_changed() -> None:
    batches: list[ForwardBatch] = []

    def keep(engine: LLMEngine) -> None:
        original = engine._model_runner.launch
        engine._model_runner.launch = lambda batch: (batches.append(batch), original(batch))[1]  # type: ignore[method-assign]

    params = SamplingParams(max_tokens=40, ignore_eos=True)
    record(with_prep(tiny_config(), "steady_state"), [([1, 2, 3], params)], prepare=keep)
    assert [batch.source for batch in batches[:3]] == [InputSource.HOST, InputSource.HOST, InputSource.LAST_STEP]
    steady = batches[2:]
    assert {batch.source for batch in steady} == {InputSource.LAST_STEP}
    assert all(batch.places is None for batch in steady)
    # In the cache are 5 tokens in the first steady step. Blocks of 8: one more is used from the 9th, the 17th, ... on.
    sent = [5 + index for index, batch in enumerate(steady) if batch.block_offsets is not None]
    assert len(sent) <= 2 * (len(steady) // 8 + 1)
    assert {9, 17, 25, 33, 41} <= set(sent)


def compares_lengths_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes any batch of equal size for the last one."""
    monkeypatch.setattr(
        SteadyStateInputs,
        "_is_same_batch",
        staticmethod(lambda last, schedule: len(last.requests) == len(schedule.generation)),
    )


def never_sends_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the blocks of the recorded step for those of all that follow."""
    monkeypatch.setattr(InputPreparation, "blocks_version", property(lambda _self: 0))
    monkeypatch.setattr(InputPreparation, "num_block_columns", lambda _self, _max_kv_len: 0)


def never_advances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the samples of the last step, at its positions."""

    def advance(self: StepInputs, batch: ForwardBatch, state: DeviceState) -> StepRows:
        num_rows = batch.num_generation
        self.token_ids[:num_rows].copy_(self.samples[:num_rows])
        return self._rows_in_buffers(batch, state)

    monkeypatch.setattr(StepInputs, "_advance", advance)


def keeps_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepInputs, "keep_samples", lambda _self, _batch, _token_ids: None)


def keeps_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tells the device that sequences are no longer than they were when the step was recorded."""
    original = SteadyStateInputs._advance

    def advance(last: Any, *arguments: Any) -> ForwardBatch:
        bound = last.batch.max_num_tokens
        last.batch = replace(original(last, *arguments), max_num_tokens=bound)
        return last.batch

    monkeypatch.setattr(SteadyStateInputs, "_advance", staticmethod(advance))


def keeps_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the sampling parameters of the recorded step, which other steps have overwritten."""
    original = InputPreparation.fill_sampling_params

    def fill(self: InputPreparation, params: Any, row_counts: Any, slots: Any) -> Any:
        return original(self, [SamplingParams()] * len(params), row_counts, slots)

    monkeypatch.setattr(InputPreparation, "fill_sampling_params", fill)


@pytest.mark.parametrize(
    ("break_it", "found"),
    [
        (compares_lengths_only, "slots"),
        (never_sends_blocks, "block_offsets"),
        (never_advances, "positions"),
        (keeps_no_samples, "token_ids"),
        (keeps_the_bound, "max_num_tokens"),
        (keeps_the_parameters, "facts"),
    ],
)
def test_row_2_5_a_broken_fast_path_is_found(break_it: Any, found: str) -> None:
    config, requests = tiny_config(), decoding_requests(0)
    options = {"prepare": shuffle_now_and_then(0)}
    full = record(with_prep(config, "rebuild"), requests, **options)
    with pytest.MonkeyPatch.context() as monkeypatch:
        break_it(monkeypatch)
        broken = record(with_prep(config, "steady_state"), requests, **options)
    assert found in {difference.split(": ")[-1] for difference in broken.differences(full)}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("draft_len", [5, 1])
def test_row_2_5_is_never_used_with_a_drafter(draft_len: int, overlap: bool) -> None:
    config = tiny_config(drafter=ngram(draft_len), overlap=overlap)
    steady, differences = compare(config, seed=0)
    assert differences == []
    counters = steady.counters["input_prep"]["steady_state"]
    assert counters["hits"] == 0
    assert counters["full_passes"] == len(steady.steps)
    assert steady.counters["block_staging"]["bounded"]["gated_steps"] == len(steady.steps)


class Bench:
    """Input preparation by itself: three requests that decode, and one that pads."""

    def __init__(self) -> None:
        self.config = tiny_config()
        self.device = CpuDevice(num_threads=1)
        blocks = BlockManager(40, 5, self.config.blocks_per_sequence, self.config.tokens_per_block)
        self.preparation = InputPreparation(
            self.config,
            [blocks],
            build_switch("sampling_params", self.config, self.device),
            build_switch("block_staging", self.config, self.device),
            build_switch("input_prep", self.config, self.device),
            NullTracer(),
        )
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


def at_random(seed: int, action: Change) -> Change:
    """Do ``action`` before a third of the steps."""
    rng = random.Random(seed)
    return lambda engine: action(engine) if rng.random() < 0.3 else ()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_switching_at_random_steps_changes_nothing(seed: int, overlap: bool) -> None:
    config, requests = tiny_config(overlap=overlap), decoding_requests(seed)
    choices = cycle(
        [
            {"input_prep": "steady_state"},
            {"block_staging": "full"},
            {"block_staging": "bounded"},
            {"input_prep": "rebuild"},
            {"input_prep": "steady_state", "block_staging": "full"},
            {"block_staging": "bounded"},
        ]
    )
    switched = record(config, requests, change=at_random(seed, lambda engine: engine.switch(next(choices))))
    # A switch finishes the step in flight, which changes the batches that follow; so the other run does that too.
    flushed = record(with_prep(config, "rebuild"), requests, change=at_random(seed, LLMEngine.flush))
    assert switched.differences(flushed) == []
    assert switched.counters["input_prep"]["steady_state"]["hits"] > 10


class CopiedCounter(SteadyStateInputs):
    """Counts positions and lengths on the host, in the memory that their copies read."""

    @staticmethod
    def _advance(last: Any, *arguments: Any) -> ForwardBatch:
        places = last.batch.places
        batch = SteadyStateInputs._advance(last, *arguments)
        places.positions.add_(1)
        places.kv_lens.add_(1)
        last.batch = replace(batch, source=InputSource.HOST, places=places)
        return last.batch


def test_row_2_6_the_device_advances_its_own_positions() -> None:
    config, requests = tiny_config(overlap=True), decoding_requests(0)
    full = record(with_prep(config, "rebuild"), requests)
    late = record(with_prep(config, "steady_state"), requests, device=StalledDevice())
    assert late.differences(full) == []
    assert late.counters["input_prep"]["steady_state"]["hits"] > 20


def test_row_2_6_a_counter_that_is_copied_while_it_counts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady_state, "build_steady_state", lambda _config, _device: CopiedCounter(speculates=False))
    requests = decoding_requests(0)
    full = record(with_prep(tiny_config(), "rebuild"), requests)
    # Where every copy has run before the next step is prepared, it counts right.
    assert record(with_prep(tiny_config(), "steady_state"), requests).differences(full) == []
    config = tiny_config(overlap=True)
    late = record(with_prep(config, "steady_state"), requests, device=StalledDevice())
    found = {each.split(": ")[-1] for each in late.differences(record(with_prep(config, "rebuild"), requests))}
    assert {"positions", "kv_lens"} <= found


class ThreeRowModel(CausalLM):
    """The tiny model behind an interface that rotates by three rows of positions; it uses the sum of them."""

    num_position_rows = 3

    def __init__(self, inner: CausalLM) -> None:
        super().__init__(inner.config, inner.dtype, inner.device)
        self._inner = inner
        self.seen: list[tuple[Tensor, int]] = []

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        return {}

    def load_tensor(self, name: str, tensor: Tensor) -> None:
        raise NotImplementedError

    def finish_loading(self) -> None:
        raise NotImplementedError

    def forward(self, token_ids: Tensor, positions: Tensor, attention: AttentionOperator) -> Tensor:
        assert positions.shape == (3, 1, token_ids.shape[0])
        self.seen.append((positions.clone(), positions.data_ptr()))
        return self._inner.forward(token_ids, positions.sum(dim=(0, 1)), attention)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self._inner.compute_logits(hidden)


def three_rows() -> LoadedModel:
    return replace(tiny_model(), model=ThreeRowModel(tiny_model().model))


def place_an_image(engine: LLMEngine) -> None:
    """Rows that differ, as behind an image: time stands still in it while height and width go on."""
    preparation = engine._input_preparation
    offsets = torch.tensor([0, 4, 9]).view(3, 1, 1)
    preparation.rotary_positions = lambda _schedule, positions: positions + offsets  # type: ignore[method-assign]


@pytest.mark.parametrize("overlap", [False, True])
def test_row_2_7_three_row_positions_are_advanced_where_they_are(overlap: bool) -> None:
    models = {variant: three_rows() for variant in ("rebuild", "steady_state")}
    recordings = {
        variant: record(
            with_prep(tiny_config(overlap=overlap), variant),
            decoding_requests(4),
            loaded=loaded,
            prepare=place_an_image,
        )
        for variant, loaded in models.items()
    }
    assert recordings["steady_state"].differences(recordings["rebuild"]) == []
    assert recordings["steady_state"].counters["input_prep"]["steady_state"]["hits"] > 20
    model: Any = models["steady_state"].model
    assert len({address for _, address in model.seen}) == 1, "every step is given a view of the one buffer"
    for positions, _ in model.seen:
        assert torch.equal(positions - positions[:1], torch.tensor([0, 4, 9]).view(3, 1, 1).expand_as(positions))


def test_row_2_7_text_has_the_same_position_in_every_row() -> None:
    loaded = three_rows()
    record(with_prep(tiny_config(), "steady_state"), decoding_requests(4), loaded=loaded)
    model: Any = loaded.model
    assert len(model.seen) > 20
    assert all(torch.equal(positions, positions[:1].expand_as(positions)) for positions, _ in model.seen)


def forgets_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advances the plain positions alone."""

    def advance(self: StepInputs, batch: ForwardBatch, state: DeviceState) -> StepRows:
        rotary, self.rotary_positions = self.rotary_positions, None
        original(self, batch, state)
        self.rotary_positions = rotary
        return self._rows_in_buffers(batch, state)

    original = StepInputs._advance
    monkeypatch.setattr(StepInputs, "_advance", advance)


def returns_plain_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes three rows of the plain positions instead of returning the buffer that has them."""

    def advance(self: StepInputs, batch: ForwardBatch, state: DeviceState) -> StepRows:
        rows = original(self, batch, state)
        return replace(rows, model_positions=rows.positions.expand(3, 1, -1))

    original = StepInputs._advance
    monkeypatch.setattr(StepInputs, "_advance", advance)


@pytest.mark.parametrize("break_it", [forgets_the_rows, returns_plain_positions])
def test_row_2_7_a_fast_path_that_loses_the_rows_is_found(break_it: Any) -> None:
    requests = decoding_requests(4)
    full = record(with_prep(tiny_config(), "rebuild"), requests, loaded=three_rows(), prepare=place_an_image)
    with pytest.MonkeyPatch.context() as monkeypatch:
        break_it(monkeypatch)
        broken = record(with_prep(tiny_config(), "steady_state"), requests, loaded=three_rows(), prepare=place_an_image)
    assert "model_positions" in {each.split(": ")[-1] for each in broken.differences(full)}


WINDOW = 12


def clamp_in_place(engine: LLMEngine) -> None:
    """A backend that attends to at most ``WINDOW`` tokens, and says so in the lengths it was given."""
    attention = engine._model_runner._attention
    original = attention.prepare

    def prepare(metadata: Any) -> None:
        metadata.generation_kv_lens.clamp_(max=WINDOW)
        original(metadata)

    attention.prepare = prepare  # type: ignore[method-assign]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("attention", ["cpu-paged", "torch-gather"])
def test_row_2_8_a_backend_that_clamps_lengths_does_not_change_the_record(attention: str, overlap: bool) -> None:
    config = tiny_config(attention=attention, overlap=overlap)
    steady, differences = compare(config, seed=5, prepare=clamp_in_place)
    assert differences == []
    longest = max(int(step["kv_lens"].max()) for step in steady.steps if len(step["kv_lens"]))
    assert longest > WINDOW + 8
    assert steady.counters["input_prep"]["steady_state"]["hits"] > 20


def test_row_2_8_lengths_that_are_handed_out_would_compound(monkeypatch: pytest.MonkeyPatch) -> None:
    original = StepInputs._rows_in_buffers

    def hand_out_the_record(self: StepInputs, batch: ForwardBatch, state: DeviceState) -> StepRows:
        rows = original(self, batch, state)
        return replace(rows, kv_lens=rows.num_tokens)

    monkeypatch.setattr(StepInputs, "_rows_in_buffers", hand_out_the_record)
    _, differences = compare(tiny_config(), seed=5, prepare=clamp_in_place)
    assert {"kv_lens", "num_tokens"} <= {each.split(": ")[-1] for each in differences}
