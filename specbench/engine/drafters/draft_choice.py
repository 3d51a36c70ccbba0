"""How a draft token is chosen from a drafter's logits: the likeliest, or one that is drawn.

Shapes: B requests that go on, Vd draft vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from specbench.engine.config import AcceptanceSpec
from specbench.engine.drafters.base import DraftState, DraftStep
from specbench.engine.sampling.distribution import likelihood_of, mass_of, rows_at_once
from specbench.engine.sampling.metadata import takes_argmax
from specbench.engine.sampling.rng import Purpose, uniform
from specbench.engine.sampling.selection import BLOCK, CumulativeMass, first_argmax


class DraftChoice(ABC):
    """One way to choose. Device operations throughout."""

    @abstractmethod
    def choose(self, state: DraftState, step: DraftStep, place: int, logits: Tensor) -> Tensor:
        """Return the columns [B] of the draft tokens at ``place`` 0 .. K - 1; ``logits`` [B, Vd] float32."""


class LikeliestChoice(DraftChoice):
    """The argmax: what acceptance by equality asks for."""

    def choose(self, state: DraftState, step: DraftStep, place: int, logits: Tensor) -> Tensor:  # noqa: ARG002
        """See :class:`DraftChoice`."""
        return first_argmax(logits)


class DrawnChoice(DraftChoice):
    """A token drawn from the softmax of the logits at the request's temperature, the argmax for a greedy request.

    What it was drawn from is left in the state, where rejection sampling looks for it. The number is a function of the
    request's seed and the token's position.
    """

    def choose(self, state: DraftState, step: DraftStep, place: int, logits: Tensor) -> Tensor:
        """See :class:`DraftChoice`."""
        slots, best = step.slots, first_argmax(logits)
        if step.temperature is None:
            state.drafts_are_drawn.index_fill_(0, slots, False)
            return best
        draws = uniform(state.seeds[slots], state.num_tokens[slots] + place, Purpose.DRAFT)
        peaks = logits.gather(1, best.unsqueeze(1)).squeeze(1)
        # Of logits that are not finite any distribution will do, as long as the draft is judged by the one it was drawn
        # from: all are alike.
        is_finite = peaks.isfinite()
        logits, peaks = torch.where(is_finite.unsqueeze(1), logits, 0.0), torch.where(is_finite, peaks, 0.0)
        columns = torch.empty_like(best)
        chunk = rows_at_once(logits.shape[1], logits.device)
        for first in range(0, logits.shape[0], chunk):
            here = slice(first, first + chunk)
            likelihood = likelihood_of(logits[here], peaks[here], step.temperature[here])
            columns[here] = _draw(state, slots[here], place, likelihood, draws[here])
        is_greedy = takes_argmax(step.temperature)
        state.drafts_are_drawn.index_copy_(0, slots, ~is_greedy)
        return torch.where(is_greedy, best, columns)


def _draw(state: DraftState, slots: Tensor, place: int, likelihood: Tensor, draws: Tensor) -> Tensor:
    """Draw the columns [m] of some requests by ``likelihood`` [m, Vd]; keep how likely each token was."""
    num_tokens = likelihood.shape[1]
    q = CumulativeMass(mass_of(torch.nn.functional.pad(likelihood, (0, -num_tokens % BLOCK))))
    columns = q.draw(draws).clamp_(max=num_tokens - 1)
    probabilities = q.mass[:, :num_tokens] / q.total.to(torch.float32).unsqueeze(-1)
    state.draft_probabilities[:, place].index_copy_(0, slots, probabilities)
    state.draft_token_probabilities[:, place].index_copy_(0, slots, q.probability_of(columns))
    return columns


def build_draft_choice(acceptance: AcceptanceSpec) -> DraftChoice:
    """The choice that suits how draft tokens are accepted."""
    return DrawnChoice() if acceptance.mode == "rejection" else LikeliestChoice()
