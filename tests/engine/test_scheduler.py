"""Property tests of the scheduler against a device that commits at random, overlap on and off."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.engine.config import DrafterSpec, EngineConfig, ModelSpec
from specbench.engine.request import Request
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.scheduler import Schedule, Scheduler

CONFIG = EngineConfig(
    model=ModelSpec("tiny"), device="cpu", max_seq_len=48, max_batch_size=3, num_blocks=16, tokens_per_block=4,
    max_num_tokens=16, drafter=DrafterSpec("ngram", 2),
)  # fmt: skip


class Simulation:
    """Drives a scheduler as the engine does, with made-up commits, and checks every step."""

    def __init__(self, config: EngineConfig, overlap: bool, rng: random.Random) -> None:
        self.scheduler = Scheduler(config)
        self.config = config
        self.overlap = overlap
        self.rng = rng
        self.in_flight: Schedule | None = None
        self.lengths: dict[str, int] = {}  # the device's view
        self.finished: list[Request] = []
        self.commits: dict[int, dict[str, int]] = {}  # by schedule: what the device committed to whom

    def add(self, name: str, prompt: int, output: int) -> Request:
        max_length = min(prompt + output, self.config.max_seq_len)
        request = Request(name, tuple(range(prompt)), SamplingParams(), frozenset(), max_length, 0)
        self.scheduler.add(request)
        return request

    def step(self) -> None:
        schedule = self.scheduler.schedule()
        self.check(schedule)
        self.run_on_device(schedule)
        launched = None if schedule.is_empty else schedule
        if self.overlap:
            launched, self.in_flight = self.in_flight, launched
        if launched is not None:
            self.update(launched)
        self.scheduler.blocks.check()

    def check(self, schedule: Schedule) -> None:
        rows = schedule.draft_len + 1
        assert sum(c.num_tokens for c in schedule.context) + rows * len(schedule.generation) <= 16
        requests = [c.request for c in schedule.context] + schedule.generation
        slots = [request.slot for request in requests]
        assert None not in slots
        assert len(set(slots)) == len(slots) == len({id(r) for r in requests})
        assert all(chunk.num_tokens > 0 for chunk in schedule.context)

    def run_on_device(self, schedule: Schedule) -> None:
        """Commit at random and check that every row had a block under it."""
        commits = {}
        for chunk in schedule.context:
            owned = self.scheduler.blocks.num_owned(chunk.request.slot or 0) * self.config.tokens_per_block
            assert chunk.end <= owned
            if chunk.is_last:
                self.lengths[chunk.request.request_id] = chunk.end + 1
            if chunk.samples:
                commits[chunk.request.request_id] = 1
        for request in schedule.generation:
            length = self.lengths[request.request_id]
            owned = self.scheduler.blocks.num_owned(request.slot or 0) * self.config.tokens_per_block
            assert length + schedule.draft_len <= owned, "a row without a block"
            commits[request.request_id] = self.rng.randint(1, schedule.draft_len + 1)
            self.lengths[request.request_id] = length + commits[request.request_id]
        self.commits[id(schedule)] = commits

    def update(self, schedule: Schedule) -> None:
        commits = self.commits.pop(id(schedule))
        for request in [c.request for c in schedule.context] + schedule.generation:
            count = commits.get(request.request_id)
            if count is None:
                continue
            request.num_in_flight -= 1
            if request.finish_reason is not None:
                continue
            request.commit([7] * count, 0)
            if request.finish_reason:
                self.scheduler.finish(request)
                self.finished.append(request)


requests = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20), st.integers(0, 6)), min_size=1, max_size=12)


@settings(max_examples=150)
@given(requests, st.booleans(), st.integers(12, 40), st.integers(0, 2**32), st.lists(st.integers(0, 11), max_size=4))
def test_every_request_ends_and_every_block_comes_back(
    arrivals: list[tuple[int, int, int]], overlap: bool, num_blocks: int, seed: int, cancelled: list[int]
) -> None:
    rng = random.Random(seed)
    config = replace(CONFIG, num_blocks=max(num_blocks, -(-CONFIG.max_positions // 4)))
    simulation = Simulation(config, overlap, rng)
    pending = [(delay, f"r{i}", prompt, output) for i, (prompt, output, delay) in enumerate(arrivals)]
    added: dict[str, Request] = {}
    for tick in range(4000):
        for delay, name, prompt, output in list(pending):
            if delay <= tick:
                pending.remove((delay, name, prompt, output))
                added[name] = simulation.add(name, prompt, output)
        name = f"r{cancelled[tick % len(cancelled)]}" if cancelled and tick % 5 == 3 else None
        if name in added and added[name].finish_reason is None and rng.random() < 0.2:
            added[name].finish_reason = "abort"
            simulation.scheduler.finish(added[name])
        simulation.step()
        if not pending and not simulation.scheduler.has_work and simulation.in_flight is None:
            break
    assert not simulation.scheduler.has_work, "requests starve"
    assert simulation.scheduler.blocks.num_free == config.num_blocks
    for request in simulation.finished:
        assert request.num_tokens == request.max_length
    ended = {r.request_id for r in simulation.finished} | {n for n, r in added.items() if r.finish_reason == "abort"}
    assert ended == set(added)


def test_a_short_pool_preempts_the_last_admitted() -> None:
    config = replace(CONFIG, num_blocks=14, max_batch_size=2)
    simulation = Simulation(config, False, random.Random(0))
    first, second = simulation.add("a", 8, 40), simulation.add("b", 8, 40)
    while simulation.scheduler.has_work:
        simulation.step()
    assert first.num_preemptions == 0
    assert second.num_preemptions >= 1
    assert second.num_tokens == second.max_length


def test_prompts_are_chunked_to_the_row_budget() -> None:
    simulation = Simulation(CONFIG, False, random.Random(0))
    request = simulation.add("a", 40, 2)
    spans = []
    while request.in_context:
        schedule = simulation.scheduler.schedule()
        simulation.run_on_device(schedule)
        spans += [(chunk.start, chunk.end, chunk.is_last) for chunk in schedule.context]
    assert spans == [(0, 16, False), (16, 32, False), (32, 40, True)]


@pytest.mark.parametrize(("batch", "expected"), [(1, 4), (2, 4), (3, 1), (4, 1), (5, 0)])
def test_runtime_draft_len_by_batch_size(batch: int, expected: int) -> None:
    spec = DrafterSpec("ngram", 4, runtime_draft_len=((2, 4), (4, 1)))
    assert spec.draft_len_for(batch) == expected
    assert spec.max_draft_len == 4
