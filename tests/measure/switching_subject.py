"""A fake subject whose variants can be switched, and which tells what was done to it and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fake_subject import FakeClock, FakeSource, FakeSubject

from specbench.measure.counters import CounterReading
from specbench.measure.interruption import StopSignal
from specbench.measure.slices import EndlessSource
from specbench.measure.trials import MeasuredTrial, TrialContext, measure_pass
from specbench.scenario.plan import AbSettings, PlanPoint, Trial

CHOICES = {"A": {"toggle": "old"}, "B": {"toggle": "new"}}
POINT = PlanPoint(0, "base", {"concurrency": 2})


class SwitchingSubject(FakeSubject):
    """A step of variant ``new`` takes ``faster_ns`` less and counts 10 bytes for 100; switching takes ``switch_ns``.

    ``log`` has every switch and settle with the number of steps before it.
    """

    def __init__(
        self, clock: FakeClock | None = None, *, faster_ns: int = 0, switch_ns: int = 0, **changes: Any
    ) -> None:
        super().__init__(clock or FakeClock(), **changes)
        self.faster_ns, self.switch_ns = faster_ns, switch_ns
        self.variant = "old"
        self.log: list[tuple[str, int]] = []
        self.drains: list[int] = []
        self.counted = {variant: {"launches": 0, "bytes": 0} for variant in ("old", "new")}

    def switch(self, choices: Mapping[str, str]) -> None:
        self.variant = choices.get("toggle", self.variant)
        self.clock.ns += self.switch_ns
        self.log.append((f"switch {self.variant}", self.num_steps))

    def settle(self) -> None:
        self.log.append(("settle", self.num_steps))

    def advance(self) -> None:
        super().advance()
        if self.variant == "new":
            self.clock.ns -= self.faster_ns
        counted = self.counted[self.variant]
        counted["launches"] += 1
        counted["bytes"] += 10 if self.variant == "new" else 100

    def read_counters(self) -> CounterReading:
        return CounterReading(
            {"toggle": self.variant}, {"toggle": {name: dict(counted) for name, counted in self.counted.items()}}
        )

    def drain(self) -> Any:
        self.drains.append(self.num_steps)
        return super().drain()


def run_pass(
    subject: Any,
    mask: str = "ABBA",
    *,
    turns: Sequence[int] = (1, 1, 1),
    max_tokens: int = 9,
    choices: Mapping[str, Mapping[str, str]] | None = None,
    stop: StopSignal | None = None,
    pass_: int = 0,
    injected: Mapping[str, Mapping[str, Any]] | None = None,
    **settings: Any,
) -> MeasuredTrial:
    """One pass over an endless round of ``turns`` at concurrency 2."""
    source = EndlessSource(FakeSource(turns, max_tokens, seed=3), first=0)
    trial = Trial(0, 0, 0, pass_, mask, 3, comparison=0)
    context = TrialContext(subject, subject.clock, stop or StopSignal(), "hash", "natural", axes={"model": "fake"})
    wanted = AbSettings(**{"period_steps": 3, "guard_steps": 1, **settings})
    return measure_pass(context, POINT, trial, 0, source, 2, choices or CHOICES, wanted, injected)


def complement(mask: str) -> str:
    return mask.translate(str.maketrans("AB", "BA"))
