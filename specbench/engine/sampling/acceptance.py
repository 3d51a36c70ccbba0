"""How many draft tokens of a step are committed.

Words. The target chooses a token at each of a request's K + 1 rows: ``target_token_ids[:, i]`` follows the last
committed token and the first i draft tokens. *Accepted* are the n draft tokens that are committed, from the first
without a gap. After them the target's own token at n is committed too: *recovered* where a draft token was turned down,
*bonus* where all were accepted. A step therefore commits n + 1 tokens, and never none.

Shapes: G generation requests, K draft tokens a request and step (0 is plain decoding), max K the largest of any step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specbench.engine.config import AcceptanceSpec
from specbench.engine.sampling.metadata import SamplingRows
from specbench.engine.sampling.rng import Purpose, uniform
from specbench.engine.sampling.sampler import Selection, select_and_check
from specbench.errors import InputError, UnknownNameError


class AcceptanceState(Protocol):
    """The per-slot device state that acceptance reads; S slots, padding's included.

    :ivar seeds: [S] int64, the requests' seeds.
    :ivar tokens_to_boundary: [S, positions] int64, see :class:`specbench.engine.device_state.DeviceState`; so are the
        others: ``drafts_are_drawn`` [S] bool, ``draft_probabilities`` [S, max K, Vd] float32,
        ``draft_token_probabilities`` [S, max K] float64.
    """

    seeds: Tensor
    tokens_to_boundary: Tensor
    drafts_are_drawn: Tensor
    draft_probabilities: Tensor
    draft_token_probabilities: Tensor


@dataclass(frozen=True)
class Verification:
    """The generation requests of a step as the target sees them. V vocabulary.

    :param slots: [G] int64, the requests' rows in the state.
    :param positions: [G] int64, committed tokens before the step: the position of the first token it commits.
    :param target_token_ids: [G, K + 1] int64, the target's choices.
    :param draft_token_ids: [G, K] int64, valid ids whether proposed or not.
    :param num_draft_tokens: [G] int64, how many of them were proposed.
    :param logits: [G (K + 1), V] float32, a row a choice.
    :param sampling: parameters of these rows; its facts are those of all rows of the step.
    :param draft_probability: [G, K] float64, the probability with which the target chooses each draft token; None where
        the rule does not ask, or no row of the step draws.
    """

    slots: Tensor
    positions: Tensor
    target_token_ids: Tensor
    draft_token_ids: Tensor
    num_draft_tokens: Tensor
    logits: Tensor
    sampling: SamplingRows
    draft_probability: Tensor | None = None


class Acceptance(ABC):
    """One rule of acceptance. Device operations throughout: the host learns the counts with the step's output.

    :cvar judges_content: acceptance depends on what the drafter proposed; False makes a result `forced acceptance`.
    """

    judges_content: bool = True

    def select(
        self,
        logits: Tensor,
        sampling: SamplingRows,
        seeds: Tensor,
        positions: Tensor,
        draft_token_ids: Tensor,  # noqa: ARG002 - most look at them afterwards
    ) -> tuple[Selection, Tensor | None]:
        """Choose the target's token in every row, see :func:`specbench.engine.sampling.sampler.select_and_check`.

        :param draft_token_ids: [G, K] int64; the rows of their requests are the last G (K + 1).
        :return: the second part is what :attr:`Verification.draft_probability` is taken from: by row, [N] float64, how
            likely the draft token is that was proposed for it; None where the rule does not ask.
        """
        return select_and_check(logits, sampling, seeds, positions), None

    @abstractmethod
    def accept(self, state: AcceptanceState, step: Verification) -> tuple[Tensor, Tensor]:
        """Decide what each request commits.

        :return: token ids [G, K + 1], of which the first ``num_committed`` count; num_committed [G], 1 .. K + 1.
        """

    def count_proposed(self, num_draft_tokens: Tensor, draft_len: int) -> Tensor:  # noqa: ARG002 - not all need it
        """How many draft tokens of a step count as proposed, [G], of ``draft_len`` at most."""
        return num_draft_tokens


class StrictAcceptance(Acceptance):
    """Accept a draft token that equals the target's choice there.

    The target's choice at a position depends on the tokens before it, the request's seed and the position alone, so
    the committed tokens are those of plain decoding, greedy or sampled.
    """

    def accept(
        self,
        state: AcceptanceState,  # noqa: ARG002 - nothing is drawn
        step: Verification,
    ) -> tuple[Tensor, Tensor]:
        """See :class:`Acceptance`."""
        draft_token_ids, draft_len = step.draft_token_ids, step.draft_token_ids.shape[1]
        proposed = torch.arange(draft_len, device=draft_token_ids.device) < step.num_draft_tokens.unsqueeze(1)
        matches = (draft_token_ids == step.target_token_ids[:, :draft_len]) & proposed
        # An accepted draft token is the target's own, so the target's row is what is committed, cut at the count.
        return step.target_token_ids, matches.to(torch.int64).cumprod(dim=1).sum(dim=1) + 1


class PlannedAcceptance(Acceptance):
    """Accept a number of draft tokens that was fixed before they were known, whatever they are.

    All K count as proposed: a place that the drafter left empty is committed as it stands.
    """

    judges_content = False

    @abstractmethod
    def plan(self, state: AcceptanceState, slots: Tensor, positions: Tensor, draft_len: int) -> Tensor:
        """How many of ``draft_len`` draft tokens each request accepts, [G] int64."""

    def count_proposed(self, num_draft_tokens: Tensor, draft_len: int) -> Tensor:
        """See :class:`Acceptance`: all of them."""
        return torch.full_like(num_draft_tokens, draft_len)

    def accept(self, state: AcceptanceState, step: Verification) -> tuple[Tensor, Tensor]:
        """See :class:`Acceptance`. All K count as proposed."""
        draft_token_ids, target_token_ids = step.draft_token_ids, step.target_token_ids
        draft_len = draft_token_ids.shape[1]
        num_accepted = self.plan(state, step.slots, step.positions, draft_len)
        accepted = torch.arange(draft_len, device=draft_token_ids.device) < num_accepted.unsqueeze(1)
        drafts = torch.where(accepted, draft_token_ids, target_token_ids[:, :draft_len])
        return torch.cat((drafts, target_token_ids[:, draft_len:]), dim=1), num_accepted + 1


class ForcedAcceptance(PlannedAcceptance):
    """Accept as many draft tokens as a distribution says.

    The number is drawn by seed and position, so two arms of a comparison accept the same.

    :param reach: by draft position, from the first, the probability that it is accepted; falling, max K of them.
    """

    def __init__(self, reach: tuple[float, ...]) -> None:
        self._reach = torch.tensor(reach, dtype=torch.float64)

    def plan(self, state: AcceptanceState, slots: Tensor, positions: Tensor, draft_len: int) -> Tensor:
        """See :class:`PlannedAcceptance`."""
        if self._reach.device != slots.device:  # the first step on its device
            self._reach = self._reach.to(slots.device)
        draw = uniform(state.seeds[slots], positions, Purpose.FORCED).unsqueeze(1)
        return (draw < self._reach[:draft_len]).sum(dim=1)


class ReplayAcceptance(PlannedAcceptance):
    """Commit up to the next boundary of a recorded run, as far as the step's rows reach.

    See :mod:`specbench.engine.sampling.replay`.
    """

    def plan(self, state: AcceptanceState, slots: Tensor, positions: Tensor, draft_len: int) -> Tensor:
        """See :class:`PlannedAcceptance`."""
        return (state.tokens_to_boundary[slots, positions] - 1).clamp_(max=draft_len)


_WITHOUT_LENGTH = {
    "strict": "strict acceptance takes what the drafter earns",
    "rejection": "rejection sampling takes what the drafter earns",
    "replay": "replay takes the lengths that another run recorded",
}


def build_acceptance(spec: AcceptanceSpec, max_draft_len: int, draft_vocabulary: Tensor | None = None) -> Acceptance:
    """Build the rule that ``spec`` asks for.

    :param max_draft_len: the largest K of any step.
    :param draft_vocabulary: int64 [Vd], target ids of the drafter's own vocabulary; None: it has none of its own.
    :raises InputError: a length or rates that cannot be had with ``max_draft_len`` draft tokens.
    """
    if spec.mode == "forced":
        return ForcedAcceptance(_reach(spec, max_draft_len))
    if spec.mode not in _WITHOUT_LENGTH:
        known = ("forced", *_WITHOUT_LENGTH)
        raise UnknownNameError.of("acceptance mode", spec.mode, known, where="acceptance.mode")
    if spec.length is not None or spec.rates:
        raise InputError(
            f"a length is given, but {_WITHOUT_LENGTH[spec.mode]}",
            where="acceptance.length",
            hint="set acceptance.mode to forced, or leave the length out",
        )
    if spec.mode == "rejection":
        from specbench.engine.sampling.rejection import RejectionAcceptance

        return RejectionAcceptance(draft_vocabulary)
    return ReplayAcceptance() if spec.mode == "replay" else StrictAcceptance()


def _reach(spec: AcceptanceSpec, max_draft_len: int) -> tuple[float, ...]:
    """The probability that each draft position is accepted; first checks that it is one."""
    if (spec.length is None) == (not spec.rates):
        raise InputError(
            "forced acceptance needs a mean length, or conditional rates by position, and not both",
            where="acceptance.length",
            hint="for example 2.4, or [0.8, 0.6, 0.4]",
        )
    if spec.length is not None:
        return _reach_of_length(spec.length, max_draft_len)
    return _reach_of_rates(spec.rates, max_draft_len)


def _reach_of_length(length: float, max_draft_len: int) -> tuple[float, ...]:
    """The two whole lengths around ``length``, mixed: 2.4 is one accepted with 0.6, two with 0.4."""
    if not 1.0 <= length <= max_draft_len + 1:
        raise InputError(
            f"{length} does not lie in 1 .. {max_draft_len + 1}: a step commits the target's own token "
            f"and up to {max_draft_len} draft tokens",
            where="acceptance.length",
            hint="raise drafter.draft_len" if length > 1.0 else "a mean of 1.0 accepts no draft token",
        )
    return tuple(min(max(length - 1.0 - position, 0.0), 1.0) for position in range(max_draft_len))


def _reach_of_rates(rates: tuple[float, ...], max_draft_len: int) -> tuple[float, ...]:
    """Products of the conditional rates. Rates beyond the largest K are never reached, and are not an error."""
    wrong = [rate for rate in rates if not 0.0 <= rate <= 1.0]
    if wrong:
        raise InputError(f"a conditional rate must lie in 0 .. 1, found {wrong[0]}", where="acceptance.length")
    if len(rates) < max_draft_len:
        raise InputError(
            f"{len(rates)} conditional rates are given for {max_draft_len} draft positions",
            where="acceptance.length",
            hint=f"give {max_draft_len} rates, or lower drafter.draft_len",
        )
    reach, product = [], 1.0
    for rate in rates[:max_draft_len]:
        product *= rate
        reach.append(product)
    return tuple(reach)
