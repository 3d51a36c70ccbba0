"""A step's inputs built from scratch each step: the plain way, and what the other variants are compared with."""

from __future__ import annotations

from specbench.device.base import Device
from specbench.engine.config import EngineConfig
from specbench.engine.forward_batch import ForwardBatch
from specbench.engine.input_preparation import InputPreparation
from specbench.engine.scheduler import Schedule


class RebuildInputs:
    """Variant ``rebuild`` of the choice point ``input_prep``: a full pass over the requests, whatever was there."""

    def __init__(self) -> None:
        self._full_passes = 0

    def activate(self) -> None:
        """Nothing to forget: no pass relies on an earlier one."""

    def read_counters(self) -> dict[str, int]:
        """Full passes since the engine was built."""
        return {"full_passes": self._full_passes}

    def prepare(self, step: int, schedule: Schedule, preparation: InputPreparation) -> ForwardBatch:
        """See :class:`~specbench.engine.optimizations.choice_points.InputPrep`."""
        self._full_passes += 1
        return preparation.build(step, schedule).batch


def build_rebuild(config: EngineConfig, device: Device) -> RebuildInputs:  # noqa: ARG001
    """Build the variant for an engine."""
    return RebuildInputs()
