"""GGUF metadata -> :class:`ModelConfig`, and the names of its tensors in the Hugging Face format. No torch here."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

from specbench.engine.models.config import ModelConfig, RopeScaling
from specbench.engine.models.gguf_header import GgufHeader
from specbench.engine.models.hf_config import CHAT_END_TOKENS, check_heads
from specbench.engine.models.safetensors_header import DTYPE_NAMES
from specbench.engine.models.tensor_header import TensorHeader
from specbench.errors import CheckpointError

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""``general.architecture`` -> ours. Mistral files are of architecture llama."""

_OUTER_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER_NAMES = {
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
_LLAMA3_ORIGINAL_LENGTH = 8192
_END_TOKEN_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def to_hf_name(name: str) -> str | None:
    """Return the Hugging Face name of the GGUF tensor ``name``, or None for tables that are no weights."""
    if name.startswith("rope_"):
        return None
    stem, _, kind = name.rpartition(".")
    if stem.startswith("blk."):
        _, layer, part = stem.split(".", 2)
        inner = {ours: theirs for theirs, ours in _LAYER_NAMES.items()}.get(part)
        return f"model.layers.{layer}.{inner}.{kind}" if inner else name
    outer = {ours: theirs for theirs, ours in _OUTER_NAMES.items()}.get(stem)
    return f"{outer}.{kind}" if outer else name


def tensor_headers(header: GgufHeader) -> dict[str, TensorHeader]:
    """Every weight by its Hugging Face name; quantised ones count as float32, as which they may be read."""
    named = {to_hf_name(name): tensor for name, tensor in header.tensors.items()}
    return {
        name: TensorHeader(header.path, DTYPE_NAMES.get(tensor.type_name, "float32"), tensor.shape)
        for name, tensor in named.items()
        if name is not None
    }


def config_from_gguf(header: GgufHeader) -> ModelConfig:
    """Translate a header.

    :raises CheckpointError: an architecture or rotary scaling that is not supported, or missing metadata.
    """
    reader = _MetadataReader(header)
    heads, hidden = reader.integer("attention.head_count"), reader.integer("embedding_length")
    theta = reader.number("rope.freq_base", 10000.0)
    head_dim = reader.integer("attention.key_length", hidden // heads)
    tensors = header.tensors
    if "token_embd.weight" not in tensors:
        raise reader.fail("tensor 'token_embd.weight' is missing")
    if reader.get("expert_count", 0):
        raise reader.fail("a mixture of experts is not supported; supported: dense models")
    config = ModelConfig(
        architecture=ARCHITECTURES[reader.architecture],
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=hidden,
        intermediate_size=reader.integer("feed_forward_length"),
        num_layers=reader.integer("block_count"),
        num_heads=heads,
        num_kv_heads=reader.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position_embeddings=reader.integer("context_length"),
        rms_norm_eps=_shortest_float32(reader.number("attention.layer_norm_rms_epsilon", 1e-6)),
        rope_theta=theta,
        rope_scaling=_rope_scaling(reader, theta, head_dim),
        tie_word_embeddings="output.weight" not in tensors,
        attention_bias="blk.0.attn_q.bias" in tensors,
        attention_output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        sliding_window=reader.integer("attention.sliding_window", 0) or None,
        bos_token_id=reader.bos_token_id(),
        eos_token_ids=_end_token_ids(header),
    )
    check_heads(config, str(header.path))
    return config


@dataclass(frozen=True)
class _MetadataReader:
    header: GgufHeader

    @property
    def architecture(self) -> str:
        found = self.header.metadata.get("general.architecture")
        if found not in ARCHITECTURES:
            raise self.fail(f"architecture {found!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
        return str(found)

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(what, where=str(self.header.path))

    def get(self, key: str, default: Any) -> Any:
        value = self.header.metadata.get(f"{self.architecture}.{key}", default)
        if isinstance(value, list):
            if len(set(map(str, value))) != 1:
                raise self.fail(f"{self.architecture}.{key} differs by layer, which is not supported")
            return value[0]
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if value is not default and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise self.fail(f"metadata {self.architecture}.{key} must be a positive integer, found {value!r}")
        if value is None:
            raise self.fail(f"metadata {self.architecture}.{key} is missing")
        return int(value)

    def number(self, key: str, default: float) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise self.fail(f"metadata {self.architecture}.{key} must be a positive number, found {value!r}")
        return float(value)

    def bos_token_id(self) -> int | None:
        value = self.header.metadata.get("tokenizer.ggml.bos_token_id")
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def _shortest_float32(value: float) -> float:
    """The shortest decimal that is this float32: the file stores 1e-5 as 9.99999974e-06."""
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if struct.pack("<f", float(text)) == struct.pack("<f", value):
            return float(text)
    return float(value)


def _end_token_ids(header: GgufHeader) -> tuple[int, ...]:
    found = {header.metadata.get(f"tokenizer.ggml.{key}") for key in _END_TOKEN_KEYS}
    wanted = set(CHAT_END_TOKENS)
    found |= {i for i, token in enumerate(header.array("tokenizer.ggml.tokens")) if token in wanted}
    return tuple(sorted(token_id for token_id in found if isinstance(token_id, int)))


def _rope_scaling(reader: _MetadataReader, theta: float, head_dim: int) -> RopeScaling | None:
    """Llama 3 files carry the factors of the frequencies as a tensor; the numbers behind them are recovered."""
    kind = reader.get("rope.scaling.type", "none")
    if kind not in ("none", "llama3"):
        raise reader.fail(f"rotary scaling of type {kind!r} is not supported; supported: none, llama3")
    if reader.integer("rope.dimension_count", head_dim) != head_dim:
        raise reader.fail("a rotary embedding of a part of the head is not supported")
    if "rope_freqs.weight" not in reader.header.tensors:
        return None
    factors = _read_rope_factors(reader, head_dim)
    largest = max(factors)
    if not 1.0 <= largest < math.inf:
        raise reader.fail(f"tensor 'rope_freqs.weight' holds {largest!r}, which is no factor")
    if largest == 1.0:
        return None
    original = reader.integer("rope.scaling.original_context_length", _LLAMA3_ORIGINAL_LENGTH)
    scaling = RopeScaling(largest, 1.0, 4.0, original)
    expected = llama3_frequency_factors(scaling, theta, head_dim)
    if any(abs(a - b) > 1e-3 * b for a, b in zip(factors, expected, strict=True)):
        raise reader.fail("tensor 'rope_freqs.weight' is not the scaling of Llama 3, the only one supported")
    return scaling


def _read_rope_factors(reader: _MetadataReader, head_dim: int) -> list[float]:
    tensor = reader.header.tensors["rope_freqs.weight"]
    if tensor.type_name != "F32" or tensor.shape != (head_dim // 2,):
        raise reader.fail(
            f"tensor 'rope_freqs.weight' must be F32 of shape [{head_dim // 2}], "
            f"found {tensor.type_name} {list(tensor.shape)}"
        )
    with open(reader.header.path, "rb") as file:
        file.seek(tensor.offset)
        return list(struct.unpack(f"<{head_dim // 2}f", file.read(tensor.num_bytes)))


def llama3_frequency_factors(scaling: RopeScaling, theta: float, head_dim: int) -> list[float]:
    """Divisor of each rotary frequency under Llama 3's scaling, [head_dim / 2].

    Source: Llama 3.1's rotary scaling. Waves shorter than ``original / high_freq_factor`` tokens are kept, waves longer
    than ``original / low_freq_factor`` are stretched by ``factor``, and those between are interpolated.
    """
    factors = []
    original = scaling.original_max_position_embeddings
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (i / head_dim)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(scaling.factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1.0 / ((1 - smooth) / scaling.factor + smooth))
    return factors
