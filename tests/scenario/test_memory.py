"""What a configuration takes, and what to lower when it does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specbench.engine.config import DrafterSpec, EngineConfig, ModelSpec
from specbench.engine.models.presets import LLAMA_3_1_8B, SMOLLM2_135M
from specbench.errors import CapacityError
from specbench.scenario import machine
from specbench.scenario.memory import memory_need, require_memory

GIB = 1024**3
ENGINE = EngineConfig(
    ModelSpec("smollm2-135m"),
    device="cpu",
    max_seq_len=1000,
    max_batch_size=4,
    num_blocks=4 * 32,
    drafter=DrafterSpec("ngram", 4),
)
MODEL = SMOLLM2_135M.config


def test_need_counts_weights_cache_and_workspace() -> None:
    need = memory_need(ENGINE, MODEL)
    assert need.weights_bytes == 134_515_008 * 2
    assert need.kv_cache_bytes == 4 * 32 * 32 * (2 * 30 * 3 * 64 * 2)
    logits = 4 * 5 * 49152 * 4 * 2
    activations = 512 * (4 * 576 + 3 * 1536) * 2
    assert need.workspace_bytes == logits + activations
    assert memory_need(replace(ENGINE, dtype="float32"), MODEL).weights_bytes == 2 * need.weights_bytes


def test_what_just_fits_is_accepted() -> None:
    need = memory_need(ENGINE, MODEL)
    require_memory(need, ENGINE, need.total_bytes)
    with pytest.raises(CapacityError):
        require_memory(need, ENGINE, need.total_bytes - 1)


@pytest.mark.parametrize(
    ("changes", "model", "available", "hint"),
    [
        ({"num_blocks": 10**6}, MODEL, 2 * GIB, "set engine.kv_cache to 17"),
        ({"max_batch_size": 400, "num_blocks": 400 * 32}, MODEL, 2 * GIB, "lower workload.concurrency and engine.max"),
        (
            {"max_seq_len": 8192, "num_blocks": 10**4},
            MODEL,
            GIB // 3,
            "lower engine.max_seq_len (8192), or take a smaller",
        ),
        ({}, LLAMA_3_1_8B.config, 8 * GIB, "a smaller model"),
        ({"dtype": "float32"}, LLAMA_3_1_8B.config, 24 * GIB, "engine.dtype: bfloat16, or a smaller model"),
    ],
)
def test_the_hint_names_what_would_help(changes: dict[str, object], model: object, available: int, hint: str) -> None:
    engine = replace(ENGINE, **changes)  # type: ignore[arg-type]
    with pytest.raises(CapacityError) as caught:
        require_memory(memory_need(engine, model), engine, available)  # type: ignore[arg-type]
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(hint)


def test_a_cache_of_less_than_a_mebibyte_is_hinted_at_in_blocks() -> None:
    engine = replace(ENGINE, max_batch_size=1, max_seq_len=15, num_blocks=4)
    model = replace(MODEL, num_layers=1)
    need = memory_need(engine, model)
    block = need.kv_cache_bytes // 4
    with pytest.raises(CapacityError) as caught:
        require_memory(need, engine, need.total_bytes - block)
    assert caught.value.hint == "set engine.num_blocks to 3 or less"
    require_memory(memory_need(replace(engine, num_blocks=3), model), engine, need.total_bytes - block)


def test_memory_of_this_machine_is_known_and_below_its_total() -> None:
    import psutil

    available = machine.available_memory_bytes("cpu")
    assert available is not None
    assert 0 < available <= psutil.virtual_memory().total


def test_a_container_limit_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal: 4096 kB\nMemAvailable: 2048 kB\n")
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("600000\n")
    (tmp_path / "memory.stat").write_text("anon 400000\ninactive_file 150000\n")
    assert machine.available_memory_bytes("cpu") == 550_000
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.available_memory_bytes("cpu") == 2048 * 1024
    (tmp_path / "memory.max").write_text("9000000\n")
    assert machine.available_memory_bytes("cpu") == 2048 * 1024  # whichever is less


def test_without_meminfo_psutil_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "none")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    available = machine.available_memory_bytes("cpu")
    assert available is not None
    assert available > 0


@pytest.mark.parametrize(
    ("version", "visible", "devices", "problem"),
    [
        ("2.13.0+cpu", None, 1, "built without CUDA"),
        ("2.13.0", "", 1, "CUDA_VISIBLE_DEVICES hides every GPU"),
        ("2.13.0", "-1", 1, "CUDA_VISIBLE_DEVICES hides every GPU"),
        ("2.13.0", None, 0, "no CUDA device is present"),
        ("2.13.0+cu126", "0", 1, None),
    ],
)
def test_why_cuda_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, version: str, visible: str | None, devices: int, problem: str | None
) -> None:
    monkeypatch.setattr(machine, "version", lambda _: version)
    monkeypatch.setattr(machine, "_cuda_device_count", lambda: devices)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    machine.cuda_problem.cache_clear()
    try:
        found = machine.cuda_problem()
    finally:
        machine.cuda_problem.cache_clear()
    assert (found is None) == (problem is None)
    assert problem is None or problem in str(found)


@pytest.mark.gpu
def test_a_gpu_is_counted_and_its_free_memory_known() -> None:
    import torch

    from specbench.scenario import nvidia

    assert nvidia.count_devices() == torch.cuda.device_count()
    free = nvidia.free_memory_bytes()
    assert free is not None
    assert free == pytest.approx(torch.cuda.mem_get_info(0)[0], rel=0.1)


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from specbench.scenario import nvidia

    def refuse(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(nvidia.ctypes, "CDLL", refuse)
    assert nvidia.count_devices() == 0
    assert machine.available_memory_bytes("cuda") is None
