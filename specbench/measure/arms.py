"""The engines of a plan's points: opened when first needed, sharing weights and device, warmed up once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specbench.device.tracing import RangeRecorder, Tracer
from specbench.engine.config import AcceptanceSpec
from specbench.engine.optimizations.base import load_toggle
from specbench.measure.clock import Clock
from specbench.measure.interruption import StopSignal
from specbench.measure.load import Content, ContentSource, base_params, build_content, require_fit
from specbench.measure.recording import Kept
from specbench.measure.remote import RemoteSubject
from specbench.measure.subject import BuiltinSubject, Subject
from specbench.measure.trials import TrialContext
from specbench.scenario.conflicts import REPLAY
from specbench.scenario.machine import available_memory_bytes
from specbench.scenario.plan import PlanPoint, Question
from specbench.scenario.questions import resolved_points
from specbench.scenario.resolve import ResolvedScenario
from specbench.scenario.schema import Acceptance
from specbench.scenario.units import parse_duration

Announce = Callable[[str], None]
MIN_OPEN = 2
"""Both arms of a comparison."""


@dataclass(frozen=True)
class OpenArm:
    """One configuration, ready to be measured."""

    point: PlanPoint
    resolved: ResolvedScenario
    subject: Subject
    content: Content
    fingerprint: str | None

    def source(self, seed: int) -> ContentSource:
        """The whole workload, drawing with ``seed``."""
        return ContentSource(self.content, base_params(self.resolved.scenario, self.content.tokenizer, seed))

    @property
    def concurrency(self) -> int:
        """Requests in flight at once."""
        return self.resolved.scenario.workload.concurrency

    @property
    def timeout_s(self) -> float | None:
        """``measure.timeout`` in seconds."""
        timeout = self.resolved.scenario.measure.timeout
        return None if timeout is None else parse_duration(timeout)

    @property
    def window_steps(self) -> int | None:
        """Decode steps that are timed from a synthetic cache; None: whole requests are measured."""
        windows = self.resolved.scenario.measure.windows
        return None if windows is None else windows.steps

    @property
    def acceptance(self) -> Acceptance:
        """Which draft tokens it commits."""
        return self.resolved.scenario.acceptance

    @property
    def replays(self) -> bool:
        """Acceptance is that of another run."""
        return self.acceptance.mode == REPLAY

    def context(
        self, clock: Clock, stop: StopSignal, plan_hash: str | None, kept: Kept, subject: Subject | None = None
    ) -> TrialContext:
        """What its trials have in common.

        :param kept: what of the content is written; the decoder is the arm's own.
        :param subject: in place of the arm's own, one with a known defect in it.
        """
        return TrialContext(
            subject=subject or self.subject,
            clock=clock,
            stop=stop,
            plan_hash=plan_hash,
            label=self.content.label,
            note=self.content.note,
            kept=replace(kept, decode=self.content.tokenizer.decode if self.content.tokenizer else None),
            axes=self.axes,
        )

    @property
    def axes(self) -> dict[str, Any]:
        """What records call the point by."""
        return {**describe_axes(self.resolved), **self.point.axes, **self.point.coordinates}


@dataclass(frozen=True)
class _Facts:
    """What the load generator needs to know of the model."""

    vocab_size: int
    directory: Path | None
    fingerprint: str | None


class Arms:
    """Opens the arms of a plan's points. At most as many as memory holds stay open; the longest unused one goes first.

    :param points: resolved, by index.
    :param tracer: of every engine in this process; ``recorder`` inside it keeps the ranges.
    """

    def __init__(
        self,
        points: Sequence[tuple[PlanPoint, ResolvedScenario]],
        announce: Announce,
        tracer: Tracer,
        recorder: RangeRecorder,
    ) -> None:
        self._points = points
        self._announce = announce
        self._tracer = tracer
        self._recorder = recorder
        self._open: OrderedDict[int, OpenArm] = OrderedDict()
        self._contents: dict[str, Content] = {}
        self._warmed: set[int] = set()

    @classmethod
    def of(cls, plan: Question, announce: Announce) -> Arms:
        """The arms of every point of a plan, whose engines record ranges."""
        recorder = RangeRecorder()
        return cls(list(zip(plan.points, resolved_points(plan), strict=True)), announce, recorder, recorder)

    def open(self, index: int) -> OpenArm:
        """The arm of point ``index``, its engine built if it is not yet.

        :raises InputError: the model or the configuration cannot be used.
        :raises EngineError: it failed.
        """
        if index not in self._open:
            self._make_room(index)
            self._open[index] = self._build(*self._points[index])
        self._open.move_to_end(index)
        return self._open[index]

    def open_strict(self, index: int) -> OpenArm:
        """The same with strict acceptance: what it accepts is recorded, and replayed by the arm itself."""
        key = -1 - index
        if key not in self._open:
            point, resolved = self._points[index]
            scenario = resolved.scenario.model_copy(update={"acceptance": Acceptance()})
            engine = replace(resolved.engine, acceptance=AcceptanceSpec())
            self._make_room(index)
            self._open[key] = self._build(point, replace(resolved, scenario=scenario, engine=engine))
        self._open.move_to_end(key)
        return self._open[key]

    def is_new(self, index: int) -> bool:
        """True the first time that this is asked of an arm since it was opened: it is to be warmed up."""
        new = index not in self._warmed
        self._warmed.add(index)
        return new

    def toggles(self, index: int) -> dict[str, str]:
        """Variant of every toggle of point ``index`` in which arms that share their steps may differ."""
        chosen = self._points[index][1].engine.optimizations
        return {name: variant for name, variant in chosen if load_toggle(name).step_preserving}

    def close(self) -> None:
        """Release every engine; the first error is raised when all are closed."""
        errors: list[Exception] = []
        while self._open:
            _, arm = self._open.popitem()
            try:
                arm.subject.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def discard(self, index: int) -> None:
        """Close one arm, whose subject failed; what it says while closing is of no interest any more."""
        arm = self._open.pop(index, None)
        self._warmed.discard(index)
        if arm is not None:
            try:
                arm.subject.close()
            except Exception as error:
                self._announce(f"while closing: {error}")

    def _make_room(self, index: int) -> None:
        """Close the longest unused arms while the caches of all would not fit in memory with this one's."""
        _, wanted = self._points[index]
        free = available_memory_bytes(wanted.engine.device)
        while len(self._open) >= MIN_OPEN and free is not None and self._pending_bytes() + _own_bytes(wanted) > free:
            oldest = next(iter(self._open))
            self._open.pop(oldest).subject.close()
            self._warmed.discard(oldest)
            free = available_memory_bytes(wanted.engine.device)

    def _pending_bytes(self) -> int:
        """What the open arms may still take: KV pages are touched as requests grow, so free memory looks larger."""
        return sum(_own_bytes(arm.resolved) for arm in self._open.values())

    def _build(self, point: PlanPoint, resolved: ResolvedScenario) -> OpenArm:
        subject, facts = self._build_subject(resolved)
        try:
            arm = OpenArm(point, resolved, subject, self._content(resolved, facts), facts.fingerprint)
            require_fit(arm.source(resolved.scenario.sampling.seed), resolved.engine.max_seq_len)
        except BaseException:
            subject.close()
            raise
        return arm

    def _build_subject(self, resolved: ResolvedScenario) -> tuple[Subject, _Facts]:
        process = resolved.scenario.process
        if process is not None:
            remote = RemoteSubject.start(resolved.engine, process, with_ranges=True)
            return remote, _Facts(remote.facts.vocab_size, remote.facts.directory, remote.facts.fingerprint)
        builtin = [arm for arm in self._open.values() if isinstance(arm.subject, BuiltinSubject)]
        if not builtin:
            self._announce(f"loading {resolved.engine.model.source}")
        # One with the same weights, where there is one.
        builtin.sort(key=lambda arm: arm.resolved.engine.model != resolved.engine.model)
        share = builtin[0].subject if builtin and isinstance(builtin[0].subject, BuiltinSubject) else None
        subject, loaded = BuiltinSubject.build(resolved.engine, self._tracer, self._recorder, share=share)
        return subject, _Facts(loaded.config.vocab_size, loaded.directory, loaded.fingerprint)

    def _content(self, resolved: ResolvedScenario, facts: _Facts) -> Content:
        """The workload of a point; points with the same one share it."""
        scenario = resolved.scenario
        device, windows = scenario.engine.device, scenario.measure.windows
        parts = (scenario.workload, scenario.model, scenario.drafter, scenario.acceptance.mode, device, windows)
        key = repr((*parts, facts))
        if key not in self._contents:
            self._contents[key] = build_content(scenario, facts.vocab_size, facts.directory)
        return self._contents[key]


def _own_bytes(resolved: ResolvedScenario) -> int:
    """What an engine takes beside the weights, which engines share."""
    return resolved.memory.total_bytes - resolved.memory.weights_bytes


def describe_axes(resolved: ResolvedScenario) -> dict[str, Any]:
    """What a point is called by, beyond the plan's own axes."""
    scenario, engine = resolved.scenario, resolved.engine
    length = scenario.acceptance.length
    return {
        "model": scenario.model.source,
        "drafter": scenario.drafter.name,
        "acceptance": scenario.acceptance.mode if length is None else f"{scenario.acceptance.mode} {length}",
        "workload": scenario.workload.kind,
        "max_batch_size": engine.max_batch_size,
    }
