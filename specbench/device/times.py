"""Declared times of a device that computes nothing: five numbers, and what a step must say of itself. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import NamedTuple

from specbench.errors import InputError

SIM = "sim"
"""Name of the device that takes its times from here."""


class StepWork(NamedTuple):
    """What one launch would have the device do, as far as its time depends on it.

    :ivar rows: token rows of the step, K + 1 for a generation request.
    :ivar kv_tokens: cached tokens that attention reads, summed over requests; the step's own rows included.
    """

    rows: int
    kv_tokens: int


@dataclass(frozen=True)
class DeviceTimes:
    """How long a device takes.

    A launch takes ``base_us + us_per_row * rows + us_per_kv_token * kv_tokens``, a copy
    ``us_per_copy + size / bytes_per_us``; times in microseconds.

    :raises InputError: a number that is negative or not finite, or a bandwidth of 0.
    """

    base_us: float
    us_per_row: float
    us_per_kv_token: float
    us_per_copy: float
    bytes_per_us: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"found {value}; allowed: a finite number, 0 or more", where=f"engine.sim.{name}")
        if self.bytes_per_us == 0:
            raise InputError("found 0; allowed: more than 0", where="engine.sim.bytes_per_us")

    @classmethod
    def of(cls, numbers: Mapping[str, float]) -> DeviceTimes:
        """The times that a mapping of all five numbers gives."""
        return cls(**{name: float(numbers[name]) for name in NUMBERS})

    def step_ns(self, work: StepWork) -> int:
        """Nanoseconds of one launch."""
        return int(1e3 * (self.base_us + self.us_per_row * work.rows + self.us_per_kv_token * work.kv_tokens))

    def copy_ns(self, num_bytes: int) -> int:
        """Nanoseconds of one copy between host and device."""
        return int(1e3 * (self.us_per_copy + num_bytes / self.bytes_per_us))


NUMBERS = tuple(item.name for item in fields(DeviceTimes))


@dataclass(frozen=True)
class TimesPreset:
    """Times with a name.

    :param source: what they are computed from, and how.
    """

    times: DeviceTimes
    source: str
