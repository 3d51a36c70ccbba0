"""Input preparation: positions and lengths that the device advances by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from engine_driver import tiny_config, tiny_model, with_variants
from stalled_device import StalledDevice
from steady_cases import compare
from step_recorder import decoding_requests, record
from torch import Tensor

from specbench.engine import steady_state
from specbench.engine.attention.base import AttentionOperator
from specbench.engine.device_state import DeviceState
from specbench.engine.forward_batch import ForwardBatch, InputSource
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.models.base import NO_TAPS, CausalLM, HiddenTaps
from specbench.engine.models.loading import LoadedModel
from specbench.engine.steady_state import SteadyStateInputs
from specbench.engine.step_inputs import StepInputs, StepRows


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
    full = record(with_variants(config, input_prep="rebuild"), requests)
    late = record(with_variants(config, input_prep="steady_state"), requests, device=StalledDevice())
    assert late.differences(full) == []
    assert late.counters["input_prep"]["steady_state"]["hits"] > 20


def test_row_2_6_a_counter_that_is_copied_while_it_counts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady_state, "build_steady_state", lambda _config, _device: CopiedCounter(speculates=False))
    requests = decoding_requests(0)
    full = record(with_variants(tiny_config(), input_prep="rebuild"), requests)
    # Where every copy has run before the next step is prepared, it counts right.
    assert record(with_variants(tiny_config(), input_prep="steady_state"), requests).differences(full) == []
    config = tiny_config(overlap=True)
    late = record(with_variants(config, input_prep="steady_state"), requests, device=StalledDevice())
    found = {
        each.split(": ")[-1] for each in late.differences(record(with_variants(config, input_prep="rebuild"), requests))
    }
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

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: AttentionOperator,
        taps: HiddenTaps = NO_TAPS,  # noqa: ARG002
    ) -> Tensor:
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
            with_variants(tiny_config(overlap=overlap), input_prep=variant),
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
    record(with_variants(tiny_config(), input_prep="steady_state"), decoding_requests(4), loaded=loaded)
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
    full = record(
        with_variants(tiny_config(), input_prep="rebuild"), requests, loaded=three_rows(), prepare=place_an_image
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        break_it(monkeypatch)
        broken = record(
            with_variants(tiny_config(), input_prep="steady_state"),
            requests,
            loaded=three_rows(),
            prepare=place_an_image,
        )
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
