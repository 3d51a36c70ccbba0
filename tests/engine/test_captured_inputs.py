"""Rows 1.5, 2.5 and 2.7 with captured steps: the copies' signatures, steps that go on from the last one, positions."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from captured_cases import (
    Requests,
    batch_of,
    capture_set,
    captured_config,
    counts_of,
    eager,
    live_of,
    misread_keys,
    opened,
    serve,
    serve_once,
    watch_batches,
    wrong_rows,
)
from engine_driver import tiny_model, with_variants
from test_engine_tokens import GREEDY, SAMPLED, assert_same, prompts
from test_input_prep_positions import ThreeRowModel, forgets_the_rows, place_an_image
from torch import Tensor

from specbench.engine.attention.base import AttentionOperator
from specbench.engine.capture import MetadataKey
from specbench.engine.config import EngineConfig
from specbench.engine.forward_batch import ForwardBatch, InputSource
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.models.base import NO_TAPS, HiddenTaps
from specbench.engine.models.loading import LoadedModel
from specbench.engine.sampling.signature import FillSignatures, RefillNeeds, SignatureSamplingParams
from specbench.engine.sampling.step_sampling import StepSampling
from specbench.engine.scheduler import Schedule
from specbench.engine.steady_state import SteadyStateInputs

PARAMS = [replace(SAMPLED, temperature=0.7 + 0.1 * slot) for slot in range(4)]


def needs_after_a_copy_filled(draft_len: int) -> RefillNeeds:
    """What the live view says about the batch that a captured step's own copy has just filled in."""
    with opened(with_variants(captured_config(draft_len), sampling_params="signature")) as engine:
        key = MetadataKey(4, draft_len, draft_len, is_greedy=False)
        counts, slots = [draft_len + 1] * 4, [0, 1, 2, 3]
        captured, live = capture_set(engine).copies[key], live_of(engine)
        assert captured is not live
        captured.fill(PARAMS, counts, slots)
        choice = live._sampling_params.current
        assert isinstance(choice, SignatureSamplingParams)
        return choice.needs_refill(PARAMS, counts)


@pytest.mark.parametrize("draft_len", [0, 3])
def test_row_1_5_a_captured_view_fills_and_the_live_view_needs_nothing(draft_len: int) -> None:
    assert needs_after_a_copy_filled(draft_len) == (False, False)


def test_row_1_5_copies_with_signatures_of_their_own_would_fill_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def copy_alone(live: StepSampling) -> StepSampling:
        made = copy.copy(live)
        made._sampling_params = switch = copy.copy(live._sampling_params)
        switch.current = view = copy.copy(switch.current)
        assert isinstance(view, SignatureSamplingParams)
        view.signatures = FillSignatures()
        return made

    monkeypatch.setattr(StepSampling, "copy", copy_alone)
    assert needs_after_a_copy_filled(3) == (True, True)


def test_row_1_5_captured_and_eager_steps_of_one_batch_fill_once() -> None:
    """A batch that goes on with the same parameters when its captured steps are taken away, and when they come back."""
    with opened(with_variants(captured_config(0), sampling_params="signature")) as engine:
        for text, params in zip(prompts(4), PARAMS, strict=True):
            engine.add_request(text[:5], replace(params, max_tokens=40))
        for graphs, steps in (("captured", 6), ("off", 5), ("captured", 5)):
            engine.switch({"graphs": graphs})
            for _ in range(steps):
                engine.step()
        counters = engine.read_counters()["sampling_params"]["signature"]
        assert counts_of(engine)["replays"] == 10
        # Once in the workspace round of the advanced pass for each size, once for these requests.
        assert counters["fills"] <= 6 + 1
        assert counters["hits"] >= 15
        assert wrong_rows(engine.drain_audit()) == {}


class CapturableModel(ThreeRowModel):
    """Notes no addresses, which a captured program may not ask for."""

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: AttentionOperator,
        taps: HiddenTaps = NO_TAPS,  # noqa: ARG002
    ) -> Tensor:
        assert positions.shape == (3, 1, token_ids.shape[0])
        return self._inner.forward(token_ids, positions.sum(dim=(0, 1)), attention)


def three_rows() -> LoadedModel:
    return replace(tiny_model(), model=CapturableModel(tiny_model().model))


# Rows 2.5 and 2.7: a step is compared by what it left in the buffers, since a replay runs no Python.


