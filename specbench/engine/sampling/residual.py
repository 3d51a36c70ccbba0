"""The token in place of a rejected one: drawn from what the target's distribution has over the drafter's.

Where a draft token x ~ q is accepted with min(1, p(x) / q(x)), the token that replaces a rejected one has the
distribution max(p - q, 0), normalised (Leviathan, Kalman and Matias, 2023; Chen et al., 2023). One that was rejected
has p(x) < q(x), so its own share is 0; that of a proposal which was certain to its drafter (q(x) = 1) is all that q
takes away.

Shapes: R logits rows, V vocabulary, G requests, Vd draft vocabulary, m requests of one chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.device.recording import runtime_operator
from specbench.engine.sampling.distribution import RowParams, kept_mass, mass_of, sampled_chunks
from specbench.engine.sampling.metadata import SamplingRows
from specbench.engine.sampling.selection import CumulativeMass


@dataclass(frozen=True)
class DraftRows:
    """Where the distributions are that rejected draft tokens were drawn from.

    :param probabilities: [S, max K, Vd] float32, by slot and place in the draft.
    :param slots: [G] int64; ``places`` [G] int64: the row of each request.
    :param is_drawn: [G] bool; False: the token was certain to its drafter, and the row says nothing.
    :param vocabulary: int64 [Vd], target ids; None: column i is target id i.
    """

    probabilities: Tensor
    slots: Tensor
    places: Tensor
    is_drawn: Tensor
    vocabulary: Tensor | None

    def subtract_from(self, share: Tensor, requests: Tensor) -> None:
        """Take these ``requests``' [m] distributions from ``share`` [m, V], in place."""
        q = self.probabilities[self.slots[requests], self.places[requests]]
        q = q * self.is_drawn[requests].unsqueeze(-1)
        if self.vocabulary is None:
            share[:, : q.shape[1]].sub_(q)
        else:
            share.scatter_add_(1, self.vocabulary.expand(q.shape), q.neg_())


@runtime_operator("recover_tokens")
def recover_tokens(
    logits: Tensor,
    target: SamplingRows,
    rows: Tensor,
    draws: Tensor,
    rejected: Tensor,
    fallback: Tensor,
    is_needed: Tensor,
    draft: DraftRows | None,
) -> Tensor:
    """Draw the recovered token of each request where ``is_needed`` [G]; others have any valid id.

    One operator of a recorded step. Where the host can look at values without waiting, nothing is computed for
    requests that need none.

    :param logits: [R, V] float32; ``target``: the parameters of its rows.
    :param rows: [G] int64, the row of each request's rejected token.
    :param draws: [G] float64 in [0, 1).
    :param rejected: [G] int64, the token.
    :param fallback: [G] int64, a token drawn from p: p and q are equal as far as numbers can tell, and a rejection
        is but a rounding error.
    :param draft: None where no drafter draws.
    """
    token_ids = fallback.clone()
    requests, described = _choose_requests(target, rows, is_needed)
    for chosen, row_class in sampled_chunks(logits.shape[1], logits.device, described):
        here = requests[chosen]
        here_rows = rows[here]
        chunk = logits[here_rows]
        params = RowParams(
            target.temperature[here_rows], target.top_k[here_rows], target.top_p[here_rows], chunk.amax(dim=-1)
        )
        p = kept_mass(chunk, params, row_class, described.top_k_max)
        mass, is_empty = _residual_mass(p, rejected[here], here, draft)
        recovered = CumulativeMass(mass).draw(draws[here]).clamp_(max=logits.shape[1] - 1)
        token_ids[here] = torch.where(is_empty, fallback[here], recovered)
    return token_ids


def _choose_requests(target: SamplingRows, rows: Tensor, is_needed: Tensor) -> tuple[Tensor, SamplingRows]:
    """The requests to recover a token for, and the sampling parameters of each; on a CPU no more than need one."""
    if rows.device.type == "cpu":
        requests = is_needed.nonzero().squeeze(-1)
        return requests, _take(target, rows[requests]).narrowed()
    return torch.arange(rows.shape[0], device=rows.device), _take(target, rows)


def _take(target: SamplingRows, rows: Tensor) -> SamplingRows:
    facts = target.facts.of_some(rows.shape[0])
    return SamplingRows(target.temperature[rows], target.top_k[rows], target.top_p[rows], facts)


def _residual_mass(
    p: CumulativeMass, rejected: Tensor, requests: Tensor, draft: DraftRows | None
) -> tuple[Tensor, Tensor]:
    """max(p - q, 0) in whole numbers [m, V], the largest 2^40; and where it is nothing, [m] bool."""
    share = p.mass / p.total.to(torch.float32).unsqueeze(-1)
    if draft is not None:
        draft.subtract_from(share, requests)
    share.scatter_(1, rejected.unsqueeze(-1), 0.0).clamp_(min=0.0)
    largest = share.amax(dim=-1, keepdim=True)
    is_empty = largest == 0.0
    return mass_of(share.div_(largest.masked_fill(is_empty, 1.0))), is_empty.squeeze(-1)
