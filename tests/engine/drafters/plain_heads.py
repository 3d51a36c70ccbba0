"""Draft heads written plainly: dense attention over whole sequences, weights as checkpoints hold them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.engine.drafters.head_config import HeadConfig
from specbench.engine.drafters.head_weights import LoadedHead
from specbench.engine.models.config import ModelConfig

Tensors = dict[str, Tensor]


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight


def rotated(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """``x`` [T, heads, D], halves of a head rotated against each other."""
    half = x.shape[-1] // 2
    angles = positions[:, None].float() / theta ** (torch.arange(half).float() / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def attention(x: Tensor, tensors: Tensors, prefix: str, config: ModelConfig) -> Tensor:
    """Causal self-attention over the rows of one sequence, positions from 0."""
    positions = torch.arange(x.shape[0])
    heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
    q, k, v = (
        F.linear(x, tensors[f"{prefix}self_attn.{name}_proj.weight"]).view(len(x), count, config.head_dim)
        for name, count in heads.items()
    )
    q, k = rotated(q, positions, config.rope_theta), rotated(k, positions, config.rope_theta)
    groups = config.num_heads // config.num_kv_heads
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / config.head_dim**0.5
    hidden = torch.ones(len(x), len(x)).tril().logical_not()
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    mixed = torch.einsum("hqk,khd->qhd", weights, v).flatten(1)
    return F.linear(mixed, tensors[f"{prefix}self_attn.o_proj.weight"])


def mlp(x: Tensor, tensors: Tensors, prefix: str) -> Tensor:
    gate = F.silu(F.linear(x, tensors[f"{prefix}mlp.gate_proj.weight"]))
    up = F.linear(x, tensors[f"{prefix}mlp.up_proj.weight"])
    return F.linear(gate * up, tensors[f"{prefix}mlp.down_proj.weight"])


def fuse(states: list[Tensor], tensors: Tensors, config: HeadConfig) -> Tensor:
    """The three hidden states [T, Ht] of each position as one [T, H]."""
    if config.norm_before_fc:
        states = [rms_norm(state, None, config.decoder.rms_norm_eps) for state in states]
    return F.linear(torch.cat(states, dim=-1), tensors["fc.weight"])


def eagle3_outputs(embeddings: Tensor, hidden: Tensor, tensors: Tensors, config: HeadConfig) -> Tensor:
    """Outputs [T, H] over one sequence of (embedding of the next token, hidden state) pairs."""
    eps = config.decoder.rms_norm_eps
    normed = rms_norm(hidden, tensors["midlayer.hidden_norm.weight"], eps)
    read = torch.cat([rms_norm(embeddings, tensors["midlayer.input_layernorm.weight"], eps), normed], dim=-1)
    stream = normed if config.norm_before_residual else hidden
    stream = stream + attention(read, tensors, "midlayer.", config.decoder)
    return stream + mlp(
        rms_norm(stream, tensors["midlayer.post_attention_layernorm.weight"], eps), tensors, "midlayer."
    )


def target_ids(head: LoadedHead) -> Tensor:
    """Target id of each row of the head's logits."""
    return torch.arange(head.config.draft_vocab_size) if head.vocabulary is None else head.vocabulary


def eagle3_draft(
    token_ids: list[int], states: list[Tensor], head: LoadedHead, draft_len: int
) -> tuple[list[int], Tensor]:
    """K draft tokens after ``token_ids`` and the logits of each [K, Vd]; ``states``: of all positions but the last."""
    config, tensors, ids = head.config, head.tensors, target_ids(head)
    following, hidden = list(token_ids[1:]), fuse(states, tensors, config)
    drafts, logits = [], []
    for _ in range(draft_len):
        embeddings = tensors["embed_tokens.weight"][torch.tensor(following)]
        outputs = eagle3_outputs(embeddings, hidden, tensors, config)
        last = rms_norm(outputs[-1], tensors["norm.weight"], config.decoder.rms_norm_eps)
        row = F.linear(last, tensors["lm_head.weight"])
        drafts.append(int(ids[row.argmax()]))
        logits.append(row)
        following, hidden = [*following, drafts[-1]], torch.cat([hidden, outputs[-1:]])
    return drafts, torch.stack(logits)


def mtp_outputs(embeddings: Tensor, hidden: Tensor, tensors: Tensors, prefix: str, decoder: ModelConfig) -> Tensor:
    """Outputs [T, H] of a module over one sequence of (embedding of a later token, hidden state) pairs."""
    eps = decoder.rms_norm_eps
    read = [rms_norm(embeddings, tensors[f"{prefix}enorm.weight"], eps)]
    read.append(rms_norm(hidden, tensors[f"{prefix}hnorm.weight"], eps))
    stream = F.linear(torch.cat(read, dim=-1), tensors[f"{prefix}eh_proj.weight"])
    normed = rms_norm(stream, tensors[f"{prefix}input_layernorm.weight"], eps)
    stream = stream + attention(normed, tensors, prefix, decoder)
    return stream + mlp(rms_norm(stream, tensors[f"{prefix}post_attention_layernorm.weight"], eps), tensors, prefix)


def mtp_draft(
    token_ids: list[int],
    hidden: Tensor,
    ends: tuple[Tensor, Tensor],
    loaded: LoadedHead,
    draft_len: int,
    given: list[int] | None = None,
) -> tuple[list[int], Tensor]:
    """K draft tokens after ``token_ids`` and the logits of each [K, Vd], of one module that is used again, or of one
    module for each, which all read every position but the last.

    :param hidden: [T - 1, H] of the target after its final norm, of all positions but the last.
    :param ends: embedding [V, H] and head [V, H] of the target.
    :param given: draft tokens that are read in place of the likeliest.
    """
    config, tensors, ids = loaded.config, loaded.tensors, target_ids(loaded)
    is_alone = config.num_modules == 1
    following, drafts, logits = list(token_ids[1:]), [], []
    for place in range(draft_len):
        prefix = "modules.0." if is_alone else f"modules.{place}."
        embedding = tensors.get(f"{prefix}embed_tokens.weight", ends[0])
        head = tensors.get(f"{prefix}lm_head.weight")
        head = ends[1][ids] if head is None else head
        outputs = mtp_outputs(embedding[torch.tensor(following)], hidden, tensors, prefix, config.decoder)
        row = F.linear(rms_norm(outputs[-1], tensors[f"{prefix}norm.weight"], config.decoder.rms_norm_eps), head)
        drafts.append(int(ids[row.argmax()]))
        logits.append(row)
        following = [*following, drafts[-1] if given is None else given[place]]
        if is_alone:
            hidden = torch.cat([hidden, outputs[-1:]])
        else:
            following, hidden = following[1:], outputs
    return drafts, torch.stack(logits)
