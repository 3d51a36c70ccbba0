"""GGUF headers: what the gguf package writes is read back, damage is one error, and configurations come out right."""

import json

import gguf
import numpy as np
import pytest
import torch
import transformers
from call_counts import count_calls

from specbench.engine.models.config import ModelConfig, RopeScaling
from specbench.engine.models.gguf_config import config_from_gguf, llama3_frequency_factors, to_hf_name
from specbench.engine.models.gguf_header import TENSOR_TYPES, LongArray, read_header
from specbench.engine.models.presets import LLAMA_3_1_8B, LLAMA_3_2_1B
from specbench.errors import CheckpointError

TOKENS = ["<s>", "</s>", "<|im_end|>", "a", "b", *(f"t{i}" for i in range(123))]


def write_gguf(path, arch="llama", *, tensors=(), arrays=True, **values):
    """A GGUF file with the metadata of a small model and an embedding of F32."""
    writer = gguf.GGUFWriter(path, arch)
    numbers = {
        "block_count": 2,
        "context_length": 256,
        "embedding_length": 32,
        "feed_forward_length": 48,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        **values,
    }
    for key, value in numbers.items():
        if value is None:
            continue
        name = key if key.startswith(("tokenizer.", "general.")) else f"{arch}.{key}"
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
        add[type(value)](name, value)
    if arrays:
        writer.add_token_list(TOKENS)
        writer.add_token_types([3, 3, 3, *[1] * (len(TOKENS) - 3)])
    for name, tensor in {"token_embd.weight": np.zeros((len(TOKENS), 32), np.float32), **dict(tensors)}.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_table_of_types_is_the_packages():
    for number, (name, block_elements, block_bytes) in TENSOR_TYPES.items():
        kind = gguf.GGMLQuantizationType[name]
        assert kind.value == number
        assert gguf.GGML_QUANT_SIZES[kind] == (block_elements, block_bytes)
    required = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"}
    assert required <= {name for name, _, _ in TENSOR_TYPES.values()}


def test_the_header_holds_what_was_written(tmp_path):
    path = write_gguf(
        tmp_path / "m.gguf",
        tensors=[("blk.0.ffn_up.weight", np.zeros((48, 32), np.float16))],
        **{"rope.freq_base": 5e4, "general.name": "tiny", "general.tags": ["a", "b"]},
    )
    header = read_header(path)
    assert header.metadata["general.architecture"] == "llama"
    assert header.metadata["general.name"] == "tiny"
    assert header.metadata["general.tags"] == ["a", "b"]
    assert header.metadata["llama.rope.freq_base"] == 5e4
    assert isinstance(header.metadata["tokenizer.ggml.tokens"], LongArray)
    assert header.array("tokenizer.ggml.tokens") == TOKENS
    assert header.array("tokenizer.ggml.token_type") == [3, 3, 3, *[1] * (len(TOKENS) - 3)]
    assert header.array("tokenizer.ggml.nothing") == []
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert set(theirs) == set(header.tensors)
    for name, tensor in header.tensors.items():
        assert tensor.offset == theirs[name].data_offset
        assert tensor.num_bytes == theirs[name].n_bytes
        assert list(tensor.shape) == list(reversed(theirs[name].shape.tolist()))
        assert tensor.type_name == theirs[name].tensor_type.name


def test_every_truncation_is_one_error(tmp_path):
    path = write_gguf(tmp_path / "m.gguf")
    whole = path.read_bytes()
    for size in [*range(0, 600, 3), *range(600, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"m\.gguf"):
            read_header(path)


def test_damage_in_the_header_is_at_worst_one_error(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", arrays=False)
    whole = bytearray(path.read_bytes())
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(1000):
        damaged = bytearray(whole)
        for at in generator.integers(0, 500, size=generator.integers(1, 4)):
            damaged[at] = generator.integers(0, 256)
        path.write_bytes(damaged)
        try:
            # Whatever number was damaged, nothing is done as often as it says.
            count_calls(lambda: config_from_gguf(read_header(path)), limit=50_000)
        except CheckpointError:
            refused += 1
    assert 250 < refused < 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: b"GGML" + raw[4:], "not a GGUF file"),
        (lambda raw: raw[:4] + (9).to_bytes(4, "little") + raw[8:], "version 9 is not supported"),
        (lambda raw: raw[:4] + (3).to_bytes(4, "big") + raw[8:], "little endian"),
        (lambda raw: raw[:0], "empty"),
    ],
)
def test_other_files_are_refused(tmp_path, change, message):
    path = write_gguf(tmp_path / "m.gguf")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CheckpointError, match=message):
        read_header(path)


