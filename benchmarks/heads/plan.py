"""How a head is trained: rates, schedule and optimizers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from head_modules import DraftHead

PLAN_HELP = {
    "tokens": "loss tokens after which the learning rate has come to its end, and training ends",
    "unroll": "draft steps of a chain",
    "decay": "weight of a step's loss over that of the step before",
    "rate": "peak learning rate of AdamW",
    "muon_rate": "peak learning rate of Muon; 0: AdamW for the layer's matrices too",
    "warmup": "share of the tokens in which the rates rise",
    "end_rate": "last learning rate over its peak",
    "weight_decay": "of both optimizers",
    "clip": "largest norm of the gradient",
    "pool_shards": "shards that are read and shuffled together; a checkpoint is written after each pool",
    "top_k": "likeliest tokens of the target that the loss is over",
}


@dataclass(frozen=True)
class Plan:
    """How to train; :data:`PLAN_HELP` says what each value is."""

    tokens: int
    unroll: int = 3
    decay: float = 0.8
    rate: float = 1e-3
    muon_rate: float = 2e-3
    warmup: float = 0.03
    end_rate: float = 0.02
    weight_decay: float = 0.0
    clip: float = 1.0
    pool_shards: int = 2
    top_k: int = 64

    def factor(self, tokens: int) -> float:
        """Learning rate over its peak after ``tokens`` loss tokens: a linear start, then half a cosine."""
        progress = min(1.0, tokens / self.tokens)
        if progress < self.warmup:
            return max(0.02, progress / self.warmup)
        fall = (progress - self.warmup) / (1 - self.warmup)
        return self.end_rate + (1 - self.end_rate) * (0.5 + 0.5 * math.cos(math.pi * fall))


def make_optimizers(head: DraftHead, plan: Plan) -> list[torch.optim.Optimizer]:
    """AdamW, and Muon for the matrices between embedding and output if the plan gives it a rate."""
    matrices, others = [], []
    for name, parameter in head.named_parameters():
        inner = plan.muon_rate > 0 and parameter.ndim == 2 and "lm_head" not in name
        (matrices if inner else others).append(parameter)
    groups = [{"params": others, "peak": plan.rate}]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=plan.rate, betas=(0.9, 0.95), weight_decay=plan.weight_decay, fused=True)
    ]
    if matrices:
        if not hasattr(torch.optim, "Muon"):
            raise SystemExit("this PyTorch has no Muon (2.9 and newer have): give --muon-rate 0")
        muon: Any = cast(Any, torch.optim).Muon
        groups = [{"params": matrices, "peak": plan.muon_rate}]
        optimizers.append(
            muon(groups, lr=plan.muon_rate, weight_decay=plan.weight_decay, adjust_lr_fn="match_rms_adamw")
        )
    return optimizers
