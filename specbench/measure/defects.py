"""Known defects, put into an arm on purpose: what a comparison must find, or a gate catch, to be believed.

    {kind: delay, us}          the host spins before every step, in no named range; with ``lane: both`` host and device
                               wait for so long together, so that neither hides it behind the other, and a CPU rests
                               meanwhile (a shared machine may be slower after it has spun)
    {kind: hidden_sleep, us}   the device sleeps before every step, as if it waited; the host where that is no CPU
    {kind: drift, us_per_step} a delay that grows by so much with every step of the arm
    {kind: spike, every, ms}   a delay in every so many-th step of the arm alone
    {kind: load, threads}      so many processes compute while the arm runs
    {kind: token}              one committed token is another one

All are functions of the arm's own steps, counted by whoever puts them in: nothing is drawn.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specbench.errors import InputError, UnknownNameError
from specbench.measure.subject import InFlight

if TYPE_CHECKING:
    from specbench.device.base import Device

EXIT_TIMEOUT_S = 5.0


def spin(duration_ns: int) -> None:
    """Keep the calling thread busy, to some microseconds; it holds the interpreter, as host work does."""
    end_ns = time.perf_counter_ns() + duration_ns
    while time.perf_counter_ns() < end_ns:
        pass


def sleep(duration_ns: int) -> None:
    """Let the calling thread rest, to some microseconds: the last stretch, which the system would round up, is spun."""
    end_ns = time.perf_counter_ns() + duration_ns
    rest_ns = duration_ns - _WAKE_NS
    if rest_ns > 0:
        time.sleep(rest_ns / 1e9)
    spin(end_ns - time.perf_counter_ns())


_WAKE_NS = 150_000
"""A sleep may end this much late on an ordinary kernel."""


class Defect:
    """One defect in one arm. This one does nothing."""

    def arm_started(self, requests: Sequence[InFlight]) -> None:
        """Its arm runs from now on; ``requests`` are in flight."""

    def arm_ended(self) -> None:
        """Its arm runs no longer."""

    def before_step(self, step: int) -> None:
        """The arm's step number ``step``, 1 first, is about to be launched."""

    def after_commit(self, requests: Sequence[InFlight]) -> None:
        """Tokens may have been committed to ``requests``."""

    def release(self) -> None:
        """Leave nothing behind."""


class Delay(Defect):
    """Waits ``duration_ns(step)`` before every step; ``wait`` says who waits, and how."""

    def __init__(self, duration_ns: Callable[[int], int], wait: Callable[[int], None]) -> None:
        self._duration_ns = duration_ns
        self._wait = wait

    def before_step(self, step: int) -> None:
        duration_ns = self._duration_ns(step)
        if duration_ns > 0:
            self._wait(duration_ns)


class ChangedToken(Defect):
    """Changes the last token of the first commit in its arm; once."""

    def __init__(self) -> None:
        self._done = False
        self._known: dict[str, int] = {}

    def arm_started(self, requests: Sequence[InFlight]) -> None:
        self._known = {request.request_id: len(request.output_token_ids) for request in requests}

    def after_commit(self, requests: Sequence[InFlight]) -> None:
        for request in requests:
            output = request.output_token_ids
            if not self._done and len(output) > self._known.get(request.request_id, 0):
                output[-1] = output[-1] - 1 if output[-1] else 1
                self._done = True


_BUSY_LOOP = """
import os, select
os.write(1, b"r")
busy = False
while True:
    if select.select([0], [], [], 0 if busy else None)[0]:
        said = os.read(0, 64)
        if not said:
            break
        busy = said[-1:] == b"1"
    for _ in range(20000 if busy else 0):
        pass
"""
"""Computes between ``1`` and ``0`` on standard input, and ends with it, that is with the process that opened it."""


