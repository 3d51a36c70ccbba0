"""What is measured, and what it can tell. The built-in engine can tell everything; a server tells less.

The driver and the executor are written against :class:`Subject` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from specbench.device.tracing import RangeRecorder, Span, Tracer
from specbench.measure.counters import CounterReading
from specbench.records import SamplingAudit, StepRecord

if TYPE_CHECKING:
    from specbench.device.base import Device
    from specbench.engine.config import EngineConfig
    from specbench.engine.llm_engine import LLMEngine
    from specbench.engine.models.loading import LoadedModel
    from specbench.engine.sampling.params import SamplingParams


@dataclass(frozen=True)
class Capabilities:
    """What a subject can tell or do.

    :param steps: a record of every target step.
    :param token_ids: committed token ids, not only text.
    :param switchable: variants can be switched between steps.
    :param device_time: when the device was busy. Kernels that the host enqueues one by one leave gaps between two
        events that bracket them, so that eager launches on a GPU do not tell it; captured steps do, which are one
        launch each.
    """

    steps: bool
    token_ids: bool
    switchable: bool
    device_time: bool


class InFlight(Protocol):
    """A submitted request and what has come of it so far; times are the clock's nanoseconds."""

    request_id: str
    output_token_ids: list[int]
    finish_reason: str | None
    num_preemptions: int
    accepted_lengths: list[int]
    chunk_times_ns: list[int]
    chunk_sizes: list[int]


@dataclass(frozen=True)
class Telemetry:
    """What a subject recorded since it was last asked.

    :param busy: None where device time cannot be seen.
    :param audit: what requests asked of the sampler and were served with; None where it is not told.
    """

    steps: list[StepRecord] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    busy: list[Span] | None = None
    audit: list[SamplingAudit] | None = None


class Subject(Protocol):
    """One thing to measure: takes requests, advances, tells what happened."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can tell."""
        ...

    @property
    def has_work(self) -> bool:
        """True while :meth:`advance` has something to do."""
        ...

    def describe(self) -> dict[str, Any]:
        """Name, model and settings as they are in effect, for the result."""
        ...

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams, request_id: str) -> InFlight:
        """Queue one request.

        :raises InputError: it can never be served.
        """
        ...

    def submit_cached(self, prompt_token_ids: Sequence[int], params: SamplingParams, request_id: str) -> InFlight:
        """Admit one request at once, its prompt counted as prefilled: the next step generates.

        :raises InputError: there is no room for it, or a cache that could be filled.
        """
        ...

    def advance(self) -> None:
        """Let time pass: one step of an engine, the next answer of a server."""
        ...

    def cancel(self, request_id: str) -> None:
        """Drop a request; its tokens so far stay."""
        ...

    def switch(self, choices: Mapping[str, str]) -> None:
        """Change variants between steps (toggle to variant), where it is ``switchable``. What is in flight ends first.

        :raises InputError: a toggle or variant it does not have.
        """
        ...

    def read_counters(self) -> CounterReading | None:
        """What its variants have counted so far; None where it does not tell. Between steps; takes no device time."""
        ...

    def settle(self) -> None:
        """Finish what is in flight, start nothing, and wait until the device is idle; what was recorded stays."""
        ...

    def drain(self) -> Telemetry:
        """Return what was recorded since the last call. Waits for the device: never inside a window."""
        ...

    def close(self) -> None:
        """Release it."""
        ...


class _DeviceLease:
    """An open device that several subjects run on, each with this tracer; the last one to leave closes it."""

    def __init__(self, device: Device, tracer: Tracer) -> None:
        self.device = device
        self.tracer = tracer
        self._num_users = 1

    def join(self) -> _DeviceLease:
        self._num_users += 1
        return self

    def leave(self) -> bool:
        """Return True when nobody is left, and the device is closed."""
        self._num_users -= 1
        if self._num_users > 0:
            return False
        self.device.close()
        return True


def _tells_device_time(engine: LLMEngine) -> bool:
    return engine.device.torch_device.type == "cpu" or engine.variants.get("graphs") == "captured"


def _count_eager_steps(engine: LLMEngine) -> int:
    """Steps so far that were launched operator by operator although steps are captured."""
    counts = engine.read_counters().get("graphs", {}).get("captured", {})
    return sum(count for name, count in counts.items() if name.startswith("eager_"))


