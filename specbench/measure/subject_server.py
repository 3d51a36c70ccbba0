"""The process of an arm: holds an engine, and does on it what the measuring process asks through stdin and stdout.

It counts nothing: what the engine says of its steps goes back as it is, and one code in the measuring process counts
for every arm. Started by :mod:`specbench.measure.remote` with the arm's interpreter, environment and checkout, so that
this file may be of another commit than the one that asks. ``main`` and the ``hello`` operation stay as they are.
"""

from __future__ import annotations

import gc
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import specbench
from specbench import registry
from specbench.device.tracing import NullTracer, RangeRecorder, Span, Tracer
from specbench.encoding import to_json
from specbench.engine.config import EngineConfig
from specbench.engine.optimizations.base import load_toggle
from specbench.engine.sampling.params import SamplingParams
from specbench.errors import InputError, SpecbenchError
from specbench.measure.environment import describe_git, describe_torch, describe_variables
from specbench.measure.fresh_process import die_with_parent
from specbench.measure.subject import BuiltinSubject, InFlight
from specbench.measure.wire import PROTOCOL, Channel, Message, pack_error, unpack_settings
from specbench.records import StepTable

NS_PER_MS = 1_000_000


def main() -> int:
    """Serve until the pipe closes. Ctrl-C is the measuring process's to decide on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = _take_over_pipe()
    server = SubjectServer()
    while (request := channel.receive()) is not None:
        if not channel.send(server.answer(request)) or request["op"] == "close":
            break
    server.close()
    return 0


def _take_over_pipe() -> Channel:
    """Keep the pipe for messages alone: what anything here prints goes to stderr, and nothing waits for input."""
    channel = Channel(os.dup(0), os.dup(1))
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return channel


@dataclass
class _Watched:
    """A request, and how much of it has been told."""

    request: InFlight
    tokens: int = 0
    chunks: int = 0
    target_steps: int = 0
    preemptions: int = 0

    def news(self) -> list[Any] | None:
        """What is new, in the order of :class:`specbench.measure.remote.RemoteRequest`'s fields; None: nothing."""
        request = self.request
        counts = (len(request.output_token_ids), len(request.chunk_times_ns), len(request.accepted_lengths))
        seen = (self.tokens, self.chunks, self.target_steps)
        if counts == seen and request.finish_reason is None and request.num_preemptions == self.preemptions:
            return None
        self.tokens, self.chunks, self.target_steps = counts
        self.preemptions = request.num_preemptions
        return [
            request.request_id,
            request.output_token_ids[seen[0] :],
            request.chunk_times_ns[seen[1] :],
            request.chunk_sizes[seen[1] :],
            request.accepted_lengths[seen[2] :],
            request.finish_reason,
            request.num_preemptions,
        ]


