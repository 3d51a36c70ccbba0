"""What the sampler is told about a step: parameters by row on the device, facts about them on the host.

Row classes. A row is *greedy* (argmax), *plain* (temperature alone), *top-k*, *top-p* or *both*. The host knows how
many rows of each class a step has, the device knows which rows they are; both decide from the same float32 values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from struct import Struct

import torch
from torch import Tensor

from specbench.engine.sampling.params import GREEDY_TEMPERATURE, TOP_K_OFF, TOP_P_OFF, SamplingParams

NormalizedParams = tuple[float, int, float]
"""(temperature, top_k, top_p) as :func:`normalize` gives them."""

_FLOAT32 = Struct("f")


def round_to_float32(value: float) -> float:
    """Return ``value`` as the device will see it."""
    (rounded,) = _FLOAT32.unpack(_FLOAT32.pack(value))
    return float(rounded)


_GREEDY_TEMPERATURE = round_to_float32(GREEDY_TEMPERATURE)


def takes_argmax(temperature: Tensor) -> Tensor:
    """Which rows with these temperatures are greedy, bool. A device operation, for the device program alone."""
    return temperature <= _GREEDY_TEMPERATURE


_LARGEST_TEMPERATURE = float(torch.finfo(torch.float32).max)


def normalize(params: SamplingParams) -> NormalizedParams:
    """Return ``params.normalized()`` within what the device's float32 and int64 hold."""
    temperature, top_k, top_p = params.normalized()
    return min(temperature, _LARGEST_TEMPERATURE), min(top_k, TOP_K_OFF), top_p


class RowClass(IntEnum):
    """How a row's token is chosen; the order in which the sampler groups rows."""

    GREEDY = 0
    PLAIN = 1
    TOP_K = 2
    TOP_P = 3
    BOTH = 4


@lru_cache(maxsize=1024)
def classify(params: NormalizedParams) -> RowClass:
    """Return the class of one row, as :attr:`SamplingRows.classes` has it on the device; cached, as steps ask often."""
    temperature, top_k, top_p = params
    if round_to_float32(temperature) <= _GREEDY_TEMPERATURE:
        return RowClass.GREEDY
    has_top_k, has_top_p = top_k < TOP_K_OFF, round_to_float32(top_p) < TOP_P_OFF
    return RowClass(1 + has_top_k + 2 * has_top_p)


@dataclass(frozen=True)
class RowFacts:
    """What the host knows about the rows of a step; the sampler's branches follow from it alone.

    A wider description than the truth gives the same tokens, slower: one group of all rows as
    ``RowFacts(num_both=N, any_greedy=True, top_k_max=vocabulary)`` is right for every mixture of N rows.

    :param num_plain: rows with a temperature alone; ``num_top_k``, ``num_top_p``, ``num_both`` likewise.
    :param any_greedy: at least one row takes the argmax.
    :param top_k_max: largest top_k in force in any row, rows without one left out; 0 when there is none.
    :param is_wide: see :meth:`of_any`.
    """

    num_greedy: int = 0
    num_plain: int = 0
    num_top_k: int = 0
    num_top_p: int = 0
    num_both: int = 0
    any_greedy: bool = False
    top_k_max: int = 0
    is_wide: bool = False

    @classmethod
    def of_any(cls, num_rows: int) -> RowFacts:
        """The description that fits every mixture of ``num_rows`` rows, for steps that are recorded once for all."""
        return cls(num_both=num_rows, any_greedy=True, top_k_max=TOP_K_OFF, is_wide=True)

    @classmethod
    def of(cls, params: Iterable[tuple[NormalizedParams, int]]) -> RowFacts:
        """Count rows from (normalised parameters, rows with them) pairs."""
        counts = [0] * len(RowClass)
        top_k_max = 0
        for values, num_rows in params:
            row_class = classify(values)
            counts[row_class] += num_rows
            if num_rows and row_class in (RowClass.TOP_K, RowClass.BOTH):
                top_k_max = max(top_k_max, values[1])
        return cls(
            num_greedy=counts[RowClass.GREEDY],
            num_plain=counts[RowClass.PLAIN],
            num_top_k=counts[RowClass.TOP_K],
            num_top_p=counts[RowClass.TOP_P],
            num_both=counts[RowClass.BOTH],
            any_greedy=counts[RowClass.GREEDY] > 0,
            top_k_max=top_k_max,
        )

    def of_some(self, num_rows: int) -> RowFacts:
        """A description that fits any ``num_rows`` of these rows, as narrow as one class can be for all of them."""
        has_top_k, has_top_p = self.num_top_k + self.num_both > 0, self.num_top_p + self.num_both > 0
        is_mixed = self.num_greedy + self.num_plain + self.num_top_p > 0
        return RowFacts(
            num_plain=num_rows * (not has_top_k and not has_top_p),
            num_top_k=num_rows * (has_top_k and not has_top_p),
            num_top_p=num_rows * (has_top_p and not has_top_k),
            num_both=num_rows * (has_top_k and has_top_p),
            any_greedy=self.any_greedy,
            # Rows without a top_k keep the whole vocabulary.
            top_k_max=TOP_K_OFF if has_top_k and is_mixed else self.top_k_max,
            is_wide=self.is_wide,
        )

    @property
    def num_sampled(self) -> int:
        """Rows that draw a random number."""
        return self.num_plain + self.num_top_k + self.num_top_p + self.num_both

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return self.num_greedy + self.num_sampled

    @property
    def groups(self) -> tuple[tuple[RowClass, int], ...]:
        """The sampled classes that have rows, in the order of :class:`RowClass`, each with its number of rows."""
        counts = (self.num_plain, self.num_top_k, self.num_top_p, self.num_both)
        return tuple((RowClass(index + 1), count) for index, count in enumerate(counts) if count)


