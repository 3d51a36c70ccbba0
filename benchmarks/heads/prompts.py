"""Write the prompts that the heads' training text answers: one JSON string a line.

    python benchmarks/heads/prompts.py OUT.jsonl [--count 12000] [--sampled 0.4] [--exclude question.jsonl]

Three kinds. Templates of our own are filled with topics, numbers and programming tasks. Others quote a passage of
earlier answers (``--sources``). The rest the target writes itself: it continues the opening of a user turn, sampled,
behind a few first words. A prompt that shares eight words in a row with a question of ``--exclude`` (by default
MT-Bench as ``specbench pull mt-bench`` put it on this machine) is dropped; nothing of those questions is used
otherwise. Prompts are appended as they come: run again to go on.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from arguments import Formatter, existing
from prompt_material import (
    CODE_FORMS,
    CODE_TASKS,
    LANGUAGES,
    MATH_FORMS,
    NAMES,
    SOURCE_FORMS,
    STARTS,
    TASKS,
    TOPICS,
    split,
)
from shards import read_answer_tokens
from target import Job, complete, load_tokenizer, open_target

from specbench.engine.llm_engine import LLMEngine
from specbench.engine.sampling.params import SamplingParams
from specbench.workloads.chat_template import Message
from specbench.workloads.mt_bench import pulled_file, read_questions
from specbench.workloads.tokenizer import Tokenizer

GRAM = 8
_TOPICS, _TASKS, _STARTS = split(TOPICS, ";"), split(TASKS, "|"), split(STARTS, "|")
_CODE_TASKS, _CODE_FORMS, _LANGUAGES = split(CODE_TASKS, ";"), split(CODE_FORMS, "|"), split(LANGUAGES, ";")
_MATH_FORMS, _NAMES, _SOURCE_FORMS = split(MATH_FORMS, "|"), split(NAMES, ";"), split(SOURCE_FORMS, "|")
_WORD = re.compile(r"[a-z0-9]+")
_MIN_WORDS, _MAX_TOKENS = 4, 72


def grams(text: str) -> set[tuple[str, ...]]:
    """Every run of eight words of a text, lower case, punctuation aside; a shorter text is one run."""
    words = _WORD.findall(text.lower())
    return {tuple(words[start : start + GRAM]) for start in range(max(1, len(words) - GRAM + 1))}


class PromptFilter:
    """Lets a prompt through once, and only if it shares no run of eight words with the excluded texts."""

    def __init__(self, excluded: Iterable[str]) -> None:
        self._excluded = {gram for text in excluded for gram in grams(text)}
        self._seen: set[str] = set()
        self.num_excluded = 0

    def admits(self, prompt: str) -> bool:
        """Whether to use ``prompt``; it is remembered."""
        key = " ".join(_WORD.findall(prompt.lower()))
        if len(key.split()) < _MIN_WORDS or key in self._seen:
            return False
        self._seen.add(key)
        shared = not self._excluded.isdisjoint(grams(prompt))
        self.num_excluded += shared
        return not shared


def template_prompt(rng: random.Random, sources: Sequence[str], quoted: float = 0.07) -> str:
    """Fill one template of ours.

    :param sources: texts that tasks about a given text may quote; ``quoted`` the share of these tasks.
    """
    if sources and rng.random() < quoted:
        return _fill(rng.choice(_SOURCE_FORMS), s=rng.choice(sources))
    kind = rng.random()
    if kind < 0.13:
        return _fill(rng.choice(_CODE_FORMS), l=rng.choice(_LANGUAGES), c=rng.choice(_CODE_TASKS))
    if kind < 0.26:
        n, m, o = rng.sample(_NAMES, 3)
        numbers = {"a": rng.randint(2, 60), "b": rng.randint(2, 40), "c": rng.randint(41, 400), "d": rng.randint(3, 11)}
        return _fill(rng.choice(_MATH_FORMS), n=n, m=m, o=o, **numbers)
    t, u, v = rng.sample(_TOPICS, 3)
    return _fill(rng.choice(_TASKS), t=t, u=u, v=v)


def _fill(form: str, **values: object) -> str:
    # Not str.format: forms may hold braces of their own.
    for name, value in values.items():
        form = form.replace("{" + name + "}", str(value))
    return form


def sampled_prompts(engine: LLMEngine, tokenizer: Tokenizer, rng: random.Random) -> Iterator[str]:
    """Yield user turns that the target writes itself, without end."""
    opening = _opening(tokenizer)

    def jobs() -> Iterator[Job]:
        key = 0
        while True:
            start = rng.choice(_STARTS)
            rendered = tokenizer.encode(opening + start)
            params = SamplingParams(
                temperature=1.0, top_k=64, top_p=0.95, seed=rng.getrandbits(40), max_tokens=_MAX_TOKENS
            )
            yield Job(key, tuple(rendered), params)
            key += 1

    prefix = len(tokenizer.encode(opening))
    for done in complete(engine, jobs()):
        text = tokenizer.decode([*done.job.token_ids[prefix:], *done.output])
        yield tidy(text, finished=len(done.output) < _MAX_TOKENS)


def _opening(tokenizer: Tokenizer) -> str:
    """The chat template's text up to the first word of the user."""
    assert tokenizer.chat_template is not None
    mark = "\x00"
    return tokenizer.chat_template.render([Message("user", mark)], add_generation_prompt=False).split(mark)[0]


