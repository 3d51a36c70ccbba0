"""A machine that does not exist, under everything that ``specbench ab`` does: question, session, files, analysis.

Nothing here takes real time. A subject whose steps cost what the machine says is put where the session opens its arms,
and every clock that the session reads is the machine's. What a step costs is drawn from the seed, the number of the
trial and the place of the step in it, never from what ran before: a trial that is measured again takes as long again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_subject import DEVICE_NS, LAUNCH_NS, SCHEDULE_NS, UPDATE_NS, FakeClock, FakeSubject

from specbench.device.tracing import Span
from specbench.measure import ab_session, calibration, defects, trials
from specbench.measure.ab_session import run_session
from specbench.measure.arm_loads import ArmLoads
from specbench.measure.arms import Arms, _Facts
from specbench.measure.conclusion import conclude_question
from specbench.measure.interruption import StopSignal
from specbench.measure.observation import CollectionLog, MachineSample
from specbench.measure.observers import SilentObserver
from specbench.measure.orchestration import measure_ab
from specbench.measure.session import RunIdentity, start_question
from specbench.measure.trials import MeasuredTrial
from specbench.records import Analysis, Comparison, Gate
from specbench.scenario import enumeration
from specbench.scenario.enumeration import complement
from specbench.scenario.plan import ComparisonPlan, Question, Trial
from specbench.scenario.questions import ask_ab
from specbench.scenario.resolve import ResolvedScenario
from specbench.stats.exact import ProportionInterval, clopper_pearson

VOCABULARY = 97
OLD, NEW = "refill", "signature"
"""Variants of the toggle in which the arms differ: baseline ``off``, candidate ``on``."""
DRAWN = 400
"""Steps of a trial that have noise of their own; no trial has more."""
DIFFERENT = ("FASTER", "SLOWER", "FASTER BUT NEGLIGIBLE", "SLOWER BUT NEGLIGIBLE")
SCENARIO = """
name: chain
model: random:tiny
drafter: none
workload: {kind: random_tokens, num_requests: 6, isl: 4, osl: 7, concurrency: 2}
sampling: {temperature: 0.8, seed: 1}
engine: {device: cpu, dtype: float32, num_threads: 1}
measure: {warmup_requests: 1, period_steps: 2, quads_per_segment: 2, segment_requests: 2, max_units: 10, looks: 2}
"""
ARMS = ("off", "on")
FIRST_DAY = datetime(2026, 1, 31, tzinfo=timezone.utc)
NO_MARGIN = "measure.margin=0.001%"
"""Nothing is equivalent, so that no comparison stops early on that account: the harder case for false differences."""


class Killed(BaseException):
    """The process is no more. No one catches it."""


class Clock(FakeClock):
    """A machine's. The time of day is that of a trial's beginning, which depends on nothing but its number."""

    began = FIRST_DAY

    def utc(self) -> datetime:
        return self.began


@dataclass
class Machine:
    """What steps cost, and what disturbs them. Effects are log points of a step's time.

    :param seed: of the noise.
    :param gain: how much faster steps of the variant :data:`NEW` are; ``process_gains`` beside it by process.
    :param step_noise: standard deviation of single steps; ``trial_noise`` of whole trials.
    :param spikes: share of steps that take 5 to 25 times as long.
    :param growth: how much slower the machine gets with every trial, from step to step.
    :param load_slows: what a background load of one thread costs.
    :param slowdown: from a trial on, how many times as long everything takes.
    :param preparing_s: what is done around every trial, in no figure, twice.
    :param on_step: told the number of steps, before each.
    """

    seed: int = 0
    gain: float = 0.0
    process_gains: Sequence[float] = ()
    step_noise: float = 0.01
    trial_noise: float = 0.005
    spikes: float = 0.0
    growth: float = 0.0
    load_slows: float = 0.1
    slowdown: tuple[int, float] | None = None
    preparing_s: float = 0.0
    on_step: Callable[[int], None] = lambda _count: None

    clock: Clock = field(default_factory=Clock)
    load: int = 0
    process: int = 0
    num_steps: int = 0
    measured: list[Trial] = field(default_factory=list)
    _factors: Iterator[float] = field(default_factory=lambda: iter(()))

    def begin(self, trial: Trial) -> None:
        """The next steps are those of ``trial``."""
        self.measured.append(trial)
        self.process = trial.process
        self.clock.began = FIRST_DAY + timedelta(seconds=10 * trial.trial)
        rng = np.random.default_rng([self.seed, trial.trial])
        speed = self.trial_noise * rng.standard_normal() + self.growth * trial.trial
        if self.slowdown and trial.trial >= self.slowdown[0]:
            speed += math.log(self.slowdown[1])
        steps = self.step_noise * rng.standard_normal(DRAWN) + self.growth * np.arange(DRAWN) / DRAWN
        hit = rng.random(DRAWN) < self.spikes
        steps[hit] += np.log(rng.uniform(5, 25, int(hit.sum())))
        self._factors = iter(np.exp(speed + steps).tolist())

    def next_factor(self, variant: str) -> float:
        """How many times as long as usual the next step takes."""
        self.num_steps += 1
        self.on_step(self.num_steps)
        gain = 0.0
        if variant == NEW:
            gain = self.gain + (self.process_gains[self.process] if self.process_gains else 0.0)
        return next(self._factors, 1.0) * math.exp(self.load_slows * self.load - gain)

    def pass_time(self, duration_ns: int) -> None:
        """Nothing happens for a while."""
        self.clock.ns += max(duration_ns, 0)


class ChainSubject(FakeSubject):
    """An engine on a :class:`Machine`. Its tokens are a function of the requests alone."""

    def __init__(self, machine: Machine, variant: str) -> None:
        super().__init__(machine.clock, draft_len=0, per_step=1)
        self.machine = machine
        self.variant = variant
        # What a known defect puts into the device's queue runs there at once.
        device = SimpleNamespace(torch_device=SimpleNamespace(type="cpu"), launch=lambda item, _name: item())
        self.engine = SimpleNamespace(device=device)

    def switch(self, choices: Mapping[str, str]) -> None:
        self.variant = choices.get("sampling_params", self.variant)

    def advance(self) -> None:
        self.num_steps += 1
        self.occupied = len(self.active)
        factor = self.machine.next_factor(self.variant)
        fresh = [request for request in self.active if not request.output_token_ids]
        running = [request for request in self.active if request.output_token_ids]
        start = self.clock.ns
        launch = start + round(SCHEDULE_NS * factor)
        device = launch + round(LAUNCH_NS * factor)
        output = device + round(DEVICE_NS * factor)
        self.clock.ns = output + round(UPDATE_NS * factor)
        self._span("schedule", start, launch)
        self._span("launch", launch, device)
        self._span("wait_output", device, output)
        self.busy.append(Span("device_step", "device", device, output))
        first = sum(request.commit(1, output) for request in fresh)
        kept = [request.commit(1, output) for request in running]
        for request, count in zip(running, kept, strict=True):
            request.accepted_lengths.append(count)
        rows = sum(len(request.prompt) for request in fresh)
        self._record(len(fresh), rows, first, kept, start, launch, device, output)
        self.active = [request for request in self.active if request.finish_reason is None]


class _Load(defects.Defect):
    """Background load: what it costs, the machine knows."""

    def __init__(self, machine: Machine, count: int) -> None:
        self._machine, self._count = machine, count

    def arm_started(self, requests: Sequence[Any]) -> None:  # noqa: ARG002
        self._machine.load = self._count

    def arm_ended(self) -> None:
        self._machine.load = 0


def collect_nothing(patch: pytest.MonkeyPatch) -> None:
    """Collect no garbage before a trial: with all that tests have loaded, it takes longer than the trial."""
    patch.setattr(trials, "without_collection", lambda **_: nullcontext(CollectionLog()))


@contextmanager
def plugged_in(machine: Machine) -> Iterator[None]:
    """Sessions inside measure ``machine``, on its clocks; files are written as ever, but not waited for."""

    def build_subject(_: Arms, resolved: ResolvedScenario) -> tuple[ChainSubject, _Facts]:
        variant = dict(resolved.engine.optimizations)["sampling_params"]
        return ChainSubject(machine, variant), _Facts(VOCABULARY, None, "f" * 64)

    class Loads(ArmLoads):
        def measure_pass(self, settings: Any, comparison: ComparisonPlan, trial: Trial, *rest: Any) -> MeasuredTrial:
            machine.begin(trial)
            return super().measure_pass(settings, comparison, trial, *rest)

        def measure_run(self, comparison: ComparisonPlan, trial: Trial, *rest: Any) -> MeasuredTrial:
            machine.begin(trial)
            return super().measure_run(comparison, trial, *rest)

    def sample_machine(*_: Any) -> MachineSample:
        machine.pass_time(round(1e9 * machine.preparing_s))
        return MachineSample(0.0, 0.0, 0.0, None, None, None, None)

    time = SimpleNamespace(monotonic=lambda: machine.clock.ns / 1e9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arms, "_build_subject", build_subject)
        patch.setattr(ab_session, "ArmLoads", Loads)
        patch.setattr(ab_session, "SystemClock", lambda: machine.clock)
        patch.setattr(ab_session, "time", time)
        patch.setattr(calibration, "time", time)
        patch.setattr(defects, "spin", machine.pass_time)
        patch.setattr(defects, "sleep", machine.pass_time)
        patch.setattr(defects, "BackgroundLoad", lambda count: _Load(machine, count))
        patch.setattr(trials, "sample_machine", sample_machine)
        collect_nothing(patch)
        patch.setattr("os.fsync", lambda _: None)
        yield


@contextmanager
def labels_swapped() -> Iterator[None]:
    """Arm A runs where arm B would: with the variants exchanged as well, the machine does the very same thing."""
    drawn = enumeration.draw_mask
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(enumeration, "draw_mask", lambda *arguments: complement(drawn(*arguments)))
        patch.setattr(calibration, "draw_mask", lambda *arguments: complement(drawn(*arguments)))
        yield


def ask(
    folder: Path,
    *overrides: str,
    arms: tuple[str, str] = ARMS,
    injected: Mapping[str, Mapping[str, Any]] | None = None,
    scenario: str = SCENARIO,
) -> Question:
    """The question of :data:`SCENARIO`, with known defects in its arms."""
    path = folder / "chain.yaml"
    path.write_text(scenario)
    question = ask_ab(path, overrides, arms[0], [arms[1]])
    if injected is None:
        return question
    defective = {arm: dict(defect) for arm, defect in injected.items()}
    return replace(question, comparisons=tuple(replace(c, injected=defective) for c in question.comparisons))


def reseed(question: Question, seed: int) -> Question:
    """The same question with other masks."""
    assert question.settings is not None
    return replace(question, settings=replace(question.settings, seed=seed))


def start(question: Question, path: Path) -> Path:
    """The folder of a new comparison."""
    identity = RunIdentity("chain", "specbench ab chain.yaml", FIRST_DAY)
    return start_question(question, {}, identity, path)


def go_on(path: Path, machine: Machine | None = None, stop: StopSignal | None = None) -> str:
    """Measure what a folder lacks: on ``machine``, or on the real engine; how it ended."""
    stop, observer = stop or StopSignal(), SilentObserver()
    with plugged_in(machine) if machine else nullcontext():
        return measure_ab(path, observer, stop, lambda index: run_session(path, index, observer, stop))


def conclude(path: Path, status: str = "complete") -> Analysis:
    """What the files of a folder say."""
    analysis = conclude_question(path, status)
    assert analysis is not None
    return analysis


def compare(question: Question, path: Path, machine: Machine | None = None) -> Comparison:
    """The whole chain: the first comparison of what was found."""
    start(question, path)
    assert go_on(path, machine) == "complete"
    return conclude(path).comparisons[0]


def gate(comparison: Comparison, name: str) -> Gate:
    """One gate of a comparison."""
    (found,) = [item for item in comparison.gates if item.name == name]
    return found


def doubts(comparison: Comparison) -> set[str]:
    """Names of the gates that warn or fail."""
    return {item.name for item in comparison.gates if item.status in ("warn", "fail")}


def covers(comparison: Comparison, percent: float) -> bool:
    """Does the interval hold the true effect? One that was not computed has no ends."""
    low, high = comparison.ci_low_pct, comparison.ci_high_pct
    return low is None or high is None or low <= percent <= high


def share(found: Sequence[Comparison], test: Callable[[Comparison], bool], name: str) -> ProportionInterval:
    """How many of ``found`` pass ``test``, with the 99.9% interval of that rate, which is printed."""
    rate = clopper_pearson(sum(map(test, found)), len(found), 0.999)
    print(f"{name}: {rate.estimate:.4f} ({rate.low:.4f} to {rate.high:.4f}) of {len(found)}")
    return rate


def read_lines(path: Path, name: str) -> list[dict[str, Any]]:
    """The lines of a JSONL file of a folder."""
    return [json.loads(line) for line in (path / name).read_text().splitlines()]
