"""A window of steps for an outside profiler, and which step each range belongs to. No torch here."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from specbench.device.tracing import NullTracer, Tracer
from specbench.errors import InputError

_NEXT_STEP_STAGES = frozenset(
    {"schedule", "prepare_inputs", "populate_sampling_params", "stage_block_offsets", "fill_state_indices"}
)
_OLDEST_STEP_STAGES = frozenset({"wait_output", "update"})
_DEVICE_STEP = "device_step"
_BETWEEN_STEPS = frozenset({"copy_to_device", "gather_sampling_params", "synchronize"})
_SHAPE = re.compile(r"ctx=(\d+)/\d+ gen=(\d+)")

Mark = AbstractContextManager[Any]


@dataclass(frozen=True)
class ProfileWindow:
    """The steps to profile, first and last included; steps are numbered from 1 as the engine runs them."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str, *, where: str = "--steps") -> ProfileWindow:
        """Read ``"A-B"``.

        :raises InputError: anything else, step 0, or an end before its start.
        """
        match = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", text, flags=re.ASCII)
        if match is None:
            raise InputError(f"{text!r} is no range of steps", where=where, hint="write first-last, such as 100-149")
        first, last = (int(number) for number in match.groups())
        if first < 1:
            hint = f"steps count from 1: 1-{max(last, 1)}"
            raise InputError(f"{text!r} begins before step 1", where=where, hint=hint)
        if last < first:
            raise InputError(f"{text!r} ends before it begins", where=where, hint=f"did you mean {last}-{first}?")
        return cls(first, last)

    def __contains__(self, step: int) -> bool:
        return self.first <= step <= self.last

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


def describe_purity(shapes: Mapping[int, str]) -> str | None:
    """Say whether steps are all the same pure decode: no context request, equally many generation requests.

    A window that holds prompts, or a batch that fills or drains, profiles a mixture of steps, whose sums say little.

    :param shapes: step number -> its shape, as ``ctx=0/0 gen=4 K=4``; in order.
    :return: None where a shape is not known.
    """
    counts = {step: tuple(map(int, found.groups())) for step, text in shapes.items() if (found := _SHAPE.match(text))}
    if not counts or len(counts) < len(shapes):
        return None
    with_prompts = [step for step, (contexts, _) in counts.items() if contexts]
    generations = [generations for _, generations in counts.values()]
    steps = f"profiled {len(counts)} steps ({min(counts)}-{max(counts)})"
    if with_prompts:
        first = with_prompts[0]
        return f"{steps}: not pure decode, {len(with_prompts)} with context requests, first {first}: {shapes[first]}"
    if min(generations) < max(generations):
        return f"{steps}: decode of a changing batch, {min(generations)} to {max(generations)} generation requests"
    return f"{steps}: pure decode, 0 context and {generations[0]} generation requests in each"


class ProfilerHooks(Protocol):
    """What a device does for an outside profiler; :class:`specbench.device.base.Device` has it."""

    def synchronize(self) -> None:
        """Block until the device is idle."""
        ...

    def profiler_start(self) -> None:
        """Tell an attached profiler to capture from here (cudaProfilerStart)."""
        ...

    def profiler_stop(self) -> None:
        """Tell it to stop."""
        ...


class _MarkedRange:
    """A profiler's mark around the recorder's range, so that the recorder does not time the mark."""

    __slots__ = ("_mark", "_record")

    def __init__(self, mark: Mark, record: AbstractContextManager[None]) -> None:
        self._mark = mark
        self._record = record

    def __enter__(self) -> None:
        self._mark.__enter__()
        self._record.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._record.__exit__(*error)
        self._mark.__exit__(*error)


