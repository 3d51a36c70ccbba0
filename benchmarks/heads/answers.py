"""Let the target answer the prompts and write shards of tokens and hidden states.

    python benchmarks/heads/answers.py PROMPTS.jsonl DIRECTORY [--batch 128] [--max-tokens 160] [--sampled 0.25]
    python benchmarks/heads/answers.py --mt-bench DIRECTORY --max-tokens 128 --sampled 0

Most answers are greedy, as the heads are measured; the rest are sampled at temperature 1.0 for breadth. A shard is a
fixed run of prompts, so a run that was broken off goes on with the shards that are missing. With ``--mt-bench`` the
prompts are MT-Bench's first turns: for ``evaluate.py``, never for training.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

from arguments import Formatter, existing
from shards import Answered, list_shards, read_answer_tokens, tokens_path, write_shard
from target import Done, Job, StateRecorder, chat, complete, load_tokenizer, open_target

from specbench.engine.sampling.params import SamplingParams
from specbench.workloads.mt_bench import pulled_file, read_questions

PROMPTS_PER_SHARD = 128


class ShardWriter:
    """Collects answers by shard and writes each shard that is whole; keys are prompt numbers."""

    def __init__(self, directory: Path, num_prompts: int, seed: int) -> None:
        self._directory, self._num_prompts, self._seed = directory, num_prompts, seed
        self._open: dict[int, dict[int, Answered]] = {}
        self._began = time.perf_counter()
        self._num_tokens = 0

    def is_written(self, key: int) -> bool:
        """Whether the prompt's shard is there already."""
        return tokens_path(self._directory, key // PROMPTS_PER_SHARD).exists()

    def add(self, done: Done) -> None:
        """Take one answer."""
        assert done.states is not None
        job, index = done.job, done.job.key // PROMPTS_PER_SHARD
        token_ids = job.token_ids + done.output
        is_sampled = not job.params.is_greedy
        shard = self._open.setdefault(index, {})
        shard[job.key] = Answered(token_ids, len(job.token_ids), is_sampled, done.states)
        self._num_tokens += len(done.output)
        size = min(PROMPTS_PER_SHARD, self._num_prompts - index * PROMPTS_PER_SHARD)
        if len(shard) == size:
            write_shard(tokens_path(self._directory, index), [shard[key] for key in sorted(shard)], self._seed)
            del self._open[index]
            seconds = time.perf_counter() - self._began
            print(
                f"shard {index}: {self._num_tokens} tokens in {seconds:.0f} s, {self._num_tokens / seconds:.0f}/s",
                flush=True,
            )


def read_prompts(path: Path | None) -> list[str]:
    """The prompts of a file; None: MT-Bench's first turns."""
    if path is None:
        return [question.turns[0] for question in read_questions(pulled_file()) if question.turns]
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def make_job(key: int, token_ids: tuple[int, ...], max_tokens: int, sampled: float, seed: int) -> Job:
    """A prompt's job: whether it is sampled, and with which seed, is a function of its number."""
    rng = random.Random(f"{seed} {key}")
    temperature = 1.0 if rng.random() < sampled else None
    params = SamplingParams(temperature=temperature, seed=rng.getrandbits(40), max_tokens=max_tokens)
    return Job(key, token_ids, params)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Formatter)
    parser.add_argument("prompts", type=existing, nargs="?", help="of prompts.py")
    parser.add_argument("directory", type=Path, help="of the shards")
    parser.add_argument("--mt-bench", action="store_true", help="answer MT-Bench's first turns, to measure on")
    parser.add_argument("--model", default="smollm2-135m", help="the target: preset or checkpoint directory")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--batch", type=int, default=128, help="requests at once")
    parser.add_argument("--threads", type=int, help="of PyTorch on the CPU; PyTorch's own choice if not given")
    parser.add_argument("--max-prompt", type=int, default=256, help="longest prompt, in tokens")
    parser.add_argument("--max-tokens", type=int, default=160, help="most tokens an answer")
    parser.add_argument("--sampled", type=float, default=0.25, help="share of answers at temperature 1.0")
    parser.add_argument("--seed", type=int, default=0, help="of what is sampled")
    arguments = parser.parse_args()
    if arguments.prompts is None and not arguments.mt_bench:
        parser.error("give a file of prompts, or --mt-bench")
    arguments.directory.mkdir(parents=True, exist_ok=True)
    prompts = read_prompts(None if arguments.mt_bench else arguments.prompts)
    engine = open_target(
        arguments.model,
        batch=arguments.batch,
        max_seq_len=arguments.max_prompt + arguments.max_tokens,
        threads=arguments.threads,
        device=arguments.device,
    )
    tokenizer, recorder = load_tokenizer(engine), StateRecorder(engine)
    writer = ShardWriter(arguments.directory, len(prompts), arguments.seed)

    def jobs() -> Iterator[Job]:
        for key, prompt in enumerate(prompts):
            if not writer.is_written(key):
                yield make_job(key, chat(tokenizer, prompt), arguments.max_tokens, arguments.sampled, arguments.seed)

    for done in complete(engine, jobs(), recorder):
        writer.add(done)
    total = sum(len(answer) for path in list_shards(arguments.directory) for answer in read_answer_tokens(path))
    print(f"{total} answer tokens in {arguments.directory}")


if __name__ == "__main__":
    main()
