"""A simulated device: items are executed in order, and take as long as a declared model says.

Host code runs for real. A launched program keeps the books of its step and returns the :class:`StepWork` that it stands
for; the device is then busy as long as :class:`DeviceTimes` gives, in which nothing is computed. Every figure of it is
SIMULATED.

The timeline is declared, not observed: an item begins when it is enqueued or when the one before it ends, whichever is
later, as on a device whose queue needs no thread of the host. The worker keeps up with it, so that an item reads what
lies there while it executes; the books are kept at the beginning of the time that the item takes. Books that take
longer than that time end late, and so does the item: :meth:`SimDevice.read_counters` tells how often and by how much.

The worker sleeps without the interpreter's lock and never spins. Whoever waits for a launch sleeps to within
``SPIN_NS`` of its end and polls from there: on a virtual machine with two cores in use the end was met 7 us late in the
median of 200 waits, 120 us in the worst of 100. While books are kept (0.1 to 0.35 ms a step there, waking the worker
included) the host may wait for the interpreter's lock. ``docs/simulation.md`` says more.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from specbench.device.base import CapturedProgram
from specbench.device.cpu import CpuCompletion, CpuDevice
from specbench.device.times import DeviceTimes, StepWork
from specbench.device.tracing import Span, Tracer
from specbench.errors import InputError

SPIN_NS = 80_000
"""Polled rather than slept: on an idle machine a sleep ends some 60 us too late, even one of no length."""
SLACK_NS = 50_000
"""The worker does not sleep for less than this, and begins an item as much too early."""
SWITCH_INTERVAL_S = 1e-4
"""How long a thread may keep the interpreter's lock from the other one while a simulated device is open; Python's own
5 ms would let the host's code hold up the books of a step."""


class _SwitchInterval:
    """The interpreter's, shortened as long as any simulated device is open."""

    def __init__(self) -> None:
        self._num_open = 0
        self._before_s = 0.0

    def shorten(self) -> None:
        self._num_open += 1
        if self._num_open == 1:
            self._before_s = sys.getswitchinterval()
            sys.setswitchinterval(min(SWITCH_INTERVAL_S, self._before_s))

    def restore(self) -> None:
        self._num_open -= 1
        if self._num_open == 0:
            sys.setswitchinterval(self._before_s)


_SWITCH_INTERVAL = _SwitchInterval()


class SimCompletion(CpuCompletion):
    """Handle of one item. Its end is known once the worker has executed it, mostly before it has come."""

    __slots__ = ("_executed", "enqueued_ns")

    def __init__(self) -> None:
        self.enqueued_ns = time.perf_counter_ns()
        # A bare lock: an event costs ten times as much, and the host makes one for every copy.
        self._executed = threading.Lock()
        self._executed.acquire()
        self._error = None
        self._start_ns = 0
        self._end_ns = 0

    def finish(self, start_ns: int, end_ns: int, error: BaseException | None) -> None:
        """Called by the worker alone."""
        self._start_ns, self._end_ns, self._error = start_ns, end_ns, error
        self._executed.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """See :class:`specbench.device.base.Completion`."""
        deadline_ns = None if timeout_s is None else time.perf_counter_ns() + int(timeout_s * 1e9)
        if not self._executed.acquire(timeout=-1 if timeout_s is None else timeout_s):
            return False
        self._executed.release()
        if self._error is not None:
            raise self._error
        if deadline_ns is not None and self._end_ns > deadline_ns:
            sleep_until(deadline_ns)
            return False
        sleep_until(self._end_ns)
        return True


def sleep_until(moment_ns: int) -> None:
    """Return at ``moment_ns`` of ``perf_counter_ns``, to a few microseconds.

    Other threads have the interpreter until :data:`SPIN_NS` before it, and then when they ask for it.
    """
    left_ns = moment_ns - time.perf_counter_ns()
    if left_ns > SPIN_NS:
        time.sleep((left_ns - SPIN_NS) / 1e9)
    while time.perf_counter_ns() < moment_ns:
        pass


class KeptProgram(NamedTuple):
    """A program that reads frozen descriptions of its step: to replay it is to run it again.

    :ivar operators: none, since nothing is computed.
    """

    replay: Callable[[], Any]
    operators: tuple[str, ...] = ()


