"""The shape of a decoder-only model. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's frequency-dependent rotary scaling; lengths in tokens."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class ModelConfig:
    """Hyperparameters, named as checkpoints of the Hugging Face format name them.

    :param architecture: key in the model registry (``LlamaForCausalLM``, ...).
    :param attention_bias: biases on q, k and v; ``attention_output_bias`` on o.
    :param qk_norm: RMS norm over each head of q and k before the rotation (Qwen3).
    :param sliding_window: None, or the span of tokens attention may see; longer sequences are refused.
    :param eos_token_ids: ids that end a sequence, chat end tokens included.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def num_parameters(self) -> int:
        """Parameters, a tied head counted once."""
        head_width = self.num_heads * self.head_dim
        kv_width = self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (head_width * 2 + kv_width * 2)
        attention += (head_width + 2 * kv_width) if self.attention_bias else 0
        attention += self.hidden_size if self.attention_output_bias else 0
        attention += 2 * self.head_dim if self.qk_norm else 0
        mlp = 3 * self.hidden_size * self.intermediate_size
        mlp += (2 * self.intermediate_size + self.hidden_size) if self.mlp_bias else 0
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_layers * (attention + mlp + 2 * self.hidden_size) + embeddings + self.hidden_size

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Bytes the KV cache holds for one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_element
