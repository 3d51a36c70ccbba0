"""Weights that are no finite floating-point numbers: a head is refused for one, by file, tensor and count."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from head_checkpoints import (
    EAGLE3,
    MTP,
    OWN_CHECKPOINT,
    SPECULATORS,
    eagle3_tensors,
    mtp_tensors,
    stored_name,
    target_tensors,
    write_head,
)

from specbench.engine.config import DrafterSpec, ModelSpec
from specbench.engine.drafters.head_formats import read_head_config
from specbench.engine.drafters.head_weights import load_head
from specbench.engine.models.presets import TINY
from specbench.errors import CheckpointError

HEADS = [
    ("eagle3", EAGLE3, eagle3_tensors, "fc.weight"),
    ("eagle3", SPECULATORS, eagle3_tensors, "midlayer.mlp.up_proj.weight"),
    ("eagle3", EAGLE3, lambda: {**eagle3_tensors(), "embed_tokens.weight": torch.ones(512, 64)}, "embed_tokens.weight"),
    ("mtp", MTP, mtp_tensors, "modules.1.eh_proj.weight"),
    ("mtp", OWN_CHECKPOINT, lambda: {**mtp_tensors(), **target_tensors()}, "modules.0.norm.weight"),
]


def _load(drafter: str, directory: Path, dtype: torch.dtype = torch.float32) -> Any:
    is_own = json.loads((directory / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    target, model = (ModelSpec(str(directory)), None) if is_own else (ModelSpec("tiny"), str(directory))
    return load_head(drafter, DrafterSpec(drafter, 2, model=model), target, TINY.config, dtype)


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "pickle"])
@pytest.mark.parametrize("values", [[math.nan], [1.0, -math.inf, math.nan, math.inf]], ids=str)
@pytest.mark.parametrize(("drafter", "naming", "tensors", "name"), HEADS)
def test_a_weight_that_is_not_finite_is_refused(
    tmp_path: Path, drafter: str, naming: str, tensors: Any, name: str, values: list[float], pickled: bool
) -> None:
    """It would go unseen: what the head then proposes is only rejected."""
    stored = tensors()
    directory = write_head(tmp_path / "head", naming, stored, pickled=pickled)
    _load(drafter, directory)
    stored[name].view(-1)[-len(values) :] = torch.tensor(values)
    path = write_head(tmp_path / "head", naming, stored, pickled=pickled)
    path /= "pytorch_model.bin" if pickled else "model.safetensors"
    with pytest.raises(CheckpointError) as caught:
        _load(drafter, directory)
    count = sum(not math.isfinite(value) for value in values)
    whole = f"{count} of {stored[name].numel()} values are not finite (NaN or infinity)"
    shown = name if name == "embed_tokens.weight" else stored_name(name, naming)
    assert caught.value.what == f"tensor {shown!r}: {whole}"
    assert caught.value.where == f"drafter.model: {path}"


@pytest.mark.parametrize(("drafter", "naming", "tensors", "name"), HEADS)
def test_a_weight_beyond_the_type_it_is_computed_in_is_refused(
    tmp_path: Path, drafter: str, naming: str, tensors: Any, name: str
) -> None:
    stored = tensors()
    stored[name].view(-1)[:2] = torch.tensor([-1e5, 65504.0])
    directory = write_head(tmp_path / "head", naming, stored)
    _load(drafter, directory, torch.bfloat16)
    with pytest.raises(CheckpointError, match=r"1 of \d+ values are beyond 6\.55e\+04, the most of float16") as caught:
        _load(drafter, directory, torch.float16)
    assert caught.value.hint == "set engine.dtype to bfloat16 or float32"


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "pickle"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize(("drafter", "naming", "tensors", "name"), HEADS)
def test_whole_numbers_where_weights_belong_are_refused_before_anything_is_loaded(
    tmp_path: Path, drafter: str, naming: str, tensors: Any, name: str, dtype: torch.dtype, pickled: bool
) -> None:
    stored = tensors()
    stored[name] = stored[name].to(dtype)
    directory = write_head(tmp_path / "head", naming, stored, pickled=pickled)
    shown = name if name == "embed_tokens.weight" else stored_name(name, naming)
    kind, file = str(dtype).removeprefix("torch."), "pytorch_model.bin" if pickled else "model.safetensors"
    what = f"{shown} is stored as {kind} in {file}; it holds floating-point numbers"
    for refuse in (read_head_config, lambda path: _load(drafter, path)):
        with pytest.raises(CheckpointError) as caught:
            refuse(directory)
        assert caught.value.what == f"the tensors do not fit the configuration: {what}"
        assert str(directory) in str(caught.value.where)
