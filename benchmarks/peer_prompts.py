"""The prompts that ``vs_peers.py`` gives to every engine."""

from __future__ import annotations

from pathlib import Path

from specbench.workloads.base import WorkloadSettings
from specbench.workloads.chat80 import Chat80
from specbench.workloads.chat_template import Message
from specbench.workloads.tokenizer import Tokenizer


def build_prompts(directory: Path, count: int, length: int) -> list[list[int]]:
    """Return ``count`` prompts of ``length`` ids each: text of the shipped chat prompts, each from another start.

    The text is a user turn of the model's chat template, where it has one.
    """
    tokenizer = Tokenizer.load(directory)
    before, after = chat_frame(tokenizer)
    room = length - len(before) - len(after)
    if room < 1:
        raise SystemExit(f"--isl {length}: the chat template alone takes {len(before) + len(after)} tokens")
    chat = Chat80(WorkloadSettings("chat80"), vocab_size=tokenizer.vocab_size, tokenizer=tokenizer)
    texts = [" ".join(conversation.turns or ()) for conversation in chat.conversations()]
    ids = [tokenizer.encode(text) for text in texts]

    def prompt(start: int) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < room:
            tokens += ids[start % len(ids)]
            start += 1
        return [*before, *tokens[:room], *after]

    return [prompt(index) for index in range(count)]


def chat_frame(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """What the chat template puts before and behind a user's text, as token ids; nothing without a template."""
    if tokenizer.chat_template is None:
        return [], []
    mark = "\x00"
    rendered = tokenizer.chat_template.render([Message("user", mark)], add_generation_prompt=True)
    before, after = rendered.split(mark)
    return tokenizer.encode(before), tokenizer.encode(after)
