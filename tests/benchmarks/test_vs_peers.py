"""The comparison with other engines: its arithmetic, and a small run of the real thing."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specbench.workloads.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "vs_peers.py"


@pytest.fixture(scope="module")
def vs_peers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vs_peers", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["vs_peers"] = module
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPT.parent))
    return module


def test_prompts_are_whole_chats_of_one_length(vs_peers: ModuleType, smollm2_dir: Path) -> None:
    prompts = vs_peers.build_prompts(smollm2_dir, 3, 64)
    assert [len(ids) for ids in prompts] == [64, 64, 64]
    tokenizer = Tokenizer.load(smollm2_dir)
    texts = [tokenizer.decode(ids, skip_special_tokens=False) for ids in prompts]
    assert len(set(texts)) == 3
    assert all(text.endswith("<|im_end|>\n<|im_start|>assistant\n") for text in texts)
    with pytest.raises(SystemExit, match="--isl 20: the chat template alone takes"):
        vs_peers.build_prompts(smollm2_dir, 1, 20)


def answer(decode_s: float, tokens: int, steps: int, token_ids: list[list[int]] | None = None) -> dict[str, Any]:
    return {
        "first_s": 0.5,
        "decode_s": decode_s,
        "decode_tokens": tokens,
        "decode_steps": steps,
        "token_ids": token_ids or [],
    }


def test_a_summary_is_of_medians(vs_peers: ModuleType) -> None:
    summary = vs_peers.summarize([answer(1.0, 40, 20), answer(4.0, 40, 20), answer(2.0, 40, 20)])
    assert summary["tokens_per_s"] == 20.0
    assert summary["step_ms"] == 100.0
    assert summary["tokens_per_step"] == 2.0
    assert summary["rounds_tokens_per_s"] == [40.0, 10.0, 20.0]


def test_ratios_are_taken_within_rounds(vs_peers: ModuleType) -> None:
    # The machine is half as fast in the second round: the ratio of each round is 2 all the same.
    answers = {
        "specbench bf16": [answer(1.0, 40, 40), answer(2.0, 40, 40)],
        "transformers bf16": [answer(2.0, 40, 40), answer(4.0, 40, 40)],
    }
    (ratio,) = vs_peers.compare(answers)
    assert ratio == {"of": "specbench bf16", "to": "transformers bf16", "median": 2.0, "low": 2.0, "high": 2.0}


def test_equal_sequences_are_counted(vs_peers: ModuleType) -> None:
    answers = {
        "specbench f32": [answer(1, 4, 4, [[1, 2], [3, 4]])],
        "transformers f32": [answer(1, 4, 4, [[1, 2], [3, 5]])],
    }
    same = vs_peers.compare_tokens(answers)
    assert (same["equal"], same["sequences"]) == (1, 2)
    assert vs_peers.compare_tokens({"specbench f32": answers["specbench f32"]}) is None


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )


def test_an_unknown_peer_is_refused(tmp_path: Path, smollm2_dir: Path) -> None:
    done = run_script("--out", str(tmp_path), "--model", str(smollm2_dir), "--peers", "specbench f16")
    assert done.returncode == 2
    assert "unknown peers specbench f16; known: specbench bf16" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_small_run_agrees_with_transformers(tmp_path: Path, smollm2_dir: Path) -> None:
    done = run_script(
        *("--out", str(tmp_path), "--model", str(smollm2_dir), "--peers", "specbench f32,transformers f32"),
        *("--batches", "1,2", "--isl", "48", "--osl", "6", "--rounds", "2", "--threads", "1"),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "vs_peers.json").read_text(encoding="utf-8"))
    assert [case["batch"] for case in result["cases"]] == [1, 2]
    for case in result["cases"]:
        assert case["same_tokens"]["equal"] == case["batch"]
        assert set(case["peers"]) == {"specbench f32", "transformers f32"}
        for peer in case["peers"].values():
            assert peer["tokens_per_s"] > 0
            assert peer["tokens_per_step"] == case["batch"]
            assert len(peer["rounds_tokens_per_s"]) == 2
    table = (tmp_path / "vs_peers.md").read_text(encoding="utf-8")
    assert "| specbench f32 / transformers f32 |" in table
    assert result["definition"] in table