def tidy(text: str, *, finished: bool) -> str:
    """Strip a sampled turn; one that was cut off ends with its last whole sentence, if it has one."""
    text = text.strip()
    if finished:
        return text
    ends = [match.end() for match in re.finditer(r"[.?!:](?=\s|$)", text)]
    return text[: ends[-1]] if ends else text


def passages(directories: Sequence[Path], tokenizer: Tokenizer) -> list[str]:
    """Runs of one to three sentences, 12 to 60 words, out of the answers in shards."""
    found = []
    for directory in directories:
        for path in sorted(directory.glob("shard-*.npz")):
            for answer in read_answer_tokens(path):
                sentences = re.split(r"(?<=[.!?])\s+", tokenizer.decode(answer))[:-1]
                for first in range(0, len(sentences), 3):
                    text = " ".join(sentences[first : first + 1 + first % 3])
                    if 12 <= len(text.split()) <= 60:
                        found.append(text)
    return found


@dataclass(frozen=True)
class Mix:
    """Shares of the prompts: ``sampled`` of all, ``quoted`` of those from templates."""

    sampled: float
    quoted: float


def write_prompts(
    out: Path,
    count: int,
    admits: Callable[[str], bool],
    sampled: Iterator[str],
    sources: list[str],
    mix: Mix,
    rng: random.Random,
) -> None:
    """Append prompts to ``out`` until it has ``count``."""
    written = 0
    if out.exists():
        for line in out.read_text(encoding="utf-8").splitlines():
            written += admits(json.loads(line))
    began, first = time.perf_counter(), written
    with out.open("a", encoding="utf-8") as file:
        while written < count:
            is_sampled = rng.random() < mix.sampled
            prompt = next(sampled) if is_sampled else template_prompt(rng, sources, mix.quoted)
            if is_sampled and 20 <= len(prompt.split()) <= 60:
                sources.append(prompt)
            if not admits(prompt):
                continue
            file.write(json.dumps(prompt) + "\n")
            written += 1
            if written % 256 == 0:
                file.flush()
                print(f"{written} prompts, {(written - first) / (time.perf_counter() - began):.1f}/s", flush=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Formatter)
    parser.add_argument("out", type=Path, help="JSON lines")
    parser.add_argument("--count", type=int, default=12_000, help="prompts in all")
    parser.add_argument("--sampled", type=float, default=0.4, help="share of prompts that the target writes")
    parser.add_argument("--quoted", type=float, default=0.4, help="share of template prompts that quote a passage")
    parser.add_argument("--sources", type=existing, nargs="*", default=[], help="directories of shards to quote from")
    parser.add_argument("--known", type=existing, nargs="*", default=[], help="prompt files not to repeat")
    parser.add_argument("--exclude", type=existing, help="question file in MT-Bench's form")
    parser.add_argument("--model", default="smollm2-135m", help="the target: preset or checkpoint directory")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--batch", type=int, default=128, help="requests at once")
    parser.add_argument("--threads", type=int, help="of PyTorch on the CPU; PyTorch's own choice if not given")
    parser.add_argument("--seed", type=int, default=0, help="of what is sampled")
    arguments = parser.parse_args()
    questions = read_questions(arguments.exclude or pulled_file())
    prompt_filter = PromptFilter(turn for question in questions for turn in question.turns or ())
    # Another part of the random stream when the file is continued.
    done = len(arguments.out.read_text().splitlines()) if arguments.out.exists() else 0
    rng = random.Random(f"{arguments.seed} {done}")
    engine = open_target(
        arguments.model, batch=arguments.batch, max_seq_len=128, threads=arguments.threads, device=arguments.device
    )
    for path in arguments.known:
        for line in path.read_text(encoding="utf-8").splitlines():
            prompt_filter.admits(json.loads(line))
    tokenizer, mix = load_tokenizer(engine), Mix(arguments.sampled, arguments.quoted)
    sources, sampled = passages(arguments.sources, tokenizer), sampled_prompts(engine, tokenizer, rng)
    write_prompts(arguments.out, arguments.count, prompt_filter.admits, sampled, sources, mix, rng)
    print(f"{prompt_filter.num_excluded} dropped as too like an excluded question")


if __name__ == "__main__":
    main()
