"""Gated delta net arithmetic: the short causal convolution, and the recurrence over a sequence's tokens.

A head keeps a matrix S [Dk, Dv] from token to token. Token t decays it, reads what it holds under the token's key,
writes the difference to the token's value back, and reads it under the query::

    S_t = a_t S_{t-1} + k_t d_t^T,   d_t = b_t (v_t - a_t S_{t-1}^T k_t),   o_t = S_t^T q_t

with decay ``a_t = exp(g_t)`` and step ``b_t`` (beta). Everything is computed in float32.

Shapes: N requests, T tokens of one sequence, C channels of the convolution, Hk key heads, Hv value heads (several may
share a key head), Dk and Dv elements of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_L2_EPS = 1e-6
_TOKENS_PER_PRODUCT = 64
"""Tokens of a sequence that become one set of matrix products: the work within one grows with its square."""


def convolve(padded: Tensor, weight: Tensor) -> Tensor:
    """Convolve each channel over the tokens, and apply SiLU.

    :param padded: [N, taps - 1 + T, C]: the rows before the first token, then the tokens.
    :param weight: [taps, C] float32; the last tap meets the current token.
    :returns: [N, T, C] float32.
    """
    num_taps = weight.shape[0]
    num_tokens = padded.shape[1] - num_taps + 1
    wide = padded.float()
    total = wide[:, :num_tokens] * weight[0]
    for tap in range(1, num_taps):
        total.addcmul_(wide[:, tap : tap + num_tokens], weight[tap])
    return F.silu(total)


def normalize_heads(q: Tensor, k: Tensor, num_value_heads: int) -> tuple[Tensor, Tensor]:
    """Bring queries and keys to unit length, scale queries by ``1 / sqrt(Dk)``, and give each value head its own.

    :param q: [..., Hk, Dk] float32, ``k`` likewise.
    :returns: both [..., Hv, Dk]; value head ``i`` takes key head ``i // (Hv // Hk)``.
    """
    groups = num_value_heads // q.shape[-2]
    q = q * (torch.rsqrt(q.square().sum(-1, keepdim=True) + _L2_EPS) * q.shape[-1] ** -0.5)
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + _L2_EPS)
    if groups == 1:
        return q, k
    return q.repeat_interleave(groups, -2), k.repeat_interleave(groups, -2)


def advance(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """One token of each of N requests, all float32.

    :param state: [N, Hv, Dk, Dv]; left as it is.
    :param q: [N, Hv, Dk], ``k`` likewise, both from :func:`normalize_heads`; ``v`` [N, Hv, Dv].
    :param g: [N, Hv] logarithm of the decay, ``beta`` [N, Hv].
    :returns: the new state, and the output [N, Hv, Dv].
    """
    state = state * g.exp()[..., None, None]
    held = (k.unsqueeze(-2) @ state).squeeze(-2)
    correction = (v - held) * beta.unsqueeze(-1)
    state = state + k.unsqueeze(-1) * correction.unsqueeze(-2)
    return state, (q.unsqueeze(-2) @ state).squeeze(-2)


def advance_sequence(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """T tokens of one sequence, as T calls of :func:`advance` would, in matrix products over many tokens at once.

    :param state: [Hv, Dk, Dv].
    :param q: [T, Hv, Dk], ``k`` likewise; ``v`` [T, Hv, Dv]; ``g`` and ``beta`` [T, Hv].
    :returns: the state after the last token, and the outputs [T, Hv, Dv].
    """
    outputs = []
    for start in range(0, q.shape[0], _TOKENS_PER_PRODUCT):
        rows = slice(start, start + _TOKENS_PER_PRODUCT)
        heads_first = (part[rows].transpose(0, 1) for part in (q, k, v, g, beta))
        state, output = _advance_block(state, *heads_first)
        outputs.append(output.transpose(0, 1))
    return state, outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _advance_block(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`advance_sequence` with heads first: q [Hv, T, Dk], g [Hv, T], outputs [Hv, T, Dv].

    Let A_t be the decay from the start through token t. Unrolled, S_t = A_t S_0 + sum over i <= t of (A_t / A_i) k_i
    d_i^T, so the corrections d solve a triangular system: d_t = b_t (v_t - A_t S_0^T k_t) - sum over i < t of
    b_t (A_t / A_i) (k_t . k_i) d_i. The state and every output are then sums over them.
    """
    cumulative = g.cumsum(-1)
    num_tokens = q.shape[1]
    is_later = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=q.device).triu(1)
    # Masked before the exponential: for a later token the exponent is positive, and may overflow.
    between = (cumulative.unsqueeze(-1) - cumulative.unsqueeze(-2)).masked_fill(is_later, -torch.inf).exp()
    since_start = cumulative.exp().unsqueeze(-1)
    step = beta.unsqueeze(-1)
    keys_by_token = k.transpose(-1, -2)
    system = (step * k) @ keys_by_token * between
    corrections = torch.linalg.solve_triangular(
        system, step * (v - since_start * (k @ state)), upper=False, unitriangular=True
    )
    outputs = since_start * (q @ state) + (q @ keys_by_token * between) @ corrections
    to_end = between[:, -1].unsqueeze(-1)
    state = since_start[:, -1:] * state + (to_end * k).transpose(-1, -2) @ corrections
    return state, outputs
