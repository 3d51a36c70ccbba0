"""An arm in an interpreter of its own, driven over a pipe: other builds, environments and commits can be arms.

The engine is there (:mod:`specbench.measure.subject_server`); requests, counting and records are here, the same code
for every arm. Only where a request has ended does the engine wait for this side: for a round trip of about 0.1 ms, and
as long for each request sent. Times need no translation: both processes read the machine's one monotonic clock, which
the handshake verifies.

Measured on two cores of a busy virtual machine: a round trip takes 0.07 ms (median of 300; the longest took 0.7 ms), so
that asking every 50 ms costs 0.15% of the time, in every arm alike. Results keep the shortest one of the handshake.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from specbench.device.tracing import Span
from specbench.encoding import from_json
from specbench.engine.config import EngineConfig
from specbench.engine.optimizations.base import load_toggle
from specbench.errors import InputError
from specbench.measure.counters import CounterReading
from specbench.measure.server_process import ProcessSettings, ServerProcess
from specbench.measure.subject import Capabilities, Telemetry
from specbench.measure.wire import Message, pack_settings
from specbench.records import SamplingAudit, StepRecord, StepTable

if TYPE_CHECKING:
    from specbench.engine.sampling.params import SamplingParams

ADVANCE_MS = 50
"""How long the engine steps on before it says how far it is, when no request ends."""


@dataclass(frozen=True)
class ModelFacts:
    """What the load generator and the records need of the model that the other process has loaded.

    :param directory: of the tokenizer's files; None where there are none.
    """

    vocab_size: int
    max_position_embeddings: int
    directory: Path | None
    source: str
    fingerprint: str
    num_parameters: int


@dataclass
class RemoteRequest:
    """See :class:`specbench.measure.subject.InFlight`: as far as the other process has told."""

    request_id: str
    output_token_ids: list[int] = field(default_factory=list)
    chunk_times_ns: list[int] = field(default_factory=list)
    chunk_sizes: list[int] = field(default_factory=list)
    accepted_lengths: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    num_preemptions: int = 0


class RemoteSubject:
    """See :class:`specbench.measure.subject.Subject`. :meth:`start` makes one.

    :attr:`max_steps` limits the steps of one :meth:`advance`. None: it returns when a request has ended, else after
    :data:`ADVANCE_MS`, so that the pipe is used as often as there is something to decide. No design limits it: arms in
    processes of their own are compared by whole runs. With a limit of 1 every step is seen, for a round trip each.
    """

    def __init__(self, server: ServerProcess, built: Message) -> None:
        known = {item.name for item in dataclasses.fields(Capabilities)}
        told = {name: value for name, value in built["capabilities"].items() if name in known}
        self.capabilities = Capabilities(**{**dict.fromkeys(known, False), **told})
        directory = built["facts"]["directory"]
        self.facts = ModelFacts(**{**built["facts"], "directory": None if directory is None else Path(directory)})
        self.num_threads: int = built["num_threads"]
        self.torch: dict[str, Any] = built["torch"]
        self.max_steps: int | None = None
        self._server = server
        self._requests: dict[str, RemoteRequest] = {}
        self._has_work = False

    @classmethod
    def start(cls, config: EngineConfig, process: ProcessSettings, *, with_ranges: bool = True) -> RemoteSubject:
        """Start the process and build the engine in it.

        :param with_ranges: record named ranges.
        :raises InputError: the process cannot be started, cannot serve this specbench, or cannot use the configuration.
        :raises EngineError: the process died, or its clock is another.
        """
        server = ServerProcess(process)
        try:
            packed = pack_settings(replace(config, optimizations=()))
            toggles = pack_toggles(dict(config.optimizations))
            built = server.ask("build", config=packed, toggles=toggles, with_ranges=with_ranges)
            return cls(server, built)
        except BaseException:
            server.close()
            raise

    @property
    def process(self) -> ServerProcess:
        """The process behind it: who it is, and how far away."""
        return self._server

    @property
    def pid(self) -> int:
        """Of the process: what it uses of the machine is no other load."""
        return int(self._server.hello["pid"])

    @property
    def has_work(self) -> bool:
        """See :class:`Subject`."""
        return self._has_work

    def describe(self) -> dict[str, Any]:
        """See :class:`Subject`; ``process`` says whose code and which interpreter it is."""
        who = {name: value for name, value in self._server.hello.items() if name not in ("pid", "protocol")}
        about = {"process": {**who, "torch": self.torch["version"], "round_trip_us": self._server.round_trip_ns / 1e3}}
        return {**self._server.ask("describe")["description"], **about}

    def identify(self) -> dict[str, Any]:
        """Whose code, interpreter and weights these are: what halves of one measurement must have in common.

        ``git`` is of the checkout that is imported, a hash of what is changed in it included; None outside of one.
        """
        hello = self._server.hello
        return {
            **{name: hello.get(name) for name in ("specbench", "imported_from", "git", "python")},
            "torch": {name: self.torch.get(name) for name in ("version", "threads", "cpu_capability", "cuda")},
            "weights": self.facts.fingerprint,
        }

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams, request_id: str) -> RemoteRequest:
        """See :class:`Subject`."""
        prompt, packed = list(prompt_token_ids), pack_settings(params)
        self._tell("submit", request_id=request_id, prompt_token_ids=prompt, params=packed)
        self._requests[request_id] = RemoteRequest(request_id)
        return self._requests[request_id]

    def advance(self) -> None:
        """See :class:`Subject`."""
        self._tell("advance", max_steps=self.max_steps, max_ms=ADVANCE_MS)

    def cancel(self, request_id: str) -> None:
        """See :class:`Subject`."""
        self._tell("cancel", request_id=request_id)

    def settle(self) -> None:
        """See :class:`Subject`."""
        self._tell("settle")

    def submit_cached(
        self,
        prompt_token_ids: Sequence[int],  # noqa: ARG002
        params: SamplingParams,  # noqa: ARG002
        request_id: str,  # noqa: ARG002
    ) -> RemoteRequest:
        """See :class:`Subject`; refused: what is asked over the pipe are whole requests."""
        raise InputError("an arm in a process of its own cannot be given a filled cache", where="measure.windows")

    def switch(self, choices: Mapping[str, str]) -> None:
        """See :class:`Subject`."""
        self._tell("switch", choices=dict(choices))

    def read_counters(self) -> CounterReading | None:
        """See :class:`Subject`. They are part of what a subject says of itself; None where its commit left them out."""
        toggles = self._server.ask("describe")["description"].get("toggles")
        if toggles is None or not all("counters" in toggle for toggle in toggles.values()):
            return None
        variants = {name: toggle["variant"] for name, toggle in toggles.items()}
        return CounterReading(variants, {name: toggle["counters"] for name, toggle in toggles.items()})

    def drain(self) -> Telemetry:
        """See :class:`Subject`."""
        answer = self._tell("drain")
        busy = answer["busy"]
        steps, spans = _unpack_steps(answer["steps"]), _unpack_spans(answer["spans"])
        # Another commit may not audit.
        audit = answer.get("audit")
        return Telemetry(
            steps,
            spans,
            None if busy is None else _unpack_spans(busy),
            None if audit is None else [from_json(SamplingAudit, entry) for entry in audit],
        )

    def logit_margin(self, prefix: Sequence[int], first_id: int, second_id: int) -> float:
        """See :func:`specbench.engine.scoring.logit_margin`; finishes what is in flight first."""
        answer = self._tell("margin", prefix=list(prefix), first_id=first_id, second_id=second_id)
        return float(answer["margin"])

    def close(self) -> None:
        """See :class:`Subject`."""
        self._server.close()

    def __enter__(self) -> RemoteSubject:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell(self, operation: str, **arguments: Any) -> Message:
        """Have something done and take in what the requests gained by it."""
        answer = self._server.ask(operation, **arguments)
        self._has_work = answer["has_work"]
        for request_id, tokens, times_ns, sizes, accepted, reason, preemptions in answer["news"]:
            request = self._requests[request_id]
            request.output_token_ids += tokens
            request.chunk_times_ns += times_ns
            request.chunk_sizes += sizes
            request.accepted_lengths += accepted
            request.finish_reason, request.num_preemptions = reason, preemptions
            if reason is not None:
                del self._requests[request_id]
        return answer


def pack_toggles(chosen: Mapping[str, str]) -> dict[str, list[Any]]:
    """By toggle: its variant, and whether a commit that lacks the toggle does the same.

    It does where the variant is the baseline, and where there is nothing to choose.
    """
    packed = {}
    for name, variant in chosen.items():
        toggle = load_toggle(name)
        packed[name] = [variant, variant == toggle.baseline or toggle.is_idle(chosen)]
    return packed


def _unpack_steps(columns: dict[str, list[Any]]) -> list[StepRecord]:
    missing = [
        item.name
        for item in dataclasses.fields(StepRecord)
        if item.default is dataclasses.MISSING and item.name not in columns
    ]
    if missing:
        raise InputError(f"the specbench of that process does not record {', '.join(missing)} of a step")
    return StepTable(columns).rows()


def _unpack_spans(packed: Message) -> list[Span]:
    spans = []
    for kind, start_ns, end_ns in zip(packed["kind"], packed["start_ns"], packed["end_ns"], strict=True):
        name, lane = packed["kinds"][kind]
        spans.append(Span(name, lane, start_ns, end_ns))
    return spans
