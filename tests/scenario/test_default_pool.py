"""What ``check`` accepts runs: the default pool holds every slot at ``max_seq_len`` without a preemption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from engine_driver import ngram, run, tiny_model

from specbench.engine.sampling.params import SamplingParams
from specbench.scenario.loader import load_scenario
from specbench.scenario.resolve import resolve


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize(("isl", "osl", "draft_len"), [(96, 91, 4), (32, 32, 0), (64, 60, 3), (1, 31, 1)])
def test_the_default_pool_holds_every_slot(
    tmp_path: Path, isl: int, osl: int, draft_len: int, concurrency: int, overlap: str
) -> None:
    path = tmp_path / "s.yaml"
    drafter = f"{{name: ngram, draft_len: {draft_len}}}" if draft_len else "none"
    path.write_text(
        f"model: random:tiny\ndrafter: {drafter}\nengine: {{dtype: float32}}\noptimizations: {{overlap: {overlap}}}\n"
        f"workload: {{kind: random_tokens, isl: {isl}, osl: {osl}, concurrency: {concurrency}}}\n"
    )
    config = replace(resolve(load_scenario(path)).engine, drafter=ngram(draft_len))
    prompts = [[(i * 7 + j) % 200 for j in range(isl)] for i in range(2 * concurrency)]
    params = SamplingParams(max_tokens=osl, ignore_eos=True)
    outcome = run(config, prompts, params, loaded=tiny_model(), concurrency=concurrency)
    assert outcome.num_preemptions == 0
    assert all(request.num_tokens == isl + osl == config.max_seq_len for request in outcome.requests)