class _Taken(NamedTuple):
    """What a copy returns: how long it takes."""

    duration_ns: int


class SimDevice(CpuDevice):
    """See :class:`specbench.device.base.Device` and the module.

    A program that returns a :class:`StepWork` takes the time that ``times`` gives; any other, the time it takes here.

    :param num_threads: intra-operator threads of the books; None: one, so that the host keeps its cores.
    :raises InputError: no ``times``.
    """

    name = "sim"
    computes = False

    def __init__(
        self, tracer: Tracer | None = None, num_threads: int | None = None, times: DeviceTimes | None = None
    ) -> None:
        if times is None:
            raise InputError("a simulated device needs times", where="engine.sim", hint="specbench list sim_presets")
        self._times = times
        self._free_ns = 0
        self._counters = {"launches": 0, "declared_us": 0.0, "overruns": 0, "overrun_us": 0.0}
        _SWITCH_INTERVAL.shorten()
        super().__init__(tracer, num_threads or 1)

    def copy_async(self, destination: Tensor, source: Tensor) -> None:
        """See :class:`specbench.device.base.Device`."""
        self._put(("copy_to_device", partial(self._copy, destination, source), SimCompletion()))

    def launch(self, program: Callable[[], Any], name: str) -> SimCompletion:
        """See :class:`specbench.device.base.Device`."""
        completion = SimCompletion()
        self._put((name, program, completion))
        return completion

    def capture(self, program: Callable[[], Any], name: str) -> CapturedProgram:
        """See :class:`specbench.device.base.Device`: the program runs once, and again at every replay."""
        self._compute(program, name)
        return KeptProgram(program)

    def _copy(self, destination: Tensor, source: Tensor) -> _Taken:
        destination.copy_(source)
        return _Taken(self._times.copy_ns(source.numel() * source.element_size()))

    def _execute(self, item: tuple[str, Callable[[], Any], CpuCompletion | None]) -> None:
        name, program, completion = item
        assert isinstance(completion, SimCompletion)
        start_ns = max(self._free_ns, completion.enqueued_ns)
        if self._failure is not None:
            completion.finish(start_ns, start_ns, self._failure)
            return
        _sleep_roughly_until(start_ns)
        with self._tracer.range(name, "device"):
            began_ns = time.perf_counter_ns()
            try:
                result = program()
            except BaseException as error:
                self._failure, result = error, None
            now_ns = time.perf_counter_ns()
            end_ns = start_ns + self._duration_ns(result, start_ns, now_ns, now_ns - began_ns)
            self._free_ns = end_ns
            self._busy.append(Span(name, "device", start_ns, end_ns))
            completion.finish(start_ns, end_ns, self._failure)
            if isinstance(result, StepWork):
                # What is traced on the device lane lasts as long as what is declared.
                _sleep_roughly_until(end_ns)

    def _duration_ns(self, result: Any, start_ns: int, now_ns: int, elapsed_ns: int) -> int:
        """How long an item takes that returned ``result`` at ``now_ns``."""
        if not isinstance(result, StepWork):
            return result.duration_ns if isinstance(result, _Taken) else elapsed_ns
        declared_ns = self._times.step_ns(result)
        late_ns = now_ns - start_ns - declared_ns
        self._counters["launches"] += 1
        self._counters["declared_us"] += declared_ns / 1e3
        if late_ns <= 0:
            return declared_ns
        self._counters["overruns"] += 1
        self._counters["overrun_us"] += late_ns / 1e3
        return declared_ns + late_ns

    def read_counters(self) -> dict[str, float]:
        """Since the device was opened: launches and what was declared for them; those that ended late, and how much."""
        return dict(self._counters)

    def close(self) -> None:
        """See :class:`specbench.device.base.Device`."""
        if not self._closed:
            super().close()
            _SWITCH_INTERVAL.restore()


def _sleep_roughly_until(moment_ns: int) -> None:
    """Sleep without spinning; wakes some 50 us late, and does not sleep at all for less."""
    left_ns = moment_ns - time.perf_counter_ns()
    if left_ns > SLACK_NS:
        time.sleep(left_ns / 1e9)
