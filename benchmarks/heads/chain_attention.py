"""Attention of draft chains: one softmax over the target-fed keys up to a chain's base and over the chain's own keys.

Shapes: B texts, S positions, A chains a text, Hq query heads, Hkv KV heads, G = Hq / Hkv, D head_dim, n chain keys.
"""

from __future__ import annotations

import torch
from products import compute_dtype
from torch import Tensor


def causal_mask(bases: Tensor, num_positions: int, num_groups: int) -> Tensor:
    """Return [B, 1, A * G, S], to be added to scores: a chain sees target-fed keys at positions up to its base.

    :param bases: [B, A].
    """
    hidden = torch.arange(num_positions, device=bases.device) > bases.unsqueeze(-1)
    mask = torch.zeros(hidden.shape, dtype=compute_dtype(), device=bases.device)
    return mask.masked_fill_(hidden, float("-inf")).repeat_interleave(num_groups, 1).unsqueeze(1)


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, chain: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return [B, A, Hq * D] float32.

    :param queries: [B, A, Hq, D]; ``keys`` and ``values`` [B, S, Hkv, D]; ``mask`` as :func:`causal_mask`.
    :param chain: keys and values [B, A, Hkv, D] of each step of the chains so far.
    """
    num_texts, num_chains, num_heads, size = queries.shape
    num_kv_heads, num_positions = keys.shape[2], keys.shape[1]
    # [B, Hkv, A * G, D]: every KV head is read once.
    scaled = (queries * size**-0.5).unflatten(2, (num_kv_heads, -1)).to(mask.dtype)
    rows = scaled.transpose(1, 2).reshape(num_texts, num_kv_heads, -1, size)
    narrow_keys, narrow_values = (tensor.to(mask.dtype).transpose(1, 2).contiguous() for tensor in (keys, values))
    scores = torch.matmul(rows, narrow_keys.transpose(2, 3)).add_(mask)
    by_chain = rows.unflatten(2, (num_chains, -1))
    own = [[tensor.to(mask.dtype).transpose(1, 2) for tensor in pair] for pair in chain]
    if own:
        own_scores = [(by_chain * own_keys.unsqueeze(3)).sum(-1).flatten(2) for own_keys, _ in own]
        scores = torch.cat([scores, torch.stack(own_scores, -1)], -1)
    shares = scores.softmax(-1)
    mixed = torch.matmul(shares[..., :num_positions], narrow_values).float().unflatten(2, (num_chains, -1))
    for index, (_, own_values) in enumerate(own):
        share = shares[..., num_positions + index].unflatten(2, (num_chains, -1))
        mixed = mixed + share.unsqueeze(-1) * own_values.unsqueeze(3)
    return mixed.transpose(1, 2).reshape(num_texts, num_chains, num_heads * size)
