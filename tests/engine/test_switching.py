"""Switching variants between steps, finishing the step in flight, and engines that share a device."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle

import pytest
from engine_driver import Outcome, count_near_ties, ngram, run, tiny_config, tiny_model, with_variants

from specbench.device.cpu import CpuDevice
from specbench.engine.build import build_engine
from specbench.engine.config import EngineConfig
from specbench.engine.llm_engine import LLMEngine, StepEvent
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.signature import SignatureSamplingParams
from specbench.errors import CapacityError, EngineError, UnknownNameError

GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, top_k=40, top_p=0.95, max_tokens=24, ignore_eos=True)

Change = Callable[[LLMEngine], Sequence[StepEvent]]
"""Done to the engine between two steps; returns the events it caused."""


def mixed_requests(seed: int, count: int = 10) -> list[tuple[list[int], SamplingParams]]:
    """Prompts that repeat themselves; greedy, sampled alike and sampled each in its own way; of several lengths."""
    rng = random.Random(seed)
    kinds = [
        GREEDY, SAMPLED, replace(SAMPLED, temperature=1.3), replace(SAMPLED, top_k=None), SamplingParams(top_p=0.8),
        replace(GREEDY, top_k=1), SamplingParams(temperature=2.0),
    ]  # fmt: skip
    made = []
    for index in range(count):
        phrase = [rng.randrange(200) for _ in range(rng.randint(3, 8))]
        params = replace(rng.choice(kinds), seed=index, max_tokens=rng.randint(3, 28), ignore_eos=True)
        made.append(((phrase * 8)[: rng.randint(4, 40)], params))
    return made


def drive(
    config: EngineConfig, requests: Sequence[tuple[list[int], SamplingParams]], change: Change, seed: int
) -> Outcome:
    """Run all requests, four at a time; ``change`` comes before half of the steps, drawn by ``seed``."""
    rng = random.Random(seed)
    engine = build_engine(config, loaded=tiny_model())
    waiting, handles, unfinished = list(requests), [], 0
    try:
        while waiting or engine.has_work:
            while waiting and unfinished < 4:
                prompt, params = waiting.pop(0)
                handles.append(engine.add_request(prompt, params))
                unfinished += 1
            events = [*(change(engine) if rng.random() < 0.5 else ()), *engine.step()]
            unfinished -= sum(event.finished for event in events)
        return Outcome(handles, engine.num_preemptions, list(engine.drain_steps()))
    finally:
        engine.shutdown()


def switching(order: Sequence[str] = ("signature", "refill", "device_gather")) -> Change:
    """Take another variant each time, from each to each; sometimes the one that stands already is taken again."""
    variants = cycle([order[i] for i in (0, 1, 1, 2, 0, 2, 1, 0, 0, 2, 2)])
    return lambda engine: engine.switch({"sampling_params": next(variants)})


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("draft_len", [0, 4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_switching_at_random_steps_changes_no_token(draft_len: int, overlap: bool, seed: int) -> None:
    config = tiny_config(drafter=ngram(draft_len), overlap=overlap)
    requests = mixed_requests(seed)
    switched = drive(config, requests, switching(), seed)
    steps = [vars(step) for step in switched.steps]
    assert {step["num_generation"] for step in steps} >= {1, 2, 3, 4}
    assert draft_len == 0 or any(sum(step["accepted"]) for step in steps)
    for variant in ("refill", "signature", "device_gather"):
        fixed = with_variants(config, sampling_params=variant)
        # Finishing the step in flight lets the host know more, and so changes the next batch. With equal batches
        # the tokens are equal to the bit; against a run that is left alone, but for near ties.
        flushed = drive(fixed, requests, LLMEngine.flush, seed)
        assert switched.outputs == flushed.outputs
        assert [step["num_committed"] for step in steps] == [vars(step)["num_committed"] for step in flushed.steps]
        alone = drive(fixed, requests, lambda _engine: (), seed)
        if overlap:
            assert count_near_ties(tiny_model(), alone, switched) <= 1
        else:
            assert switched.outputs == alone.outputs


def stale_rows() -> list[list[int]]:
    """A request that is alone, joined by another one in a lower slot while ``refill`` stands, and alone again.

    When ``signature`` comes back it finds the batch it last wrote, and the other request's values in the buffers.
    """
    engine = build_engine(tiny_config(max_batch_size=2), loaded=tiny_model())
    picky = replace(SAMPLED, temperature=0.2, top_k=2, seed=5)
    wild = replace(SAMPLED, temperature=5.0, top_k=None, top_p=None, max_tokens=3)
    try:
        engine.add_request([1, 2, 3], replace(GREEDY, max_tokens=2))
        staying = engine.add_request([4, 5, 6], picky)
        for _ in range(5):
            engine.step()
        engine.switch({"sampling_params": "refill"})
        joining = engine.add_request([7, 8, 9], wild)
        while joining.finish_reason is None:
            assert joining.slot in (None, 0)
            engine.step()
        assert staying.slot == 1
        engine.switch({"sampling_params": "signature"})
        while engine.has_work:
            engine.step()
        return [staying.output_token_ids, joining.output_token_ids]
    finally:
        engine.shutdown()


def test_a_variant_that_does_not_forget_would_change_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = run(tiny_config(), [[4, 5, 6]], replace(SAMPLED, temperature=0.2, top_k=2, seed=5)).outputs[0]
    assert stale_rows()[0] == alone
    monkeypatch.setattr(SignatureSamplingParams, "activate", lambda _self: None)
    assert stale_rows()[0] != alone


@pytest.fixture
def engine() -> LLMEngine:
    engine = build_engine(tiny_config(overlap=True), loaded=tiny_model())
    yield engine
    engine.shutdown()


def test_flush_finishes_the_step_in_flight_and_starts_none(engine: LLMEngine) -> None:
    assert engine.flush() == []
    request = engine.add_request([1, 2, 3], replace(GREEDY, max_tokens=3))
    assert engine.step() == []
    (event,) = engine.flush()
    assert event.token_ids == request.output_token_ids
    assert (len(request.output_token_ids), len(engine.drain_steps())) == (1, 1)
    assert engine.flush() == []
    assert engine.drain_steps() == []
    assert engine.step() == []  # launched again, its tokens come with the next one
    while engine.has_work:
        engine.step()
    assert len(request.output_token_ids) == 3


def test_switch_returns_what_it_had_to_finish(engine: LLMEngine) -> None:
    before = engine.variants
    assert before["sampling_params"] == "signature"
    request = engine.add_request([1, 2, 3], replace(GREEDY, max_tokens=1))
    engine.step()
    (event,) = engine.switch({"sampling_params": "refill"})
    assert (event.request, event.finished) == (request, True)
    assert engine.variants == {**before, "sampling_params": "refill"}
    assert not engine.has_work


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"sampling_params": "refil"}, "did you mean 'refill'"),
        ({"sampling_parms": "refill"}, "did you mean 'sampling_params'"),
        ({"sampling_params": "refill", "magic": "on"}, "unknown toggle 'magic'"),
    ],
)
def test_an_unknown_name_changes_nothing(engine: LLMEngine, choices: Mapping[str, str], message: str) -> None:
    engine.add_request([1, 2, 3], GREEDY)
    engine.step()
    before = engine.variants
    assert before["sampling_params"] == "signature"
    with pytest.raises(UnknownNameError, match=message) as caught:
        engine.switch(choices)
    assert caught.value.exit_code == 2
    assert engine.variants == before
    assert engine.drain_steps() == []  # nothing was finished either


def test_counters_tell_the_variants_apart() -> None:
    requests = [([1, 2, 3], replace(SAMPLED, seed=i)) for i in range(3)]
    engine = build_engine(tiny_config(), loaded=tiny_model())
    try:
        for prompt, params in requests:
            engine.add_request(prompt, params)
        for variant, count in (("signature", 6), ("refill", 4), ("signature", 5)):
            engine.switch({"sampling_params": variant})
            for _ in range(count):
                engine.step()
        counters = engine.read_counters()["sampling_params"]
    finally:
        engine.shutdown()
    assert counters["refill"]["fills"] == 4
    assert counters["refill"]["copies"] == 24
    # At first, when prompts turn into generation requests (K = 0: as many rows as before), and after the way back.
    assert (counters["signature"]["fills"], counters["signature"]["hits"]) == (2, 9)


def test_a_shared_device_stays_open_until_its_owner_closes_it() -> None:
    device = CpuDevice(num_threads=1)
    first, second = (build_engine(tiny_config(overlap=True), loaded=tiny_model(), device=device) for _ in range(2))
    one = first.add_request([1, 2, 3], GREEDY)
    two = second.add_request([1, 2, 3], GREEDY)
    while first.has_work or second.has_work:  # steps of both in flight at once
        first.step()
        second.step()
    assert one.output_token_ids == two.output_token_ids
    first.add_request([1, 2, 3], GREEDY)
    first.step()
    first.shutdown()
    three = second.add_request([1, 2, 3], GREEDY)
    while second.has_work:
        second.step()
    assert three.output_token_ids == one.output_token_ids
    second.shutdown()
    device.synchronize()
    device.close()
    with pytest.raises(EngineError, match="closed"):
        device.launch(lambda: None, "late")


def test_an_engine_that_cannot_be_built_leaves_a_shared_device_open() -> None:
    device = CpuDevice(num_threads=1)
    with pytest.raises(CapacityError):
        build_engine(tiny_config(max_num_tokens=8, drafter=ngram(4)), loaded=tiny_model(), device=device)
    device.synchronize()
    device.close()
