"""Rejection sampling: draft tokens are judged by chance, and the output has the target's distribution.

Words. q is what a draft token was drawn from, p the target's distribution at its place, after temperature, top-k and
top-p. A token that no distribution was drawn for (a lookup's, a greedy request's) was certain to its drafter: q = 1. A
draft token x is accepted with probability min(1, p(x) / q(x)); the first that is not is replaced by a *recovered* token
from max(p - q, 0), normalised, and what is behind it is void. Where nothing was proposed, behind the last draft token
above all, the token is drawn from p: the *bonus*.

Why it is lossless with numbers that are functions of (seed, position, purpose): the token at a position follows from
the numbers of that position, one for drafting it, one for judging it, one for recovering it and one for drawing it from
p. A position whose draft was void is drafted again with the same number, of which nothing that is committed has
depended until then.

Tokens depend on where drafts begin: what strict acceptance promises, the tokens of plain decoding, is not promised
here. A request that was preempted goes on without drafts for a step, and one in a batch of another size may have
another K. Its tokens are others then, from the same distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.engine.sampling.acceptance import Acceptance, AcceptanceState, StrictAcceptance, Verification
from specbench.engine.sampling.metadata import SamplingRows
from specbench.engine.sampling.residual import DraftRows, recover_tokens
from specbench.engine.sampling.rng import Purpose, uniform
from specbench.engine.sampling.sampler import Selection, select_and_weigh
from specbench.errors import InputError


class RejectionAcceptance(Acceptance):
    """See the module. In a step where every request is greedy it is strict acceptance.

    :param vocabulary: int64 [Vd], target ids of the drafter's own vocabulary; None: the target's.
    :raises InputError: two draft tokens are one token of the target.
    """

    def __init__(self, vocabulary: Tensor | None = None) -> None:
        if vocabulary is not None and len(set(vocabulary.tolist())) != vocabulary.shape[0]:
            raise InputError(
                "two tokens of the draft vocabulary are one token of the target, whose probability would be split",
                where="drafter.model",
                hint="map each draft token to a token of its own, or use strict acceptance",
            )
        self._vocabulary = vocabulary
        self._strict = StrictAcceptance()

    def select(
        self, logits: Tensor, sampling: SamplingRows, seeds: Tensor, positions: Tensor, draft_token_ids: Tensor
    ) -> tuple[Selection, Tensor | None]:
        """See :class:`Acceptance`."""
        # Behind the last draft token nothing is proposed, nor is in context rows; any id will do there.
        proposed = torch.nn.functional.pad(draft_token_ids, (0, 1)).flatten()
        num_context = logits.shape[0] - proposed.shape[0]
        return select_and_weigh(logits, sampling, seeds, positions, torch.nn.functional.pad(proposed, (num_context, 0)))

    def accept(self, state: AcceptanceState, step: Verification) -> tuple[Tensor, Tensor]:
        """See :class:`Acceptance`."""
        draft_len = step.draft_token_ids.shape[1]
        if step.draft_probability is None or not draft_len:
            return self._strict.accept(state, step)
        is_drawn = state.drafts_are_drawn[step.slots]
        num_accepted = self._count_accepted(state, step, step.draft_probability, is_drawn)
        last = num_accepted.unsqueeze(1)
        token_ids = step.target_token_ids.gather(1, last).squeeze(1)
        recovered = self._recover(state, step, num_accepted, is_drawn, token_ids)
        drafts = torch.nn.functional.pad(step.draft_token_ids, (0, 1))
        return drafts.scatter(1, last, recovered.unsqueeze(1)), num_accepted + 1

    def _count_accepted(self, state: AcceptanceState, step: Verification, p: Tensor, is_drawn: Tensor) -> Tensor:
        """How many draft tokens each request accepts, [G]; ``p`` [G, K]: what the target gives them."""
        draft_len = step.draft_token_ids.shape[1]
        places = torch.arange(draft_len, device=p.device)
        positions = step.positions.unsqueeze(1) + places
        seeds = state.seeds[step.slots].unsqueeze(1).expand_as(positions)
        draws = uniform(seeds.flatten(), positions.flatten(), Purpose.ACCEPT).view_as(p)
        q = state.draft_token_probabilities[step.slots, :draft_len].masked_fill(~is_drawn.unsqueeze(1), 1.0)
        is_accepted = passes(draws, p, q) & (places < step.num_draft_tokens.unsqueeze(1))
        return is_accepted.to(torch.int64).cumprod(dim=1).sum(dim=1)

    def _recover(
        self, state: AcceptanceState, step: Verification, num_accepted: Tensor, is_drawn: Tensor, chosen: Tensor
    ) -> Tensor:
        """The tokens [G] that end what is committed; ``chosen`` [G]: the target's own there, drawn from p."""
        num_requests, draft_len = step.draft_token_ids.shape
        sampling = step.sampling
        places = num_accepted.clamp(max=draft_len - 1)  # of the rejected ones; any place where all were accepted
        rows = torch.arange(num_requests, device=places.device) * (draft_len + 1) + places
        # A greedy row is certain of its argmax, and without the rejected token it still is.
        is_rejected = (num_accepted < step.num_draft_tokens) & ~sampling.is_greedy[rows]
        draft = None
        if state.draft_probabilities.shape[2]:
            draft = DraftRows(state.draft_probabilities, step.slots, places, is_drawn, self._vocabulary)
        draws = uniform(state.seeds[step.slots], step.positions + places, Purpose.RECOVER)
        rejected = step.draft_token_ids.gather(1, places.unsqueeze(1)).squeeze(1)
        recovered = recover_tokens(step.logits, sampling, rows, draws, rejected, chosen, is_rejected, draft)
        return torch.where(is_rejected, recovered, chosen)


def passes(draws: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Whether each draft token passes: with probability min(1, p / q), never where p is 0; all float64 of one shape.

    :param draws: in [0, 1).
    """
    return draws * q < p
