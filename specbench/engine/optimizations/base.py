"""What a toggle declares, and how its chosen variant is built. No torch here: scenarios are checked without it.

A toggle names one choice point of the engine and the implementations that may stand there. The declaration is at the
top of the toggle's own file; the variants' code is imported when a variant is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from specbench import registry
from specbench.errors import UnknownNameError

if TYPE_CHECKING:
    from torch import Tensor

    from specbench.device.base import Device
    from specbench.engine.block_manager import Slots
    from specbench.engine.block_staging import BlockOffsetSource
    from specbench.engine.capture_params import RealParams
    from specbench.engine.config import EngineConfig
    from specbench.engine.forward_batch import ForwardBatch
    from specbench.engine.input_preparation import InputPreparation
    from specbench.engine.model_runner import ModelRunner
    from specbench.engine.sampling.metadata import SamplingRows
    from specbench.engine.sampling.params import SamplingParams
    from specbench.engine.sampling.step_sampling import StepSampling
    from specbench.engine.scheduler import Schedule
    from specbench.engine.state_indices import StateIndices

Step = TypeVar("Step")


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


@dataclass(frozen=True)
class Variant:
    """One implementation of a toggle. A known defect is chosen by its name alone: no role of a toggle falls to it.

    :param summary: one line for ``specbench list``.
    :param builder: ``"module:attr"``; called with (EngineConfig, Device), and with what :attr:`Toggle.shared` built
        where there is such a thing; returns the :class:`ChoicePoint`.
    :param exactness: where it differs from the toggle's.
    :param requires: ``toggle=variant`` settings without which this variant means nothing.
    """

    summary: str
    builder: str
    exactness: Exactness | None = None
    requires: tuple[str, ...] = ()

    def missing_from(self, settings: Mapping[str, str]) -> list[str]:
        """What it requires and ``settings`` (toggle -> variant) do not have."""
        present = {f"{name}={variant}" for name, variant in settings.items()}
        return [needed for needed in self.requires if needed not in present]


@dataclass(frozen=True)
class Toggle:
    """The declaration of a toggle.

    :param choice_point: where in the engine its variants stand.
    :param baseline: the variant ``off`` takes; ``recommended``: the one ``on`` takes.
    :param production: device -> the variant that stands where a scenario is silent; the recommended one on devices
        that are not named.
    :param in_default_study: switched by ``off`` and ``on`` where a scenario has no ``study``.
    :param source: where the idea comes from.
    :param exactness: of every variant that declares none itself; ``exactness_reason``: why, for messages.
    :param step_preserving: every variant, known defects aside, keeps the schedule, commits and tokens of each step.
    :param shared: ``"module:attr"`` of what all variants stand around, such as the device buffers that each of them
        fills; called with (EngineConfig, Device), once an engine. None: they have nothing in common.
    :param requires: ``toggle=variant`` settings this toggle needs; ``conflicts``: those it cannot stand beside.
    :param needs_recurrent_state: only models with recurrent state have the choice point.
    :raises ValueError: a variant in a role is none, or is a known defect (a mistake in the declaration).
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
    exactness_reason: str = ""
    production: Mapping[str, str] = field(default_factory=dict)
    in_default_study: bool = True
    shared: str | None = None
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    needs_recurrent_state: bool = False

    def __post_init__(self) -> None:
        for role in (self.baseline, self.recommended, *self.production.values()):
            if role not in self.variants:
                raise ValueError(f"toggle {self.name!r} names {role!r}, which is none of its variants")
            if self.exactness_of(role) is Exactness.KNOWN_DEFECT:
                raise ValueError(f"toggle {self.name!r} gives a role to {role!r}, a known defect: by name alone")

    def require(self, variant: str) -> Variant:
        """Return the variant, or raise :class:`UnknownNameError` that names the nearest one."""
        if variant not in self.variants:
            kind = f"variant of {self.name}"
            raise UnknownNameError.of(kind, variant, self.variants, where=f"optimizations.{self.name}")
        return self.variants[variant]

    def exactness_of(self, variant: str) -> Exactness:
        """What ``variant`` does to the output."""
        return self.require(variant).exactness or self.exactness

    def preserves_steps(self, *variants: str | None) -> bool:
        """Whether each step has the same schedule, commits and tokens under all of ``variants``.

        :param variants: None is the variant of a commit that lacks the toggle.
        """
        known = [variant for variant in variants if variant is not None]
        return self.step_preserving and Exactness.KNOWN_DEFECT not in map(self.exactness_of, known)

    def production_on(self, device: str) -> str:
        """The variant that stands on ``device`` (a resolved name, no ``auto``) where a scenario is silent."""
        return self.production.get(device, self.recommended)

    def is_idle(self, settings: Mapping[str, str]) -> bool:
        """Whether there is nothing to choose beside ``settings`` (toggle -> variant): the baseline cannot stand there.

        Its requirements are those of the toggle: without captured steps it does not matter how captures are made.
        """
        return bool(self.variants[self.baseline].missing_from(settings))

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

    :ivar variants: all, by name; ``variant``: the name of ``current``.
    """

    def __init__(self, toggle: Toggle, variants: Mapping[str, Choice], variant: str) -> None:
        self.toggle = toggle
        self.variants = variants
        self.switch(variant)

    def switch(self, variant: str) -> None:
        """Put ``variant`` at the choice point, or take it anew; either way it is activated. Between steps only.

        :raises UnknownNameError: the toggle has no such variant; nothing has changed.
        """
        self.toggle.require(variant)
        current = self.variants[variant]
        current.activate()
        self.variant, self.current = variant, current

    def read_counters(self) -> dict[str, dict[str, int]]:
        """The counters of each variant that keeps some."""
        found = {name: choice.read_counters() for name, choice in self.variants.items()}
        return {name: counters for name, counters in found.items() if counters}


def load_toggle(name: str) -> Toggle:
    """Return the declaration registered under ``name``.

    :raises UnknownNameError: no toggle has the name.
    """
    return cast(Toggle, registry.OPTIMIZATIONS.load(name, where=f"optimizations.{name}"))


def build_switch(name: str, config: EngineConfig, device: Device) -> Switch[Any]:
    """Build toggle ``name`` for an engine, at the variant ``config`` asks for.

    Where ``config`` is silent, that is the production variant of its device.

    :raises UnknownNameError: ``config`` names no variant of the toggle.
    """
    toggle = load_toggle(name)
    variant = dict(config.optimizations).get(name, toggle.production_on(config.device))
    toggle.require(variant)
    return Switch(toggle, toggle.build(config, device), variant)
