"""The variants of ``sampling_params`` in whole engines: equal tokens on a batch that does everything a batch can do."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from engine_driver import Outcome, ngram, run, tiny_config, with_variants

from specbench.engine.config import EngineConfig
from specbench.engine.optimizations.base import load_toggle
from specbench.engine.sampling.device_gather import DeviceGatherSamplingParams
from specbench.engine.sampling.metadata import SamplingRows
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.step_params import StepParams

CONCURRENCY = 4
GREEDY = SamplingParams(ignore_eos=True)
KINDS = [
    GREEDY, replace(GREEDY, top_k=1), replace(GREEDY, temperature=0.9, top_k=40, top_p=0.95),
    replace(GREEDY, temperature=2.5), replace(GREEDY, temperature=0.6, top_k=3), replace(GREEDY, top_p=0.5),
]  # fmt: skip


def make_requests(seed: int, count: int = 12) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts that repeat themselves; greedy, and sampled in four ways; of several lengths."""
    rng = random.Random(seed)
    prompts, params = [], []
    for index in range(count):
        phrase = [rng.randrange(200) for _ in range(rng.randint(3, 8))]
        prompts.append((phrase * 8)[: rng.randint(8, 40)])
        params.append(replace(KINDS[index % len(KINDS)], seed=index, max_tokens=rng.randint(6, 40)))
    return prompts, params


def serve(config: EngineConfig, variant: str, seed: int) -> Outcome:
    prompts, params = make_requests(seed)
    return run(with_variants(config, sampling_params=variant), prompts, params, concurrency=CONCURRENCY)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("draft_len", [0, 4])
def test_row_1_6_variants_agree_where_requests_join_finish_reorder_preempt_and_mix(
    draft_len: int, overlap: bool
) -> None:
    # 20 blocks of 8 tokens for four requests of up to 80: there is not room for all.
    config = tiny_config(drafter=ngram(draft_len), overlap=overlap, num_blocks=20)
    expected = serve(config, "refill", seed=1)
    steps = [vars(step) for step in expected.steps]
    assert expected.num_preemptions > 0
    assert sum(step["num_context"] > 0 for step in steps) > CONCURRENCY  # joined one after the other
    assert {step["num_generation"] for step in steps} >= {1, 2, 3}
    assert draft_len == 0 or any(sum(step["accepted"]) for step in steps)
    for variant in load_toggle("sampling_params").variants:
        found = serve(config, variant, seed=1)
        assert found.outputs == expected.outputs, variant
        assert [vars(step)["num_committed"] for step in found.steps] == [step["num_committed"] for step in steps]


def test_row_1_6_a_slot_that_is_not_written_for_its_next_request_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(drafter=ngram(4))
    expected = serve(config, "refill", seed=1)
    assert serve(config, "device_gather", seed=1).outputs == expected.outputs
    send = DeviceGatherSamplingParams._send

    def write_once(filler: DeviceGatherSamplingParams, step: StepParams, slots: list[int]) -> SamplingRows:
        known = filler.contents.values
        known.update({slot: new for slot, new in zip(slots, step.values, strict=True) if slot in known})
        return send(filler, step, slots)

    monkeypatch.setattr(DeviceGatherSamplingParams, "_send", write_once)
    assert serve(config, "device_gather", seed=1).outputs != expected.outputs