class SubjectServer:
    """Answers requests, each a dictionary whose ``op`` names the operation."""

    def __init__(self) -> None:
        self._subject: BuiltinSubject | None = None
        self._watched: dict[str, _Watched] = {}
        self._operations: dict[str, Callable[[Message], Message]] = {
            "hello": self._hello,
            "now": lambda _request: {"now_ns": time.perf_counter_ns()},
            "build": self._build,
            "submit": self._submit,
            "advance": self._advance,
            "cancel": self._cancel,
            "settle": self._settle,
            "switch": self._switch,
            "drain": self._drain,
            "margin": self._margin,
            "describe": lambda _request: {"description": self._built.describe()},
            "close": self._close,
        }

    def answer(self, request: Message) -> Message:
        """Do what is asked; an exception is an answer too."""
        try:
            operation = self._operations.get(request["op"])
            if operation is None:
                raise InputError(f"the specbench of this process cannot {request['op']!r}", where=specbench.__file__)
            return operation(request)
        except Exception as error:
            if not isinstance(error, SpecbenchError):
                traceback.print_exc()
            return {"error": pack_error(error)}

    def close(self) -> None:
        """Release the engine, if there is one."""
        subject, self._subject = self._subject, None
        if subject is not None:
            subject.close()

    @property
    def _built(self) -> BuiltinSubject:
        if self._subject is None:
            raise InputError("no engine has been built", where="subject server")
        return self._subject

    def _hello(self, request: Message) -> Message:
        if request["die_with_parent"]:
            die_with_parent()
        return {
            "protocol": PROTOCOL,
            "specbench": specbench.__version__,
            "imported_from": str(Path(specbench.__file__).parent),
            "git": describe_git(Path(specbench.__file__).parent),
            "python": platform.python_version(),
            "executable": sys.executable,
            "torch": _version_of("torch"),
            "pid": os.getpid(),
            "variables": describe_variables(),
        }

    def _build(self, request: Message) -> Message:
        self.close()
        config = unpack_settings(EngineConfig, request["config"], "engine")
        config = replace(config, optimizations=_known_toggles(request["toggles"]))
        recorder = RangeRecorder() if request["with_ranges"] else None
        tracer: Tracer = recorder or NullTracer()
        self._subject, loaded = BuiltinSubject.build(config, tracer, recorder)
        gc.disable()
        self._collect_garbage()
        num_threads = self._subject.num_threads
        return {
            "capabilities": asdict(self._subject.capabilities),
            "facts": {
                "vocab_size": loaded.config.vocab_size,
                "max_position_embeddings": loaded.config.max_position_embeddings,
                "directory": None if loaded.directory is None else os.path.abspath(loaded.directory),
                "source": loaded.source,
                "fingerprint": loaded.fingerprint,
                "num_parameters": loaded.num_parameters,
            },
            "num_threads": num_threads,
            "torch": describe_torch(num_threads),
        }

    @staticmethod
    def _collect_garbage() -> None:
        """The collector is off while an engine is here, and runs where no window is: an arm has no other pauses
        than one in the measuring process, which does the same.
        """
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    def _submit(self, request: Message) -> Message:
        params = unpack_settings(SamplingParams, request["params"], "sampling")
        found = self._built.submit(request["prompt_token_ids"], params, request["request_id"])
        self._watched[found.request_id] = _Watched(found)
        return self._progress()

    def _advance(self, request: Message) -> Message:
        """Step until a request has ended, ``max_steps`` were made or ``max_ms`` have passed."""
        subject = self._built
        deadline_ns = time.perf_counter_ns() + request["max_ms"] * NS_PER_MS
        steps_left = request["max_steps"]
        while subject.has_work and steps_left != 0:
            subject.advance()
            steps_left = None if steps_left is None else steps_left - 1
            if self._has_ended_request() or time.perf_counter_ns() >= deadline_ns:
                break
        return self._progress()

    def _has_ended_request(self) -> bool:
        return any(watched.request.finish_reason for watched in self._watched.values())

    def _cancel(self, request: Message) -> Message:
        self._built.cancel(request["request_id"])
        return self._progress()

    def _settle(self, request: Message) -> Message:  # noqa: ARG002
        self._built.settle()
        return self._progress()

    def _switch(self, request: Message) -> Message:
        self._built.switch(request["choices"])
        return self._progress()

    def _drain(self, request: Message) -> Message:  # noqa: ARG002
        found = self._built.drain()
        self._collect_garbage()
        return {
            "steps": StepTable.of(found.steps).columns,
            "spans": _pack_spans(found.spans),
            "busy": None if found.busy is None else _pack_spans(found.busy),
            "audit": to_json(found.audit),
            **self._progress(),
        }

    def _margin(self, request: Message) -> Message:
        from specbench.engine.scoring import logit_margin

        self._built.settle()
        loaded = self._built.engine.loaded
        margin = logit_margin(loaded, request["prefix"], request["first_id"], request["second_id"])
        return {"margin": margin, **self._progress()}

    def _close(self, request: Message) -> Message:  # noqa: ARG002
        self.close()
        return {}

    def _progress(self) -> Message:
        """What every request has gained since the last answer."""
        news = [item for watched in self._watched.values() if (item := watched.news()) is not None]
        for request_id in [name for name, watched in self._watched.items() if watched.request.finish_reason]:
            del self._watched[request_id]
        return {"has_work": self._built.has_work, "news": news}


def _known_toggles(toggles: dict[str, Sequence[Any]]) -> tuple[tuple[str, str], ...]:
    """The toggles this commit has. One that it lacks is as if in its baseline variant, and can be nothing else here.

    :param toggles: by name: the variant, and whether it is the baseline's.
    :raises InputError: a toggle or variant that this commit lacks.
    """
    known = []
    for name, (variant, is_baseline) in toggles.items():
        if name in registry.OPTIMIZATIONS:
            load_toggle(name).require(variant)
            known.append((name, variant))
        elif not is_baseline:
            raise InputError(
                f"the specbench of this process ({Path(specbench.__file__).parent}) has no toggle {name!r}",
                where=f"optimizations.{name}",
                hint=f"{variant!r} needs it: give this arm the toggle's baseline variant, which is what it does anyway",
            )
    return tuple(known)


def _pack_spans(spans: Sequence[Span]) -> Message:
    """Spans as columns, each (name, lane) written once."""
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys((span.name, span.lane) for span in spans))}
    return {
        "kinds": list(kinds),
        "kind": [kinds[span.name, span.lane] for span in spans],
        "start_ns": [span.start_ns for span in spans],
        "end_ns": [span.end_ns for span in spans],
    }


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
