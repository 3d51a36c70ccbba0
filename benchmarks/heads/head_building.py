"""Heads to begin with: fresh, fitted by least squares, read from files, or begun from another head."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from batches import Batch
from head_config import HeadConfig, TargetParts, config_for_target, read_target
from head_modules import DraftHead, Eagle3Head, MtpHead
from safetensors.torch import load_file
from torch import Tensor


@torch.no_grad()
def fit_fusion(
    head: DraftHead, batches: Iterable[Batch], final_norm: Tensor, *, offset: int, ridge: float = 1e-2
) -> None:
    """Set the fusing matrix by least squares, so that training starts from a sensible guess.

    It is made to give the target's final state (before the norm's factors) at the position of the state it reads plus
    ``offset``: 1 is what the head should predict, as far as a linear map can.
    """
    squares, products = 0.0, 0.0
    for batch in batches:
        matrix, x = head.fusion(head.embedding[batch.token_ids[:, 1:]], batch.states)
        wanted = batch.states[:, offset:, -1].float() / final_norm
        there = (torch.arange(x.shape[1], device=x.device) < batch.lengths.unsqueeze(1) - 1)[:, offset:]
        rows, wanted = x[:, : x.shape[1] - offset][there].double(), wanted[there].double()
        squares, products = squares + rows.t() @ rows, products + rows.t() @ wanted
    penalty = ridge * squares.diagonal().mean() * torch.eye(squares.shape[0], device=squares.device)
    matrix.weight.copy_(torch.linalg.solve(squares + penalty, products).t())


def build_head(config: HeadConfig, target: TargetParts, draft_ids: Tensor) -> DraftHead:
    """Build a fresh head of ``config.kind``."""
    return (Eagle3Head if config.kind == "eagle3" else MtpHead)(config, target, draft_ids)


def load_head(directory: Path, target_directory: Path) -> DraftHead:
    """Read a head that :func:`head_config.save_head` wrote."""
    given = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(directory / "model.safetensors")
    kind = "eagle3" if given["architectures"] == ["LlamaForCausalLMEagle3"] else "mtp"
    layers = given["eagle_config"]["eagle_aux_hidden_state_layer_ids"] if kind == "eagle3" else ()
    config = config_for_target(
        kind, target_directory, draft_vocab_size=given["draft_vocab_size"], aux_layers=tuple(layers)
    )
    draft_ids = tensors["d2t"] + torch.arange(config.draft_vocab_size)
    head = build_head(config, read_target(target_directory), draft_ids)
    with torch.no_grad():
        for name, tensor in head.tensors().items():
            if name not in ("d2t", "t2d"):
                tensor.copy_(tensors[name])
    return head


@torch.no_grad()
def start_from(head: DraftHead, directory: Path) -> None:
    """Take over the weights of another head of the same shape; draft tokens it did not have keep their fresh rows."""
    tensors = load_file(directory / "model.safetensors")
    its_ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    rows = head.draft_of.cpu()[its_ids]
    for name, tensor in head.tensors().items():
        if name == "lm_head.weight":
            tensor[rows[rows >= 0]] = tensors[name][rows >= 0].to(tensor)
        elif name not in ("d2t", "t2d"):
            tensor.copy_(tensors[name])