class BuiltinSubject:
    """The engine of this package.

    :param recorder: the recorder inside the engine's tracer, or None to go without ranges.
    :param description: what :meth:`describe` says beyond the engine's own configuration.
    :param lease: of the engine's device, when the engine does not close it.
    """

    def __init__(
        self,
        engine: LLMEngine,
        recorder: RangeRecorder | None,
        description: dict[str, Any] | None = None,
        lease: _DeviceLease | None = None,
    ) -> None:
        self.capabilities = Capabilities(
            steps=True, token_ids=True, switchable=True, device_time=_tells_device_time(engine)
        )
        self._engine = engine
        self._recorder = recorder
        self._description = description or {}
        self._lease = lease
        self._closed = False
        self._num_eager_steps = 0

    @classmethod
    def build(
        cls,
        config: EngineConfig,
        tracer: Tracer,
        recorder: RangeRecorder | None,
        *,
        share: BuiltinSubject | None = None,
    ) -> tuple[BuiltinSubject, LoadedModel]:
        """Build the engine, which loads the model once memory is known to suffice; imports torch.

        :param share: another subject with the same ``tracer``. Its weights are used when model, dtype and device are
            equal, its device when device and threads are; either subject may be closed first. :meth:`drain` of one
            takes the device times and ranges of both: drain before the other's turn.
        :return: the subject, and the model with a fingerprint that tells a draft head or draft model as well.
        :raises InputError: the model or the configuration cannot be used.
        :raises ValueError: ``share`` has another tracer, which the ranges of the device would go to.
        """
        from specbench.engine.build import build_engine, open_device
        from specbench.engine.drafters.draft_identity import find_draft_identity

        lease = None if share is None else share._lend_device(config, tracer)
        lease = lease or _DeviceLease(open_device(config, tracer), tracer)
        try:
            loaded = None if share is None else share._lend_weights(config)
            engine = build_engine(config, tracer=tracer, loaded=loaded, device=lease.device)
        except BaseException:
            lease.leave()
            raise
        draft = find_draft_identity(config) if engine.device.computes else None
        loaded = engine.loaded if draft is None else replace(engine.loaded, fingerprint=draft.join(engine.loaded))
        description = {
            "model": loaded.source,
            "weights": config.model.weights if engine.device.computes else "none",
            "fingerprint": loaded.fingerprint,
            "num_parameters": loaded.num_parameters,
            **({} if draft is None else {"draft_model": draft.source, "draft_parameters": draft.num_parameters}),
        }
        return cls(engine, recorder, description, lease), loaded

    def _lend_device(self, config: EngineConfig, tracer: Tracer) -> _DeviceLease | None:
        own, lease = self._engine.config, self._lease
        opened = (own.device, own.num_threads, own.device_times)
        if lease is None or opened != (config.device, config.num_threads, config.device_times):
            return None
        if lease.tracer is not tracer:
            raise ValueError("subjects that share a device need the same tracer")
        return lease.join()

    def _lend_weights(self, config: EngineConfig) -> LoadedModel | None:
        own = self._engine.config
        same = (own.model, own.dtype, own.device) == (config.model, config.dtype, config.device)
        return self._engine.loaded if same else None

    @property
    def engine(self) -> LLMEngine:
        """The engine itself, for profiling windows and checks."""
        return self._engine

    @property
    def num_threads(self) -> int:
        """Threads of an operator where the device's programs run; not the caller's, which may have fewer."""
        import torch

        found: list[int] = []
        self._engine.device.launch(lambda: found.append(torch.get_num_threads()), "synchronize").wait()
        return found[0]

    @property
    def has_work(self) -> bool:
        """See :class:`Subject`."""
        return self._engine.has_work

    def describe(self) -> dict[str, Any]:
        """See :class:`Subject`. ``toggles``: the variant that stands now, and each one's counts since it was built;
        ``device_counters``: what the device counted since it was opened; ``captured_steps``: None where steps run
        eagerly.
        """
        engine = self._engine
        counters = engine.read_counters()
        return {
            "name": "built-in engine",
            "capabilities": asdict(self.capabilities),
            "engine": asdict(engine.config),
            "toggles": {n: {"variant": v, "counters": counters[n]} for n, v in engine.variants.items()},
            "device_counters": engine.device.read_counters(),
            "captured_steps": engine.describe_captures() or None,
            **self._description,
        }

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams, request_id: str) -> InFlight:
        """See :class:`Subject`."""
        return self._engine.add_request(prompt_token_ids, params, request_id=request_id)

    def submit_cached(self, prompt_token_ids: Sequence[int], params: SamplingParams, request_id: str) -> InFlight:
        """See :class:`Subject`."""
        return self._engine.add_cached_request(prompt_token_ids, params, request_id=request_id)

    def advance(self) -> None:
        """See :class:`Subject`."""
        self._engine.step()

    def cancel(self, request_id: str) -> None:
        """See :class:`Subject`."""
        self._engine.abort(request_id)

    def switch(self, choices: Mapping[str, str]) -> None:
        """See :class:`Subject`. Requests keep the tokens of a step that ends here."""
        self._engine.switch(choices)

    def read_counters(self) -> CounterReading:
        """See :class:`Subject`."""
        return CounterReading(self._engine.variants, self._engine.read_counters())

    def settle(self) -> None:
        """See :class:`Subject`."""
        self._engine.flush()
        self._engine.synchronize()

    def drain(self) -> Telemetry:
        """See :class:`Subject`."""
        self._engine.synchronize()
        spans = self._recorder.drain() if self._recorder else []
        busy = self._engine.drain_busy()  # even where it tells nothing: it is kept until somebody takes it
        seen = busy if self.capabilities.device_time and not self._saw_gaps() else None
        return Telemetry(self._engine.drain_steps(), spans, seen, self._engine.drain_audit())

    def _saw_gaps(self) -> bool:
        """Whether some step since the last call was one of many launches, whose gaps a GPU's events do not show."""
        before, self._num_eager_steps = self._num_eager_steps, _count_eager_steps(self._engine)
        return self._engine.device.torch_device.type != "cpu" and self._num_eager_steps > before

    def close(self) -> None:
        """See :class:`Subject`. A device that others share stays open until the last of them is closed."""
        if self._closed:
            return
        self._closed = True
        lease, self._lease = self._lease, None
        if lease is None or not lease.leave():
            self._engine.shutdown()
