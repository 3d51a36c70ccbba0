"""SmolLM2-135M-Instruct in float32 against transformers, and against itself with speculation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_driver import NEAR_TIE, Outcome, count_near_ties, ngram, run

from specbench.engine.config import EngineConfig, ModelSpec
from specbench.engine.models.loading import LoadedModel, load_model
from specbench.engine.sampling.params import SamplingParams
from specbench.workloads.chat_template import Message
from specbench.workloads.tokenizer import Tokenizer

NUM_PROMPTS = 8
NUM_TOKENS = 64
QUESTIONS = (
    "Write a short note that thanks a neighbour for watering the plants.",
    "What is 17 times 23? Show the steps.",
    "Name three rivers in South America and the countries they cross.",
    "Write a Python function that reverses the words of a sentence.",
    "Explain to a child why the sky looks blue.",
    "Summarise in one sentence: the bridge was closed on Monday because a crack was found, and it opened on Friday.",
    "You are a lighthouse keeper. Describe the night of a storm.",
    "Is a tomato a fruit or a vegetable? Give the reason.",
    "List five uses for an old newspaper.",
    "Translate to French: the train leaves at nine.",
)


@pytest.fixture(scope="module")
def loaded(smollm2_dir: Path) -> LoadedModel:
    return load_model(ModelSpec(str(smollm2_dir)), torch.float32, torch.device("cpu"))


@pytest.fixture(scope="module")
def chat_prompts(smollm2_dir: Path) -> list[list[int]]:
    tokenizer = Tokenizer.load(smollm2_dir)
    return [tokenizer.apply_chat_template([Message("user", text)]) for text in QUESTIONS]


def config(smollm2_dir: Path, batch: int = 4) -> EngineConfig:
    return EngineConfig(
        model=ModelSpec(str(smollm2_dir)), device="cpu", dtype="float32", max_seq_len=256,
        max_batch_size=batch, num_blocks=batch * 10, max_num_tokens=512,
    )  # fmt: skip


@pytest.fixture(scope="module")
def greedy(loaded: LoadedModel, chat_prompts: list[list[int]], smollm2_dir: Path) -> Outcome:
    return run(config(smollm2_dir), chat_prompts, SamplingParams(max_tokens=NUM_TOKENS), loaded=loaded)


@pytest.fixture(scope="module")
def reference(smollm2_dir: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32)


def test_every_token_is_the_argmax_of_transformers(greedy: Outcome, reference: Any) -> None:
    """By induction the same as ``generate``, at the price of one forward a prompt."""
    near_ties = 0
    for request in greedy.requests:
        prompt, output = request.prompt_token_ids, request.output_token_ids
        with torch.inference_mode():
            logits = reference(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
        best = logits.topk(2)
        for position in (best.indices[:, 0] != torch.tensor(output)).nonzero().flatten().tolist():
            margin = float(best.values[position, 0] - best.values[position, 1])
            print(f"{request.request_id}: token {position} differs, margin {margin:.3g}")
            assert margin < NEAR_TIE
            near_ties += 1
            break
    assert len(greedy.requests) - near_ties >= NUM_PROMPTS, f"{near_ties} near ties left too few prompts"
    assert sum(len(output) for output in greedy.outputs) > NUM_PROMPTS * NUM_TOKENS // 2


@pytest.mark.parametrize("count", [2, pytest.param(len(QUESTIONS), marks=pytest.mark.slow)])
def test_greedy_tokens_equal_transformers_generate(
    count: int, loaded: LoadedModel, greedy: Outcome, reference: Any
) -> None:
    eos = list(loaded.config.eos_token_ids)
    expected = []
    for request in greedy.requests[:count]:
        ids = torch.tensor([request.prompt_token_ids])
        output = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False,
            eos_token_id=eos, pad_token_id=eos[0],
        )[0, ids.shape[1] :].tolist()  # fmt: skip
        reason = "stop" if output[-1] in eos else "length"
        expected.append(replace(request, output_token_ids=output, finish_reason=reason))
    near_ties = count_near_ties(loaded, Outcome(expected, 0), Outcome(greedy.requests[:count], 0))
    assert near_ties <= count // 5


@pytest.mark.parametrize("batch", [1, pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "draft_len", [4, pytest.param(1, marks=pytest.mark.slow), pytest.param(7, marks=pytest.mark.slow)]
)
def test_speculation_keeps_every_token(
    loaded: LoadedModel, chat_prompts: list[list[int]], smollm2_dir: Path, draft_len: int, batch: int
) -> None:
    prompts = (chat_prompts * 2)[: max(2, batch)]
    params = SamplingParams(max_tokens=48, ignore_eos=True)
    base = config(smollm2_dir, batch)
    plain = run(base, prompts, params, loaded=loaded)
    tight = replace(base, drafter=ngram(draft_len), max_num_tokens=max(40, batch * 8), num_blocks=10 + batch)
    speculative = run(tight, prompts, params, loaded=loaded)
    assert count_near_ties(loaded, plain, speculative) <= len(prompts) // 8
    assert any(length > 1 for request in speculative.requests for length in request.accepted_lengths)
