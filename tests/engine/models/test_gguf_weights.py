"""Dequantised tensors against the gguf package, and whole files against transformers' own reading of them."""

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from specbench.engine.models import gguf_weights
from specbench.engine.models.gguf_config import config_from_gguf
from specbench.engine.models.gguf_header import read_header
from specbench.engine.models.gguf_weights import GgufSource
from specbench.errors import CheckpointError

HIDDEN, VOCAB = 256, 512
HF_TO_GGUF = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{HF_TO_GGUF[part]}.{kind}"
    return f"{HF_TO_GGUF[stem]}.{kind}"


def interleave(weight, heads):
    """The order in which files of architecture llama keep the rows of q and k."""
    rows = weight.shape[0] // heads
    return weight.reshape(heads, 2, rows // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def random_blocks(kind, rows, columns, seed=0):
    """Bytes of a quantised tensor with finite scales; works for kinds that the package cannot quantise to."""
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(seed)
    raw = generator.integers(0, 256, size=(rows, columns // block_elements, block_bytes), dtype=np.uint8)
    scales = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q2_K": (80, 82), "Q6_K": (208,), "Q3_K": (108,)}
    for at in scales.get(kind.name, (0, 2) if kind.name.endswith("_1") else (0,)):
        half = generator.uniform(-0.1, 0.1, size=(rows, columns // block_elements, 1)).astype(np.float16)
        raw[..., at : at + 2] = half.view(np.uint8)
    return raw.reshape(rows, -1)


def write_model(path, arch, state, config, quantize=None):
    """A GGUF file of an HF state dict; ``quantize`` maps a tensor's GGUF name to its type (default F32)."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    for name, tensor in state.items():
        values = tensor.float().numpy()
        part = name.split(".")[-2]
        if arch == "llama" and part in ("q_proj", "k_proj"):
            values = interleave(values, config.num_attention_heads if part == "q_proj" else config.num_key_value_heads)
        kind = (quantize or {}).get(gguf_name(name), gguf.GGMLQuantizationType.F32)
        writer.add_tensor(gguf_name(name), gguf.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tiny(class_name, **values):
    torch.manual_seed(1)
    config = getattr(transformers, class_name)(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=128,
        **values,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight")
    return config, state


def open_source(path, dtype=torch.float32):
    header = read_header(path)
    return GgufSource(header, config_from_gguf(header), dtype)


@pytest.mark.parametrize(
    ("class_name", "arch", "values"),
    [
        ("LlamaConfig", "llama", {"tie_word_embeddings": True}),
        ("LlamaConfig", "llama", {"attention_bias": True, "mlp_bias": True}),
        ("Qwen2Config", "qwen2", {}),
        ("Qwen3Config", "qwen3", {"head_dim": 64, "tie_word_embeddings": True}),
    ],
)
def test_a_file_gives_back_the_tensors_it_was_made_of(tmp_path, class_name, arch, values):
    config, state = tiny(class_name, **values)
    write_model(tmp_path / "m.gguf", arch, state, config)
    with open_source(tmp_path / "m.gguf") as source:
        assert {name: tuple(tensor.shape) for name, tensor in state.items()} == source.shapes
        for name, tensor in state.items():
            assert torch.equal(source.read(name), tensor), name


@pytest.mark.parametrize(("class_name", "arch"), [("LlamaConfig", "llama"), ("Qwen2Config", "qwen2")])
def test_transformers_reads_the_same_tensors_from_the_same_file(tmp_path, class_name, arch):
    config, state = tiny(class_name)
    quantize = {gguf_name(name): gguf.GGMLQuantizationType.Q8_0 for name, t in state.items() if t.ndim == 2}
    write_model(tmp_path / "m.gguf", arch, state, config, quantize)
    empty = transformers.AutoModelForCausalLM.from_config(config)
    theirs = load_gguf_checkpoint(str(tmp_path / "m.gguf"), return_tensors=True, model_to_load=empty)["tensors"]
    assert set(theirs) == set(state)
    with open_source(tmp_path / "m.gguf") as source:
        for name, tensor in theirs.items():
            assert torch.equal(source.read(name), torch.as_tensor(tensor)), name


@pytest.mark.parametrize(
    "kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32"]
)
@pytest.mark.parametrize("chunk_elements", [256, 1 << 16])
def test_every_type_is_dequantised_as_the_package_does(tmp_path, monkeypatch, kind, chunk_elements):
    monkeypatch.setattr(gguf_weights, "_CHUNK_ELEMENTS", chunk_elements)
    config, state = tiny("Qwen2Config")
    quantised = gguf.GGMLQuantizationType[kind]
    path = tmp_path / "m.gguf"
    write_model(path, "qwen2", state, config)
    if kind in ("F16", "BF16", "F32"):
        raw = gguf.quantize(np.random.default_rng(0).normal(size=(384, HIDDEN)).astype(np.float32), quantised)
    else:
        raw = random_blocks(quantised, 384, HIDDEN)
    expected = torch.from_numpy(gguf.dequantize(raw, quantised).astype(np.float32).reshape(384, HIDDEN))
    assert torch.isfinite(expected).all()
    writer = gguf.GGUFWriter(path, "qwen2")
    for key in ("block_count", "context_length", "embedding_length", "feed_forward_length"):
        writer.add_uint32(f"qwen2.{key}", 256)
    writer.add_head_count(8)
    writer.add_tensor("token_embd.weight", np.zeros((4, HIDDEN), np.float32))
    writer.add_tensor("blk.0.ffn_up.weight", raw, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    name = "model.layers.0.mlp.up_proj.weight"
    with open_source(path) as source:
        assert torch.equal(source.read(name).float(), expected)
    with open_source(path, torch.bfloat16) as source:
        found = source.read(name)
        assert found.dtype == (torch.bfloat16 if kind.startswith("Q") else found.dtype)
        assert torch.equal(found.to(torch.bfloat16), expected.to(torch.bfloat16))


def test_a_tensor_that_does_not_divide_into_heads_is_named(tmp_path):
    config, state = tiny("LlamaConfig")
    state["model.layers.0.self_attn.q_proj.weight"] = torch.zeros(24, HIDDEN)
    config.num_attention_heads = 8
    write_model(tmp_path / "m.gguf", "qwen2", state, config)
    header = read_header(tmp_path / "m.gguf")
    header.metadata["general.architecture"] = "llama"
    header.metadata.update({k.replace("qwen2.", "llama."): v for k, v in list(header.metadata.items())})
    with (
        GgufSource(header, config_from_gguf(header), torch.float32) as source,
        pytest.raises(CheckpointError, match=r"q_proj.weight of shape \[24, 256\] does not divide into 8 heads"),
    ):
        source.read("model.layers.0.self_attn.q_proj.weight")


def test_a_file_cut_while_it_is_read_is_one_error(tmp_path):
    config, state = tiny("LlamaConfig")
    path = tmp_path / "m.gguf"
    write_model(path, "llama", state, config)
    with open_source(path) as source:
        last = max(source.shapes, key=lambda name: source._tensors[name].offset)
        with open(path, "r+b") as file:
            file.truncate(source._tensors[last].offset + 16)
        with pytest.raises(CheckpointError, match="truncated in tensor"):
            source.read(last)
