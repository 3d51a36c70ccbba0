"""EAGLE-3 heads: one decoder layer over a token's embedding and fused hidden states of three target layers.

The method is that of EAGLE-3 (Li, Wei, Zhang and Zhang, 2025). At position p the head reads the embedding of the token
at p + 1 and the hidden states of p; what it puts out stands for the hidden state of p + 1, and gives the logits of the
token at p + 2 over a reduced vocabulary. In further passes its own output takes the place of the target's.

Shapes: T token rows, H hidden size of the head, Ht of the target, Vd draft vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.engine.attention.base import AttentionOperator
from specbench.engine.config import DrafterSpec
from specbench.engine.drafters.base import DrafterHost, DrafterNeeds, TargetRows
from specbench.engine.drafters.head_config import HeadConfig
from specbench.engine.drafters.head_layers import build_norm, fill_layer, move_tensors
from specbench.engine.drafters.head_weights import LoadedHead, load_head
from specbench.engine.drafters.model_drafter import DraftHead, ModelDrafter
from specbench.engine.models.config import ModelConfig
from specbench.engine.models.decoder import RMSNorm, Tensors
from specbench.engine.models.linear import Linear, PlainEmbedding, choose_layout
from specbench.engine.models.llama import AttentionLayer
from specbench.engine.models.rotary import RotaryEmbedding

_MIDLAYER = "midlayer."


class Eagle3Layer(AttentionLayer):
    """A decoder layer whose attention reads two vectors of a row side by side: embedding and hidden state."""

    hidden_norm: RMSNorm

    def __init__(self, config: ModelConfig, *, norm_before_residual: bool) -> None:
        super().__init__(0, config)
        self._norm_before_residual = norm_before_residual

    def forward_pair(
        self, embedding: Tensor, hidden: Tensor, rotations: Tensor, attention: AttentionOperator
    ) -> Tensor:
        """Return [T, H] of ``embedding`` and ``hidden`` [T, H]; the latter is the residual stream."""
        normed = self.hidden_norm.forward(hidden)
        residual = normed if self._norm_before_residual else hidden
        q, k, v = self._project(torch.cat([self.input_norm.forward(embedding), normed], dim=-1), rotations)
        return self.add_mlp(self.output.add_to(residual, attention.forward(0, q, k, v)))


class Eagle3Head(DraftHead):
    """The computation of an EAGLE-3 head."""

    def __init__(self, loaded: LoadedHead, host: DrafterHost) -> None:
        config, decoder = loaded.config, loaded.config.decoder
        moved = move_tensors(loaded.tensors, host)
        self._layout = choose_layout(host.dtype, host.device)
        self._target = host.target
        self._rotary = RotaryEmbedding(decoder, host.device)
        self._fusion = self._linear(moved, "fc")
        self._fusion_norm = self._build_fusion_norm(config, host.device)
        self._layer = self._build_layer(config, moved)
        self._norm = build_norm(moved["norm.weight"], decoder)
        self._head = self._linear(moved, "lm_head")
        own = moved.get("embed_tokens.weight")
        self._embedding = None if own is None else PlainEmbedding(own)
        self.vocabulary = None if loaded.vocabulary is None else loaded.vocabulary.to(host.device)

    def first(self, rows: TargetRows, next_token_ids: Tensor, attention: AttentionOperator) -> Tensor:
        """See :class:`DraftHead`."""
        states = rows.tapped
        if self._fusion_norm is not None:
            states = tuple(self._fusion_norm.forward(state) for state in states)
        return self.next(next_token_ids, rows.positions, self._fusion.forward(torch.cat(states, dim=-1)), attention)

    def next(self, token_ids: Tensor, positions: Tensor, hidden: Tensor, attention: AttentionOperator) -> Tensor:
        """See :class:`DraftHead`."""
        embed = self._target.embed if self._embedding is None else self._embedding.forward
        return self._layer.forward_pair(embed(token_ids), hidden, self._rotary.rotations(positions), attention)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See :class:`DraftHead`."""
        return self._head.forward(self._norm.forward(hidden)).float()

    def _linear(self, tensors: Tensors, name: str) -> Linear:
        return self._layout.linear(tensors[f"{name}.weight"], None)

    @staticmethod
    def _build_fusion_norm(config: HeadConfig, device: torch.device) -> RMSNorm | None:
        if not config.norm_before_fc:
            return None
        return RMSNorm(torch.ones(config.target_hidden_size, device=device), config.decoder.rms_norm_eps)

    def _build_layer(self, config: HeadConfig, tensors: Tensors) -> Eagle3Layer:
        layer = Eagle3Layer(config.decoder, norm_before_residual=config.norm_before_residual)
        layer.hidden_norm = build_norm(tensors[f"{_MIDLAYER}hidden_norm.weight"], config.decoder)
        fill_layer(layer, tensors, _MIDLAYER, config.decoder, self._layout)
        return layer


class Eagle3Drafter(ModelDrafter):
    """Drafts with an EAGLE-3 head.

    :raises InputError: the head's shapes are unlike the target's.
    :raises CheckpointError: its files are unreadable, or unlike its configuration.
    """

    def __init__(self, spec: DrafterSpec, host: DrafterHost | None = None) -> None:
        super().__init__(spec, host)
        assert host is not None
        loaded = load_head("eagle3", spec, host.config.model, host.target.config, host.dtype)
        decoder = loaded.config.decoder
        self.head = Eagle3Head(loaded, host)
        self.attention = host.build_attention(1, decoder.num_heads, decoder.num_kv_heads, decoder.head_dim)
        layers = loaded.config.hidden_layers_of(host.target.config.num_layers)
        self.needs = DrafterNeeds(hidden_layers=layers, num_kv_layers=1)
