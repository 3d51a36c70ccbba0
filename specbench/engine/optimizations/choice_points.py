"""The choice points of the engine: what stands at each of them has to offer. No torch here.

Variants of a toggle are implementations of one of these; see :mod:`specbench.engine.optimizations.base`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from specbench.engine.block_manager import Slots
    from specbench.engine.block_staging import BlockOffsetSource
    from specbench.engine.capture_params import RealParams
    from specbench.engine.forward_batch import ForwardBatch
    from specbench.engine.input_preparation import InputPreparation
    from specbench.engine.model_runner import ModelRunner
    from specbench.engine.optimizations.base import Switch
    from specbench.engine.sampling.metadata import SamplingRows
    from specbench.engine.sampling.params import SamplingParams
    from specbench.engine.sampling.step_sampling import StepSampling
    from specbench.engine.scheduler import Schedule
    from specbench.engine.state_indices import StateIndices

Step = TypeVar("Step")


class ChoicePoint(Protocol):
    """An implementation standing at a choice point. Variants share one engine: the same weights, cache and buffers."""

    def activate(self) -> None:
        """Take over, at every switch: forget what this variant believes about buffers another may have written."""
        ...

    def read_counters(self) -> dict[str, int]:
        """What this variant has done since the engine was built, by name; for results. Empty when it counts nothing."""
        ...


class SamplingParamsFill(ChoicePoint, Protocol):
    """The choice point ``sampling_params``: how the requests' sampling parameters reach the device."""

    def fill(
        self, params: Sequence[SamplingParams], row_counts: Sequence[int], slots: Sequence[int] | None = None
    ) -> SamplingRows:
        """Make the parameters of one step's rows available to it; runs on the host when the step is prepared.

        :param params: one entry a request, in row order, padding requests included.
        :param row_counts: logits rows of each request: 1 a sampling chunk, K + 1 a generation request.
        :param slots: the requests' slots, for variants whose tables are indexed by slot.
        """
        ...


class StateIndicesFill(ChoicePoint, Protocol):
    """The choice point ``state_indices``: how the device learns whose recurrent state each request of a step uses."""

    def fill(self, slots: Sequence[int], is_padding: Sequence[bool]) -> StateIndices:
        """Make the indices of one step available to it; runs on the host when the step is prepared.

        :param slots: one a request in row order, context requests first; the indices come back in this order.
        :param is_padding: of this batch, one a request: a padding request writes no state but padding's own.
        :raises ValueError: the lists differ in length; a single slot is not taken for all requests.
        """
        ...


class BlockStaging(ChoicePoint, Protocol):
    """The choice point ``block_staging``: how block offsets get into memory that the device copies from.

    :param sources: the owners of the blocks, one a pool, with blocks of one size.
    :param max_kv_len: the most tokens that a request of the batch attends to, as the host counts them.
    """

    def num_columns(self, sources: Sequence[BlockOffsetSource], max_kv_len: int) -> int:
        """Columns that :meth:`stage` would stage."""
        ...

    def stage(
        self, sources: Sequence[BlockOffsetSource], slots: Slots, max_kv_len: int, first_column: int = 0
    ) -> Tensor:
        """Return int32 [pools, len(slots), 2 (keys, values), columns] in staging memory that is this step's own.

        The last of them is the last of :meth:`num_columns`.

        :param first_column: what lies left of it is on the device already, and may be left out.
        """
        ...


class StepOrder(ChoicePoint, Protocol):
    """The choice point ``overlap``: which step the host reads once it has launched one."""

    def choose(self, in_flight: Step | None, launched: Step | None) -> tuple[Step | None, Step | None]:
        """Return the step whose tokens the host waits for now, and the one that stays in flight.

        :param in_flight: launched by an earlier call, not read yet; None: there is none.
        :param launched: launched just now; None: nothing was left to launch.
        """
        ...


class InputPrep(ChoicePoint, Protocol):
    """The choice point ``input_prep``: how much of a step's inputs is built anew."""

    def prepare(self, step: int, schedule: Schedule, preparation: InputPreparation) -> ForwardBatch:
        """Return the batch of step number ``step``; runs on the host.

        :param preparation: builds a batch, or the parts of one.
        """
        ...


class StepPrograms(ChoicePoint, Protocol):
    """The choice point ``graphs``: which program a step runs on the device, and the shapes that this allows."""

    def connect(
        self,
        runner: ModelRunner,
        preparation: InputPreparation,
        live: StepSampling,
        capture_params: Switch[RealParams],
    ) -> None:
        """Take over the parts of the engine that programs are made with; once, when the engine is built.

        :param live: fills in the sampling parameters of steps that run no captured program.
        """
        ...

    def settle(self) -> None:
        """Be ready for the variants that stand now; after every switch, and once the engine is built. Between steps."""
        ...

    def fit(self, schedule: Schedule) -> Schedule:
        """Return ``schedule``, with padding requests at its end where there is a program for the larger batch alone."""
        ...

    def sampling_for(self, schedule: Schedule, is_greedy: bool) -> StepSampling:
        """Return the metadata that the step's sampling parameters are filled in through.

        :param is_greedy: no request of the step asks for sampling.
        """
        ...

    def program_for(self, batch: ForwardBatch, output: Tensor) -> Callable[[], Any]:
        """Return what the device runs; ``output`` is staging memory for its requests without padding."""
        ...

    def describe(self) -> dict[str, Any]:
        """What is captured, for results; empty when nothing is."""
        ...
