"""Order statistics and inverse cumulative sums over rows as wide as a vocabulary.

Two things the sampler needs and plain tensor operations do not give:

*Exactness.* Probability mass is held as whole numbers, so sums do not depend on the order in which a kernel adds. The
same row gives the same token in every branch, batch and thread count. (A float cumulative sum is a different one for
each of them, and on CUDA it need not even rise.)

*Speed.* Rows are read in blocks of ``BLOCK`` columns: a reduction over blocks, then one block. Nothing sorts a
vocabulary: sorting 49,152 columns takes a CPU core 5 ms or more a row, the selection below a fraction of one.

Shapes: m rows, V columns (a multiple of ``BLOCK``, see :func:`pad_columns`), B = V / BLOCK blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64
_DIGIT_BITS = 16
_NUM_DIGITS = 1 << _DIGIT_BITS


def pad_columns(logits: Tensor) -> Tensor:
    """Return ``logits`` [m, V] widened with -inf to a multiple of ``BLOCK`` columns; itself when it is one already."""
    missing = -logits.shape[1] % BLOCK
    return torch.nn.functional.pad(logits, (0, missing), value=float("-inf")) if missing else logits


def blocks_of(values: Tensor) -> Tensor:
    """[m, V] as [m, B, BLOCK]."""
    return values.view(values.shape[0], -1, BLOCK)


def first_argmax(logits: Tensor) -> Tensor:
    """Column of each row's largest value, the lowest one on ties; a NaN counts as the largest.

    :param logits: [m, V] float32; V is free here.
    :return: [m] int64.
    """
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    # PyTorch's CPU argmax runs a column at a time; its amax is vectorised.
    blocks = blocks_of(pad_columns(logits))
    block = blocks.amax(dim=-1).argmax(dim=-1, keepdim=True)
    return (block * BLOCK + _take_block(blocks, block).argmax(dim=-1, keepdim=True)).squeeze(-1)


def largest_values(values: Tensor, count: int) -> Tensor:
    """The ``count`` largest values of each row, falling; [m, V] float32 -> [m, count].

    The ``count`` blocks with the largest maxima hold them: fewer than ``count`` blocks exceed the count-th value, and
    each further block among them that reaches it holds one more.
    """
    num_rows, num_columns = values.shape
    if 2 * count * BLOCK > num_columns:
        return values.topk(count, dim=-1).values
    blocks = blocks_of(values)
    chosen = blocks.amax(dim=-1).topk(count, dim=-1, sorted=False).indices
    candidates = blocks.gather(1, chosen.unsqueeze(-1).expand(-1, -1, BLOCK)).view(num_rows, -1)
    return candidates.topk(count, dim=-1).values


class CumulativeMass:
    """Running sums of a non-negative mass along each row.

    :param mass: [m, V] float32 whole numbers, at most 2^46 each.
    :ivar mass: as given; ``total``: [m] int64.
    """

    def __init__(self, mass: Tensor) -> None:
        self.mass = mass
        self._blocks = blocks_of(mass)
        # Whole numbers below 2^53 add exactly in float64, whatever the order.
        self._sums = self._blocks.sum(dim=-1, dtype=torch.float64).to(torch.int64)
        self._cumulative = self._sums.cumsum(dim=-1)
        self.total = self._cumulative[:, -1]

    def draw(self, draws: Tensor) -> Tensor:
        """The column where ``draws`` [m], float64 in [0, 1), falls by inverse cumulative sum; [m] int64."""
        # A draw is at most 1 - 2^-53, so the product stays below the total, rounding included.
        return self.locate((draws * self.total).to(torch.int64))

    def probability_of(self, columns: Tensor) -> Tensor:
        """The probability [m] float64 with which :meth:`draw` finds ``columns`` [m]."""
        return self.mass.gather(1, columns.unsqueeze(-1)).squeeze(-1).to(torch.float64) / self.total

    def locate(self, target: Tensor) -> Tensor:
        """The first column up to which the mass is more than ``target`` [m] int64; the last one when none is."""
        target = target.unsqueeze(-1)
        block = torch.searchsorted(self._cumulative, target, right=True).clamp_(max=self._sums.shape[1] - 1)
        before = self._cumulative.gather(1, block) - self._sums.gather(1, block)
        inside = _take_block(self._blocks, block).to(torch.int64).cumsum(dim=-1)
        offset = torch.searchsorted(inside, target - before, right=True).clamp_(max=BLOCK - 1)
        return (block * BLOCK + offset).squeeze(-1)


def ordered_keys(values: Tensor) -> Tensor:
    """Map float32 to int32 in the same order (-0.0 below 0.0, NaN at the ends); :func:`values_of` maps back."""
    bits = values.contiguous().view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def values_of(keys: Tensor) -> Tensor:
    """Undo :func:`ordered_keys`."""
    return ordered_keys(keys.view(torch.float32)).view(torch.float32)


def select_by_mass(keys: Tensor, mass: Tensor, slack: Tensor) -> tuple[Tensor, Tensor]:
    """Find the key below which the mass stays within a bound: a radix selection, 16 bits at a time.

    With a mass of ones and slack V - k it is the k-th largest key; with probabilities and slack (1 - p) * total it is
    the least key in the nucleus of p.

    :param keys: [m, V] int32, see :func:`ordered_keys`.
    :param mass: [m, V] int64, not negative; what each column counts for.
    :param slack: [m] int64, less than the row's total mass.
    :return: key [m] int32, the largest whose columns below it hold no more than ``slack``; the mass of the columns
        above it, [m] int64.
    """
    slack = slack.unsqueeze(-1)
    high, _ = _locate_digit((keys >> _DIGIT_BITS).add_(_NUM_DIGITS // 2), mass, slack, _NUM_DIGITS)
    # In the second pass digit 0 collects the columns below the first pass's bucket, the last digit those above it.
    below = ((high - _NUM_DIGITS // 2) << _DIGIT_BITS).to(torch.int32) - 1
    # Bounds before the difference, which then cannot leave int32; two operations, each faster than a clamp by tensors.
    digits = torch.minimum(torch.maximum(keys, below), below + (_NUM_DIGITS + 1)).sub_(below)
    low, above = _locate_digit(digits, mass, slack, _NUM_DIGITS + 2)
    return (below + low.to(torch.int32)).squeeze(-1), above.squeeze(-1)


def _locate_digit(digits: Tensor, mass: Tensor, slack: Tensor, num_digits: int) -> tuple[Tensor, Tensor]:
    """The first digit up to which the mass is more than ``slack`` [m, 1], and the mass above it; both [m, 1] int64."""
    histogram = torch.zeros((digits.shape[0], num_digits), dtype=torch.int64, device=digits.device)
    cumulative = histogram.scatter_add_(1, digits.to(torch.int64), mass).cumsum(dim=-1)
    digit = torch.searchsorted(cumulative, slack, right=True).clamp_(max=num_digits - 1)
    return digit, cumulative[:, -1:] - cumulative.gather(1, digit)


def _take_block(blocks: Tensor, block: Tensor) -> Tensor:
    """[m, B, BLOCK] and [m, 1] int64 -> [m, BLOCK]."""
    return blocks.gather(1, block.unsqueeze(-1).expand(-1, -1, BLOCK)).squeeze(1)