@dataclass(frozen=True)
class SamplingRows:
    """Sampling parameters of the N logits rows of a step: 1 a sampling chunk, K + 1 a generation request.

    In an all-greedy step nothing was written to the buffers that the tensors are views of; nobody reads them.

    :param temperature: [N] float32; greedy rows hold ``GREEDY_TEMPERATURE``.
    :param top_k: [N] int64; ``TOP_K_OFF`` where there is none, 0 never.
    :param top_p: [N] float32; 1.0 where there is none.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    facts: RowFacts

    @property
    def all_greedy(self) -> bool:
        """No row draws a random number."""
        return self.facts.num_sampled == 0

    @property
    def any_greedy(self) -> bool:
        """At least one row takes the argmax."""
        return self.facts.any_greedy

    @property
    def any_top_k(self) -> bool:
        """At least one row keeps its k likeliest tokens."""
        return self.facts.num_top_k + self.facts.num_both > 0

    @property
    def any_top_p(self) -> bool:
        """At least one row keeps a nucleus."""
        return self.facts.num_top_p + self.facts.num_both > 0

    @property
    def top_k_max(self) -> int:
        """Largest top_k in force in any row; 0 when there is none."""
        return self.facts.top_k_max

    def narrowed(self) -> SamplingRows:
        """The same rows with the facts that hold, read from the parameters; waits for the device."""
        classes = self.classes
        counts = torch.bincount(classes, minlength=len(RowClass)).tolist()
        has_top_k = (classes == RowClass.TOP_K) | (classes == RowClass.BOTH)
        top_k_max = int((self.top_k * has_top_k).amax()) if has_top_k.numel() else 0
        greedy, plain, top_k, top_p, both = counts
        return replace(self, facts=RowFacts(greedy, plain, top_k, top_p, both, greedy > 0, top_k_max))

    @property
    def is_greedy(self) -> Tensor:
        """[N] bool: rows that take the argmax. A device operation, for the device program alone."""
        if self.all_greedy:
            return torch.ones_like(self.temperature, dtype=torch.bool)
        return takes_argmax(self.temperature)

    @property
    def classes(self) -> Tensor:
        """[N] int64: each row's :class:`RowClass`. A device operation, for the device program alone."""
        sampled = 1 + (self.top_k < TOP_K_OFF).to(torch.int64) + 2 * (self.top_p < TOP_P_OFF).to(torch.int64)
        return sampled.masked_fill_(self.is_greedy, RowClass.GREEDY)
