"""A subject on a clock that stands still between its steps, so that every figure can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from specbench.device.tracing import Span
from specbench.engine.sampling.params import SamplingParams
from specbench.errors import PromptTooLongError
from specbench.measure.counters import CounterReading
from specbench.measure.driver import PlannedRequest
from specbench.measure.executor import Load, Run
from specbench.measure.interruption import StopSignal
from specbench.measure.results_folder import ResultsFolder
from specbench.measure.subject import Capabilities, Telemetry
from specbench.records import StepRecord
from specbench.scenario.plan import PlanPoint, RunPlan, Trial

US, MS = 1_000, 1_000_000
SCHEDULE_NS, LAUNCH_NS, DEVICE_NS, UPDATE_NS = 100 * US, 50 * US, 1 * MS, 200 * US
STEP_NS = SCHEDULE_NS + LAUNCH_NS + DEVICE_NS + UPDATE_NS


class FakeClock:
    """Time moves only when somebody moves it."""

    def __init__(self, start_ns: int = 5_000) -> None:
        self.ns = start_ns

    def now_ns(self) -> int:
        return self.ns

    def utc(self) -> datetime:
        return datetime(2026, 1, 31, 12, 0, 0, tzinfo=timezone.utc)


@dataclass
class FakeRequest:
    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    output_token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    num_preemptions: int = 0
    accepted_lengths: list[int] = field(default_factory=list)
    chunk_times_ns: list[int] = field(default_factory=list)
    chunk_sizes: list[int] = field(default_factory=list)

    def commit(self, count: int, now_ns: int) -> int:
        kept = min(count, self.params.max_tokens - len(self.output_token_ids))
        for _ in range(kept):
            self.output_token_ids.append((sum(self.prompt) + len(self.output_token_ids) + self.params.seed) % 97)
        self.chunk_times_ns.append(now_ns)
        self.chunk_sizes.append(kept)
        if len(self.output_token_ids) == self.params.max_tokens:
            self.finish_reason = "length"
        return kept


class FakeSubject:
    """An engine whose step takes the four constants above, one after the other, and commits ``per_step`` tokens.

    :param on_step: called with the step number before each step.
    """

    def __init__(
        self,
        clock: FakeClock,
        *,
        draft_len: int = 2,
        per_step: int = 2,
        max_seq_len: int = 1000,
        on_step: Callable[[int], None] | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        self.capabilities = capabilities or Capabilities(True, True, True, True)
        self.clock = clock
        self.draft_len = draft_len
        self.per_step = per_step
        self.max_seq_len = max_seq_len
        self.on_step = on_step or (lambda _step: None)
        self.active: list[FakeRequest] = []
        self.most_active = 0
        self.num_steps = 0
        self.steps: list[StepRecord] = []
        self.spans: list[Span] = []
        self.busy: list[Span] = []
        self.idle_forever = False
        self.occupied = 0
        self.closed = False
        self.choices: dict[str, str] = {}
        self.switches: list[tuple[int, dict[str, str]]] = []
        self.num_settled = 0

    @property
    def has_work(self) -> bool:
        return bool(self.active) and not self.idle_forever

    def describe(self) -> dict[str, Any]:
        return {
            "name": "fake",
            "capabilities": asdict(self.capabilities),
            "engine": {"device": "cpu", "overlap": False},
            "fingerprint": "f" * 64,
        }

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams, request_id: str) -> FakeRequest:
        if len(prompt_token_ids) >= self.max_seq_len:
            raise PromptTooLongError(f"the prompt has {len(prompt_token_ids)} tokens", where=request_id)
        request = FakeRequest(request_id, tuple(prompt_token_ids), params)
        self.active.append(request)
        self.most_active = max(self.most_active, len(self.active))
        return request

    def advance(self) -> None:
        self.num_steps += 1
        self.on_step(self.num_steps)
        self.occupied = len(self.active)
        fresh = [request for request in self.active if not request.output_token_ids]
        running = [request for request in self.active if request.output_token_ids]
        start = self.clock.ns
        launch, device, output = start + SCHEDULE_NS, start + SCHEDULE_NS + LAUNCH_NS, start + STEP_NS - UPDATE_NS
        self._span("schedule", start, launch)
        self._span("launch", launch, device)
        self._span("wait_output", device, output)
        self.busy.append(Span("device_step", "device", device, output))
        first = sum(request.commit(1, output) for request in fresh)
        kept = [request.commit(self.per_step, output) for request in running]
        for request, count in zip(running, kept, strict=True):
            request.accepted_lengths.append(count)
        self.clock.ns = output + UPDATE_NS
        self._span("update", output, self.clock.ns)
        self._record(
            len(fresh), sum(len(request.prompt) for request in fresh), first, kept, start, launch, device, output
        )
        self.active = [request for request in self.active if request.finish_reason is None]

    def _record(
        self, fresh: int, rows: int, first: int, kept: list[int], start: int, launch: int, device: int, output: int
    ) -> None:
        positions = range(self.draft_len if kept else 0)
        self.steps.append(
            StepRecord(
                step=self.num_steps,
                num_context=fresh,
                num_generation=len(kept),
                num_context_tokens=rows,
                draft_len=len(positions),
                num_committed=sum(kept),
                num_first_tokens=first,
                num_target_steps=len(kept),
                drafted=tuple(len(kept) for _ in positions),
                accepted=tuple(sum(count - 1 > i for count in kept) for i in positions),
                eligible=tuple(sum(count - 1 >= i for count in kept) for i in positions),
                host_start_ns=start,
                launch_ns=launch,
                device_start_ns=device,
                device_end_ns=output,
                output_ns=output,
                opened=tuple(len(kept) for _ in positions),
                num_occupied=self.occupied,
            )
        )

    def _span(self, name: str, start: int, end: int) -> None:
        self.spans.append(Span(name, "host", start, end))

    def cancel(self, request_id: str) -> None:
        for request in self.active:
            if request.request_id == request_id:
                request.finish_reason = "abort"
        self.active = [request for request in self.active if request.finish_reason is None]

    def switch(self, choices: Mapping[str, str]) -> None:
        """Kept with the number of steps before it."""
        self.choices |= choices
        self.switches.append((self.num_steps, dict(choices)))

    def read_counters(self) -> CounterReading | None:
        return None

    def settle(self) -> None:
        self.num_settled += 1

    def drain(self) -> Telemetry:
        found = Telemetry(self.steps, self.spans, self.busy if self.capabilities.device_time else None)
        self.steps, self.spans, self.busy = [], [], []
        return found

    def close(self) -> None:
        self.closed = True


class FakeSource:
    """Conversations of given numbers of turns; prompts are [conversation, turn, last output token of each answer]."""

    def __init__(self, turns: Sequence[int], max_tokens: int = 5, seed: int = 0, prompt_len: int = 3) -> None:
        self.num_turns = list(turns)
        self.max_tokens = max_tokens
        self.seed = seed
        self.prompt_len = prompt_len
        self.built: list[tuple[int, int, tuple[int, ...]]] = []

    def build(self, conversation: int, turn: int, previous_outputs: Sequence[Sequence[int]]) -> PlannedRequest:
        self.built.append((conversation, turn, tuple(len(output) for output in previous_outputs)))
        prompt = [conversation, turn, *(output[-1] for output in previous_outputs)]
        prompt += [1] * (self.prompt_len - len(prompt))
        params = SamplingParams(max_tokens=self.max_tokens, seed=self.seed)
        return PlannedRequest(f"c{conversation}/t{turn}", conversation, turn, "math", prompt, params)


def make_plan(repeats: int = 1, warmup_requests: int = 0, scenario: dict[str, Any] | None = None) -> RunPlan:
    trials = tuple(Trial(trial=i, point=0, segment=0, pass_=0, mask=None, seed=7) for i in range(repeats))
    axes = {"concurrency": 2, "draft_len": 2, "isl": None, "osl": 5}
    return RunPlan((PlanPoint(0, "base", axes),), trials, warmup_requests, scenario or {"name": "fake"})


AXES = {"model": "fake-1b", "drafter": "ngram", "acceptance": "strict", "workload": "chat80", "max_batch_size": 2}


def make_run(
    folder: ResultsFolder,
    plan: RunPlan | None = None,
    *,
    subject: FakeSubject | None = None,
    turns: Sequence[int] = (2, 1, 1),
    stop: StopSignal | None = None,
    label: str = "natural",
    **changes: Any,
) -> Run:
    """A run of ``turns`` on a fake subject at concurrency 2."""
    plan = plan or make_plan()
    subject = subject or FakeSubject(FakeClock())
    warmup = None
    if plan.warmup_requests:
        count = plan.warmup_requests
        warmup = lambda seed: FakeSource([1] * count, 3, seed)  # noqa: E731
    load = Load(source=lambda seed: FakeSource(turns, 5, seed), warmup=warmup, concurrency=2, label=label)
    load = replace(load, **{k: changes.pop(k) for k in list(changes) if hasattr(load, k)})
    return Run(plan, subject, load, folder, subject.clock, stop or StopSignal(), AXES, **changes)


def open_folder(path: Path) -> ResultsFolder:
    path.mkdir(parents=True, exist_ok=True)
    return ResultsFolder(path)
