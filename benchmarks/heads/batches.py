"""Answered prompts as padded batches, and the order in which training sees them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from shards import Answered, list_shards, read_shard
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """B texts of at most S + 1 tokens, and their A chain bases.

    :param token_ids: int64 [B, S + 1]; ``states`` bfloat16 [B, S, 4, H].
    :param lengths: int64 [B], tokens of each text.
    :param bases: int64 [B, A]: the first is the prompt's last position. Those past a text's end repeat position S - 1.
    """

    token_ids: Tensor
    states: Tensor
    lengths: Tensor
    bases: Tensor

    def tokens_at(self, positions: Tensor) -> Tensor:
        """Token ids at [B, A] positions; those past the end give any id."""
        return self.token_ids.gather(1, positions.clamp(max=self.token_ids.shape[1] - 1))

    def is_predicted(self, step: int) -> Tensor:
        """[B, A] bool: whether the text has the token that step ``step`` of a chain predicts."""
        return self.bases + step + 2 < self.lengths.unsqueeze(1)

    def to(self, device: torch.device) -> Batch:
        """A copy on ``device``."""
        return Batch(*(getattr(self, name).to(device) for name in ("token_ids", "states", "lengths", "bases")))


def collate(answers: Sequence[Answered]) -> Batch:
    """Pad answers to a batch."""
    lengths = torch.tensor([len(answer.token_ids) for answer in answers])
    num_states = int(lengths.max()) - 1
    token_ids = torch.zeros(len(answers), num_states + 1, dtype=torch.int64)
    states = torch.zeros(len(answers), num_states, *answers[0].states.shape[1:], dtype=torch.bfloat16)
    for row, answer in enumerate(answers):
        token_ids[row, : len(answer.token_ids)] = torch.tensor(answer.token_ids)
        states[row, : len(answer.states)] = answer.states
    num_chains = max(answer.answer_len for answer in answers) - 1
    first = torch.tensor([answer.prompt_len - 1 for answer in answers])
    bases = first.unsqueeze(1) + torch.arange(max(1, num_chains))
    return Batch(token_ids, states, lengths, bases.clamp(max=num_states - 1))


def usable(answers: Sequence[Answered]) -> list[Answered]:
    """Answers with at least one token to predict."""
    return [answer for answer in answers if answer.answer_len >= 2]


class Reader:
    """Hands out pools of shards, the least used first; shards that appear meanwhile join in.

    :param num_held_out: shards of the first directory, from its start, that are never handed out.
    """

    def __init__(self, directories: Sequence[Path], *, num_held_out: int, batch_texts: int, seed: int) -> None:
        self._directories, self._num_held_out, self._batch_texts = directories, num_held_out, batch_texts
        self._rng = random.Random(seed)
        self._uses: Counter[str] = Counter()

    def held_out(self) -> list[Answered]:
        """The answers that are never trained on."""
        shards = list_shards(self._directories[0])[: self._num_held_out]
        return [answer for shard in shards for answer in usable(read_shard(shard))]

    def pool(self, num_shards: int) -> Iterator[Batch]:
        """Yield the batches of the next ``num_shards`` shards, texts of like length together, in random order."""
        paths = [path for directory in self._directories for path in list_shards(directory)]
        num_found = len(paths)
        paths = paths[self._num_held_out :]
        if not paths:
            raise SystemExit(
                f"no shards to train on: {num_found} found in {', '.join(map(str, self._directories))}, of which "
                f"--held-out keeps {self._num_held_out} to measure on; answers.py makes shards, of 128 prompts each"
            )
        order = sorted(paths, key=lambda path: (self._uses[str(path)], self._rng.random()))[:num_shards]
        self._uses.update(str(path) for path in order)
        answers = [answer for path in order for answer in usable(read_shard(path))]
        answers.sort(key=lambda answer: (answer.answer_len, self._rng.random()))
        starts = list(range(0, len(answers), self._batch_texts))
        self._rng.shuffle(starts)
        for start in starts:
            yield collate(answers[start : start + self._batch_texts])

    def state(self) -> dict[str, Any]:
        """Where the reader stands, between pools."""
        return {"rng": self._rng.getstate(), "uses": dict(self._uses)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self._rng.setstate(state["rng"])
        self._uses = Counter(state["uses"])

    @property
    def most_uses(self) -> int:
        """How often the most used shard was handed out."""
        return max(self._uses.values(), default=0)
