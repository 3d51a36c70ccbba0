"""Plain Python and numpy versions of what the sampler does, to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from specbench.engine.sampling.buffers import SamplingBuffers
from specbench.engine.sampling.metadata import SamplingRows
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.refill import RefillSamplingParams

CPU = torch.device("cpu")
Array = np.ndarray[tuple[int, ...], np.dtype[np.floating[Any]]]


def copy_at_once(destination: torch.Tensor, source: torch.Tensor) -> None:
    """What a device without a queue does."""
    destination.copy_(source)


class Copies:
    """Copies that run when told to, as a busy device would."""

    def __init__(self) -> None:
        self.pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        assert destination.shape == source.shape
        assert destination.dtype == source.dtype
        self.pending.append((destination, source))

    def run(self, count: int | None = None) -> None:
        for destination, source in self.pending[:count]:
            destination.copy_(source)
        del self.pending[:count]


class Queue:
    """A device that executes copies and programs in the order they came: at once, or when told to, as a busy one would.

    :ivar num_copies: copies so far; ``num_bytes`` what they carry; ``launched`` names of programs.
    """

    def __init__(self, *, is_late: bool = False) -> None:
        self.pending: list[Callable[[], object]] = []
        self.num_copies = 0
        self.num_bytes = 0
        self.launched: list[str] = []
        self._is_late = is_late

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        assert destination.shape == source.shape
        assert destination.dtype == source.dtype
        self.num_copies += 1
        self.num_bytes += source.numel() * source.element_size()
        self._put(lambda: destination.copy_(source))

    def launch(self, program: Callable[[], object], name: str) -> None:
        self.launched.append(name)
        self._put(program)

    def _put(self, item: Callable[[], object]) -> None:
        if self._is_late:
            self.pending.append(item)
        else:
            item()

    def run(self, count: int | None = None) -> None:
        for item in self.pending[:count]:
            item()
        del self.pending[:count]


def make_rows(params: Sequence[SamplingParams], row_counts: Sequence[int] | None = None) -> SamplingRows:
    """Rows as the engine makes them, the copies done at once."""
    counts = list(row_counts) if row_counts is not None else [1] * len(params)
    buffers = SamplingBuffers(len(params), max([*counts, 1]) - 1, CPU, copy_at_once)
    return RefillSamplingParams(buffers).fill(params, counts)


def kept_probabilities(logits: Array, params: SamplingParams) -> tuple[Array, float]:
    """Softmax after temperature, top-k (ties with the k-th kept) and top-p (lowest ids first among equals), float64.

    The second value is how near a cumulative probability comes to top_p: within rounding of it, either set is right.
    """
    margin = float("inf")
    scaled = (logits.astype(np.float64) - logits.max()) / (1.0 if params.temperature is None else params.temperature)
    probabilities: Array = np.exp(scaled)
    if params.top_k and params.top_k < len(logits):
        probabilities[logits < np.sort(logits)[-params.top_k]] = 0.0
    probabilities /= probabilities.sum()
    if params.top_p is not None and params.top_p < 1.0:
        order = np.argsort(-probabilities, kind="stable")
        before = np.cumsum(probabilities[order]) - probabilities[order]
        dropped = order[1:][before[1:] >= np.float32(params.top_p)]
        margin = float(np.abs(before[1:] - np.float32(params.top_p)).min(initial=np.inf))
        probabilities[dropped] = 0.0
        probabilities /= probabilities.sum()
    return probabilities, margin


def inverse_cdf(probabilities: Array, draw: float) -> tuple[int, float]:
    """The token of ``draw``, in vocabulary order, and the draw's distance to the nearest boundary."""
    edges = np.cumsum(probabilities)
    token = int(np.searchsorted(edges, draw, side="right"))
    return min(token, int(np.flatnonzero(probabilities)[-1])), float(np.abs(edges - draw).min())
