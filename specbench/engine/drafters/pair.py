"""Two drafters: a lookup, and a drafter with a model where the lookup finds nothing.

A lookup costs nothing and is often right where the output repeats what is known; a model always has a guess. Which of
the two proposes is decided by request, on the device, from committed tokens alone. What a lookup finds is proposed
whole, also where it is fewer than K tokens: a match that counts is one of at least ``min_ngram`` tokens, and a longer
draft of the model begins with tokens that are less likely. The choice does not look at what the model drafted. Under
rejection that keeps its draft probabilities what they were drawn from.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.engine.config import DrafterSpec
from specbench.engine.drafters.base import Drafter, DraftState, DraftStep, DraftVocabulary, LookupDrafter
from specbench.engine.drafters.none import NoDrafter
from specbench.errors import InputError


class PairDrafter(Drafter):
    """Proposes what ``lookup`` finds, else what ``model`` drafts; the model's cache follows every step.

    :raises InputError: not a lookup and then a drafter with a model.
    """

    def __init__(self, spec: DrafterSpec, lookup: Drafter, model: Drafter) -> None:
        super().__init__(spec)
        if not isinstance(lookup, LookupDrafter) or isinstance(lookup, NoDrafter) or isinstance(model, LookupDrafter):
            raise InputError(
                f"{spec.name!r} is no pair; allowed: a lookup, then a drafter with a model",
                where="drafter.name",
                hint="ngram+eagle3",
            )
        self.lookup, self.model = lookup, model
        self.needs = model.needs

    def draft(self, state: DraftState, step: DraftStep) -> None:
        """See :class:`Drafter`."""
        self.model.draft(state, step)
        if not step.slots.shape[0] or not step.draft_len:
            return
        slots, columns = step.slots, slice(0, step.draft_len)
        drafted, num_drafted = state.draft_token_ids[slots, columns], state.num_draft_tokens[slots]
        self.lookup.draft(state, step)
        found, num_found = state.draft_token_ids[slots, columns], state.num_draft_tokens[slots]
        is_found = num_found > 0
        chosen = torch.where(is_found.unsqueeze(1), found, drafted)
        state.draft_token_ids[:, columns].index_copy_(0, slots, chosen)
        state.num_draft_tokens.index_copy_(0, slots, torch.where(is_found, num_found, num_drafted))
        # What a lookup finds was not drawn.
        state.drafts_are_drawn.index_copy_(0, slots, state.drafts_are_drawn[slots] & ~is_found)

    @property
    def vocabulary(self) -> DraftVocabulary:
        """See :class:`Drafter`: that of the model, which alone draws."""
        return self.model.vocabulary

    def fill_cache(self, blocks: Tensor, slot: int) -> None:
        """See :class:`Drafter`."""
        self.model.fill_cache(blocks, slot)
