"""EAGLE-3 heads that draft trees."""

from __future__ import annotations

from specbench.engine.config import DrafterSpec
from specbench.engine.drafters.base import DrafterHost, DraftState, DraftStep, DraftVocabulary
from specbench.engine.drafters.eagle3 import Eagle3Drafter
from specbench.engine.drafters.tree_expansion import TreeExpansion
from specbench.errors import InputError


class Eagle3TreeDrafter(Eagle3Drafter):
    """Drafts a tree a request with an EAGLE-3 head; proposes all of it.

    :raises InputError: the head's vocabulary has fewer tokens than a node has children, or as :class:`Eagle3Drafter`.
    """

    def __init__(self, spec: DrafterSpec, host: DrafterHost | None = None) -> None:
        super().__init__(spec, host)
        assert spec.tree is not None
        assert host is not None
        vocabulary = self.head.vocabulary
        num_tokens = host.target.config.vocab_size if vocabulary is None else vocabulary.shape[0]
        if num_tokens < spec.tree.top_k:
            raise InputError(
                f"a node cannot have {spec.tree.top_k} children: the head knows {num_tokens} tokens",
                where="drafter.tree.top_k",
            )
        self._expansion = TreeExpansion(spec.tree, self.head, self.attention, self._prepare)

    @property
    def vocabulary(self) -> DraftVocabulary:
        """See :class:`specbench.engine.drafters.base.Drafter`: nodes are picked, none is drawn."""
        return DraftVocabulary()

    def draft(self, state: DraftState, step: DraftStep) -> None:
        """See :class:`specbench.engine.drafters.base.Drafter`."""
        rows = step.target_rows
        hidden = self._first_pass(state, rows)
        if not step.slots.shape[0]:
            return
        if not step.draft_len:
            state.num_draft_tokens.index_fill_(0, step.slots, 0)
            return
        nodes = self._expansion.expand(step, rows, hidden[rows.ends])
        state.draft_token_ids.index_copy_(0, step.slots, nodes.token_ids)
        state.draft_parents.index_copy_(0, step.slots, nodes.parents)
        state.num_draft_tokens.index_copy_(0, step.slots, nodes.num_levels)
