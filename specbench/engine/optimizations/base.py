"""What a toggle declares, and how its chosen variant is built. No torch here: scenarios are checked without it.

A toggle names one choice point of the engine and the implementations that may stand there. The declaration is at the
top of the toggle's own file; the variants' code is imported when a variant is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from specbench import registry
from specbench.engine.optimizations.choice_points import ChoicePoint
from specbench.errors import UnknownNameError

if TYPE_CHECKING:
    from specbench.device.base import Device
    from specbench.engine.config import EngineConfig


class Exactness(str, Enum):
    """What a variant does to the output, next to the baseline variant."""

    BIT_IDENTICAL = "bit-identical"
    NUMERICALLY_EQUIVALENT = "numerically-equivalent"
    """Shapes change, and so do the last bits."""
    DISTRIBUTION_PRESERVING = "distribution-preserving"
    CHANGES_OUTPUT = "changes-output"
    KNOWN_DEFECT = "known-defect"


@dataclass(frozen=True)
class Variant:
    """One implementation of a toggle. A known defect is chosen by its name alone: no role of a toggle falls to it.

    :param summary: one line for ``specbench list``.
    :param builder: ``"module:attr"``; called with (EngineConfig, Device), and with what :attr:`Toggle.shared` built
        where there is such a thing; returns the :class:`ChoicePoint`.
    :param exactness: where it differs from the toggle's.
    :param requires: ``toggle=variant`` settings without which this variant means nothing.
    :param needs_speculation: it means nothing without a drafter, whatever the toggles.
    """

    summary: str
    builder: str
    exactness: Exactness | None = None
    requires: tuple[str, ...] = ()
    needs_speculation: bool = False

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
