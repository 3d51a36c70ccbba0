"""From a scenario to the same with every default written out, and to the engine's configuration."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.engine.config import AcceptanceSpec, DrafterSpec, EngineConfig, ModelSpec
from specbench.engine.models.presets import LLAMA_3_1_8B, SMOLLM2_135M, TINY
from specbench.errors import CapacityError, InputError, ModelNotFoundError, ScenarioError
from specbench.scenario import machine
from specbench.scenario.loader import load_scenario
from specbench.scenario.planner import plan_run
from specbench.scenario.resolve import ResolvedScenario, build_engine_config, resolve, workload_settings
from specbench.scenario.schema import Scenario
from specbench.workloads.base import WorkloadSettings

Write = Callable[[str], Path]
SMOLLM2 = SMOLLM2_135M.config
GIB = 1024**3


def _plenty(device: str) -> int:
    del device
    return 1000 * GIB


def _resolve(write: Write, text: str, *overrides: str) -> ResolvedScenario:
    return resolve(load_scenario(write(text), overrides), SMOLLM2, available_memory=_plenty)


@pytest.fixture(autouse=True)
def _cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Device auto means the same on every machine that runs these tests."""
    monkeypatch.setattr(machine, "cuda_problem", lambda: "no CUDA device is present")


def test_engine_config_of_a_scenario_in_full(write: Write) -> None:
    resolved = _resolve(
        write,
        """\
        model: {source: random:tiny, seed: 7}
        drafter: {name: ngram, draft_len: 3, max_ngram: 4, min_ngram: 2}
        acceptance: {mode: forced, length: 2.5}
        workload: {kind: random_tokens, isl: [10, 100], osl: 28, concurrency: 3}
        engine: {dtype: float32, max_batch_size: 5, tokens_per_block: 16, num_threads: 1}
        optimizations: {overlap: on}
        """,
    )
    assert resolved.engine == EngineConfig(
        model=ModelSpec("tiny", "random", 7, None),
        device="cpu",
        max_seq_len=128,
        max_batch_size=5,
        num_blocks=5 * 9,  # (128 + 3 + 1) / 16 is 8.25
        dtype="float32",
        tokens_per_block=16,
        max_num_tokens=512,
        attention="cpu-paged",
        num_threads=1,
        drafter=DrafterSpec("ngram", 3, (), 4, 2),
        acceptance=AcceptanceSpec("forced", 2.5, ()),
        optimizations=tuple(sorted(resolved.scenario.optimizations.items())),
    )
    assert resolved.engine.num_blocks == 5 * resolved.engine.blocks_per_sequence


def test_defaults_of_a_text_workload(write: Write) -> None:
    scenario = _resolve(write, "workload: {kind: chat80, concurrency: 4}").scenario
    assert (scenario.model.source, scenario.drafter.draft_len) == ("smollm2-135m", 0)
    assert (scenario.workload.num_requests, scenario.workload.isl, scenario.workload.osl) == ("all", None, 128)
    assert scenario.sampling.ignore_eos is False
    assert (scenario.engine.max_batch_size, scenario.engine.max_seq_len) == (4, 4096)
    assert (scenario.engine.device, scenario.optimizations["overlap"]) == ("cpu", "off")


def test_defaults_of_random_tokens(write: Write) -> None:
    scenario = _resolve(write, "drafter: ngram\nworkload: random_tokens").scenario
    assert scenario.drafter.draft_len == 4
    assert (scenario.workload.num_requests, scenario.workload.isl, scenario.workload.osl) == (16, 128, 128)
    assert scenario.sampling.ignore_eos is True
    assert scenario.engine.max_seq_len == 256


