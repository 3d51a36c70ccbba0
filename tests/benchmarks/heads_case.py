"""A tiny draft head with texts to train it on, and the modules of ``benchmarks/heads``, which are no package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

HEADS = Path(__file__).parents[2] / "benchmarks" / "heads"
VOCABULARY, DRAFTED, HIDDEN = 40, 24, 16
MODULES = (
    "answers", "arguments", "batches", "chain_attention", "evaluate", "head_building", "head_config", "head_modules",
    "plan", "products", "prompt_material", "prompts", "shards", "target", "train",
)  # fmt: skip


def import_heads() -> SimpleNamespace:
    """The modules by name. Scripts import one another by plain names, so their directory is on the path meanwhile."""
    sys.path.insert(0, str(HEADS))
    try:
        return SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(HEADS))


heads = import_heads()


def tiny_config(kind: str) -> Any:
    return heads.head_config.HeadConfig(
        kind=kind, vocab_size=VOCABULARY, draft_vocab_size=DRAFTED, hidden_size=HIDDEN, intermediate_size=24,
        num_heads=4, num_kv_heads=2, head_dim=8, rms_norm_eps=1e-5, rope_theta=100.0, num_target_layers=3,
        max_positions=64, aux_layers=(0, 1, 2),
    )  # fmt: skip


def tiny_target() -> Any:
    generator = torch.Generator().manual_seed(3)
    weights = [torch.randn(VOCABULARY, HIDDEN, generator=generator) for _ in range(2)]
    return heads.head_config.TargetParts(*weights, 1 + 0.1 * torch.randn(HIDDEN, generator=generator))


def tiny_head(kind: str) -> Any:
    """A head whose every weight matters: branches that start at zero are given values."""
    torch.manual_seed(5)
    draft_ids = torch.arange(DRAFTED) * 3 // 2
    head = heads.head_building.build_head(tiny_config(kind), tiny_target(), draft_ids)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    return head


def tiny_answers(count: int = 6, seed: int = 0) -> list[Any]:
    """Texts of different lengths with random states."""
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    answers = []
    for _ in range(count):
        prompt_len, answer_len = number(2, 6), number(4, 12)
        length = prompt_len + answer_len
        token_ids = torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()
        states = torch.randn(length - 1, 4, HIDDEN, generator=generator).to(torch.bfloat16)
        answers.append(heads.shards.Answered(tuple(token_ids), prompt_len, False, states))
    return answers