def test_a_file_that_is_not_there_is_one_error(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_header(tmp_path / "none.gguf")


def test_configuration_of_a_llama_file(tmp_path):
    path = write_gguf(
        tmp_path / "m.gguf",
        tensors=[("output.weight", np.zeros((len(TOKENS), 32), np.float32))],
        **{
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 1e5,
            "rope.dimension_count": 8,
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 1,
        },
    )
    assert config_from_gguf(read_header(path)) == ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=len(TOKENS),
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        rope_theta=1e5,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_ids=(1, 2),
    )


def test_configuration_of_qwen_files(tmp_path):
    bias = np.zeros(32, np.float32)
    qwen2 = config_from_gguf(read_header(write_gguf(tmp_path / "2", "qwen2", tensors=[("blk.0.attn_q.bias", bias)])))
    assert (qwen2.architecture, qwen2.attention_bias, qwen2.attention_output_bias) == ("Qwen2ForCausalLM", True, False)
    assert qwen2.tie_word_embeddings
    norm = np.zeros(16, np.float32)
    path = write_gguf(
        tmp_path / "3", "qwen3", tensors=[("blk.0.attn_q_norm.weight", norm)], **{"attention.key_length": 16}
    )
    qwen3 = config_from_gguf(read_header(path))
    assert (qwen3.architecture, qwen3.qk_norm, qwen3.head_dim) == ("Qwen3ForCausalLM", True, 16)


@pytest.mark.parametrize("preset", [LLAMA_3_1_8B, LLAMA_3_2_1B])
def test_llama3_scaling_is_recovered_from_its_factors(tmp_path, preset):
    config = preset.config
    factors = llama3_frequency_factors(config.rope_scaling, config.rope_theta, config.head_dim)
    path = write_gguf(
        tmp_path / "m.gguf",
        tensors=[("rope_freqs.weight", np.array(factors, np.float32))],
        **{"attention.key_length": config.head_dim, "rope.freq_base": config.rope_theta},
    )
    assert config_from_gguf(read_header(path)).rope_scaling == config.rope_scaling
    assert to_hf_name("rope_freqs.weight") is None


def test_frequency_factors_are_those_of_transformers():
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = RopeScaling(8.0, 1.0, 4.0, 8192)
    rope = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = transformers.LlamaConfig(hidden_size=128 * 32, num_attention_heads=32, rope_parameters=rope)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / 5e5 ** (torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    ours = torch.tensor(llama3_frequency_factors(scaling, 5e5, 128), dtype=torch.float64)
    torch.testing.assert_close(plain / scaled.double(), ours, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("arch", "values", "tensors", "message"),
    [
        ("gemma", {}, [], "architecture 'gemma' is not supported; supported: llama, qwen2, qwen3"),
        ("llama", {"block_count": None}, [], "llama.block_count is missing"),
        ("llama", {"block_count": "two"}, [], "llama.block_count must be a positive integer, found 'two'"),
        ("llama", {"attention.head_count_kv": 0}, [], "head_count_kv must be a positive integer, found 0"),
        ("llama", {"rope.freq_base": "x"}, [], "rope.freq_base must be a positive number, found 'x'"),
        ("llama", {"expert_count": 8}, [], "mixture of experts"),
        ("llama", {"rope.scaling.type": "yarn"}, [], "'yarn' is not supported"),
        ("llama", {"rope.dimension_count": 4}, [], "part of the head"),
        ("llama", {"attention.head_count_kv": [2, 1]}, [], "differs by layer"),
        ("llama", {"attention.head_count_kv": 3}, [], "not a multiple"),
        ("llama", {}, [("rope_freqs.weight", np.array([1, 1, 3, 8], np.float32))], "not the scaling of Llama 3"),
        ("llama", {}, [("rope_freqs.weight", np.ones(3, np.float32))], r"expected|must be F32 of shape \[4\]"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, arch, values, tensors, message):
    path = write_gguf(tmp_path / "m.gguf", arch, tensors=tensors, **values)
    with pytest.raises(CheckpointError, match=message):
        config_from_gguf(read_header(path))


def test_a_header_with_a_large_vocabulary_costs_one_call_a_string(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_token_list([f"token{i}" for i in range(150_000)])
    writer.add_token_merges([f"to ken{i}" for i in range(150_000)])
    writer.add_tensor("token_embd.weight", np.zeros((1, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = []
    assert count_calls(lambda: found.append(read_header(tmp_path / "m.gguf"))) < 1.01 * 300_000
    (header,) = found
    # Reading strings, which is what a header leaves out, would be seen.
    assert count_calls(lambda: header.array("tokenizer.ggml.merges")) > 4 * 150_000
    assert len(header.array("tokenizer.ggml.merges")) == 150_000
    assert json.dumps(header.array("tokenizer.ggml.tokens")[-1]) == '"token149999"'
