"""What a capture does, in what order, and that it may happen while requests are being served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from captured_cases import (
    batch_of,
    capture_set,
    captured_config,
    counts_of,
    eager,
    opened,
    serve,
    serve_once,
    watch_batches,
    wrong_rows,
)
from engine_driver import count_near_ties, ngram, overlapping, tiny_model
from test_engine_tokens import assert_same
from test_hybrid_engine import hybrid_config, hybrid_model, texts
from torch import Tensor

from specbench.engine import capture
from specbench.engine.capture import StepCapture, capture_shapes
from specbench.engine.config import EngineConfig
from specbench.engine.input_preparation import InputPreparation
from specbench.engine.llm_engine import LLMEngine

Round = tuple[str, bool, int, int]


def watch_rounds(monkeypatch: pytest.MonkeyPatch) -> list[Round]:
    """(round, greedy or not, batch size, K) of each step that is warmed up or recorded, in order."""
    rounds: list[Round] = []
    kinds: list[bool] = []

    def note(name: str) -> None:
        original = getattr(StepCapture, name)

        def noted(self: StepCapture, batch: Any) -> Any:
            rounds.append((name, kinds[-1], batch.num_generation, batch.draft_len))
            return original(self, batch)

        monkeypatch.setattr(StepCapture, name, noted)

    note("_run_eagerly")
    note("_record")
    original = StepCapture._warm_up_batches

    def warm_up(self: StepCapture, captured: Any, params: Any, is_greedy: bool) -> Any:
        kinds.append(is_greedy)
        return original(self, captured, params, is_greedy)

    monkeypatch.setattr(StepCapture, "_warm_up_batches", warm_up)
    return rounds


@pytest.mark.parametrize("draft_len", [0, 3])
def test_a_pass_warms_up_all_sizes_from_the_largest_down_and_then_records_them(
    draft_len: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = watch_rounds(monkeypatch)
    with opened(captured_config(draft_len, max_batch_size=6, num_blocks=120)):
        pass
    sources = 1 if draft_len else 2  # steps that the host counts, and those that go on from the last one
    sizes = [size for size in (6, 4, 2, 1) for _ in range(sources)]
    assert rounds == [
        (name, is_greedy, size, draft_len)
        for is_greedy in (True, False)
        for name in ("_run_eagerly", "_record")
        for size in sizes
    ]


def test_every_k_that_a_padded_batch_may_have_is_captured() -> None:
    drafter = replace(ngram(5), draft_len=5, runtime_draft_len=((1, 5), (3, 2), (5, 1)))
    config = captured_config(5, max_batch_size=6, num_blocks=120)
    # 3 requests (K = 2) and 4 (K = 1) are both padded to 4; 5 (K = 1) and 6 (K = 0) to 6.
    assert capture_shapes(replace(config, drafter=drafter)) == [(6, 1), (6, 0), (4, 2), (4, 1), (2, 2), (1, 5)]
    assert capture_shapes(captured_config(0, max_batch_size=1)) == [(1, 0)]


def test_captures_are_counted_once_a_variant_and_kept() -> None:
    with opened(captured_config(3)) as engine:
        assert counts_of(engine)["captures"] == 6
        first = capture_set(engine)
        engine.switch({"capture_params": "clear_after_capture"})
        second = capture_set(engine)
        assert counts_of(engine)["captures"] == 12
        assert second is not first
        for variant, expected in (("real_params", first), ("clear_after_capture", second)):
            engine.switch({"graphs": "off"})
            engine.switch({"graphs": "captured", "capture_params": variant})
            assert capture_set(engine) is expected
        assert counts_of(engine)["captures"] == 12
        assert set(engine.describe_captures()["sets"]) == {"real_params", "clear_after_capture"}
        engine.switch({"graphs": "off"})
        # They are kept, and told of: the other arm of a comparison may be the one that stands last.
        assert set(engine.describe_captures()["sets"]) == {"real_params", "clear_after_capture"}


# While requests are being served.


def memory_of(engine: LLMEngine) -> dict[str, Tensor]:
    """Everything that requests have on the device: blocks of the pool, state of the slots."""
    runner, padding = engine._model_runner, engine.config.padding_slot
    engine.synchronize()
    cache, state = runner._attention.cache, runner.state
    found = {"kv": cache._storage[:, :, : cache.first_padding_block]}
    for name in ("token_ids", "num_tokens", "draft_token_ids", "num_draft_tokens", "seeds"):
        found[name] = getattr(state, name)[:padding]
    recurrence = getattr(runner._attention, "recurrence", None)
    if recurrence is not None:
        states = recurrence.cache
        found |= {"recurrent": states._recurrent[:, :padding], "conv": states._conv[:, :padding]}
        found["num_read"] = states.num_read[:padding]
    return {name: tensor.clone() for name, tensor in found.items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}


def switch_in_the_middle(config: EngineConfig, is_hybrid: bool) -> tuple[Any, set[str], dict[str, int]]:
    """Serve eagerly, capture in step 6, go on with captured steps; the outcome, and what the capture wrote to."""
    touched: set[str] = set()

    def change(engine: LLMEngine, step: int) -> Any:
        if step != 6:
            return []
        events = engine.flush()
        before = memory_of(engine)
        events += engine.switch({"graphs": "captured"})
        touched.update(changed(before, memory_of(engine)))
        return events

    loaded = hybrid_model() if is_hybrid else tiny_model()
    with opened(eager(config), loaded) as engine:
        outcome = serve(engine, requests_for(is_hybrid), before_step=change)
        assert wrong_rows(engine.drain_audit()) == {}
        return outcome, touched, counts_of(engine)


def requests_for(is_hybrid: bool) -> Any:
    found = batch_of("mixed", 8)
    return [(text, params) for text, (_, params) in zip(texts(8), found, strict=True)] if is_hybrid else found


def config_for(draft_len: int, is_hybrid: bool, overlap: bool = False) -> EngineConfig:
    config = captured_config(draft_len)
    return overlapping(replace(config, model=hybrid_config().model) if is_hybrid else config, overlap)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("is_hybrid", [False, True], ids=["tiny", "tiny-hybrid"])
@pytest.mark.parametrize("draft_len", [0, 3])
def test_a_capture_in_the_middle_disturbs_nobody(draft_len: int, is_hybrid: bool, overlap: bool) -> None:
    config = config_for(draft_len, is_hybrid, overlap)
    outcome, touched, counts = switch_in_the_middle(config, is_hybrid)
    assert touched == set()
    assert counts["replays"] > 5
    loaded = hybrid_model() if is_hybrid else tiny_model()
    assert count_near_ties(loaded, serve_once(eager(config), requests_for(is_hybrid), loaded), outcome) <= 1


def on_slot(slot: int) -> Callable[..., Any]:
    """The mechanism broken: warm-up requests stand on a slot of requests."""
    original = capture.padding_request

    def padding_request(*arguments: Any) -> Any:
        request = original(*arguments)
        request.slot = slot
        return request

    return padding_request


def written_by_a_capture(is_hybrid: bool) -> set[str]:
    """What three requests have that a capture between two of their steps writes to."""
    with opened(eager(config_for(0, is_hybrid)), hybrid_model() if is_hybrid else tiny_model()) as engine:
        for text, params in requests_for(is_hybrid)[:3]:
            engine.add_request(text, params)
        for _ in range(6):
            engine.step()
        before = memory_of(engine)
        engine.switch({"graphs": "captured"})
        return changed(before, memory_of(engine))


@pytest.mark.parametrize("is_hybrid", [False, True], ids=["tiny", "tiny-hybrid"])
def test_without_a_slot_of_its_own_a_capture_writes_to_what_requests_have(
    is_hybrid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert written_by_a_capture(is_hybrid) == set()
    monkeypatch.setattr(capture, "padding_request", on_slot(0))
    # Recurrent state is masked, and safe whatever slot padding names.
    assert written_by_a_capture(is_hybrid) == {"kv", "token_ids", "num_tokens"}
    if is_hybrid:
        original = InputPreparation.fill_state_indices
        monkeypatch.setattr(
            InputPreparation, "fill_state_indices", lambda prep, slots, _num_padding: original(prep, slots, 0)
        )
        assert written_by_a_capture(is_hybrid) >= {"recurrent", "conv", "num_read"}


# Padding in steps.


@pytest.mark.parametrize("is_hybrid", [False, True], ids=["tiny", "tiny-hybrid"])
@pytest.mark.parametrize("draft_len", [0, 3])
def test_padding_rows_come_last_and_write_to_the_padding_slot_alone(draft_len: int, is_hybrid: bool) -> None:
    config = config_for(draft_len, is_hybrid)
    with opened(config, hybrid_model() if is_hybrid else tiny_model()) as engine:
        batches = watch_batches(engine)
        handles = [engine.add_request(text, replace(p, max_tokens=25)) for text, p in requests_for(is_hybrid)[:3]]
        for _ in range(4):
            engine.step()
        # The slot that nobody holds, and the blocks that nobody owns, stay as they are while three are padded to four.
        before = memory_of(engine)
        slots = [request.slot for request in handles]
        rows = engine.blocks.table
        owned = {slot: rows[slot, : engine.blocks.num_owned(slot)].tolist() for slot in slots if slot is not None}
        for _ in range(3):
            engine.step()
        after = memory_of(engine)
        num_owned = {slot: engine.blocks.num_owned(slot) for slot in owned}
        grown = [block for slot, count in num_owned.items() for block in rows[slot, :count].tolist()]
        free = [block for block in range(config.num_blocks) if block not in grown]
        assert free
        assert torch.equal(before["kv"][:, :, free], after["kv"][:, :, free])
        # Of what requests own, the cells before their last tokens stay as well.
        for slot, blocks in owned.items():
            full = blocks[: (int(before["num_tokens"][slot]) - 1) // config.tokens_per_block]
            assert torch.equal(before["kv"][:, :, full], after["kv"][:, :, full])
        for name in set(before) - {"kv"}:
            axis = 1 if name in ("recurrent", "conv") else 0
            assert torch.equal(before[name].select(axis, 3), after[name].select(axis, 3)), name
    padded = [batch for batch in batches if batch.num_padding]
    assert len(padded) >= 5
    for batch in padded:
        assert batch.generation_slots.tolist() == [0, 1, 2, config.padding_slot]
        assert batch.num_padding == 1
        if batch.block_offsets is not None:
            first = config.num_blocks
            used = batch.block_offsets[0, -1, 0, : config.num_padding_blocks]
            assert used.tolist() == list(range(first, first + config.num_padding_blocks))
        if batch.state is not None:
            assert is_hybrid


def test_what_is_padded_are_pure_generation_steps_that_do_not_fill_a_size() -> None:
    config = captured_config(0)
    with opened(config) as engine:
        batches = watch_batches(engine)
        found = serve(engine, batch_of("mixed"))
        counts = counts_of(engine)
    sizes = [(batch.num_generation, batch.num_padding) for batch in batches if not batch.context]
    assert all(batch.num_padding == 0 for batch in batches if batch.context)
    assert set(sizes) <= {(4, 0), (4, 1), (2, 0), (1, 0)}
    assert counts["padded_steps"] == sizes.count((4, 1)) > 0
    assert counts["padding_requests"] == sum(padding for _, padding in sizes)
    assert_same(serve_once(eager(config), batch_of("mixed")), found)