class WindowTracer:
    """Knows which step a range belongs to, and opens and closes the window. By itself it marks nothing.

    Device ranges may come from a worker thread: launches run in order, so each ``device_step`` takes the oldest step
    that was started and not yet run. What belongs to one lane is touched by that lane's thread alone.
    """

    def __init__(self, recorder: Tracer | None = None, window: ProfileWindow | None = None) -> None:
        self._recorder: Tracer = recorder or NullTracer()
        self._window = window
        self._hooks: ProfilerHooks | None = None
        self._is_open = False
        self._was_open = False
        self._is_over = False
        self._last_started = 0
        self._running: dict[int, Any] = {}
        self._shapes: dict[int, str] = {}
        self._profiled: dict[int, str] = {}
        self._to_run: deque[tuple[int, str]] = deque()
        self._on_device: tuple[int | None, str] = (None, "")

    def attach(self, hooks: ProfilerHooks) -> None:
        """Give the device whose profiler hooks the window's edges call."""
        self._hooks = hooks

    def range(self, name: str, lane: str = "host", detail: str = "") -> AbstractContextManager[None]:
        """See :class:`specbench.device.tracing.Tracer`."""
        record = self._recorder.range(name, lane, detail)
        step, shape = self._place_on_device(name) if lane == "device" else self._place_on_host(name)
        if lane == "host" and step is not None:
            self._reach(step)
        if not self._includes(step):
            return record
        mark = self._mark(f"{name} {detail or shape}".rstrip(), lane, step)
        return record if mark is None else _MarkedRange(mark, record)

    def step_started(self, step: int, detail: str) -> None:
        """See :class:`specbench.device.tracing.Tracer`."""
        self._last_started = step
        self._reach(step)
        self._shapes[step] = detail
        self._to_run.append((step, detail))
        included = self._includes(step)
        if included and self._window is not None:
            self._profiled[step] = detail
        self._running[step] = self._begin_step(f"step {step} {detail}".rstrip(), step) if included else None
        self._recorder.step_started(step, detail)

    def step_ended(self, step: int) -> None:
        """See :class:`specbench.device.tracing.Tracer`."""
        self._recorder.step_ended(step)
        self._shapes.pop(step, None)
        handle = self._running.pop(step, None)
        if handle is not None:
            self._end_step(handle)
        if self._window is not None and step >= self._window.last:
            self._close()

    def finish(self, folder: Path | None = None) -> str | None:
        """Close what is open and return lines for people, or None when there is nothing to say.

        Of a window they say whether its steps are pure decode (:func:`describe_purity`). The run is over: its device is
        idle and may be closed.
        """
        self._is_over = True
        for step in list(self._running):
            self.step_ended(step)
        self._close()
        if self._window is None or self._was_open:
            lines = (describe_purity(self._profiled), self._save(folder))
            return "\n".join(line for line in lines if line) or None
        return (
            f"no step of {self._window} was profiled: the run had {self._last_started} steps; "
            f"choose --steps within 1-{max(self._last_started, 1)}"
        )

    def _place_on_host(self, name: str) -> tuple[int | None, str]:
        if name in _NEXT_STEP_STAGES:
            return self._last_started + 1, ""
        step = next(iter(self._running), None) if name in _OLDEST_STEP_STAGES else self._last_started or None
        return step, self._shapes.get(step, "") if step is not None else ""

    def _place_on_device(self, name: str) -> tuple[int | None, str]:
        if name in _BETWEEN_STEPS:
            return None, ""
        if name == _DEVICE_STEP:
            self._on_device = self._to_run.popleft() if self._to_run else (None, "")
        return self._on_device

    def _includes(self, step: int | None) -> bool:
        if self._window is None:
            return True
        return self._is_open if step is None else step in self._window

    def _reach(self, step: int) -> None:
        if not self._was_open and self._includes(step):
            self._is_open = self._was_open = True
            self._open_window()

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._close_window()

    def _open_window(self) -> None:
        # Without a window the outside profiler decides itself when it captures.
        if self._hooks is not None and self._window is not None:
            self._hooks.profiler_start()

    def _close_window(self) -> None:
        if self._hooks is not None and self._window is not None:
            self._hooks.profiler_stop()

    def _mark(self, text: str, lane: str, step: int | None) -> Mark | None:  # noqa: ARG002
        return None

    def _begin_step(self, text: str, step: int) -> Any:  # noqa: ARG002
        return None

    def _end_step(self, handle: Any) -> None:
        pass

    def _save(self, folder: Path | None) -> str | None:  # noqa: ARG002
        return None
