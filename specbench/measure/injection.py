"""Puts known defects into the arms of a subject, whatever it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specbench.measure.counters import CounterReading
from specbench.measure.defects import Defect, build_defect
from specbench.measure.subject import Capabilities, InFlight, Subject, Telemetry

if TYPE_CHECKING:
    from specbench.device.base import Device
    from specbench.engine.sampling.params import SamplingParams


class InjectedSubject:
    """``inner`` with known defects in its arms. See :class:`specbench.measure.subject.Subject`.

    Each arm's steps are counted over the life of this object: a drift goes on from trial to trial. :meth:`release` it
    when it is not needed any more.

    :param injected: arm -> settings of its defect, see :mod:`specbench.measure.defects`.
    :raises InputError: there is no such defect.
    """

    def __init__(self, inner: Subject, injected: Mapping[str, Mapping[str, Any]]) -> None:
        device = _device_of(inner)
        self._inner = inner
        self._defects: dict[str, Defect] = {}
        try:
            for arm, settings in injected.items():
                self._defects[arm] = build_defect(settings, device)
        except BaseException:
            self.release()
            raise
        self._steps = dict.fromkeys(self._defects, 0)
        self._arm: str | None = None
        self._requests: list[InFlight] = []

    def arm_started(self, arm: str | None) -> None:
        """From now on ``arm`` runs; None: neither does. Called again for the same arm, it is as if it began anew."""
        if self._arm is not None:
            self._defects[self._arm].arm_ended()
        self._arm = arm if arm in self._defects else None
        self._requests = [request for request in self._requests if request.finish_reason is None]
        if self._arm is not None:
            self._defects[self._arm].arm_started(self._requests)

    def release(self) -> None:
        """End the defects, not the subject."""
        for defect in self._defects.values():
            defect.release()
        self._defects, self._arm = {}, None

    @property
    def capabilities(self) -> Capabilities:
        """Those of the subject inside."""
        return self._inner.capabilities

    @property
    def pid(self) -> int | None:
        """Of the subject's own process; None where it has none."""
        return getattr(self._inner, "pid", None)

    @property
    def has_work(self) -> bool:
        """See :class:`Subject`."""
        return self._inner.has_work

    def describe(self) -> dict[str, Any]:
        """See :class:`Subject`."""
        return self._inner.describe()

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams, request_id: str) -> InFlight:
        """See :class:`Subject`."""
        request = self._inner.submit(prompt_token_ids, params, request_id)
        self._requests.append(request)
        return request

    def submit_cached(self, prompt_token_ids: Sequence[int], params: SamplingParams, request_id: str) -> InFlight:
        """See :class:`Subject`."""
        request = self._inner.submit_cached(prompt_token_ids, params, request_id)
        self._requests.append(request)
        return request

    def advance(self) -> None:
        """One step, and what the running arm's defect makes of it."""
        if self._arm is None:
            self._inner.advance()
            return
        self._steps[self._arm] += 1
        self._defects[self._arm].before_step(self._steps[self._arm])
        self._inner.advance()
        self._defects[self._arm].after_commit(self._requests)

    def cancel(self, request_id: str) -> None:
        """See :class:`Subject`."""
        self._inner.cancel(request_id)

    def switch(self, choices: Mapping[str, str]) -> None:
        """See :class:`Subject`."""
        self._inner.switch(choices)

    def read_counters(self) -> CounterReading | None:
        """See :class:`Subject`."""
        return self._inner.read_counters()

    def settle(self) -> None:
        """See :class:`Subject`. A step may end in it."""
        self._inner.settle()
        if self._arm is not None:
            self._defects[self._arm].after_commit(self._requests)

    def drain(self) -> Telemetry:
        """See :class:`Subject`."""
        return self._inner.drain()

    def close(self) -> None:
        """End the defects and the subject."""
        self.release()
        self._inner.close()


def _device_of(subject: Subject) -> Device | None:
    """The device that runs the subject's steps, where this process can reach it."""
    device: Device | None = getattr(getattr(subject, "engine", None), "device", None)
    return device
