"""From logits to tokens: temperature, top-k, top-p, then one draw by inverse cumulative sum in vocabulary order.

A row's token is a function of its logits, its parameters, its seed and its position, and of nothing beside it. Branches
are taken on the host's :class:`RowFacts`; a branch that a neighbour forces changes cost, not tokens.

The distribution is :mod:`specbench.engine.sampling.distribution`'s.

Shapes: N logits rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.device.recording import runtime_operator
from specbench.engine.sampling.distribution import RowParams, kept_mass, sampled_chunks
from specbench.engine.sampling.metadata import RowFacts, SamplingRows
from specbench.engine.sampling.rng import Purpose, uniform
from specbench.engine.sampling.selection import CumulativeMass, first_argmax

DRAW = "draw_tokens"
"""What a recorded step that draws tokens has among its operators."""


class Selection(NamedTuple):
    """What :func:`select_and_check` returns.

    :ivar token_ids: [N] int64.
    :ivar is_finite: [N] bool, False where a row holds NaN or +inf, or is -inf throughout.
    :ivar drawn_with: the parameters that the draw was given; None where nothing was drawn.
    """

    token_ids: Tensor
    is_finite: Tensor
    drawn_with: SamplingRows | None = None


def select_tokens(logits: Tensor, rows: SamplingRows, seeds: Tensor, positions: Tensor) -> Tensor:
    """Choose one token a row.

    :param logits: [N, V] float32.
    :param seeds: [N] int64, the seed of each row's request.
    :param positions: [N] int64, index in its sequence of the token each row chooses.
    :return: [N] int64. Ids are valid even where logits are not finite; see :func:`finite_rows`.
    """
    return select_and_check(logits, rows, seeds, positions).token_ids


def finite_rows(logits: Tensor) -> Tensor:
    """[N, V] -> [N] bool: False where a row holds NaN or +inf, or is -inf throughout. Costs one pass of maxima."""
    return logits.amax(dim=-1).isfinite()


def select_and_check(logits: Tensor, rows: SamplingRows, seeds: Tensor, positions: Tensor) -> Selection:
    """:func:`select_tokens` and :func:`finite_rows` in one pass; parameters are those of :func:`select_tokens`."""
    best, peaks = _find_best(logits)
    if rows.all_greedy:
        return Selection(best, peaks.isfinite())
    draws = uniform(seeds, positions, Purpose.SAMPLE)
    sampled = draw_tokens(logits, rows.temperature, rows.top_k, rows.top_p, peaks, draws, best, facts=rows.facts)
    token_ids = torch.where(rows.is_greedy, best, sampled) if rows.any_greedy else sampled
    return Selection(token_ids, peaks.isfinite(), rows)


def select_and_weigh(
    logits: Tensor, rows: SamplingRows, seeds: Tensor, positions: Tensor, proposed: Tensor
) -> tuple[Selection, Tensor | None]:
    """:func:`select_and_check`, and the probability with which each row would have chosen another token.

    It is that of the draw itself, after top-k and top-p; a greedy row is certain of its argmax.

    :param proposed: [N] int64, one valid id a row.
    :return: the second part is [N] float64, or None where no row draws.
    """
    best, peaks = _find_best(logits)
    if rows.all_greedy:
        return Selection(best, peaks.isfinite()), None
    draws = uniform(seeds, positions, Purpose.SAMPLE)
    token_ids, probability = draw_and_weigh(
        logits, rows.temperature, rows.top_k, rows.top_p, peaks, draws, best, proposed, facts=rows.facts
    )
    if rows.any_greedy:
        token_ids = torch.where(rows.is_greedy, best, token_ids)
        probability = torch.where(rows.is_greedy, (proposed == best).to(torch.float64), probability)
    return Selection(token_ids, peaks.isfinite(), rows), probability


def _find_best(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The argmax of each row and its logit, [N] each."""
    best = first_argmax(logits)
    return best, logits.gather(1, best.unsqueeze(-1)).squeeze(-1)


@runtime_operator(DRAW)
def draw_tokens(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    peaks: Tensor,
    draws: Tensor,
    greedy: Tensor,
    *,
    facts: RowFacts,
) -> Tensor:
    """Draw a token for every sampled row; other rows keep ``greedy`` [N]. One operator of a recorded step.

    A recorded step knows no facts about its rows beforehand. Where the host can look at parameters without waiting,
    it does so when the operator runs, as a kernel would; elsewhere every row goes the way of the widest description.

    :param peaks: [N] each row's largest logit; ``draws``: [N] float64 in [0, 1).
    """
    rows = _describe(SamplingRows(temperature, top_k, top_p, facts))
    token_ids = greedy.clone()
    for indices, cumulative in _distributions(logits, peaks, rows):
        token_ids[indices] = _locate(cumulative, draws[indices], logits.shape[1])
    return token_ids


@runtime_operator(DRAW)
def draw_and_weigh(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    peaks: Tensor,
    draws: Tensor,
    greedy: Tensor,
    proposed: Tensor,
    *,
    facts: RowFacts,
) -> tuple[Tensor, Tensor]:
    """:func:`draw_tokens`, and the probability of ``proposed`` [N] in every sampled row; that of others is 0."""
    rows = _describe(SamplingRows(temperature, top_k, top_p, facts))
    token_ids, probability = greedy.clone(), torch.zeros_like(draws)
    for indices, cumulative in _distributions(logits, peaks, rows):
        token_ids[indices] = _locate(cumulative, draws[indices], logits.shape[1])
        probability[indices] = cumulative.probability_of(proposed[indices])
    return token_ids, probability


def _describe(rows: SamplingRows) -> SamplingRows:
    if rows.facts.is_wide and rows.temperature.device.type == "cpu":
        return rows.narrowed()
    return rows


def _distributions(
    logits: Tensor, peaks: Tensor, rows: SamplingRows
) -> Iterator[tuple[Tensor | slice, CumulativeMass]]:
    """What the sampled rows are drawn from, some rows at a time, and which they are."""
    params = RowParams(rows.temperature, rows.top_k, rows.top_p, peaks)
    for indices, row_class in sampled_chunks(logits.shape[1], logits.device, rows):
        yield indices, kept_mass(logits[indices], params.take(indices), row_class, rows.top_k_max)


def _locate(cumulative: CumulativeMass, draws: Tensor, num_tokens: int) -> Tensor:
    # A row that is not finite may point into the padding of the columns; its id must be valid all the same.
    return cumulative.draw(draws).clamp_(max=num_tokens - 1)