class BackgroundLoad(Defect):
    """``count`` processes, started at once, that compute while the arm runs and wait while it does not."""

    def __init__(self, count: int) -> None:
        command = [sys.executable, "-I", "-c", _BUSY_LOOP]
        self._children = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) for _ in range(count)
        ]
        for child in self._children:
            assert child.stdout is not None
            child.stdout.read(1)  # it is up: its start is in no period

    def _say(self, word: bytes) -> None:
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write(word)

    def arm_started(self, requests: Sequence[InFlight]) -> None:  # noqa: ARG002
        self._say(b"1")

    def arm_ended(self) -> None:
        self._say(b"0")

    def release(self) -> None:
        for child in self._children:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.close()
            child.stdout.close()
        for child in self._children:
            try:
                child.wait(EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._children = []


def build_defect(settings: Mapping[str, Any], device: Device | None = None) -> Defect:
    """Build what ``{kind: ..., ...}`` asks for.

    :param device: of the subject, for what happens in its queue; None where this process cannot reach it.
    :raises InputError: an unknown kind, or a setting that is missing, unknown or not positive.
    """
    given = dict(settings)
    kind = str(given.pop("kind", ""))
    if kind not in KINDS:
        raise UnknownNameError.of("defect", kind, KINDS, where="injected.kind")
    names, build = KINDS[kind]
    lane = given.pop("lane", "host") if kind == "delay" else "host"
    if set(given) != set(names) or any(not isinstance(v, (int, float)) or v <= 0 for v in given.values()):
        wanted = ", ".join(names) or "nothing else"
        raise InputError(f"{kind} takes {wanted}, each a positive number; found {given}", where="injected")
    if lane != "host" and (lane != "both" or device is None):
        raise InputError(f"no delay can be put on lane {lane!r} of this subject", where="injected.lane", hint="host")
    return build(given, device, lane)


def _build_delay(given: Mapping[str, float], device: Device | None, lane: str) -> Defect:
    duration_ns = round(given["us"] * 1e3)
    wait = spin if device is None or lane == "host" else _on_both(device)
    return Delay(lambda _step: duration_ns, wait)


def _build_hidden_sleep(given: Mapping[str, float], device: Device | None, lane: str) -> Defect:  # noqa: ARG001
    duration_ns = round(given["us"] * 1e3)
    if device is None or device.torch_device.type != "cpu":
        return Delay(lambda _step: duration_ns, sleep)
    # What is called synchronize counts as waiting, not as device work.
    return Delay(lambda _step: duration_ns, _on_device(device, "synchronize", sleep))


def _build_drift(given: Mapping[str, float], device: Device | None, lane: str) -> Defect:  # noqa: ARG001
    return Delay(lambda step: round(given["us_per_step"] * step * 1e3), spin)


def _build_spike(given: Mapping[str, float], device: Device | None, lane: str) -> Defect:  # noqa: ARG001
    every, duration_ns = max(int(given["every"]), 1), round(given["ms"] * 1e6)
    return Delay(lambda step: 0 if step % every else duration_ns, spin)


def _build_load(given: Mapping[str, float], device: Device | None, lane: str) -> Defect:  # noqa: ARG001
    return BackgroundLoad(max(int(given["threads"]), 1))


def _build_token(given: Mapping[str, float], device: Device | None, lane: str) -> Defect:  # noqa: ARG001
    return ChangedToken()


def _on_both(device: Device) -> Callable[[int], None]:
    enqueue = _on_device(device, "delay", _occupy(device))

    def wait(duration_ns: int) -> None:
        enqueue(duration_ns)
        sleep(duration_ns)

    return wait


def _occupy(device: Device) -> Callable[[int], None]:
    """What, run as a program of ``device``, occupies it for so many nanoseconds; on a GPU, at the clock of now."""
    if device.torch_device.type != "cuda":
        return sleep
    import torch

    def run(cycles: int) -> None:
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]

    _times_of(device, lambda: run(_CYCLES))  # loads the kernel
    start_ns, end_ns = _times_of(device, lambda: run(_CYCLES))
    cycles_per_ns = _CYCLES / (end_ns - start_ns)
    return lambda duration_ns: run(round(duration_ns * cycles_per_ns))


_CYCLES = 10_000_000
"""Some milliseconds of a GPU's clock."""


def _times_of(device: Device, program: Callable[[], None]) -> tuple[int, int]:
    completion = device.launch(program, "delay")
    completion.wait()
    return completion.times_ns


def _on_device(device: Device, name: str, wait: Callable[[int], None]) -> Callable[[int], None]:
    def enqueue(duration_ns: int) -> None:
        device.launch(lambda: wait(duration_ns), name)

    return enqueue


_Build = Callable[[Mapping[str, float], "Device | None", str], Defect]
KINDS: Mapping[str, tuple[tuple[str, ...], _Build]] = {
    "delay": (("us",), _build_delay),
    "hidden_sleep": (("us",), _build_hidden_sleep),
    "drift": (("us_per_step",), _build_drift),
    "spike": (("every", "ms"), _build_spike),
    "load": (("threads",), _build_load),
    "token": ((), _build_token),
}
"""Kind -> names of its settings, builder."""
