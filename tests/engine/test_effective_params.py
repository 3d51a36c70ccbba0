"""Row 3.7: the effective parameters of every row are compared with what was asked for, in every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from captured_cases import (
    Launched,
    batch_of,
    capture_set,
    captured_config,
    counts_of,
    eager,
    opened,
    rows_by_values,
    serve,
    simulated,
    steps_of,
    watch_schedules,
    wrong_rows,
)
from test_engine_tokens import GREEDY, prompts

from specbench.engine.config import EngineConfig
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.sampling.buffers import SamplingBuffers
from specbench.engine.sampling.metadata import NormalizedParams, RowClass, classify, normalize, round_to_float32
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.step_sampling import StepSampling
from specbench.records import SamplingValues

CASES = [
    pytest.param(draft_len, graphs, device, id=f"K{draft_len}-{graphs}-{device}")
    for draft_len in (0, 3)
    for graphs in ("eager", "captured")
    for device in ("cpu", "sim")
]


def config_of(draft_len: int, graphs: str, device: str) -> EngineConfig:
    config = captured_config(draft_len, max_num_tokens=40)  # so that prompts come in pieces, beside generation
    config = config if graphs == "captured" else eager(config)
    return config if device == "cpu" else simulated(config)


def values_of(params: SamplingParams) -> SamplingValues:
    """What a request asks for, reckoned here: as float32, greedy without numbers."""
    temperature, top_k, top_p = normalize(params)
    if classify((temperature, top_k, top_p)) is RowClass.GREEDY:
        return SamplingValues(0.0, 0, 0.0)
    return SamplingValues(round_to_float32(temperature), top_k, round_to_float32(top_p))


def expected_rows(launched: Sequence[Launched]) -> Counter[SamplingValues]:
    """Rows of these steps by what their requests ask for."""
    rows: Counter[SamplingValues] = Counter()
    for params, count in (row for step in launched for row in step.rows):
        rows[values_of(params)] += count
    return rows


@pytest.mark.parametrize(("draft_len", "graphs", "device"), CASES)
def test_row_3_7_every_row_is_served_as_it_asked(draft_len: int, graphs: str, device: str) -> None:
    with opened(config_of(draft_len, graphs, device)) as engine:
        launched = watch_schedules(engine)
        for kind in ("greedy", "sampled", "mixed"):
            launched.clear()
            steps = steps_of(serve(engine, batch_of(kind, 7)))
            found = engine.drain_audit()
            assert wrong_rows(found) == {}
            assert rows_by_values(found) == expected_rows(launched)
            assert {tuple(sorted(entry.variants.items())) for entry in found} == {
                tuple(sorted(engine.variants.items()))
            }
            total = 7 + sum(step.num_generation * (step.draft_len + 1) for step in steps)
            assert sum(entry.rows for entry in found) == total, "the first token of each, and the rows of the steps"
            assert any(step.num_context and step.num_generation for step in steps)
            assert engine.drain_audit() == [], "told once"
        assert bool(counts_of(engine)["replays"]) is (graphs == "captured")
        assert bool(counts_of(engine)["padded_steps"]) is (graphs == "captured")


def test_row_3_7_padding_that_asks_for_the_same_as_one_that_ended_is_not_taken_for_it() -> None:
    """Four greedy requests, then three and a greedy padding request: the parameters of both steps are equal."""
    with opened(captured_config(0)) as engine:
        launched = watch_schedules(engine)
        lengths = (30, 10, 20, 30)
        serve(engine, [(text, replace(GREEDY, max_tokens=n)) for text, n in zip(prompts(4), lengths, strict=True)])
        found = engine.drain_audit()
    assert [len(step.schedule.generation) for step in launched][9:12] == [4, 3, 3]
    assert rows_by_values(found) == expected_rows(launched) == {SamplingValues(0.0, 0, 0.0): sum(lengths)}


def test_row_3_7_variants_are_told_apart() -> None:
    with opened(captured_config(3)) as engine:
        serve(engine, batch_of("sampled", 3))
        engine.switch({"capture_params": "leak"})
        serve(engine, batch_of("sampled", 3))
        engine.switch({"capture_params": "real_params"})
        serve(engine, batch_of("sampled", 3))
        found = engine.drain_audit()
    wrong = {entry.variants["capture_params"] for entry in found if entry.asked != entry.effective}
    assert wrong == {"leak"}
    assert {entry.variants["capture_params"] for entry in found} == {"leak", "real_params"}


# What is broken on purpose is found.


def found_wrong(config: EngineConfig, kind: str = "sampled") -> dict[tuple[SamplingValues, SamplingValues], int]:
    with opened(config) as engine:
        serve(engine, batch_of(kind, 5))
        return wrong_rows(engine.drain_audit())


@pytest.mark.parametrize(("draft_len", "graphs", "device"), CASES)
def test_row_3_7_a_fill_that_writes_a_wrong_row_is_found(
    draft_len: int, graphs: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = SamplingBuffers.write

    def write(buffers: SamplingBuffers, table: object, values: Sequence[NormalizedParams], *rest: object) -> object:
        last = (1.5, *values[-1][1:])
        return original(buffers, table, [*values[:-1], last], *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(SamplingBuffers, "write", write)
    wrong = found_wrong(config_of(draft_len, graphs, device))
    assert {served.temperature for _, served in wrong} == {1.5}


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_row_3_7_a_wrong_row_count_is_found(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt's one row counted as K + 1, and those of the last request as one: all rows between are displaced."""
    original = StepSampling.fill

    def fill(sampling: StepSampling, params: object, row_counts: Sequence[int], slots: object) -> object:
        turned = list(row_counts)[::-1]
        return original(sampling, params, turned, slots)  # type: ignore[arg-type]

    monkeypatch.setattr(StepSampling, "fill", fill)
    assert found_wrong(config_of(3, "captured", device))
    # With a row each there is nothing to confuse.
    assert not found_wrong(config_of(0, "captured", device))


def lose_the_draw(engine: LLMEngine) -> None:
    """Put the greedy recording under every advanced key."""
    steps = capture_set(engine).steps
    for key in [key for key in steps if not key.is_greedy]:
        steps[key] = steps[key._replace(is_greedy=True)]


@pytest.mark.parametrize("draft_len", [0, 3])
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_row_3_7_a_captured_step_that_lost_its_draw_is_found(draft_len: int, device: str) -> None:
    with opened(config_of(draft_len, "captured", device)) as engine:
        lose_the_draw(engine)
        serve(engine, batch_of("sampled", 5))
        wrong = wrong_rows(engine.drain_audit())
    assert {served for _, served in wrong} == {SamplingValues(0.0, 0, 0.0)}
