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

from specbench.device.base import Device
from specbench.engine.config import EngineConfig
from specbench.engine.forward_batch import ForwardBatch, InputSource
from specbench.engine.input_preparation import FullPass, InputPreparation
from specbench.engine.request import Request
from specbench.engine.scheduler import Schedule

REASONS = ("context", "speculation", "padding", "warm_up", "batch_changed", "switched")
"""Why the inputs of the last step are no start for this one: prompts in it, a drafter, padding requests, a step that
serves nobody, other requests or another order, another variant in between."""


@dataclass
class _LastStep:
    """What the device's buffers hold, as far as the host has to know.

    :ivar num_columns: of the block offsets that were sent last; ``blocks_version``: what they were taken from.
    """

    requests: list[Request]
    slots: list[int]
    row_counts: list[int]
    batch: ForwardBatch
    max_kv_len: int
    blocks_version: int
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
        """See :class:`specbench.engine.optimizations.base.InputPrep`."""
        obstacle = self._obstacle(schedule)
        last = self._last
        if last is not None and obstacle is None:
            if self._is_same_batch(last, schedule):
                self._hits += 1
                return self._advance(last, step, schedule, preparation)
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
        if schedule.num_padding:
            return "padding"
        if schedule.is_warm_up:
            return "warm_up"
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
        assert offsets is not None, "a full pass sends every block offset"
        self._last = _LastStep(
            requests=list(schedule.generation),
            slots=built.slots,
            row_counts=built.row_counts,
            batch=built.batch,
            max_kv_len=built.max_kv_len,
            blocks_version=preparation.blocks_version,
            num_columns=offsets.shape[-1],
        )

    @staticmethod
    def _advance(last: _LastStep, step: int, schedule: Schedule, preparation: InputPreparation) -> ForwardBatch:
        """The batch of a step that is one token further; moves ``last`` there."""
        sampling = preparation.fill_sampling_params(
            [request.params for request in schedule.generation], last.row_counts, last.slots
        )
        last.max_kv_len += 1
        offsets = None
        version, num_columns = preparation.blocks_version, preparation.num_block_columns(last.max_kv_len)
        # A block may have been given before the first token in it was counted: then the width is what changes.
        if version != last.blocks_version or num_columns > last.num_columns:
            offsets = preparation.stage_blocks(last.slots, last.max_kv_len)
            last.blocks_version, last.num_columns = version, num_columns
        last.batch = replace(
            last.batch,
            step=step,
            block_offsets=offsets,
            sampling=sampling,
            max_num_tokens=last.batch.max_num_tokens + 1,
            source=InputSource.LAST_STEP,
            places=None,
        )
        return last.batch


def build_steady_state(config: EngineConfig, device: Device) -> SteadyStateInputs:  # noqa: ARG001
    """Build the variant for an engine."""
    return SteadyStateInputs(speculates=config.drafter.speculates)
