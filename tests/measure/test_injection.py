"""Known defects do what they say, in their arm alone."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import pytest
from fake_subject import FakeSource
from switching_subject import POINT, SwitchingSubject, run_pass

from specbench.engine.sampling.params import SamplingParams
from specbench.errors import InputError
from specbench.measure import defects
from specbench.measure.defects import BackgroundLoad, sleep, spin
from specbench.measure.injection import InjectedSubject
from specbench.measure.interruption import StopSignal
from specbench.measure.trials import TrialContext, measure_run
from specbench.scenario.plan import Trial


def seconds_of(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def injected(arm: str = "B", **defect: object) -> InjectedSubject:
    subject = InjectedSubject(SwitchingSubject(), {arm: defect})
    subject.submit([1], SamplingParams(max_tokens=10_000), "r")
    return subject


every_wait = pytest.mark.parametrize(
    ("wait", "duration_us"), [(wait, duration_us) for wait in (spin, sleep) for duration_us in (20, 300, 1500)]
)


@every_wait
def test_waits_last_no_shorter_than_they_say(wait: Callable[[int], None], duration_us: int) -> None:
    assert min(seconds_of(lambda: wait(duration_us * 1000)) for _ in range(15)) >= duration_us * 1e-6


class PolledClock:
    """A clock that goes on by a microsecond a look; who sleeps oversleeps by 60, as on an ordinary kernel."""

    def __init__(self) -> None:
        self.now_ns = self.looks = 0

    def perf_counter_ns(self) -> int:
        self.looks += 1
        self.now_ns += 1000
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9) + 60_000


@every_wait
def test_waits_last_no_longer_and_a_sleep_polls_its_last_stretch_alone(
    wait: Callable[[int], None], duration_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = PolledClock()
    monkeypatch.setattr(defects, "time", clock)
    wait(duration_us * 1000)
    assert duration_us * 1000 <= clock.now_ns <= (duration_us + 5) * 1000
    if wait is sleep:
        assert clock.looks <= 155
    else:
        assert clock.looks >= duration_us


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Nanoseconds that were asked for, instead of waiting."""
    asked: list[int] = []
    for name in ("spin", "sleep"):
        monkeypatch.setattr(defects, name, asked.append)
    return asked


@pytest.mark.parametrize("kind", ["delay", "hidden_sleep"])
def test_a_delay_takes_its_time_in_every_step_of_its_arm(waits: list[int], kind: str) -> None:
    subject = injected(kind=kind, us=12.5)
    for arm in ("B", "A", "B", None):
        subject.arm_started(arm)
        for _ in range(3):
            subject.advance()
    assert waits == [12_500] * 6


def test_a_delay_is_really_waited_for() -> None:
    subject = injected(kind="delay", us=2000)
    subject.arm_started("B")
    assert min(seconds_of(subject.advance) for _ in range(3)) >= 0.002


def test_a_drift_grows_with_the_arms_own_steps(waits: list[int]) -> None:
    subject = injected(kind="drift", us_per_step=5)
    for arm in ("B", "A", "B"):
        subject.arm_started(arm)
        for _ in range(2):
            subject.advance()
    assert waits == [5_000, 10_000, 15_000, 20_000]


def test_a_spike_comes_every_so_many_steps(waits: list[int]) -> None:
    subject = injected(kind="spike", every=3, ms=1.5)
    subject.arm_started("B")
    seen = []
    for _ in range(7):
        subject.advance()
        seen.append(len(waits))
    assert seen == [0, 0, 1, 1, 1, 2, 2]
    assert waits == [1_500_000] * 2


def test_a_token_is_changed_once_and_is_another_id() -> None:
    plain, changed = SwitchingSubject(), SwitchingSubject()
    subject = InjectedSubject(changed, {"B": {"kind": "token"}})
    requests = []
    for one in (plain, subject):
        requests.append(one.submit([5, 6], SamplingParams(max_tokens=30), "r"))
        for step in range(8):
            if isinstance(one, InjectedSubject):
                one.arm_started("B" if step >= 3 else "A")
            one.advance()
    ours, theirs = requests[0].output_token_ids, requests[1].output_token_ids
    differs = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    assert differs == [6]  # 1 + 2 + 2 tokens under A, then the last one of B's first step
    assert theirs[6] >= 0


def poll(happened: Callable[[], bool]) -> bool:
    """Wait until it has happened, half a minute at most."""
    return any(happened() or time.sleep(0.01) for _ in range(3000))


def rests(process: psutil.Process) -> bool:
    """Whether it is asleep, each time that is looked."""
    return all(process.status() == psutil.STATUS_SLEEPING and not time.sleep(0.002) for _ in range(50))


def test_background_load_computes_in_its_arm_alone() -> None:
    load = BackgroundLoad(1)
    (child,) = (child for child in psutil.Process().children() if "select" in " ".join(child.cmdline()))

    def computes() -> bool:
        before = child.cpu_times().user
        return poll(lambda: child.cpu_times().user >= before + 0.1)

    assert poll(lambda: rests(child))
    load.arm_started([])
    assert computes()
    load.arm_ended()
    assert poll(lambda: rests(child))
    load.release()
    assert not child.is_running()


def test_load_is_over_when_a_trial_is() -> None:
    before = len(psutil.Process().children())
    seen: list[int] = []
    subject = SwitchingSubject(on_step=lambda _step: seen.append(len(psutil.Process().children()) - before))
    record = run_pass(subject, injected={"B": {"kind": "load", "threads": 2}}).record
    assert set(seen) == {2}
    assert len(psutil.Process().children()) == before
    assert record.injected == {"B": {"kind": "load", "threads": 2}}


def test_a_subject_wrapped_once_counts_on_over_trials(waits: list[int]) -> None:
    subject = SwitchingSubject()
    drift = {"B": {"kind": "drift", "us_per_step": 1}}
    wrapped = InjectedSubject(subject, drift)
    context = TrialContext(wrapped, subject.clock, StopSignal(), None, "natural")
    for arm in "ABBA":
        trial = Trial(0, 0, 0, 0, None, 0, arm=arm)
        record = measure_run(context, POINT, trial, 0, FakeSource([1], 3), 1, injected=drift).record
        assert (record.arm, record.injected) == (arm, drift)
    assert waits == [1000, 2000, 3000, 4000]  # two steps in each of two runs


def test_the_subject_inside_does_the_rest() -> None:
    inner = SwitchingSubject()
    subject = InjectedSubject(inner, {"B": {"kind": "token"}})
    subject.submit([1], SamplingParams(max_tokens=5), "r")
    assert subject.has_work
    subject.switch({"toggle": "new"})
    assert inner.variant == "new"
    subject.cancel("r")
    assert not subject.has_work
    assert (subject.describe(), subject.capabilities) == (inner.describe(), inner.capabilities)
    assert subject.drain().steps == []
    subject.close()
    assert inner.closed


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ({"kind": "delays", "us": 3}, "delay"),
        ({"us": 3}, "unknown defect"),
        ({"kind": "delay"}, "takes us"),
        ({"kind": "delay", "us": 0}, "positive"),
        ({"kind": "delay", "us": "3"}, "positive"),
        ({"kind": "delay", "us": 3, "lane": "device"}, "lane 'device'"),
        ({"kind": "delay", "us": 3, "lane": "both"}, "lane 'both'"),  # a fake has no device
        ({"kind": "spike", "every": 3}, "every, ms"),
        ({"kind": "token", "us": 3}, "nothing else"),
    ],
)
def test_a_defect_that_does_not_exist_is_refused(defect: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        InjectedSubject(SwitchingSubject(), {"B": defect})
