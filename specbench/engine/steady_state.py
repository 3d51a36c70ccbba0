"""A steady step's inputs made on the device from those of the step before.

In plain decoding most steps have the requests of the last one, each one token longer. The device then advances the
positions and lengths it has, and takes the tokens from its own samples. The host refreshes what differs from step to
step: the bounds it knows, block offsets when a block was added, and the sampling parameters, which have a choice point
of their own. Nothing is copied that the host counts on in place: a copy would read the count when it executes, which
may be after the next step was prepared.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specbench.device.base import Device
from specbench.engine.config import EngineConfig
from specbench.engine.forward_batch import ForwardBatch, InputSource
from specbench.engine.input_preparation import FullPass, InputPreparation
from specbench.engine.request import Request
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.scheduler import Schedule

REASONS = ("context", "speculation", "padding", "warm_up", "batch_changed", "switched")
"""Why the inputs of the last step are no start for this one: prompts in it, a drafter, padding requests, a step that
serves nobody, other requests or another order, another variant in between."""


@dataclass
class _LastStep:
    """What the device's buffers hold, as far as the host has to know.

    :ivar params: of the requests, which keep theirs as long as they live.
    :ivar num_columns: of block offsets that are on the device as they are at ``block_versions``.
    """

    requests: list[Request]
    params: list[SamplingParams]
    slots: list[int]
    slots_array: npt.NDArray[np.intp]
    row_counts: list[int]
    batch: ForwardBatch
    max_kv_len: int
    max_num_tokens: int
    block_versions: list[int]
    num_columns: int


class SteadyStateInputs:
    """Variant ``steady_state`` of the choice point ``input_prep``.

    A step is recorded when it was a full pass over generation requests alone, one row each, whose places the host
    counts. The next step goes on from there if it has the same requests in the same order; so do those after it. Any
    other step is a full pass and drops the record.

    :param speculates: a drafter is attached: nothing is ever recorded.
    """

    def __init__(self, *, speculates: bool) -> None:
        self._speculates = speculates
        self._last: _LastStep | None = None
        self._hits = 0
        self._full_passes = 0
        self._invalidations: Counter[str] = Counter()

    def activate(self) -> None:
        """Forget the last step: another variant may have run others since."""
        self._drop("switched")

    def read_counters(self) -> dict[str, int]:
        """Steps that went on from the last one (hits), full passes, and records dropped, by reason."""
        dropped = {f"invalidated_by_{reason}": self._invalidations[reason] for reason in REASONS}
        return {"hits": self._hits, "full_passes": self._full_passes, **dropped}

    def prepare(self, step: int, schedule: Schedule, preparation: InputPreparation) -> ForwardBatch:
        """See :class:`~specbench.engine.optimizations.choice_points.InputPrep`."""
        obstacle = self._obstacle(schedule)
        last = self._last
        if last is not None and obstacle is None:
            if self._is_same_batch(last, schedule):
                self._hits += 1
                return self._advance(last, step, preparation)
            self._drop("batch_changed")
        elif obstacle is not None:
            self._drop(obstacle)
        self._full_passes += 1
        built = preparation.build(step, schedule)
        if obstacle is None:
            self._record(built, schedule, preparation)
        return built.batch

    def _obstacle(self, schedule: Schedule) -> str | None:
        """Why this step may neither go on from another nor be gone on from; None: nothing is in the way."""
        if self._speculates:
            return "speculation"
        if schedule.context:
            return "context"
        if schedule.is_warm_up:
            return "warm_up"
        if schedule.num_padding:
            return "padding"
        return None

    @staticmethod
    def _is_same_batch(last: _LastStep, schedule: Schedule) -> bool:
        """The same request objects in the same order. Whoever lost its slot in between came back through a prompt."""
        return last.requests == schedule.generation

    def _drop(self, reason: str) -> None:
        if self._last is not None:
            self._invalidations[reason] += 1
            self._last = None

    def _record(self, built: FullPass, schedule: Schedule, preparation: InputPreparation) -> None:
        offsets = built.batch.block_offsets
        max_num_tokens = built.batch.max_num_tokens
        assert offsets is not None, "a full pass sends every block offset"
        assert max_num_tokens is not None, "a full pass knows how long sequences are"
        self._last = _LastStep(
            requests=list(schedule.generation),
            params=[request.params for request in schedule.generation],
            slots=built.slots,
            slots_array=np.array(built.slots, dtype=np.intp),
            row_counts=built.row_counts,
            batch=built.batch,
            max_kv_len=built.max_kv_len,
            max_num_tokens=max_num_tokens,
            block_versions=preparation.block_versions,
            num_columns=offsets.shape[-1],
        )

    @staticmethod
    def _advance(last: _LastStep, step: int, preparation: InputPreparation) -> ForwardBatch:
        """The batch of a step that is one token further; moves ``last`` there."""
        asked, sampling = preparation.fill_sampling_params(last.params, last.row_counts, last.slots)
        last.max_kv_len += 1
        last.max_num_tokens += 1
        offsets, first_column = SteadyStateInputs._stage_new_blocks(last, preparation)
        last.batch = replace(
            last.batch,
            step=step,
            block_offsets=offsets,
            first_block_column=first_column,
            sampling=sampling,
            asked=asked,
            max_num_tokens=last.max_num_tokens,
            source=InputSource.LAST_STEP,
            places=None,
        )
        return last.batch

    @staticmethod
    def _stage_new_blocks(last: _LastStep, preparation: InputPreparation) -> tuple[Tensor | None, int]:
        """The block offsets that the device lacks, None where it has them all, and the column they begin at."""
        versions, num_columns = preparation.block_versions, preparation.num_block_columns(last.max_kv_len)
        # A block may have been given before the first token in it was counted: then the width is what changes.
        first_column = min(preparation.first_changed_column(last.block_versions), last.num_columns)
        last.block_versions = versions
        # A block given ahead may lie right of what this step reads: then less is known to be on the device.
        last.num_columns = max(first_column, num_columns)
        if first_column >= num_columns:
            return None, 0
        offsets = preparation.stage_blocks(last.slots_array, last.max_kv_len, first_column)
        # Not every variant leaves columns out; the last one is the same for all.
        return offsets, num_columns - offsets.shape[-1]


def build_steady_state(config: EngineConfig, device: Device) -> SteadyStateInputs:  # noqa: ARG001
    """Build the variant for an engine."""
    return SteadyStateInputs(speculates=config.drafter.speculates)
