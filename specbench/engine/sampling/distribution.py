"""The distribution that a row's token is drawn from, as whole numbers: temperature, then top-k, then top-p.

The mass of a token is the whole number ``floor(exp((logit - row maximum) / temperature) * 2**40)``: less than 1e-12
of the likeliest token counts for nothing, and sums are exact (see :mod:`specbench.engine.sampling.selection`). Whoever
draws from a row, and whoever asks how likely one of its tokens is, looks at the same numbers.

Shapes: V vocabulary, m rows of one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.engine.sampling.metadata import RowClass, SamplingRows
from specbench.engine.sampling.params import TOP_P_OFF
from specbench.engine.sampling.selection import (
    CumulativeMass,
    largest_values,
    ordered_keys,
    pad_columns,
    select_by_mass,
    values_of,
)

_MASS_SCALE = 2.0**40
_MAX_SORTED = 256
"""A row's largest values are sorted out when there are no more of them than this; else thresholds are selected."""

_CHUNK_ELEMENTS = {"cpu": 1 << 17}
"""Logits worked on at once: temporaries that fit a CPU's cache, and memory that does not grow with the batch."""
_DEFAULT_CHUNK_ELEMENTS = 1 << 26
_MIN_ROW_ELEMENTS = 1 << 16
"""What a row counts for at least, where thresholds are selected: the selection's histogram is as wide."""


class RowParams(NamedTuple):
    """What a row's distribution follows from, beside its logits; each [m].

    :ivar peak: the largest logit.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    peak: Tensor

    def take(self, indices: Tensor | slice) -> RowParams:
        """Those of some rows."""
        return RowParams(*(values[indices] for values in self))


def sampled_chunks(
    num_tokens: int, device: torch.device, rows: SamplingRows
) -> Iterator[tuple[Tensor | slice, RowClass]]:
    """The sampled rows in chunks of one class, each small enough to be worked on at once.

    :param num_tokens: V.
    :return: indices of rows, and how their tokens are chosen.
    """
    chunk = rows_at_once(num_tokens, device)
    groups = rows.facts.groups
    whole = len(groups) == 1 and rows.facts.num_sampled == rows.temperature.shape[0]
    order = None if whole else rows.classes.argsort(stable=True)
    start = rows.facts.num_greedy
    for row_class, count in groups:
        for first in range(start, start + count, chunk):
            here = slice(first, min(first + chunk, start + count))
            yield (here if order is None else order[here]), row_class
        start += count


def rows_at_once(num_tokens: int, device: torch.device) -> int:
    """How many rows as wide as ``num_tokens`` are worked on at once."""
    row_elements = num_tokens if num_tokens <= _MAX_SORTED else max(num_tokens, _MIN_ROW_ELEMENTS)
    return max(1, _CHUNK_ELEMENTS.get(device.type, _DEFAULT_CHUNK_ELEMENTS) // row_elements)


def kept_mass(logits: Tensor, rows: RowParams, row_class: RowClass, top_k_max: int) -> CumulativeMass:
    """The distribution of each of m rows of one class, columns padded to whole blocks.

    :param logits: [m, V] float32.
    :param top_k_max: no top_k in force is larger.
    """
    logits = pad_columns(logits)
    has_top_k = row_class in (RowClass.TOP_K, RowClass.BOTH)
    has_top_p = row_class in (RowClass.TOP_P, RowClass.BOTH)
    num_largest = min(top_k_max, logits.shape[1]) if has_top_k else logits.shape[1]
    is_sorted = (has_top_k or has_top_p) and num_largest <= _MAX_SORTED
    largest = largest_values(logits, num_largest) if is_sorted else None
    likelihood = likelihood_of(logits, rows.peak, rows.temperature)
    if has_top_k:
        threshold = _top_k_threshold(logits, rows.top_k, largest)
        likelihood.mul_(torch.ge(logits, threshold.unsqueeze(-1), out=torch.empty_like(logits)))
    mass = mass_of(likelihood)
    cumulative = CumulativeMass(mass)
    if has_top_p:
        mass = _keep_nucleus(likelihood, mass, cumulative.total, rows, largest)
        cumulative = CumulativeMass(mass)
    return cumulative


def likelihood_of(logits: Tensor, peaks: Tensor, temperature: Tensor) -> Tensor:
    """exp((logit - peak) / temperature), in 0 .. 1; [m, V] float32.

    :param peaks: [m] the largest logit of each row; ``temperature`` [m].
    """
    return (logits - peaks.unsqueeze(-1)).div_(temperature.unsqueeze(-1)).exp_()


def mass_of(likelihood: Tensor) -> Tensor:
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


def _keep_nucleus(likelihood: Tensor, mass: Tensor, total: Tensor, rows: RowParams, largest: Tensor | None) -> Tensor:
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
        last, above = _nucleus_of_sorted(likelihood_of(largest, rows.peak, rows.temperature), rows.top_k, needed)
    ties = torch.eq(likelihood, last.unsqueeze(-1), out=torch.empty_like(likelihood))
    each = mass_of(last).to(torch.int64).clamp_(min=1)  # 0 only in rows that are not finite
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
    mass = mass_of(likelihood).to(torch.int64) * counts
    before = mass.cumsum(dim=-1) - mass
    last = ((before < needed.unsqueeze(-1)) & counts).sum(dim=-1, keepdim=True).sub_(1).clamp_(min=0)
    least = likelihood.gather(1, last)
    return least.squeeze(-1), (mass * (likelihood > least)).sum(dim=-1)
