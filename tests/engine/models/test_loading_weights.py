"""Safetensors and pickle checkpoints: every tensor arrives as it was saved, and damage is one error that names it."""

import json
import os
import pickle

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from specbench.engine.models.pickle_header import find_pickles
from specbench.engine.models.pickle_weights import PickleSource
from specbench.engine.models.safetensors_weights import SafetensorsSource, find_safetensors
from specbench.engine.models.tensor_source import check_tensors
from specbench.errors import CheckpointError

TENSORS = {
    "model.embed_tokens.weight": torch.arange(24, dtype=torch.bfloat16).reshape(6, 4),
    "model.norm.weight": torch.rand(4, dtype=torch.float32),
    "model.layers.0.mlp.up_proj.weight": torch.rand(3, 4).half(),
}


def write_tiny(directory, class_name="LlamaConfig", **save):
    """A tiny random checkpoint written by transformers; returns its state dict."""
    torch.manual_seed(0)
    config = getattr(transformers, class_name)(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(directory, **save)
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("class_name", ["LlamaConfig", "MistralConfig", "Qwen2Config", "Qwen3Config"])
def test_every_tensor_of_a_checkpoint_is_read_as_saved(tmp_path, class_name):
    expected = write_tiny(tmp_path, class_name)
    with SafetensorsSource(find_safetensors(tmp_path)) as source:
        check_tensors({name: tuple(t.shape) for name, t in expected.items()}, source, tmp_path)
        for name, tensor in expected.items():
            assert torch.equal(source.read(name), tensor), name


def test_shards_are_found_through_their_index(tmp_path):
    expected = write_tiny(tmp_path, max_shard_size="20KB")
    paths = find_safetensors(tmp_path)
    assert len(paths) > 2
    save_file({"stray": torch.zeros(1)}, tmp_path / "adapter.safetensors")
    assert find_safetensors(tmp_path) == paths
    with SafetensorsSource(paths) as source:
        assert set(source.shapes) == set(expected)
        for name, tensor in expected.items():
            assert torch.equal(source.read(name), tensor), name
            assert source.file_of(name) in paths


def test_a_shard_that_is_gone_is_named(tmp_path):
    write_tiny(tmp_path, max_shard_size="20KB")
    gone = find_safetensors(tmp_path)[1]
    gone.unlink()
    with pytest.raises(CheckpointError, match=gone.name):
        find_safetensors(tmp_path)


@pytest.mark.parametrize("text", ["{}", "[1]", "{"])
def test_a_damaged_index_is_one_error(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        find_safetensors(tmp_path)


def test_dtypes_are_kept(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    with SafetensorsSource(find_safetensors(tmp_path)) as source:
        for name, tensor in TENSORS.items():
            found = source.read(name)
            assert found.dtype == tensor.dtype
            assert torch.equal(found, tensor)


def test_every_truncation_is_found_before_a_tensor_is_read(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"model.safetensors.*(truncated|not a safetensors)"):
            SafetensorsSource([path])


def test_a_file_that_shrinks_while_it_is_read_is_one_error(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    with SafetensorsSource([path]) as source:
        last = max(source.shapes, key=lambda name: source._stored[name].offset)
        os.truncate(path, path.stat().st_size - 1)
        with pytest.raises(CheckpointError, match=f"truncated in tensor '{last}'"):
            source.read(last)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}, "F8_E4M3, which is not supported"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 4]}, "does not fill bytes 0 to 4"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}, "does not fill bytes"),
        ({"dtype": "F32", "shape": [1]}, "entry of tensor 'w' is damaged"),
        ("nonsense", "entry of tensor 'w' is damaged"),
    ],
)
def test_a_header_that_lies_is_one_error(tmp_path, entry, message):
    header = json.dumps({"w": entry}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 16)
    with pytest.raises(CheckpointError, match=message):
        SafetensorsSource([path])


def test_one_error_names_missing_unexpected_and_unlike_tensors(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    expected = {
        "model.embed_tokens.weight": (8, 4),
        "model.norm.weight": (4,),
        **{f"model.layers.{i}.mlp.down_proj.weight": (4, 3) for i in range(6)},
    }
    with SafetensorsSource(find_safetensors(tmp_path)) as source, pytest.raises(CheckpointError) as caught:
        check_tensors(expected, source, tmp_path)
    message = str(caught.value)
    assert "missing model.layers.0.mlp.down_proj.weight" in message
    assert "and 2 more" in message
    assert "embed_tokens.weight has shape [6, 4] in model.safetensors, expected [8, 4]" in message
    assert "unexpected model.layers.0.mlp.up_proj.weight" in message
    assert str(tmp_path) in message


def test_a_stored_copy_of_a_tied_head_and_old_buffers_are_passed_over(tmp_path):
    extra = {"lm_head.weight": torch.zeros(6, 4), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)}
    save_file({**TENSORS, **extra}, tmp_path / "model.safetensors")
    expected = {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}
    with SafetensorsSource(find_safetensors(tmp_path)) as source:
        check_tensors(expected, source, tmp_path)
        with pytest.raises(CheckpointError, match=r"missing .*lm_head\.bias"):
            check_tensors({**expected, "lm_head.bias": (6,)}, source, tmp_path)


def test_pickled_state_dicts_are_read(tmp_path):
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    with PickleSource(find_pickles(tmp_path)) as source:
        assert {name: tuple(t.shape) for name, t in TENSORS.items()} == source.shapes
        for name, tensor in TENSORS.items():
            assert torch.equal(source.read(name), tensor)


def test_old_pickles_are_read(tmp_path):
    torch.save(TENSORS, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    with PickleSource(find_pickles(tmp_path)) as source:
        for name, tensor in TENSORS.items():
            assert torch.equal(source.read(name), tensor)


class Bomb:
    """Runs code when a careless loader unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    marker = tmp_path / "ran"
    for write in (torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))):
        write({"w": Bomb(marker)}, tmp_path / "pytorch_model.bin")
        with pytest.raises(CheckpointError, match="refused"):
            PickleSource(find_pickles(tmp_path))
        assert not marker.exists()


def test_damaged_and_unlike_pickles_are_one_error(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save(TENSORS, path)
    whole = path.read_bytes()
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
            PickleSource([path])
    torch.save({"optimizer": [1, 2]}, path)
    with pytest.raises(CheckpointError, match="not a state dict"):
        PickleSource([path])


def test_pickle_shards_are_found_through_their_index(tmp_path):
    for number, (name, tensor) in enumerate(TENSORS.items()):
        torch.save({name: tensor}, tmp_path / f"pytorch_model-{number}.bin")
    weight_map = {name: f"pytorch_model-{number}.bin" for number, name in enumerate(TENSORS)}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with PickleSource(find_pickles(tmp_path)) as source:
        assert set(source.shapes) == set(TENSORS)
        assert source.file_of("model.norm.weight").name == weight_map["model.norm.weight"]
    (tmp_path / "pytorch_model-0.bin").unlink()
    with pytest.raises(CheckpointError, match=r"pytorch_model-0\.bin"):
        find_pickles(tmp_path)


def test_the_package_agrees_about_the_format(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path, metadata={"format": "pt"})
    theirs = load_file(path)
    with SafetensorsSource([path]) as source:
        assert set(source.shapes) == set(theirs)
