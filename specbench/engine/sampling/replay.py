"""Accepted lengths recorded in another run, as boundaries in the sequence. No torch here.

A recorded run committed its tokens in steps, and the ends of these steps cut the sequence: these are its *boundaries*.
Under replay a step commits up to the next boundary after its first new token, as far as its own K + 1 rows reach. The
recording is looked up by position and not by step, so it holds for every K, after a preemption, and with a step in
flight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specbench.engine.config import EngineConfig
from specbench.engine.sampling.params import SamplingParams
from specbench.errors import InputError


def tokens_to_boundary(lengths: Sequence[int], num_positions: int) -> NDArray[np.int64]:
    """By position, how many tokens it takes to reach the next boundary; 1 beyond the last one.

    :param lengths: tokens committed by each recorded step, from position 0 on.
    :return: [num_positions].
    """
    steps = np.asarray(lengths, dtype=np.int64)
    boundaries = np.repeat(steps.cumsum(), steps)[:num_positions]
    distances = np.ones(num_positions, dtype=np.int64)
    distances[: len(boundaries)] = boundaries - np.arange(len(boundaries))
    return distances


def check_replay(params: SamplingParams, num_prompt_tokens: int, config: EngineConfig, where: str) -> None:
    """Refuse a request whose recorded lengths are missing, have no use or do not fit.

    :raises InputError: says which of them.
    """
    mode, lengths = config.acceptance.mode, params.replay_lengths
    if mode != "replay":
        if lengths is not None:
            raise InputError(
                f"recorded lengths are given, but acceptance is {mode}",
                where=where,
                hint="set acceptance.mode to replay, or leave replay_lengths out",
            )
        return
    if lengths is None:
        raise InputError(
            "acceptance is replay, but the request has no recorded lengths (replay_lengths)",
            where=where,
            hint="give it the accepted lengths that a run with the same requests recorded",
        )
    # The context step's own token stands before the first recorded step.
    end = num_prompt_tokens + min(1 + sum(lengths), params.max_tokens)
    if end > config.max_seq_len:
        raise InputError(
            f"its recording ends at token {end} of the sequence, and max_seq_len is {config.max_seq_len}",
            where=where,
            hint=f"set engine.max_seq_len to {end} or more",
        )
