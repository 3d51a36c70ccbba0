"""Draft heads for training: an EAGLE-3 head and an MTP module, and their unrolled forward pass.

Shapes: B texts, S positions, A answer positions of each (the bases of draft chains), H hidden size, D head_dim, Hq
query heads, Hkv KV heads. A chain with base ``p`` starts from the target's state at ``p`` and the token at ``p + 1``;
its step ``j`` reads the token at ``p + j + 1``, has rotary position ``p + j``, attends to the target-fed keys of
positions up to ``p`` and to its own of steps 1..j, and predicts the token at ``p + j + 2``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from batches import Batch
from chain_attention import attend, causal_mask
from head_config import HeadConfig, TargetParts
from products import product
from torch import Tensor, nn


def rms(x: Tensor, eps: float, weight: Tensor | None = None) -> Tensor:
    """Root mean square norm over the last dimension, in float32."""
    return F.rms_norm(x.float(), (x.shape[-1],), weight, eps)


class Weight(nn.Module):
    """A matrix or a norm's factors, alone in a module so that its name in a checkpoint ends in ``.weight``."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * shape[-1] ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x W^T``, float32."""
        return product(x, self.weight)


class _Attention(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        width = config.attention_input
        self.q_proj = Weight(config.num_heads * config.head_dim, width)
        self.k_proj = Weight(config.num_kv_heads * config.head_dim, width)
        self.v_proj = Weight(config.num_kv_heads * config.head_dim, width)
        self.o_proj = Weight(config.hidden_size, config.num_heads * config.head_dim)
        nn.init.zeros_(self.o_proj.weight)


class _MLP(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = Weight(config.intermediate_size, config.hidden_size)
        self.up_proj = Weight(config.intermediate_size, config.hidden_size)
        self.down_proj = Weight(config.hidden_size, config.intermediate_size)
        nn.init.zeros_(self.down_proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DraftHead(nn.Module, ABC):
    """What both heads share: one decoder layer, rotary positions, a draft vocabulary.

    :ivar draft_ids: [draft vocab] target id of each draft id; ``draft_of`` [vocab] the way back, or -1.
    """

    draft_ids: Tensor
    draft_of: Tensor
    embedding: Tensor

    def __init__(self, config: HeadConfig, target: TargetParts, draft_ids: Tensor) -> None:
        super().__init__()
        self.config = config
        draft_of = torch.full((config.vocab_size,), -1, dtype=torch.int64)
        draft_of[draft_ids] = torch.arange(len(draft_ids))
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        angles = torch.arange(config.max_positions, dtype=torch.float64)[:, None] * config.rope_theta**-half
        for name, value in (
            ("draft_ids", draft_ids),
            ("draft_of", draft_of),
            ("embedding", target.embedding),
            ("cosines", angles.cos().float()),
            ("sines", angles.sin().float()),
        ):
            self.register_buffer(name, value, persistent=False)

    @abstractmethod
    def start(self, states: Tensor) -> Tensor:
        """Return the hidden state [..., H] that a chain starts from, of the target's [..., 4, H]."""

    @abstractmethod
    def fusion(self, embedded: Tensor, states: Tensor) -> tuple[Weight, Tensor]:
        """Return the matrix that a chain's first residual stream comes out of, and what it is applied to."""

    @abstractmethod
    def combine(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual stream [..., H] and what q, k and v are projected from."""

    @abstractmethod
    def layer(self) -> tuple[_Attention, Weight, _MLP]:
        """The decoder layer's attention, its second norm and its MLP."""

    @abstractmethod
    def before_output(self, hidden: Tensor) -> Tensor:
        """Return what the output matrix is applied to."""

    @abstractmethod
    def output_weight(self) -> Tensor:
        """Return the output matrix [draft vocab, H]."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The head's tensors under their public names."""

    def _heads(self, projection: Weight, x: Tensor, num_heads: int) -> Tensor:
        return projection(x).unflatten(-1, (num_heads, self.config.head_dim))

    def _rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Rotate halves of [..., heads, D] by positions [...]."""
        cosines, sines = (table[positions].unsqueeze(-2) for table in (self.cosines, self.sines))
        left, right = heads.chunk(2, -1)
        return torch.cat([left * cosines - right * sines, right * cosines + left * sines], -1)

    def _keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        attention, number = self.layer()[0], self.config.num_kv_heads
        keys = self._rotate(self._heads(attention.k_proj, x, number), positions)
        return keys, self._heads(attention.v_proj, x, number)

    def unroll(self, batch: Batch, steps: int, choose: Callable[[int, Tensor], Tensor]) -> Iterator[Tensor]:
        """Yield, for each step of all chains, what the output matrix is applied to, [B, A, H].

        :param choose: given the number of the step to come (from 1) and the rows yielded last, returns the token ids
            [B, A] that it reads; after them chains go on from their own hidden states.
        """
        attention, norm, mlp = self.layer()
        positions = torch.arange(batch.states.shape[1], device=batch.states.device).expand(batch.states.shape[:2])
        residual, x = self.combine(self.embedding[batch.token_ids[:, 1:]], self.start(batch.states))
        first_keys, first_values = self._keys_values(x, positions)
        rows = batch.bases.unsqueeze(-1)
        residual = residual.gather(1, rows.expand(-1, -1, residual.shape[-1]))
        x = x.gather(1, rows.expand(-1, -1, x.shape[-1]))
        mask = causal_mask(batch.bases, positions.shape[1], self.config.num_heads // self.config.num_kv_heads)
        chain: list[tuple[Tensor, Tensor]] = []
        for step in range(steps):
            here = batch.bases + step
            queries = self._rotate(self._heads(attention.q_proj, x, self.config.num_heads), here)
            if step:
                chain.append(self._keys_values(x, here))
            attended = attend(queries, first_keys, first_values, mask, chain)
            hidden = residual + attention.o_proj(attended)
            hidden = hidden + mlp(rms(hidden, self.config.rms_norm_eps, norm.weight))
            out = self.before_output(hidden)
            yield out
            if step + 1 < steps:
                residual, x = self.combine(self.embedding[choose(step + 1, out)], hidden)


class _EagleLayer(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = _MLP(config)
        self.input_layernorm = Weight(config.hidden_size)
        self.hidden_norm = Weight(config.hidden_size)
        self.post_attention_layernorm = Weight(config.hidden_size)


class Eagle3Head(DraftHead):
    """Three normalised states of the target, fused; a layer over (embedding, hidden); an output matrix of its own."""

    def __init__(self, config: HeadConfig, target: TargetParts, draft_ids: Tensor) -> None:
        super().__init__(config, target, draft_ids)
        self.fc = Weight(config.hidden_size, len(config.aux_layers) * config.hidden_size)
        self.midlayer = _EagleLayer(config)
        self.norm = Weight(config.hidden_size)
        self.lm_head = Weight(config.draft_vocab_size, config.hidden_size)
        with torch.no_grad():
            self.fc.weight.mul_(0.1)[:, -config.hidden_size :] += 0.5 * torch.eye(config.hidden_size)
            self.norm.weight.copy_(target.final_norm)
            self.lm_head.weight.copy_(target.output[draft_ids])

    def start(self, states: Tensor) -> Tensor:
        """See :class:`DraftHead`."""
        matrix, x = self.fusion(states, states)
        return matrix(x)

    def fusion(self, embedded: Tensor, states: Tensor) -> tuple[Weight, Tensor]:  # noqa: ARG002 - the layer reads it
        """See :class:`DraftHead`."""
        return self.fc, rms(states[..., :-1, :], self.config.rms_norm_eps).flatten(-2)

    def combine(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`DraftHead`."""
        layer, eps = self.midlayer, self.config.rms_norm_eps
        parts = rms(embedded, eps, layer.input_layernorm.weight), rms(hidden, eps, layer.hidden_norm.weight)
        return hidden, torch.cat(parts, -1)

    def layer(self) -> tuple[_Attention, Weight, _MLP]:
        """See :class:`DraftHead`."""
        return self.midlayer.self_attn, self.midlayer.post_attention_layernorm, self.midlayer.mlp

    def before_output(self, hidden: Tensor) -> Tensor:
        """See :class:`DraftHead`."""
        return rms(hidden, self.config.rms_norm_eps, self.norm.weight)

    def output_weight(self) -> Tensor:
        """See :class:`DraftHead`."""
        return self.lm_head.weight

    def tensors(self) -> dict[str, Tensor]:
        """See :class:`DraftHead`."""
        return dict(self.named_parameters()) | vocabulary_maps(self.draft_ids, self.config.vocab_size)


class _MtpLayer(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.enorm = Weight(config.hidden_size)
        self.hnorm = Weight(config.hidden_size)
        self.eh_proj = Weight(config.hidden_size, 2 * config.hidden_size)
        self.input_layernorm = Weight(config.hidden_size)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = Weight(config.hidden_size)
        self.mlp = _MLP(config)
        self.shared_head = nn.ModuleDict({"norm": Weight(config.hidden_size)})


class MtpHead(DraftHead):
    """One module in DeepSeek's naming, used again for each draft step; its output matrix is the target's, frozen.

    A chain starts from the target's state after its final norm and goes on from the module's own before its norm.
    """

    output: Tensor

    def __init__(self, config: HeadConfig, target: TargetParts, draft_ids: Tensor) -> None:
        super().__init__(config, target, draft_ids)
        self.module = _MtpLayer(config)
        self.register_buffer("output", target.output[draft_ids].clone(), persistent=False)
        size = config.hidden_size
        with torch.no_grad():
            self.module.eh_proj.weight.mul_(0.5)[:, size:] += 0.5 * torch.eye(size)
            self.module.shared_head["norm"].weight.copy_(target.final_norm)

    def start(self, states: Tensor) -> Tensor:
        """See :class:`DraftHead`."""
        return states[..., -1, :].float()

    def fusion(self, embedded: Tensor, states: Tensor) -> tuple[Weight, Tensor]:
        """See :class:`DraftHead`."""
        return self.module.eh_proj, self._both(embedded, self.start(states))

    def _both(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        module, eps = self.module, self.config.rms_norm_eps
        return torch.cat([rms(embedded, eps, module.enorm.weight), rms(hidden, eps, module.hnorm.weight)], -1)

    def combine(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`DraftHead`."""
        module, eps = self.module, self.config.rms_norm_eps
        residual = module.eh_proj(self._both(embedded, hidden))
        return residual, rms(residual, eps, module.input_layernorm.weight)

    def layer(self) -> tuple[_Attention, Weight, _MLP]:
        """See :class:`DraftHead`."""
        return self.module.self_attn, self.module.post_attention_layernorm, self.module.mlp

    def before_output(self, hidden: Tensor) -> Tensor:
        """See :class:`DraftHead`."""
        return rms(hidden, self.config.rms_norm_eps, self.module.shared_head["norm"].weight)

    def output_weight(self) -> Tensor:
        """See :class:`DraftHead`."""
        return self.output

    def tensors(self) -> dict[str, Tensor]:
        """See :class:`DraftHead`."""
        prefix = f"model.layers.{self.config.num_target_layers}."
        named = {prefix + name: tensor for name, tensor in self.module.named_parameters()}
        return named | vocabulary_maps(self.draft_ids, self.config.vocab_size)


def vocabulary_maps(draft_ids: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """``d2t``, what to add to a draft id for its target id, and ``t2d``, which target ids can be drafted."""
    drafted = torch.zeros(vocab_size, dtype=torch.bool)
    drafted[draft_ids.cpu()] = True
    return {"d2t": draft_ids.cpu() - torch.arange(len(draft_ids)), "t2d": drafted}
