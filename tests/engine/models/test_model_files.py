"""A model's files are refused by their headers, before it is loaded and in the words that loading has for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from specbench.engine.config import DrafterSpec, ModelSpec
from specbench.engine.drafters.declaration import WeightsQuery
from specbench.engine.drafters.draft_weights import find_draft_weights
from specbench.engine.models.checkpoint import ModelLocation
from specbench.engine.models.hf_config_writer import to_hf_config
from specbench.engine.models.loading import build_model, load_model
from specbench.engine.models.model_files import check_model_files
from specbench.engine.models.presets import TINY, TINY_HYBRID
from specbench.engine.models.random_weights import RandomSource
from specbench.engine.models.tensor_shapes import model_shapes
from specbench.errors import CheckpointError, InputError, ModelNotFoundError

CPU = torch.device("cpu")
CONFIG = TINY.config
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
Edit = Callable[[dict[str, Tensor]], object]

DEFECTS: dict[str, tuple[Edit, str]] = {
    "missing": (lambda t: t.pop(Q_PROJ), f"missing {Q_PROJ}"),
    "shape": (lambda t: t.update({Q_PROJ: torch.zeros(8, 64)}), f"{Q_PROJ} has shape [8, 64] in "),
    "unexpected": (lambda t: t.update({"mask": torch.zeros(2)}), "unexpected mask"),
    "whole numbers": (lambda t: t.update({Q_PROJ: t[Q_PROJ].to(torch.int64)}), f"tensor {Q_PROJ!r} is stored as "),
    "empty": (lambda t: t.clear(), "missing model.embed_tokens.weight"),
}


def _weights() -> dict[str, Tensor]:
    source = RandomSource(CONFIG, model_shapes(CONFIG), seed=1, dtype=torch.float32, device=CPU)
    return {name: source.read(name) for name in source.shapes}


def _write(directory: Path, tensors: dict[str, Tensor], *, pickled: bool = False) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(to_hf_config(CONFIG)))
    if pickled:
        torch.save(tensors, directory / "pytorch_model.bin")
    else:
        save_file(tensors, directory / "model.safetensors")
    return directory


def _plan(model: Path | str) -> Any:
    spec = DrafterSpec("draft_model", 2, model=str(model))
    return find_draft_weights(WeightsQuery(spec, ModelSpec("tiny"), CONFIG))


@pytest.mark.parametrize("config", [CONFIG, TINY_HYBRID.config, replace(CONFIG, mlp_bias=True, attention_bias=True)])
def test_shapes_without_torch_are_those_of_the_model(config: Any) -> None:
    shapes = model_shapes(config)
    assert shapes == build_model(config, dtype=torch.float32, device=torch.device("meta")).expected_tensors()
    assert sum(map(prod, shapes.values())) == config.num_parameters


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "pickle"])
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_draft_model_is_refused_alike_before_and_when_it_is_loaded(
    tmp_path: Path, defect: str, pickled: bool
) -> None:
    change, what = DEFECTS[defect]
    tensors = _weights()
    assert _plan(_write(tmp_path / "whole", tensors, pickled=pickled)).num_parameters == CONFIG.num_parameters
    change(tensors)
    directory = _write(tmp_path / "model", tensors, pickled=pickled)
    with pytest.raises(CheckpointError) as planned:
        _plan(directory)
    assert what in planned.value.what
    with pytest.raises(CheckpointError) as loaded:
        load_model(ModelSpec(str(directory)), torch.float32, CPU)
    assert (planned.value.what, planned.value.hint) == (loaded.value.what, loaded.value.hint)
    assert planned.value.where == f"drafter.model: {loaded.value.where}"


def test_a_draft_model_in_a_directory_without_weights_is_refused_before_anything_runs(tmp_path: Path) -> None:
    directory = _write(tmp_path / "model", _weights())
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"a config\.json but no weights") as caught:
        _plan(directory)
    assert caught.value.where == f"drafter.model: {directory}"
    assert caught.value.hint == f"fetch them, or random:{directory} for random weights"
    assert _plan(f"random:{directory}").num_parameters == CONFIG.num_parameters


def _write_gguf(path: Path, left_out: str) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONFIG.max_position_embeddings)
    writer.add_embedding_length(CONFIG.hidden_size)
    writer.add_block_count(CONFIG.num_layers)
    writer.add_feed_forward_length(CONFIG.intermediate_size)
    writer.add_head_count(CONFIG.num_heads)
    writer.add_head_count_kv(CONFIG.num_kv_heads)
    writer.add_layer_norm_rms_eps(CONFIG.rms_norm_eps)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, CONFIG.num_layers)
    for name, shape in model_shapes(CONFIG).items():
        if name != left_out:
            stem, _, kind = name.rpartition(".")
            writer.add_tensor(f"{names.get_name(stem)}.{kind}", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_is_compared_with_its_header_and_the_hint_says_so(tmp_path: Path) -> None:
    _plan(_write_gguf(tmp_path / "whole.gguf", ""))
    path = _write_gguf(tmp_path / "part.gguf", Q_PROJ)
    for refuse in (_plan, lambda path: load_model(ModelSpec(str(path)), torch.float32, CPU)):
        with pytest.raises(CheckpointError, match=f"missing {Q_PROJ}") as caught:
            refuse(path)
        assert caught.value.hint == "check that the GGUF header and the tensors belong to the same model"


def test_a_family_of_another_package_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specbench import registry
    from specbench.engine.models import model_files

    directory = _write(tmp_path / "model", {"its.own": torch.zeros(2)})
    location = ModelLocation("directory", "x", directory)
    with pytest.raises(CheckpointError):
        check_model_files(location, CONFIG)
    others = {CONFIG.architecture: registry.Entry("another.package:Model", "")}
    monkeypatch.setattr(model_files, "MODELS", others)
    check_model_files(location, CONFIG)


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "pickle"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_draft_model_with_a_weight_that_is_not_finite_is_refused(tmp_path: Path, value: float, pickled: bool) -> None:
    tensors = _weights()
    tensors[Q_PROJ][3, 5] = value
    directory = _write(tmp_path / "model", tensors, pickled=pickled)
    file = directory / ("pytorch_model.bin" if pickled else "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        load_model(ModelSpec(str(directory)), torch.float32, CPU, require_finite=True)
    count = f"1 of {tensors[Q_PROJ].numel()} values are not finite"
    assert caught.value.what == f"tensor {Q_PROJ!r}: {count} (NaN or infinity)"
    assert caught.value.where == str(file)
    # A target's are seen in its logits, in every step.
    load_model(ModelSpec(str(directory)), torch.float32, CPU)


def test_headers_of_a_draft_model_are_compared_without_torch(tmp_path: Path) -> None:
    tensors = _weights()
    del tensors[Q_PROJ]
    directory = _write(tmp_path / "model", tensors, pickled=True)
    code = (
        "import sys; from specbench.engine.config import DrafterSpec, ModelSpec\n"
        "from specbench.engine.drafters.declaration import WeightsQuery\n"
        "from specbench.engine.drafters.draft_weights import find_draft_weights\n"
        "from specbench.engine.models.presets import TINY; from specbench.errors import InputError\n"
        "spec = DrafterSpec('draft_model', 2, model=sys.argv[1])\n"
        "try: find_draft_weights(WeightsQuery(spec, ModelSpec('tiny'), TINY.config))\n"
        "except InputError as error: print(error.what)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(directory)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"the tensors do not fit the configuration: missing {Q_PROJ}", "False"]


@pytest.mark.parametrize("model", ["./gone", "/no/such/model"])
def test_a_draft_model_that_is_not_there_is_said_of_its_key(model: str) -> None:
    with pytest.raises(InputError) as caught:
        _plan(model)
    assert caught.value.where == "drafter.model"
