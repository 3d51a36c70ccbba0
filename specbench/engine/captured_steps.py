"""Steps recorded once and replayed: the variants of the toggle ``graphs``.

A captured step is the device program of one key: recorded over buffers that stay where they are, with the branches
frozen that were taken meanwhile, and replayed for every batch of that key. The host prepares inputs as ever; what it no
longer does is launching a step's operations one by one.

Only steps of generation requests alone are captured. A batch smaller than a captured size is filled up with padding
requests, which come last and share a slot and KV blocks of their own. What has no captured program runs eagerly, and
is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from specbench.device.base import Device
from specbench.engine.capture import (
    CapturedStep,
    CaptureKey,
    CaptureSet,
    DeviceProgram,
    MetadataKey,
    StepCapture,
    padding_request,
)
from specbench.engine.capture_params import RealParams
from specbench.engine.config import EngineConfig
from specbench.engine.forward_batch import ForwardBatch
from specbench.engine.input_preparation import InputPreparation
from specbench.engine.model_runner import ModelRunner
from specbench.engine.optimizations.base import Switch
from specbench.engine.sampling.step_sampling import StepSampling
from specbench.engine.scheduler import Schedule


class EagerSteps:
    """Variant ``off`` of the choice point ``graphs``: every operation of a step is launched by the host."""

    _runner: ModelRunner
    _live: StepSampling

    def connect(
        self,
        runner: ModelRunner,
        preparation: InputPreparation,  # noqa: ARG002
        live: StepSampling,
        capture_params: Switch[RealParams],  # noqa: ARG002
    ) -> None:
        """See :class:`~specbench.engine.optimizations.choice_points.StepPrograms`."""
        self._runner = runner
        self._live = live

    def activate(self) -> None:
        """Nothing to forget."""

    def read_counters(self) -> dict[str, int]:
        """Nothing is counted."""
        return {}

    def settle(self) -> None:
        """Nothing to prepare."""

    def fit(self, schedule: Schedule) -> Schedule:
        """See :class:`~specbench.engine.optimizations.choice_points.StepPrograms`: the schedule as it is."""
        return schedule

    def sampling_for(self, schedule: Schedule, is_greedy: bool) -> StepSampling:  # noqa: ARG002
        """See :class:`~specbench.engine.optimizations.choice_points.StepPrograms`."""
        self._live.require_no_override()
        return self._live

    def program_for(self, batch: ForwardBatch, output: Tensor) -> Callable[[], Any]:
        """See :class:`~specbench.engine.optimizations.choice_points.StepPrograms`."""
        return self._runner.program(batch, output)

    def describe(self) -> dict[str, Any]:
        """Nothing is captured."""
        return {}


class CapturedSteps(EagerSteps):
    """Variant ``captured``: pure generation steps are replayed where their key was captured.

    Steps are captured when the variant first stands beside a variant of ``capture_params``, and kept by that variant:
    how they were captured is frozen in them.
    """

    def __init__(self, config: EngineConfig, device: Device) -> None:
        self._config = config
        self._device = device
        self._padding = padding_request(config)
        self._sets: dict[str, CaptureSet] = {}
        self._counts = dict.fromkeys(
            ("replays", "padded_steps", "padding_requests", "eager_context", "eager_not_captured", "captures"), 0
        )

    def connect(
        self,
        runner: ModelRunner,
        preparation: InputPreparation,
        live: StepSampling,
        capture_params: Switch[RealParams],
    ) -> None:
        """See :class:`~specbench.engine.optimizations.choice_points.StepPrograms`."""
        super().connect(runner, preparation, live, capture_params)
        self._capture_params = capture_params
        self._capture = StepCapture(self._config, self._device, runner, preparation, live)
        self._current = CaptureSet()

    def read_counters(self) -> dict[str, int]:
        """Steps replayed; of these, padded ones, and padding requests in all; steps run eagerly, by reason; captures.

        ``eager_context`` had prompts in it, ``eager_not_captured`` a shape that is in no captured step.
        """
        return dict(self._counts)

    def settle(self) -> None:
        """Take the steps of the variant of ``capture_params`` that stands, captured now if they were not yet."""
        variant = self._capture_params.variant
        if variant not in self._sets:
            self._sets[variant] = captured = self._capture.capture(self._capture_params.current)
            self._counts["captures"] += len(captured.steps)
        self._current = self._sets[variant]

    def fit(self, schedule: Schedule) -> Schedule:
        """See :class:`~specbench.engine.optimizations.choice_points.StepPrograms`."""
        if schedule.context:
            return schedule
        num_requests = len(schedule.generation)
        size = self._current.find_size(num_requests, schedule.draft_len, schedule.next_draft_len)
        if size is None or size == num_requests:
            return schedule
        num_padding = size - num_requests
        self._counts["padded_steps"] += 1
        self._counts["padding_requests"] += num_padding
        return replace(
            schedule, generation=[*schedule.generation, *[self._padding] * num_padding], num_padding=num_padding
        )

    def sampling_for(self, schedule: Schedule, is_greedy: bool) -> StepSampling:
        """See :class:`~specbench.engine.optimizations.choice_points.StepPrograms`: the captured step's copy."""
        if schedule.is_warm_up:
            return self._capture.copy_in_use
        self._live.require_no_override()
        if schedule.context:
            return self._live
        key = MetadataKey(len(schedule.generation), schedule.draft_len, schedule.next_draft_len, is_greedy)
        return self._current.copies.get(key, self._live)

    def program_for(self, batch: ForwardBatch, output: Tensor) -> Callable[[], Any]:
        """See :class:`~specbench.engine.optimizations.choice_points.StepPrograms`."""
        step = self._find(batch)
        if step is None:
            self._counts["eager_context" if batch.context else "eager_not_captured"] += 1
            return self._runner.program(batch, output)
        self._counts["replays"] += 1
        return step.replay_into(output)

    def _find(self, batch: ForwardBatch) -> CapturedStep | None:
        if batch.context or batch.asked is None:
            return None
        program = DeviceProgram(batch.source, batch.next_draft_len)
        key = CaptureKey(program, batch.num_generation, batch.draft_len, batch.asked.all_greedy)
        return self._current.steps.get(key)

    def describe(self) -> dict[str, Any]:
        """By variant of ``capture_params``, what was captured under it: see :meth:`CaptureSet.describe`."""
        sets = {variant: captured.describe() for variant, captured in self._sets.items()}
        return {"sets": sets} if sets else {}


def build_eager(config: EngineConfig, device: Device) -> EagerSteps:  # noqa: ARG001
    """Build the variant for an engine."""
    return EagerSteps()


def build_captured(config: EngineConfig, device: Device) -> CapturedSteps:
    """Build the variant for an engine."""
    return CapturedSteps(config, device)
