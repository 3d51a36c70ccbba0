"""Units of analysis of one comparison as columns: what both arms took and committed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from specbench.stats.paired import PairedUnits, pair_units

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
TIME, THROUGHPUT = "time", "throughput"
PARTS = ("device", "host_exposed", "other_idle")
ARM_COLUMNS = ("time_ns", "tokens", "steps", "generated", "target_steps")


@dataclass(frozen=True, eq=False)
class ArmUnits:
    """One arm: an entry a unit [n], times in nanoseconds.

    :param tokens: committed in all; ``generated`` those of generation requests, in ``target_steps`` of them.
    :param parts_ns: device, host_total, host_exposed and other_idle; empty where they are not known.
    :param step_ns: time of each single step [s]; ``step_unit`` its unit.
    """

    time_ns: FloatArray
    tokens: FloatArray
    steps: FloatArray
    generated: FloatArray
    target_steps: FloatArray
    parts_ns: dict[str, FloatArray] = field(default_factory=dict)
    ranges_ns: dict[str, FloatArray] = field(default_factory=dict)
    step_ns: FloatArray = field(default_factory=lambda: np.empty(0))
    step_unit: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def tokens_per_s(self) -> float | None:
        """Of all units together."""
        return float(self.tokens.sum() / self.time_ns.sum() * 1e9) if self.time_ns.sum() > 0 else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a request and target step; None without such steps."""
        steps = float(self.target_steps.sum())
        return float(self.generated.sum()) / steps if steps else None

    def take(self, keep: npt.NDArray[np.bool_]) -> ArmUnits:
        """The units for which ``keep`` [n] is True."""
        stays = keep[self.step_unit]
        numbers = np.cumsum(keep) - 1
        return ArmUnits(
            **{name: getattr(self, name)[keep] for name in ARM_COLUMNS},
            parts_ns={name: values[keep] for name, values in self.parts_ns.items()},
            ranges_ns={name: values[keep] for name, values in self.ranges_ns.items()},
            step_ns=self.step_ns[stays],
            step_unit=numbers[self.step_unit[stays]],
        )


@dataclass(frozen=True, eq=False)
class UnitTable:
    """Units of one comparison [n], in plan order.

    :param starts_with_baseline: the (first pass of the) unit began with the baseline.
    :param start_s: when it began, since the first unit.
    :param lanes: range -> ``host`` or ``device``.
    """

    baseline: ArmUnits
    candidate: ArmUnits
    process: IntArray
    segment: IntArray
    starts_with_baseline: npt.NDArray[np.bool_]
    start_s: FloatArray
    lanes: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.process.size)

    @cached_property
    def processes(self) -> IntArray:
        """Processes that gave a unit, in order."""
        return np.unique(self.process)

    @property
    def equal_tokens(self) -> bool:
        """True when both arms committed the same number of tokens in every unit."""
        return bool((self.baseline.tokens == self.candidate.tokens).all())

    @property
    def has_parts(self) -> bool:
        """True when it is known where the time of both arms went."""
        return bool(self.baseline.parts_ns and self.candidate.parts_ns)

    @property
    def has_steps(self) -> bool:
        """True when the steps of every unit are known."""
        return bool((self.baseline.steps > 0).all() and (self.candidate.steps > 0).all())

    def take(self, keep: npt.NDArray[np.bool_]) -> UnitTable:
        """The units for which ``keep`` [n] is True."""
        return dataclasses.replace(
            self,
            baseline=self.baseline.take(keep),
            candidate=self.candidate.take(keep),
            process=self.process[keep],
            segment=self.segment[keep],
            starts_with_baseline=self.starts_with_baseline[keep],
            start_s=self.start_s[keep],
        )

    def pair(self, metric: str) -> PairedUnits:
        """Log ratios, positive where the candidate is faster.

        :param metric: ``time``, or ``throughput`` where tokens differ.
        :raises InputError: there is no unit, or an arm took no time or committed no token in one.
        """
        times = self.baseline.time_ns, self.candidate.time_ns
        if metric == TIME:
            return pair_units(*times)
        return pair_units(*times, baseline_tokens=self.baseline.tokens, candidate_tokens=self.candidate.tokens)
