"""The layouts of the model's weights give the products that the plain layout gives."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from specbench.engine.models import linear
from specbench.engine.models.config import ModelConfig, RopeScaling
from specbench.engine.models.linear import PackedLayout, PlainLayout, TransposedLayout, choose_layout
from specbench.engine.models.rotary import RotaryEmbedding, interleave_pairs, rotate

CPU = torch.device("cpu")
needs_packing = pytest.mark.skipif(not linear._can_pack(torch.bfloat16), reason="no packed bfloat16 products here")

LAYOUTS = [
    pytest.param(PlainLayout(), torch.float32, 1e-5, id="plain-float32"),
    pytest.param(PlainLayout(), torch.bfloat16, 0.05, id="plain-bfloat16"),
    pytest.param(TransposedLayout(), torch.float32, 1e-5, id="transposed-float32"),
    pytest.param(PackedLayout(), torch.float32, 1e-5, id="packed-float32", marks=needs_packing),
    pytest.param(PackedLayout(), torch.bfloat16, 0.05, id="packed-bfloat16", marks=needs_packing),
]


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("num_rows", [1, 2, 17])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("layout", "dtype", "tolerance"), LAYOUTS)
def test_products_match_float64(layout, dtype, tolerance, has_bias, num_rows):
    x, residual = normal(num_rows, 48, dtype=dtype), normal(num_rows, 96, dtype=dtype, seed=1)
    weights = [normal(96, 48, dtype=dtype, seed=seed) / 7 for seed in (2, 3)]
    biases = [normal(96, dtype=dtype, seed=seed) if has_bias else None for seed in (4, 5)]
    exact = [
        F.linear(x.double(), weight.double(), None if bias is None else bias.double())
        for weight, bias in zip(weights, biases, strict=True)
    ]
    product = layout.linear(weights[0].clone(), biases[0])
    gated = layout.gated(weights[0].clone(), weights[1].clone(), *biases)
    kept = residual.clone()

    torch.testing.assert_close(product.forward(x).double(), exact[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        product.add_to(residual, x).double(), exact[0] + residual, rtol=tolerance, atol=tolerance
    )
    torch.testing.assert_close(gated.forward(x).double(), F.silu(exact[0]) * exact[1], rtol=tolerance, atol=tolerance)
    assert torch.equal(residual, kept)


@pytest.mark.parametrize(("layout", "dtype", "tolerance"), LAYOUTS)
@pytest.mark.parametrize("vocabulary", [96, 100])
def test_a_tied_head_and_its_embedding_share_the_weight(layout, dtype, tolerance, vocabulary):
    weight, x = normal(vocabulary, 64, dtype=dtype), normal(3, 64, dtype=dtype, seed=1)
    token_ids = torch.tensor([0, vocabulary - 1, 31, 32, 33, 0, vocabulary - 2])
    embedding, head = layout.tied(weight.clone())
    assert torch.equal(embedding.forward(token_ids), weight[token_ids])
    exact = x.double() @ weight.double().t()
    torch.testing.assert_close(head.forward(x).double(), exact, rtol=tolerance, atol=tolerance * 8)


@needs_packing
def test_an_unknown_packed_layout_falls_back_to_the_plain_one(monkeypatch):
    weight = normal(96, 64, dtype=torch.bfloat16)
    monkeypatch.setattr(linear, "_holds", lambda *_: False)
    embedding, _ = PackedLayout().tied(weight)
    assert isinstance(embedding, linear.PlainEmbedding)


def test_a_build_without_packed_products_gets_the_plain_layout(monkeypatch):
    def refuse(_weight):
        raise RuntimeError("not built")

    linear._can_pack.cache_clear()
    monkeypatch.setattr(linear, "_pack", refuse)
    try:
        assert isinstance(choose_layout(torch.bfloat16, CPU), PlainLayout)
    finally:
        linear._can_pack.cache_clear()


def test_float32_is_transposed_on_the_cpu():
    assert isinstance(choose_layout(torch.float32, CPU), TransposedLayout)


def rope_config(**keys):
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_layers": 1, "num_heads": 1}
    return ModelConfig(
        "LlamaForCausalLM", **sizes, num_kv_heads=1, head_dim=8, max_position_embeddings=9000, rope_theta=100.0, **keys
    )


def test_rotation_turns_each_pair_by_its_own_angle():
    heads = normal(3, 2, 8)
    positions = torch.tensor([0, 1, 8000])
    rotated = rotate(heads, RotaryEmbedding(rope_config(), CPU).rotations(positions))
    for token, position in enumerate(positions.tolist()):
        for pair in range(4):
            angle = position * 100.0 ** (-pair / 4)
            x, y = heads[token, :, 2 * pair], heads[token, :, 2 * pair + 1]
            expected = torch.stack(
                [x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)]
            )
            torch.testing.assert_close(rotated[token, :, 2 * pair : 2 * pair + 2].t(), expected, rtol=0, atol=2e-3)


def test_pairs_of_halves_become_neighbours_head_by_head():
    rows = torch.arange(16).view(16, 1)
    assert interleave_pairs(rows, 8).flatten().tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]


def test_llama3_scaling_stretches_long_waves_and_keeps_short_ones():
    scaling = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
    plain = RotaryEmbedding(rope_config(), CPU).rotations(torch.tensor([1])).angle().flatten()
    scaled = RotaryEmbedding(rope_config(rope_scaling=scaling), CPU).rotations(torch.tensor([1])).angle().flatten()
    wavelengths = 2 * math.pi / plain
    assert torch.equal(scaled[wavelengths < 64 / 4], plain[wavelengths < 64 / 4])
    torch.testing.assert_close(scaled[wavelengths > 64], plain[wavelengths > 64] / 8)
    assert (wavelengths > 64).any()
    assert (wavelengths < 64 / 4).any()
