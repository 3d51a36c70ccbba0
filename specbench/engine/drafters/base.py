"""What a drafter is: it proposes the next step's draft tokens, on the device, at the end of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from specbench.engine.config import DrafterSpec, EngineConfig, drafter_parts
from specbench.engine.drafters.declaration import load_declaration
from specbench.errors import EngineError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from specbench.engine.attention.base import AttentionOperator
    from specbench.engine.attention.metadata import AttentionMetadata
    from specbench.engine.models.base import CausalLM


@dataclass(frozen=True)
class DrafterNeeds:
    """What the engine must keep for a drafter.

    :param hidden_layers: target layers whose input it reads: the residual stream that enters them.
    :param num_kv_layers: layers of its own in a KV cache of its own, over the target's blocks.
    """

    hidden_layers: tuple[int, ...] = ()
    num_kv_layers: int = 0

    @property
    def reads_rows(self) -> bool:
        """Whether it reads every row that the target ran, or the committed tokens alone."""
        return bool(self.num_kv_layers or self.hidden_layers)


@dataclass(frozen=True)
class DraftVocabulary:
    """The tokens that a drafter has a distribution over.

    :param size: Vd, columns of its logits; 0: it has none, each of its proposals is certain to it.
    :param token_ids: int64 [Vd], target ids; None: column i is target id i.
    """

    size: int = 0
    token_ids: Tensor | None = None


class DraftState(Protocol):
    """The per-slot device state a drafter reads and writes; S slots, padding's included.

    :ivar token_ids: [S, columns] int64, committed tokens; ``num_tokens`` [S] int64, how many.
    :ivar draft_token_ids: [S, max K] int64, proposals; ``num_draft_tokens`` [S] int64, how many.
    :ivar seeds: [S] int64, the requests' seeds; it and what follows are for drafters that draw, see
        :class:`specbench.engine.device_state.DeviceState`.
    :ivar draft_parents: [S, nodes of a tree] int64, see there.
    """

    token_ids: Tensor
    num_tokens: Tensor
    draft_token_ids: Tensor
    num_draft_tokens: Tensor
    seeds: Tensor
    drafts_are_drawn: Tensor
    draft_probabilities: Tensor
    draft_token_probabilities: Tensor
    draft_parents: Tensor


@dataclass(frozen=True)
class TargetRows:
    """The rows that the target ran in a step, after what it accepts is committed. T rows, H hidden size.

    Context rows first, then K + 1 rows a generation request, of which those behind the last accepted token are void:
    their tokens are not in the sequence, and what is written to a cache for them is overwritten by later steps. Of a
    draft tree these are the rows of the accepted path alone.

    :param token_ids: [T] int64; ``positions`` [T] int64, of the tokens in their sequences; ``slots`` [T] int64.
    :param hidden: [T, H] after the target's final norm.
    :param tapped: [T, H] each, the input of :attr:`DrafterNeeds.hidden_layers`.
    :param ends: [B] rows: of each request that goes on, the one before its last committed token.
    :param requests: [B] rows of ``block_table``: the requests that go on, context requests first; None: all of them.
    :param metadata: of the target's attention; a drafter may attend to the same rows.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    hidden: Tensor
    tapped: tuple[Tensor, ...]
    ends: Tensor
    requests: Tensor | None
    metadata: AttentionMetadata

    @property
    def block_table(self) -> Tensor:
        """[B, columns] int32: the blocks of the requests that go on."""
        table = self.metadata.block_table
        return table if self.requests is None else table[self.requests]


