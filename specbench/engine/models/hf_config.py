"""``config.json`` of the Hugging Face format -> :class:`ModelConfig`. No torch here.

Missing keys take the default that transformers gives them, which differs by architecture.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.engine.models.config import ModelConfig, RopeScaling
from specbench.engine.models.config_reader import ConfigReader
from specbench.engine.models.hf_hybrid_config import (
    HYBRID_DEFAULTS,
    read_linear_attention,
    read_partial_rotary_factor,
)
from specbench.errors import CheckpointError

CHAT_END_TOKENS = ("<|im_end|>", "<|eot_id|>")
"""Tokens that close a turn. A chat model ends with them even where its config names only the end of text."""


@dataclass(frozen=True)
class _Family:
    """What an architecture fixes, and transformers' defaults for keys its config may leave out."""

    model_type: str
    defaults: Mapping[str, Any]
    qkv_bias: bool | None = None  # None: the config's attention_bias says, and it covers the output projection
    qk_norm: bool = False
    is_hybrid: bool = False  # gated attention, norms centred on zero, and layers with recurrent state


_COMMON = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "head_dim": None,
    "num_key_value_heads": None,
    "sliding_window": None,
    "attention_bias": False,
    "mlp_bias": False,
}
_QWEN = {**_COMMON, "num_key_value_heads": 32, "max_position_embeddings": 32768, "max_window_layers": 28}

FAMILIES: dict[str, _Family] = {
    "LlamaForCausalLM": _Family("llama", {**_COMMON, "max_position_embeddings": 2048}),
    "MistralForCausalLM": _Family(
        "mistral",
        {**_COMMON, "num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
        qkv_bias=False,
    ),
    "Qwen2ForCausalLM": _Family("qwen2", _QWEN, qkv_bias=True),
    "Qwen3ForCausalLM": _Family("qwen3", {**_QWEN, "head_dim": 128}, qk_norm=True),
    "Qwen3NextForCausalLM": _Family(
        "qwen3_next",
        {**_QWEN, "num_key_value_heads": 2, "head_dim": 256, **HYBRID_DEFAULTS},
        qk_norm=True,
        is_hybrid=True,
    ),
}


def read_config_directory(directory: Path) -> ModelConfig:
    """Read ``config.json`` in ``directory``, with the end tokens of ``generation_config.json`` and the tokenizer.

    :raises CheckpointError: unreadable, incomplete, or of a kind that is not supported.
    """
    path = directory / "config.json"
    config = read_json_object(path)
    generation_path = directory / "generation_config.json"
    generation = read_json_object(generation_path) if generation_path.is_file() else {}
    return parse_config(config, where=str(path), generation=generation, chat_end_ids=find_chat_end_ids(directory))


def read_num_mtp_modules(directory: Path) -> int:
    """Multi-token prediction modules that a checkpoint carries behind its layers (``num_nextn_predict_layers``).

    :raises CheckpointError: ``config.json`` is unreadable, or the key is no count.
    """
    path = directory / "config.json"
    return parse_num_mtp_modules(read_json_object(path), where=str(path))


def parse_num_mtp_modules(config: Mapping[str, Any], *, where: str) -> int:
    """The same of the keys of a ``config.json``; ``where`` names it in errors."""
    reader = ConfigReader(config, {}, where)
    return reader.integer("num_nextn_predict_layers") if reader.get("num_nextn_predict_layers") else 0


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    :raises CheckpointError: not there, not JSON, or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror or error}", where=str(path)) from None
    except ValueError as error:
        raise CheckpointError(
            f"is not JSON ({error})", where=str(path), hint="the file may be truncated: fetch it again"
        ) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"expected an object, found {type(value).__name__}", where=str(path))
    return value


