"""The arithmetic of the gated delta rule against a loop over tokens in float64, straight from its definition."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.engine import gated_delta
from specbench.engine.gated_delta import advance, advance_sequence, convolve, normalize_heads


def inputs(num_tokens: int, seed: int = 0) -> dict[str, Tensor]:
    """One sequence of 3 heads, 5 by 4; decays from nearly none to nearly all."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(num_tokens, 3, 5, generator=generator) for _ in range(2))
    q, k = normalize_heads(q, k, 3)
    return {
        "q": q,
        "k": k,
        "v": torch.randn(num_tokens, 3, 4, generator=generator),
        "g": -torch.rand(num_tokens, 3, generator=generator).mul(6).exp() / 100,
        "beta": torch.rand(num_tokens, 3, generator=generator),
    }


def by_definition(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """One token and one head after another, in float64."""
    state, outputs = state.double().clone(), torch.zeros(*v.shape, dtype=torch.float64)
    for token in range(q.shape[0]):
        for head in range(q.shape[1]):
            held = state[head] * g[token, head].double().exp()
            read = held.t() @ k[token, head].double()
            correction = beta[token, head].double() * (v[token, head].double() - read)
            state[head] = held + torch.outer(k[token, head].double(), correction)
            outputs[token, head] = state[head].t() @ q[token, head].double()
    return state, outputs


def start() -> Tensor:
    return torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("num_tokens", [1, 2, 63, 64, 65, 129, 200])
def test_a_sequence_is_its_tokens_one_after_another(num_tokens: int) -> None:
    """To 1e-5, in float32 against float64."""
    tensors = inputs(num_tokens)
    expected_state, expected = by_definition(start(), **tensors)
    state, outputs = advance_sequence(start(), **tensors)
    torch.testing.assert_close(outputs, expected.float(), rtol=0, atol=1e-5)
    torch.testing.assert_close(state, expected_state.float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("block", [1, 3, 16])
def test_the_division_into_products_does_not_matter(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = inputs(50)
    whole_state, whole = advance_sequence(start(), **tensors)
    monkeypatch.setattr(gated_delta, "_TOKENS_PER_PRODUCT", block)
    state, outputs = advance_sequence(start(), **tensors)
    torch.testing.assert_close(outputs, whole, rtol=0, atol=1e-5)
    torch.testing.assert_close(state, whole_state, rtol=0, atol=1e-5)


def test_a_token_of_several_requests_is_that_of_each() -> None:
    requests = [inputs(6, seed) for seed in range(4)]
    state = torch.stack([start() + seed for seed in range(4)])
    outputs = []
    for token in range(6):
        row = {name: torch.stack([each[name][token] for each in requests]) for name in requests[0]}
        before = state.clone()
        advanced, output = advance(state, **row)
        assert torch.equal(state, before), "the state before is still needed when drafts are rejected"
        state = advanced
        outputs.append(output)
    for seed, tensors in enumerate(requests):
        expected_state, expected = by_definition(start() + seed, **tensors)
        found = torch.stack([output[seed] for output in outputs])
        torch.testing.assert_close(found, expected.float(), rtol=0, atol=1e-5)
        torch.testing.assert_close(state[seed], expected_state.float(), rtol=0, atol=1e-5)


def test_strong_decays_stay_finite() -> None:
    tensors = inputs(130)
    tensors["g"] = tensors["g"] - 80.0
    state, outputs = advance_sequence(start(), **tensors)
    assert state.isfinite().all()
    torch.testing.assert_close(outputs, by_definition(start(), **tensors)[1].float(), rtol=0, atol=1e-5)


def test_value_heads_share_a_key_head_with_their_neighbours() -> None:
    generator = torch.Generator().manual_seed(2)
    q, k = torch.randn(7, 2, 5, generator=generator), torch.randn(7, 2, 5, generator=generator)
    shared_q, shared_k = normalize_heads(q, k, 6)
    assert shared_q.shape == (7, 6, 5)
    for head in range(6):
        wanted = F.normalize(q[:, head // 3], dim=-1) / 5**0.5
        torch.testing.assert_close(shared_q[:, head], wanted, rtol=0, atol=1e-5)
        torch.testing.assert_close(shared_k[:, head], F.normalize(k[:, head // 3], dim=-1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("num_taps", [1, 2, 4])
def test_the_convolution_is_a_depthwise_one(num_taps: int) -> None:
    generator = torch.Generator().manual_seed(4)
    padded = torch.randn(2, 9 + num_taps - 1, 6, generator=generator)
    weight = torch.randn(num_taps, 6, generator=generator)
    expected = F.silu(F.conv1d(padded.transpose(1, 2), weight.t().unsqueeze(1), groups=6)).transpose(1, 2)
    torch.testing.assert_close(convolve(padded, weight), expected, rtol=0, atol=1e-5)
