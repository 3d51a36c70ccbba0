"""No speculation: every step is plain decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.engine.config import DrafterSpec
from specbench.engine.drafters.base import DrafterHost, DraftState, LookupDrafter
from specbench.errors import EngineError, InputError

if TYPE_CHECKING:
    from torch import Tensor


class NoDrafter(LookupDrafter):
    """Proposes nothing.

    :raises InputError: the specification asks for draft tokens.
    """

    def __init__(self, spec: DrafterSpec, host: DrafterHost | None = None) -> None:
        super().__init__(spec, host)
        if spec.max_draft_len > 0:
            raise InputError(
                f"draft_len {spec.max_draft_len} asks for draft tokens, but drafter `none` proposes none",
                where="drafter.draft_len",
                hint="set it to 0, or choose drafter ngram",
            )

    def propose(self, state: DraftState, slots: Tensor, draft_len: int, max_num_tokens: int | None) -> None:  # noqa: ARG002
        """See :class:`LookupDrafter`."""
        state.num_draft_tokens.index_fill_(0, slots, 0)


class SimulatedDrafter(LookupDrafter):
    """Stands for any drafter on a device that computes nothing, whose declared times hold what drafting takes."""

    def propose(self, state: DraftState, slots: Tensor, draft_len: int, max_num_tokens: int | None) -> None:  # noqa: ARG002
        """See :class:`LookupDrafter`."""
        raise EngineError("a simulated step drafts nothing", where="drafter")
