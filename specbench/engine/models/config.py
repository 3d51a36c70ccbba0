"""The shape of a decoder-only model. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

FULL_ATTENTION = "full_attention"
LINEAR_ATTENTION = "linear_attention"


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's frequency-dependent rotary scaling; lengths in tokens."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class LinearAttention:
    """The layers of a hybrid model that keep a recurrent state of fixed size instead of keys and values.

    :param layer_types: by layer, ``linear_attention`` or ``full_attention``.
    :param num_value_heads: a multiple of ``num_key_heads``; consecutive value heads share a query and a key head.
    :param conv_kernel: taps of the short causal convolution over q, k and v, the current token's included.
    """

    layer_types: tuple[str, ...]
    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int = 4

    @property
    def key_width(self) -> int:
        """Elements of a token's queries, and of its keys."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Elements of a token's values."""
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: q, k and v side by side."""
        return 2 * self.key_width + self.value_width

    @property
    def num_layers(self) -> int:
        """Layers with recurrent state."""
        return self.layer_types.count(LINEAR_ATTENTION)

    def layer_parameters(self, hidden_size: int) -> int:
        """Parameters of one such layer, its norms before attention and MLP and the MLP left out."""
        projections = hidden_size * (self.conv_width + 2 * self.value_width + 2 * self.num_value_heads)
        return projections + self.conv_width * self.conv_kernel + 2 * self.num_value_heads + self.value_head_dim

    def state_bytes(self, num_slots: int, num_states: int, bytes_per_element: int) -> int:
        """Bytes of the state cache over all layers.

        :param num_slots: slots, padding's included.
        :param num_states: recurrent states a slot, K + 1; float32 each. Rows of the convolution are in the model's
            dtype, ``bytes_per_element``.
        """
        recurrent = num_states * self.num_value_heads * self.key_head_dim * self.value_head_dim * 4
        conv = (self.conv_kernel - 1 + num_states - 1) * self.conv_width * bytes_per_element
        return self.num_layers * num_slots * (recurrent + conv)


@dataclass(frozen=True)
class ModelConfig:
    """Hyperparameters, named as checkpoints of the Hugging Face format name them.

    :param architecture: key in the model registry (``LlamaForCausalLM``, ...).
    :param attention_bias: biases on q, k and v; ``attention_output_bias`` on o.
    :param qk_norm: RMS norm over each head of q and k before the rotation (Qwen3).
    :param sliding_window: None, or the span of tokens attention may see; longer sequences are refused.
    :param eos_token_ids: ids that end a sequence, chat end tokens included.
    :param partial_rotary_factor: the leading part of a head that is rotated.
    :param attention_output_gate: the q projection gives a gate beside each query head; its sigmoid scales the output.
    :param zero_centered_norms: norm weights are stored as their distance from 1, gated norms excepted.
    :param linear_attention: the layers with recurrent state, None in a model that has none.
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
    partial_rotary_factor: float = 1.0
    attention_output_gate: bool = False
    zero_centered_norms: bool = False
    linear_attention: LinearAttention | None = None

    @property
    def num_parameters(self) -> int:
        """Parameters, a tied head counted once."""
        mlp = 3 * self.hidden_size * self.intermediate_size
        mlp += (2 * self.intermediate_size + self.hidden_size) if self.mlp_bias else 0
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        layers = self.num_layers * (mlp + 2 * self.hidden_size) + self.num_kv_layers * self._attention_parameters
        if self.linear_attention is not None:
            layers += self.linear_attention.num_layers * self.linear_attention.layer_parameters(self.hidden_size)
        return layers + embeddings + self.hidden_size

    @property
    def _attention_parameters(self) -> int:
        """Parameters of one layer's attention over keys and values."""
        head_width = self.num_heads * self.head_dim
        kv_width = self.num_kv_heads * self.head_dim
        q_width = head_width * (2 if self.attention_output_gate else 1)
        attention = self.hidden_size * (q_width + head_width + kv_width * 2)
        attention += (q_width + 2 * kv_width) if self.attention_bias else 0
        attention += self.hidden_size if self.attention_output_bias else 0
        return attention + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def num_kv_layers(self) -> int:
        """Layers that keep keys and values."""
        return self.num_layers - (self.linear_attention.num_layers if self.linear_attention else 0)

    @property
    def rotary_dim(self) -> int:
        """Elements at the start of a head that are rotated."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def has_recurrent_state(self) -> bool:
        """True when some layers keep a recurrent state a slot."""
        return self.linear_attention is not None

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Bytes the KV cache holds for one token over all layers."""
        return 2 * self.num_kv_layers * self.num_kv_heads * self.head_dim * bytes_per_element

    def state_bytes(self, num_slots: int, num_states: int, bytes_per_element: int) -> int:
        """Bytes of recurrent state, 0 without; see :meth:`LinearAttention.state_bytes`."""
        if self.linear_attention is None:
            return 0
        return self.linear_attention.state_bytes(num_slots, num_states, bytes_per_element)
