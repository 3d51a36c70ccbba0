"""load_model and find_model: where models are looked for, what is said when they are not there, the cost of loading."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file

from specbench.downloads import write_manifest
from specbench.engine.config import ModelSpec
from specbench.engine.models import loading, presets
from specbench.engine.models.checkpoint import find_model, model_directory, resolve_model_config
from specbench.engine.models.hf_config_writer import to_hf_config
from specbench.engine.models.presets import TINY
from specbench.engine.models.random_weights import RandomSource
from specbench.errors import CheckpointError, ModelNotFoundError

CPU = torch.device("cpu")


def expected_shapes(config):
    """Names and shapes of a checkpoint of the Llama family."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes = {"model.embed_tokens.weight": (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    for layer in range(config.num_layers):
        for part, shape in {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (heads, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, heads),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            shapes[f"model.layers.{layer}.{part}.weight"] = shape
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


class RecordingModel:
    """Keeps what the loader gives it, in order."""

    def __init__(self, config, *, dtype, device):
        self.config, self.dtype, self.device = config, dtype, device
        self.loaded = {}
        self.finished = False

    def expected_tensors(self):
        return expected_shapes(self.config)

    def load_tensor(self, name, tensor):
        assert name not in self.loaded
        self.loaded[name] = tensor.to(self.dtype)

    def finish_loading(self):
        self.finished = True


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache directory, a recording model, and a hub that must not be asked."""
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(loading, "build_model", RecordingModel)

    def refuse(*_args, **_kwargs):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    return tmp_path / "cache"


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint directory of the tiny preset with random float32 weights."""
    return write_checkpoint(tmp_path / "checkpoint")


def write_checkpoint(directory, config=TINY.config, dtype=torch.float32):
    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    tensors = {name: torch.randn(shape).to(dtype) for name, shape in expected_shapes(config).items()}
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(to_hf_config(config)))
    return directory


def test_a_checkpoint_directory_is_loaded_whole(checkpoint):
    loaded = loading.load_model(ModelSpec(str(checkpoint)), torch.bfloat16, CPU)
    assert loaded.config == TINY.config
    assert loaded.source == str(checkpoint)
    assert loaded.directory == checkpoint
    assert loaded.num_parameters == sum(math.prod(shape) for shape in expected_shapes(TINY.config).values())
    assert set(loaded.model.loaded) == set(expected_shapes(TINY.config))
    assert loaded.model.finished
    torch.manual_seed(0)
    for name, shape in expected_shapes(TINY.config).items():
        assert torch.equal(loaded.model.loaded[name], torch.randn(shape).bfloat16())


def test_large_tensors_are_loaded_first_and_the_rest_in_the_models_order(tmp_path):
    config = replace(TINY.config, num_layers=8, tie_word_embeddings=False)
    write_checkpoint(tmp_path / "untied", config)
    loaded = loading.load_model(ModelSpec(str(tmp_path / "untied")), torch.float32, CPU)
    order = list(loaded.model.loaded)
    assert order[:2] == ["model.embed_tokens.weight", "lm_head.weight"]
    rest = [name for name in expected_shapes(config) if name not in order[:2]]
    assert order[2:] == rest