def buffers_of(engine: LLMEngine, num_requests: int) -> dict[str, Tensor]:
    inputs = engine._model_runner.inputs
    found = {name: getattr(inputs, name)[:num_requests] for name in ("positions", "num_tokens", "slots", "samples")}
    found["token_ids"] = inputs.token_ids[:num_requests]
    if inputs.rotary_positions is not None:
        found["rotary_positions"] = inputs.rotary_positions[..., :num_requests]
    columns = -(-int(inputs.num_tokens[:num_requests].max()) // engine.config.tokens_per_block)
    found["block_offsets"] = inputs.block_offsets[:, :num_requests, :, :columns]
    return {name: tensor.clone() for name, tensor in found.items()}


class Run:
    """What a run left behind: buffers after each pure generation step, outputs, sources of the steps, counters."""

    def __init__(self, config: EngineConfig, requests: Requests, loaded: LoadedModel, has_image: bool) -> None:
        self.steps: list[dict[str, Tensor]] = []
        self.counters: dict[str, Any] = {}
        with opened(config, loaded) as engine:
            if has_image:
                place_an_image(engine)
            batches = watch_batches(engine)
            self.outputs = serve(engine, requests, before_step=lambda each, _step: self._look(each, batches)).outputs
            self.sources = Counter(batch.source for batch in batches if not batch.context)
            self.counters = engine.read_counters()
            assert wrong_rows(engine.drain_audit()) == {}

    def _look(self, engine: LLMEngine, batches: list[Any]) -> None:
        engine.synchronize()
        if batches and not batches[-1].context:
            self.steps.append(buffers_of(engine, batches[-1].num_generation - batches[-1].num_padding))

    def differences(self, other: Run) -> set[str]:
        assert len(self.steps) == len(other.steps) > 20
        pairs = zip(self.steps, other.steps, strict=True)
        found = {name for one, two in pairs for name in one if not torch.equal(one[name], two[name])}
        return found | (set() if self.outputs == other.outputs else {"outputs"})


def both(kind: str, has_image: bool = False) -> tuple[Run, Run]:
    """`steady_state` and `rebuild`, with captured steps."""
    steady, full = (
        Run(
            with_variants(captured_config(0), input_prep=variant),
            batch_of(kind, 6),
            three_rows() if has_image else tiny_model(),
            has_image,
        )
        for variant in ("steady_state", "rebuild")
    )
    return steady, full


@pytest.mark.parametrize("kind", ["greedy", "sampled", "mixed"])
def test_row_2_5_steady_steps_that_are_replayed_equal_the_full_pass(kind: str) -> None:
    steady, full = both(kind)
    assert steady.differences(full) == set()
    hits = steady.counters["input_prep"]["steady_state"]["hits"]
    assert steady.sources[InputSource.LAST_STEP] == hits > 10
    assert full.sources[InputSource.LAST_STEP] == 0
    for run in (steady, full):
        counts = run.counters["graphs"]["captured"]
        assert (counts["eager_not_captured"], counts["replays"]) == (0, run.sources.total())
    # A step with padding is a full pass, and the next one as well: the padding row must stay where it is.
    assert steady.counters["input_prep"]["steady_state"]["invalidated_by_padding"] > 0


def test_row_2_5_steps_with_padding_that_were_gone_on_from_would_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SteadyStateInputs._obstacle
    monkeypatch.setattr(
        SteadyStateInputs, "_obstacle", lambda self, schedule: original(self, replace(schedule, num_padding=0))
    )
    padded = [(text, replace(GREEDY, max_tokens=20)) for text in prompts(3)]
    with opened(with_variants(captured_config(0), input_prep="steady_state")) as engine:
        serve(engine, padded)
        # The padding row has moved with the others, over positions that are none of its own.
        assert int(engine._model_runner.inputs.positions[3]) > 10


def test_row_2_5_a_program_of_another_source_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Run(with_variants(captured_config(0), input_prep="rebuild"), batch_of("greedy", 6), tiny_model(), False)
    misread_keys(monkeypatch, lambda key: key._replace(program=key.program._replace(source=InputSource.HOST)))
    steady = Run(
        with_variants(captured_config(0), input_prep="steady_state"), batch_of("greedy", 6), tiny_model(), False
    )
    assert {"positions", "num_tokens", "outputs"} <= steady.differences(full)


def test_row_2_5_a_capture_is_no_step_to_go_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture in the middle writes to the buffers of the inputs: the step after it is a full pass."""

    def run() -> tuple[list[list[int]], int]:
        config = with_variants(captured_config(0), graphs="off", input_prep="steady_state")
        with opened(config) as engine:
            requests = [(text[:5], replace(GREEDY, max_tokens=30)) for text in prompts(4)]
            found = serve(
                engine,
                requests,
                before_step=lambda each, step: each.switch({"graphs": "captured"}) if step == 8 else [],
            )
            counters = engine.read_counters()["input_prep"]["steady_state"]
            return found.outputs, counters["invalidated_by_warm_up"]

    expected = serve_once(
        eager(captured_config(0)), [(text[:5], replace(GREEDY, max_tokens=30)) for text in prompts(4)]
    )
    assert run() == (expected.outputs, 1)
    original = SteadyStateInputs.prepare

    def keep_the_record(self: SteadyStateInputs, step: int, schedule: Schedule, preparation: Any) -> ForwardBatch:
        if schedule.is_warm_up:
            return preparation.build(step, schedule).batch  # type: ignore[no-any-return]
        return original(self, step, schedule, preparation)

    monkeypatch.setattr(SteadyStateInputs, "prepare", keep_the_record)
    assert run()[0] != expected.outputs


@pytest.mark.parametrize("kind", ["greedy", "mixed"])
def test_row_2_7_three_row_positions_are_advanced_in_replayed_steps(kind: str) -> None:
    steady, full = both(kind, has_image=True)
    assert steady.differences(full) == set()
    assert steady.sources[InputSource.LAST_STEP] > 10
    for step in steady.steps:
        rotary = step["rotary_positions"]
        assert torch.equal(rotary[:, 0] - step["positions"], torch.tensor([[0], [4], [9]]).expand(3, rotary.shape[-1]))


def test_row_2_7_a_recorded_step_that_forgets_the_rows_is_found() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        forgets_the_rows(monkeypatch)
        broken, full = both("greedy", has_image=True)
    assert "rotary_positions" in broken.differences(full)


def test_row_2_5_steady_replays_give_the_tokens_of_eager_steps() -> None:
    config = with_variants(captured_config(0), input_prep="steady_state")
    assert_same(serve_once(eager(config), batch_of("mixed")), serve_once(config, batch_of("mixed")))


def test_both_sources_are_captured_where_the_host_counts() -> None:
    with opened(captured_config(0)) as engine:
        sources = {key.program.source for key in capture_set(engine).steps}
    assert sources == {InputSource.HOST, InputSource.LAST_STEP}
    with opened(captured_config(3)) as engine:
        assert {key.program.source for key in capture_set(engine).steps} == {InputSource.STATE}