@dataclass(frozen=True)
class DraftStep:
    """What a drafter is told about a step.

    :param slots: [B] int64 of the requests that go on: those whose prompt has ended in the step, then the generation
        requests. A slot may occur more than once (padding's).
    :param draft_len: K of the next step, at most ``max_draft_len``.
    :param max_num_tokens: no slot has more committed tokens than this; None in a step that is recorded for any length.
    :param rows: the target's rows, for a drafter whose :attr:`DrafterNeeds.reads_rows`; else None.
    :param temperature: [B] float32, at which each request draws its draft tokens; at ``GREEDY_TEMPERATURE`` it takes
        the likeliest. None: all do.
    """

    slots: Tensor
    draft_len: int
    max_num_tokens: int | None
    rows: TargetRows | None = None
    temperature: Tensor | None = None

    @property
    def target_rows(self) -> TargetRows:
        """``rows``, which a drafter that asked for them finds."""
        if self.rows is None:
            raise EngineError("a drafter that reads the target's rows was run without them", where="drafter")
        return self.rows


AttentionBuilder = Callable[[int, int, int, int], "AttentionOperator"]
"""(layers, query heads, KV heads, head_dim) -> attention over a cache of its own with the engine's blocks."""


@dataclass(frozen=True)
class DrafterHost:
    """The engine that a drafter with weights is built for.

    :param target: the model it drafts for; its embedding and head may be shared.
    :param build_attention: see :data:`AttentionBuilder`.
    """

    config: EngineConfig
    target: CausalLM
    device: torch.device
    dtype: torch.dtype
    build_attention: AttentionBuilder


class Drafter(ABC):
    """One drafter. Its constructor raises InputError for a :class:`DrafterSpec` it cannot serve.

    :param host: the engine, for drafters that have weights; lookup drafters do without.
    :ivar needs: what the engine must keep for it.
    :ivar max_draft_len: the largest K of any step.
    """

    needs: DrafterNeeds = DrafterNeeds()

    def __init__(self, spec: DrafterSpec, host: DrafterHost | None = None) -> None:  # noqa: ARG002 - see the class
        self.max_draft_len = spec.max_draft_len

    @property
    def vocabulary(self) -> DraftVocabulary:
        """What it can draw from, where acceptance is by rejection."""
        return DraftVocabulary()

    @abstractmethod
    def draft(self, state: DraftState, step: DraftStep) -> None:
        """Write proposals for ``step.slots`` into ``state``. Device operations throughout: the host reads nothing.

        All ``step.draft_len`` columns of ``draft_token_ids`` get valid ids, whether proposed or not: forced acceptance
        commits them, and the target's rows hold them. Called in every step for a drafter that reads the target's rows,
        with no slots and K = 0 too, since its cache must follow.
        """

    def fill_cache(self, blocks: Tensor, slot: int) -> None:  # noqa: B027 - most have none
        """Put noise into ``blocks`` [N] of its cache, as :meth:`specbench.engine.kv_cache.KVCache.fill` does.

        :param slot: whose blocks they are; what else is kept of it is to depend on no request before, either.
        """


class LookupDrafter(Drafter):
    """A drafter that looks at committed tokens alone."""

    def draft(self, state: DraftState, step: DraftStep) -> None:
        """See :class:`Drafter`."""
        if step.slots.shape[0]:
            self.propose(state, step.slots, step.draft_len, step.max_num_tokens)

    @abstractmethod
    def propose(self, state: DraftState, slots: Tensor, draft_len: int, max_num_tokens: int | None) -> None:
        """:meth:`Drafter.draft` for at least one slot; see :class:`DraftStep` for the arguments.

        :param max_num_tokens: columns from here on are not looked at; None: look where it can be seen without waiting,
            else take all.
        """


def build_drafter(spec: DrafterSpec, host: DrafterHost | None = None) -> Drafter:
    """Build the drafter that ``spec`` names; ``lookup+model`` is a pair.

    :raises UnknownNameError: no drafter has the name.
    :raises InputError: the drafter cannot work as ``spec`` says.
    """
    is_tree = spec.tree is not None
    parts: list[Drafter] = [
        load_declaration(name).load_class(tree=is_tree)(spec, host) for name in drafter_parts(spec.name)
    ]
    if len(parts) == 1:
        return parts[0]
    from specbench.engine.drafters.pair import PairDrafter

    return PairDrafter(spec, *parts)
