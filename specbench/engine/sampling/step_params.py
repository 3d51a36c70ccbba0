"""The sampling parameters of one step, normalised, as variants that remember earlier steps read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specbench.engine.sampling.metadata import NormalizedParams, RowFacts, normalize
from specbench.engine.sampling.params import SamplingParams


class StepParams(NamedTuple):
    """The sampling parameters of one step.

    :ivar values: normalised, by request in row order; ``row_counts``: logits rows of each.
    """

    values: tuple[NormalizedParams, ...]
    row_counts: tuple[int, ...]
    facts: RowFacts
    all_greedy: bool


class ParamsReader:
    """Normalises a step's parameters and remembers the last answer, because steps mostly repeat.

    It believes nothing about buffers. Lists are compared element by element, identical objects without looking into
    them: a step with the requests of the one before costs one pass over pointers, and gets the very same answer.
    """

    def __init__(self) -> None:
        self._params: list[SamplingParams] = []
        self._row_counts: list[int] = []
        self._last = StepParams((), (), RowFacts(), True)

    def read(self, params: Sequence[SamplingParams], row_counts: Sequence[int]) -> StepParams:
        """Return the step's parameters.

        :raises ValueError: the two differ in length.
        """
        if params == self._params and row_counts == self._row_counts:
            return self._last
        # The list keeps its objects alive, so no other object has one of their ids.
        known = {id(request): values for request, values in zip(self._params, self._last.values, strict=True)}
        values = tuple([known.get(id(request)) or normalize(request) for request in params])
        counts = tuple(row_counts)
        if values != self._last.values or counts != self._last.row_counts:
            facts = RowFacts.of(zip(values, counts, strict=True))
            self._last = StepParams(values, counts, facts, facts.num_sampled == 0)
        self._params, self._row_counts = list(params), list(row_counts)
        return self._last
