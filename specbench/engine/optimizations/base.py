"""What a toggle declares, and how its chosen variant is built. No torch here: scenarios are checked without it.

A toggle names one choice point of the engine and the implementations that may stand there. The declaration is at the
top of the toggle's own file; the variants' code is imported when a variant is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from specbench import registry
from specbench.errors import UnknownNameError

if TYPE_CHECKING:
    from torch import Tensor

    from specbench.device.base import Device
    from specbench.engine.block_staging import BlockOffsetSource
    from specbench.engine.config import EngineConfig
    from specbench.engine.forward_batch import ForwardBatch
    from specbench.engine.input_preparation import InputPreparation
    from specbench.engine.sampling.metadata import SamplingRows
    from specbench.engine.sampling.params import SamplingParams
    from specbench.engine.scheduler import Schedule
    from specbench.engine.state_indices import StateIndices


class Exactness(str, Enum):
    """What a variant does to the output, next to the baseline variant."""

    BIT_IDENTICAL = "bit-identical"
    NUMERICALLY_EQUIVALENT = "numerically-equivalent"
    """Shapes change, and so do the last bits."""
    DISTRIBUTION_PRESERVING = "distribution-preserving"
    CHANGES_OUTPUT = "changes-output"
    KNOWN_DEFECT = "known-defect"


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

    def stage(self, sources: Sequence[BlockOffsetSource], slots: list[int], max_kv_len: int) -> Tensor:
        """Return int32 [pools, len(slots), 2 (keys, values), columns] in staging memory that is this step's own."""
        ...


class InputPrep(ChoicePoint, Protocol):
    """The choice point ``input_prep``: how much of a step's inputs is built anew."""

    def prepare(self, step: int, schedule: Schedule, preparation: InputPreparation) -> ForwardBatch:
        """Return the batch of step number ``step``; runs on the host.

        :param preparation: builds a batch, or the parts of one.
        """
        ...


@dataclass(frozen=True)
class Variant:
    """One implementation of a toggle.

    :param summary: one line for ``specbench list``.
    :param builder: ``"module:attr"``; called with (EngineConfig, Device), and with what :attr:`Toggle.shared` built
        where there is such a thing; returns the :class:`ChoicePoint`.
    :param exactness: where it differs from the toggle's.
    """

    summary: str
    builder: str
    exactness: Exactness | None = None


@dataclass(frozen=True)
class Toggle:
    """The declaration of a toggle.

    :param choice_point: where in the engine its variants stand.
    :param baseline: the variant ``off`` takes; ``recommended``: the one ``on`` takes, and production.
    :param source: where the idea comes from.
    :param step_preserving: every variant keeps the schedule, the commits and the tokens of each step.
    :param shared: ``"module:attr"`` of what all variants stand around, such as the device buffers that each of them
        fills; called with (EngineConfig, Device), once an engine. None: they have nothing in common.
    :param requires: ``toggle=variant`` settings this toggle needs; ``conflicts``: those it cannot stand beside.
    :param needs_recurrent_state: only models with recurrent state have the choice point.
    :raises ValueError: ``baseline`` or ``recommended`` is no variant (a mistake in the declaration).
    """

    name: str
    summary: str
    choice_point: str
    variants: Mapping[str, Variant]
    baseline: str
    recommended: str
    source: str
    exactness: Exactness
    step_preserving: bool
    shared: str | None = None
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    needs_recurrent_state: bool = False

    def __post_init__(self) -> None:
        for role in (self.baseline, self.recommended):
            if role not in self.variants:
                raise ValueError(f"toggle {self.name!r} names {role!r}, which is none of its variants")

    def require(self, variant: str) -> Variant:
        """Return the variant, or raise :class:`UnknownNameError` that names the nearest one."""
        if variant not in self.variants:
            kind = f"variant of {self.name}"
            raise UnknownNameError.of(kind, variant, self.variants, where=f"optimizations.{self.name}")
        return self.variants[variant]

    def exactness_of(self, variant: str) -> Exactness:
        """What ``variant`` does to the output."""
        return self.require(variant).exactness or self.exactness

    def build(self, config: EngineConfig, device: Device) -> dict[str, ChoicePoint]:
        """Import and build every variant, around what they share."""
        arguments: tuple[Any, ...] = (config, device)
        if self.shared is not None:
            arguments += (_import(self.shared)(config, device),)
        return {name: cast(ChoicePoint, _import(each.builder)(*arguments)) for name, each in self.variants.items()}


def _import(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


Choice = TypeVar("Choice", bound=ChoicePoint)


class Switch(Generic[Choice]):
    """One toggle in one engine: its variants, all built beforehand, and the one that stands at the choice point.

    The step calls ``current`` and asks nothing; switching replaces it.

    :ivar variant: the name of ``current``.
    """

    def __init__(self, toggle: Toggle, variants: Mapping[str, Choice], variant: str) -> None:
        self.toggle = toggle
        self._variants = variants
        self.switch(variant)

    def switch(self, variant: str) -> None:
        """Put ``variant`` at the choice point, or take it anew; either way it is activated. Between steps only.

        :raises UnknownNameError: the toggle has no such variant; nothing has changed.
        """
        self.toggle.require(variant)
        current = self._variants[variant]
        current.activate()
        self.variant, self.current = variant, current

    def read_counters(self) -> dict[str, dict[str, int]]:
        """The counters of each variant that keeps some."""
        found = {name: choice.read_counters() for name, choice in self._variants.items()}
        return {name: counters for name, counters in found.items() if counters}


def load_toggle(name: str) -> Toggle:
    """Return the declaration registered under ``name``.

    :raises UnknownNameError: no toggle has the name.
    """
    return cast(Toggle, registry.OPTIMIZATIONS.load(name, where=f"optimizations.{name}"))


def build_switch(name: str, config: EngineConfig, device: Device) -> Switch[Any]:
    """Build toggle ``name`` for an engine, at the variant ``config`` asks for, the recommended one where it is silent.

    :raises UnknownNameError: ``config`` names no variant of the toggle.
    """
    toggle = load_toggle(name)
    variant = dict(config.optimizations).get(name, toggle.recommended)
    toggle.require(variant)
    return Switch(toggle, toggle.build(config, device), variant)
