"""What a drafter is: it proposes the next step's draft tokens, on the device, at the end of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from specbench import registry
from specbench.engine.config import DrafterSpec

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DrafterNeeds:
    """What the engine must keep for a drafter.

    :param hidden_layers: target layers whose hidden states the drafter reads.
    :param num_kv_layers: layers of its own in the KV cache.
    """

    hidden_layers: tuple[int, ...] = ()
    num_kv_layers: int = 0


class DraftState(Protocol):
    """The per-slot device state a drafter reads and writes; S slots, padding's included.

    :ivar token_ids: [S, columns] int64, committed tokens; ``num_tokens`` [S] int64, how many.
    :ivar draft_token_ids: [S, max K] int64, proposals; ``num_draft_tokens`` [S] int64, how many.
    """

    token_ids: Tensor
    num_tokens: Tensor
    draft_token_ids: Tensor
    num_draft_tokens: Tensor


class Drafter(ABC):
    """One drafter. Built with the :class:`DrafterSpec` alone; its constructor raises InputError for a wrong one.

    :cvar needs: what the engine must keep for it.
    :ivar max_draft_len: the largest K of any step.
    """

    needs: ClassVar[DrafterNeeds] = DrafterNeeds()

    def __init__(self, spec: DrafterSpec) -> None:
        self.max_draft_len = spec.max_draft_len

    @abstractmethod
    def propose(self, state: DraftState, slots: Tensor, draft_len: int, max_num_tokens: int | None) -> None:
        """Write proposals for ``slots`` into ``state``. Device operations throughout: the host reads nothing.

        All ``draft_len`` columns of ``draft_token_ids`` get valid ids, whether proposed or not: forced acceptance
        commits them, and the target's rows hold them. A slot may occur more than once (padding's).

        :param slots: [B] int64.
        :param draft_len: K of the next step, at most ``max_draft_len``.
        :param max_num_tokens: no slot has more committed tokens than this; columns from here on are not looked at.
            None in a step that is recorded for any length: look where it can be seen without waiting, else take all.
        """


def build_drafter(spec: DrafterSpec) -> Drafter:
    """Build the drafter that ``spec`` names.

    :raises UnknownNameError: no drafter has the name.
    :raises InputError: the drafter cannot work as ``spec`` says.
    """
    return cast(Drafter, registry.DRAFTERS.load(spec.name, where="drafter.name")(spec))