def test_cuda_has_its_own_defaults(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cuda_problem", lambda: None)
    engine = _resolve(write, "name: x").engine
    assert (engine.device, dict(engine.optimizations)["overlap"], engine.attention) == ("cuda", "on", "torch-gather")


def test_the_longest_request_is_bounded_by_the_model(write: Write) -> None:
    scenario = load_scenario(write("model: tiny"))
    assert resolve(scenario, TINY.config, available_memory=_plenty).engine.max_seq_len == 2048
    windowed = replace(SMOLLM2, sliding_window=512)
    assert resolve(scenario, windowed, available_memory=_plenty).engine.max_seq_len == 512


def test_a_wide_batch_raises_the_rows_of_a_step(write: Write) -> None:
    engine = _resolve(write, "drafter: {name: ngram, draft_len: 9}\nworkload: {concurrency: 300}").engine
    assert engine.max_num_tokens == 3000


def test_a_cache_size_becomes_blocks(write: Write) -> None:
    resolved = _resolve(write, "workload: random_tokens\nengine: {kv_cache: 1GiB}")
    block = 32 * SMOLLM2.kv_bytes_per_token(2)
    assert resolved.engine.num_blocks == GIB // block
    assert resolved.scenario.engine.kv_cache is None
    assert resolved.memory.kv_cache_bytes == GIB // block * block


def test_draft_lengths_by_batch_size(write: Write) -> None:
    drafter = _resolve(write, "drafter: {name: ngram, runtime_draft_len: {8: 2, 1: 6}}").engine.drafter
    assert drafter.runtime_draft_len == ((1, 6), (8, 2))
    assert [drafter.draft_len_for(batch) for batch in (1, 2, 8, 9)] == [6, 2, 2, 0]


def test_optimizations_are_written_out(write: Write) -> None:
    resolved = _resolve(write, "name: x")
    assert resolved.scenario.optimizations == dict(resolved.engine.optimizations)
    assert "sampling_params" in resolved.scenario.optimizations
    assert resolved.scenario.study == ("sampling_params", "block_staging", "input_prep")
    outside = {"overlap": "off", "graphs": "off", "capture_params": "real_params"}
    assert sorted((*resolved.scenario.study, *outside)) == list(resolved.scenario.optimizations)
    assert outside.items() <= resolved.scenario.optimizations.items()


def test_workload_settings(write: Write) -> None:
    text = "workload: {kind: random_tokens, num_requests: 5, isl: [3, 9], osl: 7, seed: 11}"
    settings = workload_settings(_resolve(write, text).scenario)
    assert settings == WorkloadSettings("random_tokens", num_requests=5, isl=(3, 9), osl=7, seed=11)
    assert workload_settings(_resolve(write, "workload: chat80").scenario).num_requests is None


@pytest.mark.parametrize(
    ("text", "key", "what"),
    [
        ("workload: {kind: random_tokens, isl: 9000}", "workload.isl", "isl 9000 + osl 128 = 9128 tokens, the model's"),
        ("workload: {kind: random_tokens, osl: 9000}", "workload.osl", "isl 128 + osl 9000 = 9128 tokens, the model's"),
        ("engine: {max_seq_len: 9000}", "engine.max_seq_len", "found 9000; allowed: the model's limit, 8192, or less"),
        (
            "workload: {kind: random_tokens, isl: [5, 100], osl: 50}\nengine: {max_seq_len: 149}",
            "engine.max_seq_len",
            "149 tokens do not hold isl 100 + osl 50 = 150",
        ),
        ("workload: {osl: 100}\nengine: {max_seq_len: 100}", "workload.osl", "100 output tokens leave no room"),
        ("sampling: {stop_token_ids: [7, 49152]}", "sampling.stop_token_ids", "49152 is not in the vocabulary"),
        ("engine: {kv_cache: 1MiB}", "engine.kv_cache", "room for 1 of the 129 KV blocks that one request"),
        ("engine: {num_blocks: 100}", "engine.num_blocks", "room for 100 of the 129 KV blocks that one request"),
        ("model: {source: 'random:'}", "model.source", "a preset is missing after random:"),
    ],
)
def test_what_the_model_does_not_allow(write: Write, text: str, key: str, what: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        _resolve(write, text)
    assert caught.value.where is not None
    assert caught.value.where.rsplit(": ", 1)[-1] == key
    assert caught.value.what.startswith(what)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        # 129 blocks of 16 tokens, 45 KiB of KV cache a token
        ("engine: {kv_cache: 1MiB}", "91MiB or more, or a lower engine.max_seq_len"),
        ("engine: {num_blocks: 100}", "129 or more, or a lower engine.max_seq_len"),
    ],
)
def test_a_cache_that_is_too_small_hints_at_one_that_is_accepted(write: Write, text: str, hint: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        _resolve(write, text)
    assert caught.value.hint == hint
    value = hint.partition(" ")[0]
    resolved = _resolve(write, re.sub(r"1MiB|100", value, text))
    assert resolved.engine.num_blocks >= 129


def test_length_errors_name_the_override(write: Write) -> None:
    with pytest.raises(ScenarioError) as caught:
        _resolve(write, "workload: random_tokens", "workload.isl=9000")
    assert caught.value.where == "--set workload.isl"


def test_an_unknown_model_has_the_nearest_name(write: Write) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(load_scenario(write("model: smollm2-135")), available_memory=_plenty)
    assert caught.value.hint == "did you mean 'smollm2-135m'?"


def test_a_preset_needs_no_weights_to_be_resolved(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "empty"))
    assert resolve(load_scenario(write("model: llama-3.1-8b")), available_memory=_plenty).model == LLAMA_3_1_8B.config


