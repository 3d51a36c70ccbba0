"""Rotary position embedding, on pairs of neighbouring elements.

Checkpoints of the Hugging Face format pair element ``i`` of a head with ``i + head_dim / 2``. Here the two are
neighbours (:func:`interleave_pairs` reorders the weights once): a pair is then one complex number in memory, and the
rotation is one complex product. Scores stay as they were, since queries and keys are reordered alike.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specbench.engine.models.config import ModelConfig, RopeScaling


class RotaryEmbedding:
    """Rotations of queries and keys by position."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._inverse_wavelengths = _inverse_wavelengths(config).to(device)

    def rotations(self, positions: Tensor) -> Tensor:
        """Return the unit complex numbers [T, 1, rotary_dim / 2] (complex64) of ``positions`` [T]."""
        angles = positions.to(torch.float32).unsqueeze(1) * self._inverse_wavelengths
        return torch.complex(angles.cos(), angles.sin()).unsqueeze(1)


def rotate(heads: Tensor, rotations: Tensor) -> Tensor:
    """Rotate ``heads`` [T, num_heads, head_dim]; computed in float32, returned in their dtype and contiguous."""
    num_tokens, num_heads, head_dim = heads.shape
    pairs = torch.view_as_complex(heads.float().view(num_tokens, num_heads, head_dim // 2, 2))
    return torch.view_as_real(pairs * rotations).flatten(2).to(heads.dtype)


def rotate_leading(heads: Tensor, rotations: Tensor) -> Tensor:
    """:func:`rotate` on the leading elements of each head, as many as ``rotations`` has; the others stay."""
    width = 2 * rotations.shape[-1]
    if width == heads.shape[-1]:
        return rotate(heads, rotations)
    return torch.cat([rotate(heads[..., :width].contiguous(), rotations), heads[..., width:]], dim=-1)


def interleave_pairs(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of ``weight`` [heads * head_dim, ...] from halves to neighbouring pairs, head by head."""
    halves = weight.reshape(-1, 2, head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def interleave_leading(weight: Tensor, head_dim: int, width: int) -> Tensor:
    """:func:`interleave_pairs` on the first ``width`` rows of each head; the others stay."""
    if width == head_dim:
        return interleave_pairs(weight, head_dim)
    heads = weight.reshape(-1, head_dim, *weight.shape[1:])
    turned = interleave_pairs(heads[:, :width].flatten(0, 1), width).view(-1, width, *weight.shape[1:])
    return torch.cat([turned, heads[:, width:]], dim=1).view(weight.shape)


def _inverse_wavelengths(config: ModelConfig) -> Tensor:
    """Radians a token, by pair: [rotary_dim / 2] float32."""
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.int64).to(torch.float32) / config.rotary_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    return frequencies if config.rope_scaling is None else _stretch(frequencies, config.rope_scaling)


def _stretch(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3's scaling: low frequencies are divided by the factor, high ones stay, those between are blended."""
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies
