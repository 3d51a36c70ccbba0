"""From logits to tokens: temperature, top-k, top-p, then one draw by inverse cumulative sum in vocabulary order.

A row's token is a function of its logits, its parameters, its seed and its position, and of nothing beside it. Branches
are taken on the host's :class:`RowFacts`; a branch that a neighbour forces changes cost, not tokens.

The mass of a token is the whole number ``floor(exp((logit - row maximum) / temperature) * 2**40)``: less than 1e-12
of the likeliest token counts for nothing, and sums are exact (see :mod:`specbench.engine.sampling.selection`).

Shapes: N logits rows, V vocabulary, m rows of one chunk.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specbench.device.recording import runtime_operator
from specbench.engine.sampling.metadata import RowClass, RowFacts, SamplingRows
from specbench.engine.sampling.params import TOP_P_OFF
from specbench.engine.sampling.rng import Purpose, uniform
from specbench.engine.sampling.selection import (
    CumulativeMass,
    first_argmax,
    largest_values,
    ordered_keys,
    pad_columns,
    select_by_mass,
    values_of,
)

DRAW = "draw_tokens"
"""What a recorded step that draws tokens has among its operators."""

_MASS_SCALE = 2.0**40
_MAX_SORTED = 256
"""A row's largest values are sorted out when there are no more of them than this; else thresholds are selected."""

_CHUNK_ELEMENTS = {"cpu": 1 << 17}
"""Logits worked on at once: temporaries that fit a CPU's cache, and memory that does not grow with the batch."""
_DEFAULT_CHUNK_ELEMENTS = 1 << 26
_MIN_ROW_ELEMENTS = 1 << 16
"""What a row counts for at least, where thresholds are selected: the selection's histogram is as wide."""


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
    best = first_argmax(logits)
    peaks = logits.gather(1, best.unsqueeze(-1))
    is_finite = peaks.squeeze(-1).isfinite()
    if rows.all_greedy:
        return Selection(best, is_finite)
    draws = uniform(seeds, positions, Purpose.SAMPLE)
    sampled = draw_tokens(
        logits, rows.temperature, rows.top_k, rows.top_p, peaks.squeeze(-1), draws, best, facts=rows.facts
    )
    token_ids = torch.where(rows.is_greedy, best, sampled) if rows.any_greedy else sampled
    return Selection(token_ids, is_finite, rows)


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
    rows = SamplingRows(temperature, top_k, top_p, facts)
    if facts.is_wide and logits.device.type == "cpu":
        rows = rows.narrowed()
    return _sample(logits, _Rows(temperature, top_k, top_p, peaks, draws), rows, greedy)


class _Rows(NamedTuple):
    """Per-row inputs of the draw, each [m]."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    peak: Tensor  # largest logit
    draw: Tensor  # float64 in [0, 1)

    def take(self, indices: Tensor | slice) -> _Rows:
        return _Rows(*(values[indices] for values in self))


def _sample(logits: Tensor, inputs: _Rows, rows: SamplingRows, greedy: Tensor) -> Tensor:
    """Draw a token for every sampled row; other rows keep ``greedy`` [N]."""
    chunk = _rows_at_once(logits)
    groups = rows.facts.groups
    whole = len(groups) == 1 and rows.facts.num_sampled == logits.shape[0]
    order = None if whole else rows.classes.argsort(stable=True)
    token_ids = torch.empty_like(greedy) if whole else greedy.clone()
    start = rows.facts.num_greedy
    for row_class, count in groups:
        for first in range(start, start + count, chunk):
            here = slice(first, min(first + chunk, start + count))
            indices = here if order is None else order[here]
            token_ids[indices] = _draw(logits[indices], inputs.take(indices), row_class, rows.top_k_max)
        start += count
    return token_ids


def _rows_at_once(logits: Tensor) -> int:
    num_tokens = logits.shape[1]
    row_elements = num_tokens if num_tokens <= _MAX_SORTED else max(num_tokens, _MIN_ROW_ELEMENTS)
    return max(1, _CHUNK_ELEMENTS.get(logits.device.type, _DEFAULT_CHUNK_ELEMENTS) // row_elements)


def _draw(logits: Tensor, rows: _Rows, row_class: RowClass, top_k_max: int) -> Tensor:
    """Draw one token for each of m rows of one class."""
    num_tokens = logits.shape[1]
    logits = pad_columns(logits)
    has_top_k = row_class in (RowClass.TOP_K, RowClass.BOTH)
    has_top_p = row_class in (RowClass.TOP_P, RowClass.BOTH)
    num_largest = min(top_k_max, logits.shape[1]) if has_top_k else logits.shape[1]
    is_sorted = (has_top_k or has_top_p) and num_largest <= _MAX_SORTED
    largest = largest_values(logits, num_largest) if is_sorted else None
    likelihood = _likelihood(logits, rows)
    if has_top_k:
        threshold = _top_k_threshold(logits, rows.top_k, largest)
        likelihood.mul_(torch.ge(logits, threshold.unsqueeze(-1), out=torch.empty_like(logits)))
    mass = _mass_of(likelihood)
    cumulative = CumulativeMass(mass)
    if has_top_p:
        mass = _keep_nucleus(likelihood, mass, cumulative.total, rows, largest)
        cumulative = CumulativeMass(mass)
    # A draw is at most 1 - 2^-53, so the product stays below the total, rounding included.
    target = (rows.draw * cumulative.total).to(torch.int64)
    # Rows that are not finite may point into the padding; their ids must be valid all the same.
    return cumulative.locate(target).clamp_(max=num_tokens - 1)


def _likelihood(logits: Tensor, rows: _Rows) -> Tensor:
    """exp((logit - peak) / temperature), in 0 .. 1; [m, V] float32."""
    return (logits - rows.peak.unsqueeze(-1)).div_(rows.temperature.unsqueeze(-1)).exp_()


def _mass_of(likelihood: Tensor) -> Tensor:
    """Likelihoods as whole numbers, float32. Scaling by a power of two is exact: equal likelihoods have equal mass."""
    return (likelihood * _MASS_SCALE).floor_()


def _top_k_threshold(logits: Tensor, top_k: Tensor, largest: Tensor | None) -> Tensor:
    """The k-th largest logit of each row, [m]; the least one where k takes in the whole row.

    Logits that tie with the k-th are kept, as transformers does.

    :param largest: the largest logits, falling, at least as many as any k in force; None: select without them.
    """
    if largest is not None:
        return largest.gather(1, (top_k.clamp(max=largest.shape[1]) - 1).unsqueeze(-1)).squeeze(-1)
    num_columns = logits.shape[1]
    ones = torch.ones((), dtype=torch.int64, device=logits.device).expand(logits.shape)
    kth, _ = select_by_mass(ordered_keys(logits), ones, num_columns - top_k.clamp(max=num_columns))
    return values_of(kth)


def _keep_nucleus(likelihood: Tensor, mass: Tensor, total: Tensor, rows: _Rows, largest: Tensor | None) -> Tensor:
    """Zero the mass outside the smallest set of likeliest tokens that reaches top_p of ``total``.

    Tokens as likely as the last one in the set are taken from the lowest id up, as many as are needed.

    :param largest: each row's largest logits, falling, all that can be in the set but for ties; None: select without.
    """
    needed = (rows.top_p.to(torch.float64) * total).ceil().to(torch.int64)
    needed = torch.where(rows.top_p < TOP_P_OFF, needed, total).clamp_(min=1).minimum(total)
    if largest is None:
        # Likelihoods are not negative: their bits are ordered as they stand.
        key, above = select_by_mass(likelihood.view(torch.int32), mass.to(torch.int64), total - needed)
        last = key.view(torch.float32)
    else:
        last, above = _nucleus_of_sorted(_likelihood(largest, rows), rows.top_k, needed)
    ties = torch.eq(likelihood, last.unsqueeze(-1), out=torch.empty_like(likelihood))
    each = _mass_of(last).to(torch.int64).clamp_(min=1)  # 0 only in rows that are not finite
    num_ties = torch.div(needed - above + each - 1, each, rounding_mode="floor")
    last_tie = CumulativeMass(ties).locate(num_ties - 1)
    # Column numbers below 2^24 are exact in float32.
    columns = torch.arange(likelihood.shape[1], dtype=torch.float32, device=likelihood.device)
    ties.mul_(torch.le(columns, last_tie.to(torch.float32).unsqueeze(-1), out=torch.empty_like(ties)))
    kept = torch.gt(likelihood, last.unsqueeze(-1), out=torch.empty_like(likelihood)).add_(ties)
    return kept.mul_(mass)


def _nucleus_of_sorted(likelihood: Tensor, top_k: Tensor, needed: Tensor) -> tuple[Tensor, Tensor]:
    """The least likelihood in the nucleus and the mass above it, from each row's largest likelihoods.

    :param likelihood: [m, k] falling, of which the first ``top_k`` [m] count.
    :param needed: [m] int64, the mass to reach. More than these hold when others tie with the last of them.
    """
    counts = torch.arange(likelihood.shape[1], device=likelihood.device) < top_k.unsqueeze(-1)
    mass = _mass_of(likelihood).to(torch.int64) * counts
    before = mass.cumsum(dim=-1) - mass
    last = ((before < needed.unsqueeze(-1)) & counts).sum(dim=-1, keepdim=True).sub_(1).clamp_(min=0)
    least = likelihood.gather(1, last)
    return least.squeeze(-1), (mass * (likelihood > least)).sum(dim=-1)
