"""``device: sim`` in a scenario: its times, what it cannot stand beside, and what it need not hold to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from specbench.device.sim_presets import H100_8B
from specbench.device.times import NUMBERS, DeviceTimes
from specbench.engine.models.presets import TINY
from specbench.errors import CapacityError, InputError, ScenarioError
from specbench.scenario.differences import find_differences, refuse_simulated_beside_real
from specbench.scenario.loader import load_scenario
from specbench.scenario.questions import ask_ab, ask_selftest, ask_sweep
from specbench.scenario.resolve import ResolvedScenario, resolve
from specbench.scenario.schema import Engine, Scenario, json_schema

Refusal = Callable[..., InputError]
Write = Callable[[str], Path]

OWN = "{base_us: 100, us_per_row: 1, us_per_kv_token: 0.5, us_per_copy: 2, bytes_per_us: 6.4e4}"
TEXT = f"""
model: tiny
workload: {{kind: random_tokens, num_requests: 4, isl: 16, osl: 8, concurrency: 2}}
acceptance: {{mode: forced, length: 1.0}}
engine: {{device: sim, sim: {OWN}}}
"""


def _resolve(path: Path, *overrides: str, available: int | None = None) -> ResolvedScenario:
    return resolve(load_scenario(path, overrides), available_memory=lambda _: available)


def test_five_numbers_are_what_the_device_declares(write: Write) -> None:
    engine = _resolve(write(TEXT)).engine
    assert engine.device_times == DeviceTimes(100, 1, 0.5, 2, 64_000)
    assert (engine.device, dict(engine.optimizations)["overlap"]) == ("sim", "on")


def test_a_preset_stands_for_its_numbers(write: Write) -> None:
    assert _resolve(write(TEXT), "engine.sim=h100-8b").engine.device_times == H100_8B.times


def test_one_number_can_be_set(write: Write) -> None:
    times = _resolve(write(TEXT), "engine.sim.base_us=7").engine.device_times
    assert times == DeviceTimes(7, 1, 0.5, 2, 64_000)


def test_a_device_that_computes_has_no_times(write: Write) -> None:
    path = write("model: tiny\nengine: {device: cpu}\nworkload: random_tokens")
    assert _resolve(path).engine.device_times is None


def test_what_is_resolved_means_the_same_again(write: Write, tmp_path: Path) -> None:
    resolved = _resolve(write(TEXT))
    copy = tmp_path / "copy.yaml"
    copy.write_text(resolved.to_yaml())
    assert _resolve(copy) == resolved


@pytest.mark.parametrize(
    ("engine", "what", "hint"),
    [
        ("{device: sim}", "is missing: device sim takes as long as is declared here", "a preset (h100-0.6b, h100-8b"),
        ("{device: sim, sim: h100-8}", "unknown preset 'h100-8'; allowed: h100-0.6b", "did you mean 'h100-8b'"),
        ("{device: cpu, sim: h100-8b}", "has no effect on device cpu", "set engine.device to sim"),
        ("{device: sim, sim: 3}", "found 3; allowed: a preset (`specbench list sim_presets`), or a mapping", None),
        ("{device: sim, sim: {base_us: 1}}", "us_per_row, us_per_kv_token, us_per_copy, bytes_per_us missing", None),
        (f"{{device: sim, sim: {OWN[:-1]}, latency: 3}}}}", "; no latency", None),
        (f"{{device: sim, sim: {OWN.replace('100', '-1')}}}", "each 0 or more; base_us is -1 here", None),
        (f"{{device: sim, sim: {OWN.replace('6.4e4', '0')}}}", "each above 0; bytes_per_us is 0 here", None),
        (f"{{device: sim, sim: {OWN.replace('100', '.inf')}}}", "base_us is inf here", None),
        (f"{{device: sim, sim: {OWN.replace('100', 'fast')}}}", "base_us is 'fast' here", None),
        (f"{{device: sim, sim: {OWN.replace('100', 'true')}}}", "base_us is", None),
    ],
)
def test_times_that_cannot_be_are_refused(refusal: Refusal, engine: str, what: str, hint: str | None) -> None:
    error = refusal(f"acceptance: {{mode: forced, length: 1}}\nengine: {engine}")
    assert what in error.what
    assert error.where is not None
    assert error.where.endswith("x.yaml:2: engine.sim")
    assert hint is None or hint in (error.hint or "")


@pytest.mark.parametrize(
    ("text", "key", "what"),
    [
        ("acceptance: strict", "acceptance.mode", "found strict; allowed on device sim: forced"),
        ("drafter: ngram", "acceptance.mode", "found strict; allowed on device sim: forced"),
        (
            "acceptance: {mode: forced, length: 1}\nsampling: {ignore_eos: false}",
            "sampling.ignore_eos",
            "found false; allowed on device sim: true",
        ),
        (
            "acceptance: {mode: forced, length: 1}\nsampling: {stop_token_ids: [3]}",
            "sampling.stop_token_ids",
            "has no meaning on device sim",
        ),
    ],
)
def test_content_that_cannot_be_judged_is_refused(refusal: Refusal, text: str, key: str, what: str) -> None:
    error = refusal(f"engine: {{device: sim, sim: h100-8b}}\n{text}")
    assert what in error.what
    assert error.where is not None
    assert error.where.endswith(key) or error.where.endswith("x.yaml")
    assert error.hint


def test_the_message_about_acceptance_says_what_to_write(refusal: Refusal) -> None:
    error = refusal("engine: {device: sim, sim: h100-8b}\nacceptance: strict")
    assert error.hint == "acceptance: {mode: forced, length: 1.0}"
    assert error.where is not None
    assert error.where.endswith("x.yaml:2: acceptance.mode")


def test_attention_that_would_not_run_is_refused(refusal: Refusal) -> None:
    error = refusal("engine: {device: sim, sim: h100-8b, attention: cpu-paged}\nacceptance: {mode: forced, length: 1}")
    assert "computes no attention" in error.what


def test_text_is_not_ended_by_made_up_tokens(write: Write) -> None:
    text = "model: tiny\nworkload: chat80\nacceptance: {mode: forced, length: 1}\nengine: {device: sim, sim: h100-8b}"
    resolved = _resolve(write(text))
    assert resolved.scenario.sampling.ignore_eos is True


def test_neither_positions_nor_memory_of_the_model_bind(write: Write) -> None:
    """256 requests of 262144 positions of a model of 2048: 140 GB of cache at the least, and none of it is there."""
    large = ("workload.concurrency=256", "engine.max_seq_len=262144", "engine.sim=h200-32b")
    resolved = _resolve(write(TEXT), *large, available=8 << 30)
    assert resolved.engine.max_seq_len == 262_144 > TINY.config.max_position_embeddings
    assert (resolved.memory.weights_bytes, resolved.memory.workspace_bytes) == (0, 0)
    assert resolved.memory.total_bytes < 2 << 30


def test_books_that_do_not_fit_are_refused_with_what_to_lower(write: Write) -> None:
    with pytest.raises(CapacityError) as caught:
        _resolve(write(TEXT), "workload.concurrency=256", "engine.max_seq_len=262144", available=100 << 20)
    assert "lower workload.concurrency" in (caught.value.hint or "")


def _scenario(**engine: Any) -> Scenario:
    data = {
        "model": "tiny",
        "workload": {"kind": "random_tokens", "isl": 16, "osl": 16},
        "acceptance": {"mode": "forced", "length": 1.0},
        "engine": engine,
    }
    return resolve(Scenario.model_validate(data), TINY.config, available_memory=lambda _: None).scenario


def test_two_declared_devices_commit_the_same_tokens() -> None:
    found = find_differences(_scenario(device="sim", sim="h100-8b"), _scenario(device="sim", sim="h200-32b"))
    assert [(item.key, item.exactness, item.step_preserving) for item in found] == [
        ("engine.sim", "bit-identical", False)
    ]


@pytest.mark.parametrize("arms", [("sim", "cpu"), ("cpu", "sim")])
def test_a_simulated_arm_beside_a_real_one_is_refused(arms: tuple[str, str]) -> None:
    one, two = (_scenario(device=arm, **({"sim": "h100-8b"} if arm == "sim" else {})) for arm in arms)
    with pytest.raises(ScenarioError, match=f"one runs on {arms[0]} and two on {arms[1]}: declared times"):
        refuse_simulated_beside_real(one, two, ("one", "two"))
    for alike in (one, two):
        refuse_simulated_beside_real(alike, alike, ("one", "two"))


def test_ab_refuses_them_where_the_arm_says_so(write: Write) -> None:
    with pytest.raises(ScenarioError) as caught:
        ask_ab(write(TEXT), (), "off", ["engine.device=cpu,engine.sim=null"])
    assert "declared times say nothing about real ones" in caught.value.what
    assert caught.value.where is not None
    assert caught.value.where.startswith("--candidate engine.device")


def test_a_sweep_over_both_is_refused(write: Write) -> None:
    real = "variants: {real: {engine.device: cpu, engine.sim: null}, sim: {}}\nsweep: {grid: {variant: [real, sim]}}"
    with pytest.raises(ScenarioError, match="points run on cpu and sim"):
        ask_sweep(write(f"{TEXT}{real}\n"))


def test_presets_can_be_swept_and_toggles_compared(write: Write) -> None:
    path = write(TEXT)
    points = ask_sweep(path, ["sweep.grid.engine.sim=h100-0.6b,h100-8b"]).points
    assert [point.coordinates for point in points] == [{"engine.sim": "h100-0.6b"}, {"engine.sim": "h100-8b"}]
    (comparison,) = ask_ab(path, (), "sampling_params=refill", ["sampling_params=signature"]).comparisons
    assert comparison.design == "mirrored"
    assert len(ask_selftest(path, num_aa=2).comparisons) == 4


def test_the_schema_for_editors_knows_both_forms() -> None:
    sim = json_schema()["$defs"]["Engine"]
    text = str(sim)
    assert all(name in text for name in NUMBERS)
    assert Engine(device="sim", sim=asdict(H100_8B.times)).sim == asdict(H100_8B.times)
