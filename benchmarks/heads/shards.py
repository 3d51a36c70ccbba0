"""Answered prompts on disk: shards of token ids, and beside each the target's hidden states at these tokens.

``shard-00012.npz`` holds what was said and is the data set; ``shard-00012.states.npy`` what training reads beside it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Answered:
    """A prompt with its answer.

    :param token_ids: of both; the answer begins at ``prompt_len``.
    :param states: bfloat16 [tokens - 1, 4, H], see :class:`target.Done`.
    """

    token_ids: tuple[int, ...]
    prompt_len: int
    is_sampled: bool
    states: Tensor

    @property
    def answer_len(self) -> int:
        """Tokens of the answer, its end token included."""
        return len(self.token_ids) - self.prompt_len


def tokens_path(directory: Path, index: int) -> Path:
    """The token file of a shard; it is there only when the shard is whole."""
    return directory / f"shard-{index:05d}.npz"


def states_path(tokens: Path) -> Path:
    """The states that belong to a token file."""
    return tokens.with_suffix(".states.npy")


def list_shards(directory: Path) -> list[Path]:
    """Token files of the whole shards of ``directory``, in order."""
    return [path for path in sorted(directory.glob("shard-*.npz")) if states_path(path).exists()]


def write_shard(path: Path, answers: Sequence[Answered], seed: int) -> None:
    """Write a shard; the token file appears last and all at once."""
    states = torch.cat([answer.states for answer in answers]).to(torch.bfloat16).view(torch.int16).numpy()
    np.save(states_path(path), states)
    temporary = path.with_suffix(".part.npz")
    np.savez_compressed(
        temporary,
        token_ids=np.concatenate([np.array(answer.token_ids, dtype=np.int32) for answer in answers]),
        lengths=np.array([len(answer.token_ids) for answer in answers], dtype=np.int32),
        prompt_lens=np.array([answer.prompt_len for answer in answers], dtype=np.int32),
        is_sampled=np.array([answer.is_sampled for answer in answers]),
        seed=np.array(seed, dtype=np.int64),
    )
    os.replace(temporary, path)


def read_shard(path: Path) -> list[Answered]:
    """Read a shard with its states."""
    with np.load(path) as held:
        token_ids, lengths = held["token_ids"], held["lengths"]
        prompt_lens, is_sampled = held["prompt_lens"], held["is_sampled"]
    states = torch.from_numpy(np.load(states_path(path))).view(torch.bfloat16)
    ends, state_ends = lengths.cumsum(), (lengths - 1).cumsum()
    return [
        Answered(
            tuple(token_ids[ends[row] - lengths[row] : ends[row]].tolist()),
            int(prompt_lens[row]),
            bool(is_sampled[row]),
            states[state_ends[row] - (lengths[row] - 1) : state_ends[row]],
        )
        for row in range(len(lengths))
    ]


def read_answer_tokens(path: Path) -> list[list[int]]:
    """Token ids of each answer of a shard; the states are not needed."""
    with np.load(path) as held:
        token_ids, lengths, prompt_lens = held["token_ids"], held["lengths"], held["prompt_lens"]
    ends = lengths.cumsum()
    starts = ends - lengths + prompt_lens
    return [token_ids[start:end].tolist() for start, end in zip(starts, ends, strict=True)]
