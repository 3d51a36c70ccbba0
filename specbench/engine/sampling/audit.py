"""Were requests served with the sampling parameters that they asked for? Looked at in every step.

The device program says of each row what it was drawn with, read where it draws: a step that takes the argmax says
nothing (zeros), whatever the buffers hold. The host holds that against the requests' own parameters, which it reads
from them and not from what was filled in. Neither an override that lives on in a copy nor a recorded step that lost
its draws can hide from that.

Cost: on the device a few small operations in steps that draw, none in others; on the host one comparison of arrays.

Shapes: R requests of a step, padding left out; W rows of a generation request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specbench.engine.forward_batch import ForwardBatch
from specbench.engine.sampling.metadata import NormalizedParams, RowClass, SamplingRows, classify, round_to_float32
from specbench.engine.sampling.step_params import StepParams
from specbench.records import SamplingAudit, SamplingValues

IntArray = npt.NDArray[np.int64]
GREEDY: NormalizedParams = (0.0, 0, 0.0)
"""How a row without a draw is written down, asked for or served."""


def pack_pairs(rows: SamplingRows) -> Tensor:
    """Temperature and top_p of each row as one word, [N] int64. A device operation."""
    return torch.stack((rows.temperature, rows.top_p), dim=1).view(torch.int64).squeeze(1)


def write_parameters(output: Any, batch: ForwardBatch, top_k: Any, pairs: Any) -> None:
    """Write down what each row of a step was drawn with; tensors on the device, or arrays of them.

    :param output: int64 [requests, :attr:`OutputColumns.count`].
    :param top_k: int64 [N], of the logits rows; ``pairs``: their temperature and top_p as :func:`pack_pairs` has them.
    """
    columns, chunks = batch.columns, batch.sampling_chunks
    first, shape = len(chunks), (-1, batch.rows_per_generation)
    if chunks:
        output[chunks, columns.top_k.start] = top_k[:first]
        output[chunks, columns.pairs.start] = pairs[:first]
    if batch.num_generation:
        generation = output[len(batch.context) :]
        generation[:, columns.top_k] = top_k[first:].reshape(shape)
        generation[:, columns.pairs] = pairs[first:].reshape(shape)


class Served(NamedTuple):
    """What was asked for, and what was served; :data:`GREEDY` where no token is drawn."""

    asked: NormalizedParams
    effective: NormalizedParams


class AuditLog:
    """Counts the rows of finished steps by what they asked for and got.

    A steady batch costs one comparison a step: its rows are counted when it changes, or when the log is read.
    """

    def __init__(self) -> None:
        self._variants: dict[str, str] = {}
        self._rows: Counter[Served] = Counter()
        self._found: list[SamplingAudit] = []
        self._batch: _Expected | None = None
        self._seen: IntArray = np.zeros((0, 0), dtype=np.int64)
        self._num_steps = 0

    def switch(self, variants: Mapping[str, str]) -> None:
        """From here on these variants of the engine's toggles serve."""
        self._close_variants()
        self._variants = dict(variants)

    def check(self, batch: ForwardBatch, effective: IntArray) -> None:
        """Take a step's rows into account.

        :param effective: [R, 2 W], columns :attr:`OutputColumns.effective` of the step's output; kept.
        """
        if self._batch is None or not self._batch.describes(batch, effective.shape[0]):
            self._close_steps()
            self._batch = _Expected.of(batch, effective.shape[0])
            self._seen = effective
        elif not np.array_equal(effective, self._seen):
            self._close_steps()
            self._seen = effective
        self._num_steps += 1

    def drain(self) -> list[SamplingAudit]:
        """What was counted since the last call."""
        self._close_variants()
        found, self._found = self._found, []
        return found

    def _close_steps(self) -> None:
        if self._batch is not None and self._num_steps:
            for served, count in Counter(self._batch.compare(self._seen)).items():
                self._rows[served] += count * self._num_steps
        self._num_steps = 0

    def _close_variants(self) -> None:
        self._close_steps()
        for served, count in self._rows.items():
            asked, effective = (SamplingValues(*values) for values in served)
            self._found.append(SamplingAudit(self._variants, asked, effective, count))
        self._rows.clear()


class _Expected(NamedTuple):
    """What a step was asked for.

    :ivar places: by request that selects tokens: its row in the output, its parameters, its logits rows.
    """

    asked: StepParams | None
    has_context: bool
    num_requests: int
    places: list[tuple[int, NormalizedParams, int]]

    def describes(self, batch: ForwardBatch, num_requests: int) -> bool:
        """Whether this is also what ``batch`` was asked for.

        Padding may ask for what a request asked for that ended: the number of requests tells the two apart.
        """
        is_steady = not (batch.context or self.has_context)
        return is_steady and batch.asked is self.asked and num_requests == self.num_requests

    @classmethod
    def of(cls, batch: ForwardBatch, num_requests: int) -> _Expected:
        """Of a step whose output has ``num_requests`` rows; padding, which is asked for last, has none."""
        if batch.asked is None:
            return cls(None, bool(batch.context), num_requests, [])
        rows = batch.sampling_chunks
        rows += range(len(batch.context), num_requests)
        asked = zip(batch.asked.values[: len(rows)], batch.asked.row_counts[: len(rows)], strict=True)
        places = [(row, values, count) for row, (values, count) in zip(rows, asked, strict=True)]
        return cls(batch.asked, bool(batch.context), num_requests, places)

    def compare(self, effective: IntArray) -> list[Served]:
        """By logits row, what was asked for and what ``effective`` [R, 2 W] says."""
        width = effective.shape[1] // 2
        pairs = np.ascontiguousarray(effective[:, width:]).view(np.float32).reshape(-1, width, 2)
        found = []
        for row, values, count in self.places:
            asked = _as_device_sees(values)
            for column in range(count):
                temperature, top_p = pairs[row, column].tolist()
                found.append(Served(asked, _name((temperature, int(effective[row, column]), top_p))))
        return found


@lru_cache(maxsize=1024)
def _as_device_sees(values: NormalizedParams) -> NormalizedParams:
    temperature, top_k, top_p = values
    return _name((round_to_float32(temperature), top_k, round_to_float32(top_p)))


def _name(values: NormalizedParams) -> NormalizedParams:
    """``values``, or :data:`GREEDY` for a row that takes the argmax, or that no token was drawn for."""
    return values if values[1] and classify(values) is not RowClass.GREEDY else GREEDY
