"""How a step's sampling parameters are filled in, and the override that requests may be given during a capture."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from specbench.engine.optimizations.base import Switch
from specbench.engine.optimizations.choice_points import SamplingParamsFill
from specbench.engine.sampling.metadata import SamplingRows
from specbench.engine.sampling.params import SamplingParams
from specbench.errors import OverrideLiveError

OVERRIDE = SamplingParams(temperature=0.7, top_k=50, top_p=0.9)
"""What warm-up requests are made to ask for, so that a captured step records how tokens are drawn."""


class StepSampling:
    """How sampling parameters get to the device: the live one of an engine, or a copy that captured steps keep.

    A copy is shallow. It shares the choice point ``sampling_params``, and with it every buffer and every signature;
    the override is its own from then on.

    :ivar override: stands in for what every request asks for; None: requests get what they ask for.
    """

    def __init__(self, sampling_params: Switch[SamplingParamsFill]) -> None:
        self._sampling_params = sampling_params
        self.override: SamplingParams | None = None

    def fill(self, params: Sequence[SamplingParams], row_counts: Sequence[int], slots: Sequence[int]) -> SamplingRows:
        """See :class:`~specbench.engine.optimizations.choice_points.SamplingParamsFill`."""
        if self.override is not None:
            params = [self.override] * len(params)
        return self._sampling_params.current.fill(params, row_counts, slots)

    def copy(self) -> StepSampling:
        """Return the shallow copy that a captured step keeps."""
        return copy.copy(self)

    def require_no_override(self) -> None:
        """Refuse to serve with an override in force.

        :raises OverrideLiveError: an override outlived the warm-up.
        """
        if self.override is not None:
            raise OverrideLiveError(
                "a sampling override of the warm-up is in force while requests are served",
                where="optimizations.capture_params",
                hint="this is a defect of the engine: choose real_params, and report it",
            )