def test_more_than_the_memory_is_refused_with_figures(write: Write) -> None:
    scenario = load_scenario(write("workload: {concurrency: 1000}"))
    with pytest.raises(CapacityError) as caught:
        resolve(scenario, SMOLLM2, available_memory=lambda _: 20 * GIB)
    message = str(caught.value)
    assert "KV cache 88.6 GiB" in message  # 1000 requests of 129 blocks of 32 tokens of 23040 bytes
    assert "20.0 GiB is available on cpu" in message
    assert "lower workload.concurrency and engine.max_batch_size (1000) to" in message


@given(st.integers(1, 3000), st.integers(1, 4000), st.integers(0, 16), st.sampled_from(["bfloat16", "float32"]))
def test_the_batch_that_the_capacity_error_advises_fits(batch: int, osl: int, draft_len: int, dtype: str) -> None:
    def scenario(concurrency: int) -> Scenario:
        drafter = {"name": "ngram", "draft_len": draft_len}
        workload = {"kind": "random_tokens", "osl": osl, "concurrency": concurrency}
        return Scenario.model_validate({"drafter": drafter, "workload": workload, "engine": {"dtype": dtype}})

    hint = ""
    try:
        resolve(scenario(batch), SMOLLM2, available_memory=lambda _: 2 * GIB)
    except CapacityError as error:
        hint = str(error.hint)
    if "engine.max_batch_size" in hint:
        advised = int(hint.split(") to ")[1].split()[0])
        assert 1 <= advised < batch
        resolve(scenario(advised), SMOLLM2, available_memory=lambda _: 2 * GIB)


def test_unknown_memory_refuses_nothing(write: Write) -> None:
    scenario = load_scenario(write("workload: {concurrency: 1000}"))
    assert resolve(scenario, SMOLLM2, available_memory=lambda _: None).engine.max_batch_size == 1000


def test_an_unresolved_scenario_gives_no_engine(write: Write) -> None:
    with pytest.raises(InputError, match="not resolved"):
        build_engine_config(load_scenario(write("name: x")))


_scenarios = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["smollm2-135m", "random:smollm2-135m", {"source": "smollm2-135m", "seed": 3}]),
        "drafter": st.sampled_from(
            ["none", "ngram", {"name": "ngram", "draft_len": 2}, {"name": "ngram", "runtime_draft_len": {1: 4, 8: 2}}]
        ),
        "acceptance": st.sampled_from(["strict", {"mode": "forced", "length": 1}]),
        "workload": st.sampled_from(
            [
                "chat80",
                {"kind": "chat80", "categories": ["math"], "turns": 1, "system_prompt": "1e-5", "concurrency": 3},
                {"kind": "random_tokens", "isl": [4, 90], "osl": 30, "num_requests": 7},
            ]
        ),
        "sampling": st.sampled_from([{}, {"temperature": 0.7, "top_p": 0.9, "stop_token_ids": [3]}]),
        "engine": st.sampled_from(
            [
                {},
                {"kv_cache": "3GiB"},
                {"max_seq_len": 2000, "max_batch_size": 8},
                {"device": "auto", "dtype": "float32"},
            ]
        ),
        "optimizations": st.sampled_from([{}, {"overlap": "on"}, {"graphs": "captured", "capture_params": "leak"}]),
        "variants": st.sampled_from([{}, {"plain": {"drafter": "none"}, "wide": {"workload.concurrency": 64}}]),
        "measure": st.sampled_from([{}, {"repeats": 3, "timeout": "5m", "steps": "10-20"}]),
    }
).filter(lambda data: data["drafter"] != "none" or "capture_params" not in data["optimizations"])


@given(_scenarios)
@settings(max_examples=25)  # two resolutions and a load each
def test_a_resolved_scenario_resolves_to_itself(data: dict[str, object]) -> None:
    first = resolve(Scenario.model_validate({"name": "x", **data}), SMOLLM2, available_memory=_plenty)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scenario.yaml")
        path.write_text(first.to_yaml(), encoding="utf-8")
        again = resolve(load_scenario(path), SMOLLM2, available_memory=_plenty)
    assert again == first
    assert plan_run(again).sha256 == plan_run(first).sha256
