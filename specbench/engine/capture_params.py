"""How the warm-up requests of a capture come to be sampled: the variants of the toggle ``capture_params``.

A captured step replays the branch that was taken while it was recorded. Requests of a warm-up ask for nothing, so that
the branch that draws tokens must be brought about: by giving them sampling parameters (:class:`RealParams`), or by an
override in the metadata (the others), which has to be taken back from every copy, and only when all is recorded.

The override is part of the metadata of speculation. An engine without a drafter captures with real parameters,
whichever variant it has.
"""

from __future__ import annotations

from collections.abc import Iterable

from specbench.device.base import Device
from specbench.engine.config import EngineConfig
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.step_sampling import OVERRIDE, StepSampling


class RealParams:
    """Variant ``real_params``: there is no override; warm-up requests of the advanced pass carry parameters.

    The other variants change one or more of these moments of a capture.
    """

    def activate(self) -> None:
        """Nothing to forget: captured steps are kept by variant."""

    def read_counters(self) -> dict[str, int]:
        """Nothing is counted."""
        return {}

    def warm_up_params(self, is_greedy: bool) -> SamplingParams:
        """What a warm-up request of the greedy or of the advanced pass carries."""
        return SamplingParams() if is_greedy else OVERRIDE

    def begin_pass(self, live: StepSampling, is_greedy: bool) -> None:
        """The greedy or the advanced pass begins; nothing of it has been copied."""

    def keep_copy(self, copied: StepSampling) -> None:
        """A captured step got its copy of the live metadata."""

    def end_workspace_round(self, copies: Iterable[StepSampling]) -> None:
        """The first of a pass's two rounds is over. It recorded nothing; the second is given its ``copies``."""

    def end_capture(self, live: StepSampling, copies: Iterable[StepSampling]) -> None:
        """Every step is recorded. ``copies``: those of all passes."""


class _Override(RealParams):
    """Warm-up requests ask for nothing; an override makes those of the advanced pass look sampled."""

    def warm_up_params(self, is_greedy: bool) -> SamplingParams:  # noqa: ARG002
        """See :class:`RealParams`."""
        return SamplingParams()

    def begin_pass(self, live: StepSampling, is_greedy: bool) -> None:
        """See :class:`RealParams`."""
        live.override = None if is_greedy else OVERRIDE

    def end_capture(self, live: StepSampling, copies: Iterable[StepSampling]) -> None:  # noqa: ARG002
        """See :class:`RealParams`. What the live metadata forgets, its copies do not."""
        live.override = None


class ClearAfterCapture(_Override):
    """Variant ``clear_after_capture``: exactly the copies with an override lose it, once all is recorded."""

    def end_capture(self, live: StepSampling, copies: Iterable[StepSampling]) -> None:
        """See :class:`RealParams`. Doing it again changes nothing."""
        super().end_capture(live, copies)
        clear(copies)


class Leak(_Override):
    """Variant ``leak``, a known defect: the copies keep the override, and serve every request with it."""


class ClearAtCopy(_Override):
    """Variant ``clear_at_copy``, a known defect: a copy loses the override before its step is recorded."""

    def keep_copy(self, copied: StepSampling) -> None:
        """See :class:`RealParams`."""
        clear([copied])


class ClearAfterWarmup(_Override):
    """Variant ``clear_after_warmup``, a known defect: copies lose the override between the two rounds of a pass.

    The second round, which records, is given the copies of the first.
    """

    def end_workspace_round(self, copies: Iterable[StepSampling]) -> None:
        """See :class:`RealParams`."""
        clear(copies)


def clear(copies: Iterable[StepSampling]) -> None:
    """Take the override from every copy that has one."""
    for copied in copies:
        if copied.override is not None:
            copied.override = None


def _where_speculating(config: EngineConfig, variant: RealParams) -> RealParams:
    return variant if config.drafter.speculates else RealParams()


def build_real_params(config: EngineConfig, device: Device) -> RealParams:  # noqa: ARG001
    """Build the variant for an engine."""
    return RealParams()


def build_clear_after_capture(config: EngineConfig, device: Device) -> RealParams:  # noqa: ARG001
    """Build the variant for an engine."""
    return _where_speculating(config, ClearAfterCapture())


def build_leak(config: EngineConfig, device: Device) -> RealParams:  # noqa: ARG001
    """Build the variant for an engine."""
    return _where_speculating(config, Leak())


def build_clear_at_copy(config: EngineConfig, device: Device) -> RealParams:  # noqa: ARG001
    """Build the variant for an engine."""
    return _where_speculating(config, ClearAtCopy())


def build_clear_after_warmup(config: EngineConfig, device: Device) -> RealParams:  # noqa: ARG001
    """Build the variant for an engine."""
    return _where_speculating(config, ClearAfterWarmup())