def test_loading_leaves_the_number_of_threads_as_it_was(checkpoint):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        loading.load_model(ModelSpec(str(checkpoint)), torch.float32, CPU)
        (checkpoint / "config.json").write_text(json.dumps(to_hf_config(replace(TINY.config, hidden_size=32))))
        with pytest.raises(CheckpointError):
            loading.load_model(ModelSpec(str(checkpoint)), torch.float32, CPU)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_fingerprint_tells_weights_and_configurations_apart(checkpoint):
    def fingerprint():
        return loading.load_model(ModelSpec(str(checkpoint)), torch.float32, CPU).fingerprint

    first = fingerprint()
    assert fingerprint() == first
    (checkpoint / "config.json").write_text(json.dumps(to_hf_config(replace(TINY.config, rope_theta=5e4))))
    assert fingerprint() != first
    (checkpoint / "config.json").write_text(json.dumps(to_hf_config(TINY.config)))
    path = checkpoint / "model.safetensors"
    with open(path, "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    assert fingerprint() != first


def test_an_unlike_checkpoint_is_one_error(checkpoint):
    (checkpoint / "config.json").write_text(json.dumps(to_hf_config(replace(TINY.config, hidden_size=32))))
    with pytest.raises(CheckpointError, match=r"has shape \[512, 64\] in model.safetensors, expected \[512, 32\]"):
        loading.load_model(ModelSpec(str(checkpoint)), torch.float32, CPU)


def test_pickled_weights_are_loaded(checkpoint):
    torch.manual_seed(0)
    tensors = {name: torch.randn(shape) for name, shape in expected_shapes(TINY.config).items()}
    (checkpoint / "model.safetensors").unlink()
    torch.save(tensors, checkpoint / "pytorch_model.bin")
    loaded = loading.load_model(ModelSpec(str(checkpoint)), torch.float32, CPU)
    for name, tensor in tensors.items():
        assert torch.equal(loaded.model.loaded[name], tensor)


def test_random_weights_depend_on_seed_and_name_alone():
    def source(seed, shapes):
        return RandomSource(TINY.config, shapes, seed=seed, dtype=torch.float32, device=CPU)

    shapes = expected_shapes(TINY.config)
    some = dict(reversed(list(shapes.items())[:7]))
    first, second, other = source(1, shapes), source(1, some), source(2, shapes)
    for name in some:
        assert torch.equal(first.read(name), second.read(name))
    up, gate = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"
    assert not torch.equal(first.read(up), other.read(up))
    assert not torch.equal(first.read(up), first.read(gate))
    assert torch.equal(first.read("model.norm.weight"), torch.ones(64))


def test_random_weights_are_equal_in_another_process():
    code = """
import torch
from specbench.engine.models.presets import TINY
from specbench.engine.models.random_weights import RandomSource
source = RandomSource(TINY.config, {"up.weight": (3, 5)}, seed=7, dtype=torch.bfloat16, device=torch.device("cpu"))
print(source.read("up.weight").float().tolist())
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    source = RandomSource(TINY.config, {"up.weight": (3, 5)}, seed=7, dtype=torch.bfloat16, device=CPU)
    assert json.loads(run.stdout) == source.read("up.weight").float().tolist()


def test_random_weights_have_their_deviation_in_every_chunk(monkeypatch):
    from specbench.engine.models import random_weights

    monkeypatch.setattr(random_weights, "_CHUNK_ELEMENTS", 1000)
    shapes = {"model.layers.0.mlp.up_proj.weight": (128, 64), "model.layers.0.mlp.down_proj.weight": (64, 128)}
    source = RandomSource(TINY.config, shapes, seed=0, dtype=torch.float32, device=CPU)
    up, down = (source.read(name) for name in shapes)
    assert up.std().item() == pytest.approx(1 / math.sqrt(64), rel=0.05)
    assert down.std().item() == pytest.approx(8 / math.sqrt(128) / math.sqrt(4), rel=0.05)
    assert up.unique().numel() > 0.99 * up.numel()


def test_random_weights_of_a_preset_and_of_a_config_directory(checkpoint):
    loaded = loading.load_model(ModelSpec("tiny", weights="random", seed=3), torch.float32, CPU)
    assert (loaded.source, loaded.directory) == ("random:tiny (seed 3)", None)
    assert loaded.num_parameters == TINY.config.num_parameters
    (checkpoint / "model.safetensors").unlink()
    same = loading.load_model(ModelSpec(str(checkpoint), weights="random", seed=3), torch.float32, CPU)
    assert same.fingerprint == loaded.fingerprint
    assert same.directory == checkpoint
    for name, tensor in loaded.model.loaded.items():
        assert torch.equal(same.model.loaded[name], tensor)
    other = loading.load_model(ModelSpec("tiny", weights="random", seed=4), torch.float32, CPU)
    assert other.fingerprint != loaded.fingerprint


def test_a_preset_without_published_weights_gets_random_ones():
    loaded = loading.load_model(ModelSpec("tiny", seed=3), torch.float32, CPU)
    assert loaded.source == "random:tiny (seed 3)"


def test_random_weights_neither_repeat_nor_go_flat():
    """Greedy text of transformers on these weights: not one token over and over, and logits of a useful spread."""
    import transformers

    config = transformers.LlamaConfig(**to_hf_config(TINY.config))
    model = transformers.LlamaForCausalLM(config)
    source = RandomSource(TINY.config, expected_shapes(TINY.config), seed=0, dtype=torch.float32, device=CPU)
    state = {name: source.read(name) for name in source.shapes}
    model.load_state_dict({**state, "lm_head.weight": state["model.embed_tokens.weight"]})
    with torch.inference_mode():
        token_ids = torch.arange(3, 11)[None]
        logits = model(token_ids).logits
        assert 1.0 < logits.std(-1).mean() < 4.0
        for _ in range(48):
            token_ids = torch.cat([token_ids, model(token_ids).logits[:, -1:].argmax(-1)], dim=1)
    assert token_ids[0, 8:].unique().numel() > 8


# ---------------------------------------------------------------------------------------------- finding


def test_a_preset_that_was_not_pulled_says_what_to_run():
    with pytest.raises(ModelNotFoundError, match="run: specbench pull smollm2-135m"):
        find_model(ModelSpec("smollm2-135m"))


def test_a_pulled_preset_is_found_and_names_its_origin(monkeypatch):
    monkeypatch.setattr(presets, "SMOLLM2_360M", replace(presets.SMOLLM2_360M, config=TINY.config))
    directory = write_checkpoint(model_directory("smollm2-360m"))
    with pytest.raises(ModelNotFoundError, match="has not been pulled"):
        find_model(ModelSpec("smollm2-360m"))
    write_manifest(directory, {"origin": "hub somewhere"})
    loaded = loading.load_model(ModelSpec("smollm2-360m"), torch.float32, CPU)
    assert loaded.source == "smollm2-360m (hub somewhere)"
    assert loaded.directory == directory
    random = loading.load_model(ModelSpec("smollm2-360m", weights="random"), torch.float32, CPU)
    assert random.directory == directory
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(random.model.loaded[name], loaded.model.loaded[name])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("smollm2-135", "did you mean 'smollm2-135m'"),
        ("x" * 5000, "no model"),
        ("no/such/path", "no model"),
        ("gone/model.gguf", "no model"),
        ("../nowhere", "no model"),
        ("", "has no config.json"),
    ],
)
def test_names_of_nothing_are_one_error(source, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match=message):
        find_model(ModelSpec(source))


def test_paths_that_are_no_model_say_what_is_missing(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ModelNotFoundError, match=r"not a \.gguf file"):
        find_model(ModelSpec(str(tmp_path / "notes.txt")))
    with pytest.raises(ModelNotFoundError, match=r"has no config\.json"):
        find_model(ModelSpec(str(tmp_path)))
    (tmp_path / "m.gguf").write_text("x")
    with pytest.raises(ModelNotFoundError, match=r"give the file itself: .*m\.gguf"):
        find_model(ModelSpec(str(tmp_path)))
    assert find_model(ModelSpec(str(tmp_path / "m.gguf"))).kind == "gguf"
    (tmp_path / "config.json").write_text(json.dumps(to_hf_config(TINY.config)))
    with pytest.raises(ModelNotFoundError, match="no weights"):
        find_model(ModelSpec(str(tmp_path)))
    assert resolve_model_config(ModelSpec(str(tmp_path))) == TINY.config


def test_a_hub_id_is_taken_from_the_clients_cache_first(checkpoint, monkeypatch):
    calls = []

    def snapshot_download(repo_id, *, local_files_only, **_options):
        calls.append((repo_id, local_files_only))
        return str(checkpoint)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    location = find_model(ModelSpec("org/name"))
    assert (location.kind, location.path) == ("directory", checkpoint)
    assert location.source.startswith("hub org/name@")
    assert calls == [("org/name", True)]


def test_a_hub_id_that_is_not_cached_is_fetched(checkpoint, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    wanted = []

    def snapshot_download(_repo_id, *, local_files_only, allow_patterns, revision, **_options):
        if local_files_only:
            raise FileNotFoundError("not cached")
        wanted.append((allow_patterns, revision))
        return str(checkpoint)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert find_model(ModelSpec("org/name", revision="v1")).path == checkpoint
    assert wanted == [(None, "v1")]
    assert resolve_model_config(ModelSpec("org/name")) == TINY.config
    assert "config.json" in wanted[1][0]
    assert not any("safetensors" in pattern for pattern in wanted[1][0])


def test_a_hub_that_does_not_answer_is_one_error(monkeypatch):
    def snapshot_download(*_args, **_options):
        raise OSError("Name or service not known\nand a long story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ModelNotFoundError) as caught:
        find_model(ModelSpec("org/name"))
    message = str(caught.value)
    assert "no preset, file or directory 'org/name'" in message
    assert "Name or service not known" in message
    assert "long story" not in message
    assert "check the network" in message


# ------------------------------------------------------------------------------------------------- cost

MEMORY_PROBE = """
import re, sys, torch
from safetensors.torch import save_file
from specbench.engine.config import ModelSpec
from specbench.engine.models import loading

class Model:
    def __init__(self, config, *, dtype, device):
        self.shapes = SHAPES
        self.weights = {name: torch.empty(shape, dtype=dtype) for name, shape in SHAPES.items()}
    def expected_tensors(self):
        return self.shapes
    def load_tensor(self, name, tensor):
        self.weights[name].copy_(tensor)
    def finish_loading(self):
        pass

SHAPES = {"model.embed_tokens.weight": (20000, 1024), **{f"model.layers.{i}.w": (1024, 1024) for i in range(60)}}
loading.build_model = Model

def peak():
    # Not getrusage: its peak starts at that of the parent process.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

before = peak()
loaded = loading.load_model(ModelSpec(sys.argv[1]), torch.bfloat16, torch.device("cpu"))
weights = sum(tensor.nbytes for tensor in loaded.model.weights.values())
print(weights, peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read as Linux reports it")
def test_loading_never_holds_the_model_twice(tmp_path):
    directory = tmp_path / "large"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(to_hf_config(TINY.config)))
    shapes = {"model.embed_tokens.weight": (20000, 1024), **{f"model.layers.{i}.w": (1024, 1024) for i in range(60)}}
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors")
    command = [sys.executable, "-c", MEMORY_PROBE, str(directory)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    weights, grown = map(int, run.stdout.split())
    assert weights == sum(tensor.nbytes for tensor in tensors.values())
    assert weights * 0.9 < grown < weights * 1.2