def parse_config(
    config: Mapping[str, Any],
    *,
    where: str,
    generation: Mapping[str, Any] | None = None,
    chat_end_ids: Iterable[int] = (),
) -> ModelConfig:
    """Translate the keys of a ``config.json``; ``where`` names it in errors.

    :raises CheckpointError: a missing or malformed key, or an architecture, rotary scaling, activation or quantisation
        that is not supported.
    """
    architecture = _architecture(config, where)
    family = FAMILIES[architecture]
    reader = ConfigReader(config, family.defaults, where)
    _refuse_unsupported(reader)
    hidden, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    rope = _rope_parameters(reader, family)
    bias = reader.boolean("attention_bias")
    generation = generation or {}
    if reader.get("head_dim") is None and hidden % heads:
        raise reader.fail(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    parsed = ModelConfig(
        architecture=architecture,
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=reader.integer("intermediate_size"),
        num_layers=reader.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=reader.integer("num_key_value_heads", heads),
        head_dim=reader.integer("head_dim", hidden // heads),
        max_position_embeddings=reader.integer("max_position_embeddings"),
        rms_norm_eps=reader.number("rms_norm_eps"),
        rope_theta=_rope_theta(reader, rope),
        rope_scaling=_rope_scaling(reader, rope),
        tie_word_embeddings=reader.boolean("tie_word_embeddings"),
        attention_bias=bias if family.qkv_bias is None else family.qkv_bias,
        attention_output_bias=bias if family.qkv_bias is None else False,
        mlp_bias=architecture == "LlamaForCausalLM" and reader.boolean("mlp_bias"),
        qk_norm=family.qk_norm,
        sliding_window=_sliding_window(reader, architecture),
        **_hybrid_keys(reader, rope) if family.is_hybrid else {},
        bos_token_id=next(iter(reader.token_ids("bos_token_id")), None),
        eos_token_ids=_merge(
            reader.token_ids("eos_token_id"),
            ConfigReader(generation, {}, where).token_ids("eos_token_id"),
            chat_end_ids,
        ),
    )
    check_heads(parsed, where)
    return parsed


def _hybrid_keys(reader: ConfigReader, rope: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "attention_output_gate": True,
        "zero_centered_norms": True,
        "partial_rotary_factor": read_partial_rotary_factor(reader, rope),
        "linear_attention": read_linear_attention(reader),
    }


def check_heads(config: ModelConfig, where: str) -> None:
    """Refuse head counts that cannot be grouped or rotated.

    :raises CheckpointError: they cannot.
    """
    if config.num_heads % config.num_kv_heads:
        raise CheckpointError(
            f"num_attention_heads {config.num_heads} is not a multiple of num_key_value_heads {config.num_kv_heads}",
            where=where,
        )
    if config.head_dim % 2:
        raise CheckpointError(f"head_dim {config.head_dim} is odd, and its halves are rotated", where=where)
    if config.rotary_dim % 2 or not config.rotary_dim:
        what = (
            f"{config.rotary_dim} elements of each head are rotated (partial_rotary_factor), and they must make pairs"
        )
        raise CheckpointError(what, where=where)


def _merge(*groups: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({token_id for group in groups for token_id in group}))


def _architecture(config: Mapping[str, Any], where: str) -> str:
    named = config.get("architectures")
    names = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    for name in map(str, names):
        if name in FAMILIES:
            return name
    if not names:
        for name, family in FAMILIES.items():
            if config.get("model_type") == family.model_type:
                return name
    found = ", ".join(map(str, names)) or f"model_type {config.get('model_type')!r}"
    raise CheckpointError(
        f"architecture {found} is not supported; supported: {', '.join(FAMILIES)}",
        where=where,
        hint="use a dense decoder of one of these families",
    )


def _refuse_unsupported(reader: ConfigReader) -> None:
    if reader.get("quantization_config"):
        quantization = reader.get("quantization_config")
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise reader.fail(
            f"the weights are quantised ({method}), which is not supported in this format",
            "use the unquantised checkpoint, or a GGUF file (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K, ...)",
        )
    if reader.get("hidden_act") not in ("silu", "swish"):
        raise reader.fail(f"hidden_act {reader.get('hidden_act')!r} is not supported; supported: silu")


def _rope_parameters(reader: ConfigReader, family: _Family) -> Mapping[str, Any]:
    """The rotary settings: transformers 5 writes ``rope_parameters``, before it ``rope_scaling`` beside rope_theta."""
    rope = reader.get("rope_parameters") or reader.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise reader.fail(f"rope_parameters must be an object, found {rope!r}")
    if any(isinstance(value, dict) for value in rope.values()):
        raise reader.fail("rotary settings that differ by layer are not supported")
    partial = rope.get("partial_rotary_factor", reader.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0) and not family.is_hybrid:
        raise reader.fail(f"partial_rotary_factor {partial!r} is not supported; supported: 1")
    return rope


def _rope_theta(reader: ConfigReader, rope: Mapping[str, Any]) -> float:
    source = rope if "rope_theta" in rope else reader.config
    return ConfigReader(source, {"rope_theta": 10000.0}, reader.where).number("rope_theta")


def _rope_scaling(reader: ConfigReader, rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in (None, "default"):
        return None
    if kind != "llama3":
        raise reader.fail(f"rotary scaling of type {kind!r} is not supported; supported: default, llama3")
    values = ConfigReader(rope, {}, f"{reader.where}: rope_scaling")
    return RopeScaling(
        factor=values.number("factor"),
        low_freq_factor=values.number("low_freq_factor"),
        high_freq_factor=values.number("high_freq_factor"),
        original_max_position_embeddings=values.integer("original_max_position_embeddings"),
    )


def _sliding_window(reader: ConfigReader, architecture: str) -> int | None:
    """The window that at least one layer has, or None."""
    if architecture == "LlamaForCausalLM" or reader.get("sliding_window") is None:
        return None
    if architecture == "MistralForCausalLM":
        return reader.integer("sliding_window")
    if not reader.boolean("use_sliding_window"):
        return None
    layer_types = reader.get("layer_types")
    if isinstance(layer_types, list):
        slides = "sliding_attention" in layer_types
    else:
        # Layers from this number on slide; 0 is all of them.
        first = reader.get("max_window_layers")
        slides = first == 0 or reader.integer("max_window_layers") < reader.integer("num_hidden_layers")
    return reader.integer("sliding_window") if slides else None


def find_chat_end_ids(directory: Path) -> tuple[int, ...]:
    """Return the ids of :data:`CHAT_END_TOKENS` among the added tokens of the tokenizer in ``directory``."""
    path = directory / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8")
        start = text.index('"added_tokens"')
        # The list comes before the vocabulary: decoding it alone spares reading megabytes of merges.
        tokens, _ = json.JSONDecoder().raw_decode(text, text.index("[", start))
        return tuple(token["id"] for token in tokens if token["content"] in CHAT_END_TOKENS)
    except (OSError, ValueError, KeyError, TypeError):
        # A tokenizer that cannot be read is reported by whoever needs it; weights alone can be served.
        return ()
