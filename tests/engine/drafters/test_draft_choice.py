"""Drawn draft tokens are judged by the distribution that they were drawn from, whatever the head put out."""

from __future__ import annotations

import types

import pytest
import torch

from specbench.engine.drafters.base import DraftStep
from specbench.engine.drafters.draft_choice import DrawnChoice, LikeliestChoice


def state_of(num_slots: int, vocabulary: int) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        seeds=torch.arange(num_slots) + 7,
        num_tokens=torch.full((num_slots,), 5),
        drafts_are_drawn=torch.zeros(num_slots, dtype=torch.bool),
        draft_probabilities=torch.zeros(num_slots, 1, vocabulary),
        draft_token_probabilities=torch.zeros(num_slots, 1, dtype=torch.float64),
    )


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_still_give_a_distribution(value: float) -> None:
    state, logits = state_of(3, 10), torch.randn(3, 10, generator=torch.Generator().manual_seed(1))
    logits[1, 4] = value
    step = DraftStep(torch.arange(3), 1, None, temperature=torch.tensor([0.7, 0.7, 0.7]))
    columns = DrawnChoice().choose(state, step, 0, logits)
    assert ((columns >= 0) & (columns < 10)).all()
    assert state.drafts_are_drawn.all()
    assert torch.allclose(state.draft_probabilities.sum(dim=2), torch.ones(3, 1))
    assert torch.allclose(state.draft_probabilities[1, 0], torch.full((10,), 0.1))
    drawn = state.draft_probabilities[:, 0].gather(1, columns.unsqueeze(1)).double()
    assert torch.allclose(state.draft_token_probabilities, drawn, atol=1e-6)


def test_of_likeliest_columns_the_first_counts() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [3.0, 1.0, 3.0]])
    step = DraftStep(torch.arange(2), 1, None)
    assert LikeliestChoice().choose(state_of(2, 3), step, 0, logits).tolist() == [1, 0]
