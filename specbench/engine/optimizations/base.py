"""What a toggle declares, and how its chosen variant is built. No torch here: scenarios are checked without it.

A toggle names one choice point of the engine and the implementations that may stand there. The declaration is at the
top of the toggle's own file; the variants' code is imported when a variant is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, cast

from specbench import registry
from specbench.errors import UnknownNameError

if TYPE_CHECKING:
    from specbench.device.base import Device
    from specbench.engine.config import EngineConfig
    from specbench.engine.sampling.metadata import SamplingRows
    from specbench.engine.sampling.params import SamplingParams


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


@dataclass(frozen=True)
class Variant:
    """One implementation of a toggle.

    :param summary: one line for ``specbench list``.
    :param builder: ``"module:attr"``; called with (EngineConfig, Device), returns the :class:`ChoicePoint`.
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
    :param requires: ``toggle=variant`` settings this toggle needs; ``conflicts``: those it cannot stand beside.
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
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

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

    def build(self, variant: str, config: EngineConfig, device: Device) -> ChoicePoint:
        """Import and build ``variant``."""
        module, _, attribute = self.require(variant).builder.partition(":")
        return cast(ChoicePoint, getattr(importlib.import_module(module), attribute)(config, device))


def load_toggle(name: str) -> Toggle:
    """Return the declaration registered under ``name``.

    :raises UnknownNameError: no toggle has the name.
    """
    return cast(Toggle, registry.OPTIMIZATIONS.load(name, where=f"optimizations.{name}"))


def build_choice(name: str, chosen: Mapping[str, str], config: EngineConfig, device: Device) -> Any:
    """Build the variant of toggle ``name`` that ``chosen`` asks for, the recommended one where it says nothing.

    :raises UnknownNameError: ``chosen`` names no variant of the toggle.
    """
    toggle = load_toggle(name)
    choice = toggle.build(chosen.get(name, toggle.recommended), config, device)
    choice.activate()
    return choice
