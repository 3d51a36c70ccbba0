"""Prompts and answers for the heads' training text: what is let through, and the recorded hidden states."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
import torch
from heads_case import heads

from specbench.engine.build import build_engine
from specbench.engine.config import EngineConfig, ModelSpec
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.sampling.params import SamplingParams

QUESTION = "Draft a letter to the owner of a small bakery in which you propose to paint her shop windows for free."


def test_a_prompt_like_an_excluded_question_is_dropped() -> None:
    prompts = heads.prompts.PromptFilter([QUESTION, "What is love?"])
    assert not prompts.admits(QUESTION)
    assert not prompts.admits("Please DRAFT a letter: to the owner of a small, old bakery!")
    assert prompts.num_excluded == 2
    # Seven words in a row are shared by many harmless texts.
    assert prompts.admits("Draft a letter to the owner of an old bakery in Rome.")
    assert prompts.num_excluded == 2


def test_a_prompt_passes_once_and_a_fragment_never() -> None:
    prompts = heads.prompts.PromptFilter([])
    assert prompts.admits("Explain how tides work.")
    assert not prompts.admits("explain how tides work")
    assert not prompts.admits("Explain how.")


def test_templates_are_filled_and_varied() -> None:
    rng = random.Random(1)
    source = "The old mill stood by the river."
    prompts = [heads.prompts.template_prompt(rng, [source], 0.1) for _ in range(3000)]
    names = "tuvlcabdnmos"
    assert not any("{" + name + "}" in prompt for prompt in prompts for name in names)
    assert len(set(prompts)) > 2000
    assert any(source in prompt for prompt in prompts)
    assert all(
        len(heads.prompts.split(text, "|")) > 20 for text in (heads.prompt_material.TASKS, heads.prompt_material.STARTS)
    )
    assert all(topic and "\n" not in topic for topic in heads.prompts.split(heads.prompt_material.TOPICS, ";"))


@pytest.mark.parametrize(
    ("text", "finished", "expected"),
    [
        (" Why is it so? ", True, "Why is it so?"),
        ("Why is it so? Please tell me in", False, "Why is it so?"),
        ("no end in sight", False, "no end in sight"),
        ("Use 3.5 as the value. Then", False, "Use 3.5 as the value."),
    ],
)
def test_a_turn_that_was_cut_off_ends_with_a_whole_sentence(text: str, finished: bool, expected: str) -> None:
    assert heads.prompts.tidy(text, finished=finished) == expected


def test_prompts_are_written_and_continued(tmp_path: Path) -> None:
    out = tmp_path / "prompts.jsonl"
    sampled = (f"A turn of the model's own, number {number}" for number in itertools.count())
    for count in (20, 50):
        admits = heads.prompts.PromptFilter([]).admits
        heads.prompts.write_prompts(out, count, admits, sampled, [], heads.prompts.Mix(0.5, 0.0), random.Random(count))
    prompts = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(prompts) == len(set(prompts)) == 50
    assert 10 < sum(prompt.startswith("A turn") for prompt in prompts) < 40


def tiny_engine(*, max_num_tokens: int = 64) -> LLMEngine:
    return build_engine(
        EngineConfig(
            ModelSpec("tiny", weights="random", seed=1), device="cpu", dtype="float32", max_seq_len=64,
            max_batch_size=3, num_blocks=12, tokens_per_block=16, max_num_tokens=max_num_tokens, num_threads=1,
            optimizations=(("overlap", "off"), ("graphs", "off")),
        )
    )  # fmt: skip


def make_jobs(seed: int = 0, count: int = 7) -> list[heads.target.Job]:
    rng = random.Random(seed)
    return [
        heads.target.Job(
            key,
            tuple(rng.randrange(3, 200) for _ in range(rng.randint(4, 30))),
            SamplingParams(max_tokens=rng.randint(3, 12), ignore_eos=True),
        )
        for key in range(count)
    ]


@pytest.fixture
def few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads.target, "AUX_LAYERS", (0, 1, 1))


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("max_num_tokens", [64, 11])
def test_recorded_states_are_those_of_the_text_in_one_piece(max_num_tokens: int) -> None:
    """Batches, prompt chunks and decoding steps put every state where a pass over the whole text finds it."""
    engine = tiny_engine(max_num_tokens=max_num_tokens)
    done = list(heads.target.complete(engine, make_jobs(), heads.target.StateRecorder(engine)))
    model = engine.loaded.model
    engine.shutdown()
    assert sorted(entry.job.key for entry in done) == list(range(7))
    alone = tiny_engine()
    recorder = heads.target.StateRecorder(alone)
    for entry in done:
        text = entry.job.token_ids + entry.output
        assert len(entry.output) == entry.job.params.max_tokens
        assert entry.states.shape[0] == len(text) - 1
        job = heads.target.Job(0, text[:-1], SamplingParams(max_tokens=1, ignore_eos=True))
        (whole,) = heads.target.complete(alone, [job], recorder)
        torch.testing.assert_close(entry.states.float(), whole.states.float(), rtol=0.02, atol=0.02)
        logits = model.compute_logits(entry.states[len(entry.job.token_ids) - 1 :, -1].float())
        # States are kept in bfloat16, so the chosen token's logit may be short of the largest by its rounding.
        chosen = logits.gather(1, torch.tensor(entry.output).unsqueeze(1)).squeeze(1)
        assert (logits.amax(1) - chosen).max() < 0.02 * (logits.amax() - logits.amin())
    alone.shutdown()


@pytest.mark.usefixtures("few_layers")
def test_shards_are_written_whole_and_not_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads.answers, "PROMPTS_PER_SHARD", 3)
    engine = tiny_engine()
    writer = heads.answers.ShardWriter(tmp_path, 7, seed=5)
    done = list(heads.target.complete(engine, make_jobs(), heads.target.StateRecorder(engine)))
    engine.shutdown()
    for entry in done:
        writer.add(entry)
    paths = heads.shards.list_shards(tmp_path)
    assert [path.name for path in paths] == ["shard-00000.npz", "shard-00001.npz", "shard-00002.npz"]
    assert all(writer.is_written(key) for key in range(7))
    assert not writer.is_written(9)
    by_key = {entry.job.key: entry for entry in done}
    read = [answer for path in paths for answer in heads.shards.read_shard(path)]
    assert len(read) == 7
    for key, answer in enumerate(read):
        entry = by_key[key]
        assert answer.token_ids == entry.job.token_ids + entry.output
        assert answer.prompt_len == len(entry.job.token_ids)
        assert torch.equal(answer.states, entry.states)
    assert heads.shards.read_answer_tokens(paths[1]) == [list(by_key[key].output) for key in range(3, 6)]


def test_whether_an_answer_is_sampled_is_a_function_of_its_number() -> None:
    jobs = [heads.answers.make_job(key, (1, 2), 10, 0.25, 3) for key in range(400)]
    assert jobs == [heads.answers.make_job(key, (1, 2), 10, 0.25, 3) for key in range(400)]
    assert 60 < sum(not job.params.is_greedy for job in jobs) < 140
