"""The CUDA path. Needs a GPU: ``pytest -m gpu``; everything here is skipped without one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_driver import ngram, run, tiny_config, with_variants

from specbench.device.cuda import CudaDevice
from specbench.engine.build import build_engine
from specbench.engine.config import EngineConfig, ModelSpec
from specbench.engine.models.loading import load_model
from specbench.engine.sampling.params import SamplingParams
from specbench.errors import DeviceUnavailableError

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
PROMPTS = [[(7 * i + j) % 200 for j in range(5)] * (2 + i % 5) for i in range(8)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_error_says_so() -> None:
    with pytest.raises(DeviceUnavailableError, match="no CUDA device"):
        CudaDevice()


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("draft_len", [0, 4])
def test_cuda_tokens_equal_cpu_tokens(draft_len: int, overlap: bool) -> None:
    config = tiny_config(drafter=ngram(draft_len), overlap=overlap)
    on_cuda = replace(config, device="cuda", attention="torch-gather")
    loaded = load_model(config.model, torch.float32, torch.device("cuda"))
    expected = run(config, PROMPTS, GREEDY)
    found = run(on_cuda, PROMPTS, GREEDY, loaded=loaded)
    same = sum(a == b for a, b in zip(expected.outputs, found.outputs, strict=True))
    assert same >= len(PROMPTS) - 1, f"{same} of {len(PROMPTS)} sequences are equal"


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("params", [GREEDY, replace(GREEDY, temperature=0.8, top_k=20, top_p=0.9)])
@pytest.mark.parametrize("draft_len", [0, 4])
def test_captured_steps_commit_what_eager_ones_do(draft_len: int, params: SamplingParams) -> None:
    config = tiny_config(drafter=ngram(draft_len), device="cuda", attention="torch-gather")
    loaded = load_model(config.model, torch.float32, torch.device("cuda"))
    eager, captured = (
        run(with_variants(config, graphs=graphs), PROMPTS, params, loaded=loaded) for graphs in ("off", "captured")
    )
    same = sum(a == b for a, b in zip(eager.outputs, captured.outputs, strict=True))
    assert same >= len(PROMPTS) - 1, f"{same} of {len(PROMPTS)} sequences are equal"
    engine = build_engine(with_variants(config, graphs="captured"), loaded=loaded)
    engine.add_request(PROMPTS[0], params)
    while engine.has_work:
        engine.step()
    (found,) = engine.describe_captures()["sets"].values()
    assert (found["advanced_without_draws"], found["copies_with_override"]) == (0, 0)
    assert engine.read_counters()["graphs"]["captured"]["replays"] > 0
    assert all(entry.asked == entry.effective for entry in engine.drain_audit())
    engine.shutdown()


@pytest.mark.gpu
@needs_cuda
def test_device_times_lie_on_the_host_clock() -> None:
    config = tiny_config(device="cuda", attention="torch-gather")
    loaded = load_model(config.model, torch.float32, torch.device("cuda"))
    outcome = run(config, PROMPTS, GREEDY, loaded=loaded)
    for step in outcome.steps:
        start, end = step.device_start_ns, step.device_end_ns  # type: ignore[attr-defined]
        assert start <= end
        assert step.host_start_ns - 1_000_000 <= start  # type: ignore[attr-defined]
        assert end <= step.output_ns + 1_000_000  # type: ignore[attr-defined]


@pytest.mark.gpu
@needs_cuda
def test_a_large_model_speculates_without_changing_a_token() -> None:
    """SmolLM2 where ``SPECBENCH_GPU_MODEL`` names a checkpoint directory, a random ``llama-3.1-8b`` otherwise."""
    path = os.environ.get("SPECBENCH_GPU_MODEL")
    spec = ModelSpec(str(Path(path))) if path else ModelSpec("llama-3.1-8b", weights="random")
    dtype = torch.float32 if path else torch.bfloat16
    loaded = load_model(spec, dtype, torch.device("cuda"))
    config = EngineConfig(
        model=spec, device="cuda", dtype=str(dtype).removeprefix("torch."), max_seq_len=512, max_batch_size=4,
        num_blocks=4 * 20, attention="torch-gather", optimizations=(("overlap", "on"),),
    )  # fmt: skip
    plain = run(config, PROMPTS[:4], GREEDY, loaded=loaded)
    assert all(len(output) == 40 for output in plain.outputs)
    again = run(config, PROMPTS[:4], GREEDY, loaded=loaded)
    assert plain.outputs == again.outputs
    speculative = run(replace(config, drafter=ngram(3)), PROMPTS[:4], GREEDY, loaded=loaded)
    if dtype == torch.float32:
        assert speculative.outputs == plain.outputs
    else:
        assert all(len(output) == 40 for output in speculative.outputs)
