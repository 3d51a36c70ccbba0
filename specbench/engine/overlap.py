"""The two orders in which the host launches steps and reads their tokens.

Serial: launch a step, wait for its tokens. Overlapped: launch step n + 1 from the state that step n leaves on the
device, then wait for the tokens of step n: while the host prepares, the device computes. What is in flight belongs to
the engine, which finishes it before another order stands here.
"""

from __future__ import annotations

from typing import TypeVar

from specbench.device.base import Device
from specbench.engine.config import EngineConfig

Step = TypeVar("Step")


class SerialOrder:
    """See :class:`~specbench.engine.optimizations.choice_points.StepOrder`: nothing is in flight between two calls."""

    def activate(self) -> None:
        """Nothing to forget."""

    def read_counters(self) -> dict[str, int]:
        """It counts nothing."""
        return {}

    def choose(self, in_flight: Step | None, launched: Step | None) -> tuple[Step | None, Step | None]:  # noqa: ARG002
        """Read what was launched just now."""
        return launched, None


class OverlappedOrder:
    """See :class:`~specbench.engine.optimizations.choice_points.StepOrder`: one step is in flight between two calls."""

    def __init__(self) -> None:
        self._launched_ahead = 0

    def activate(self) -> None:
        """Nothing to forget: what is in flight was finished before."""

    def read_counters(self) -> dict[str, int]:
        """``launched_ahead``: steps launched before the host had read the one before."""
        return {"launched_ahead": self._launched_ahead}

    def choose(self, in_flight: Step | None, launched: Step | None) -> tuple[Step | None, Step | None]:
        """Read what was launched by the call before."""
        self._launched_ahead += in_flight is not None and launched is not None
        return in_flight, launched


def build_off(config: EngineConfig, device: Device) -> SerialOrder:  # noqa: ARG001
    """Variant ``off``."""
    return SerialOrder()


def build_on(config: EngineConfig, device: Device) -> OverlappedOrder:  # noqa: ARG001
    """Variant ``on``."""
    return OverlappedOrder()
