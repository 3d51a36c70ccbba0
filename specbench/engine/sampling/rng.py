"""Counter-based random numbers: a pure function of (request seed, position, purpose).

The generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
The request's 64-bit seed is the key; position and purpose are the counter. There is no state to carry, so a draw does
not depend on the slot, the batch, the order of the requests or the arm of a comparison, and a preempted request draws
the same numbers again.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import torch
from torch import Tensor

NUM_ROUNDS = 10
_WORD_MASK = 0xFFFFFFFF
_HIGH_MASK = -(1 << 32)
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)


class Purpose(IntEnum):
    """What a number is drawn for, so that two uses at one position are independent.

    The values are part of the results: a changed value changes every token sampled under it.
    """

    SAMPLE = 0
    """Choosing a token from the target's distribution."""
    FORCED = 1
    """How many draft tokens forced acceptance commits."""
    ACCEPT = 2
    """Accepting or rejecting one draft token."""
    RECOVER = 3
    """Choosing the token that replaces a rejected one."""
    DRAFT = 4
    """Choosing a draft token from the drafter's distribution."""


def uniform(seeds: Tensor, positions: Tensor, purpose: Purpose) -> Tensor:
    """Draw one number in [0, 1) for each (seed, position), with 53 random bits.

    :param seeds: [N] int64, the requests' keys; all 64 bits count.
    :param positions: [N] int64, index in its sequence of the token the number is for.
    :return: [N] float64; the same bits on every device.
    """
    counter = torch.stack((positions, torch.full_like(positions, int(purpose) << 32)))
    key = torch.stack((seeds << 32, seeds & _HIGH_MASK))
    # The upper 53 bits of the first two words, read as one number.
    bits = (_rounds(counter, key)[0] >> 11) & ((1 << 53) - 1)
    return bits.to(torch.float64) * 2.0**-53


def philox4x32(counter: Tensor, key: Tensor) -> Tensor:
    """Apply Philox4x32-10 to N counters.

    :param counter: [4, N] int64, each a 32-bit word.
    :param key: [2, N] int64, each a 32-bit word.
    :return: [4, N] int64, each a 32-bit word.
    """
    packed = _rounds((counter[0::2] << 32) | counter[1::2], key << 32)
    return torch.stack(((packed >> 32) & _WORD_MASK, packed & _WORD_MASK), dim=1).flatten(0, 1)


def _rounds(counter: Tensor, key: Tensor) -> Tensor:
    """The ten rounds on packed words.

    Words 0 and 1 share an int64, words 2 and 3 another, so that one multiplication gives a round both halves of its
    products where it needs them. Products and sums wrap: their bits are those of unsigned arithmetic.

    :param counter: [2, N] int64: (word 0 << 32 | word 1), (word 2 << 32 | word 3).
    :param key: [2, N] int64: (word 0 << 32), (word 1 << 32).
    :return: [2, N] int64, packed as ``counter``.
    """
    multipliers, increments, shift, mask = _constants(counter.device)
    packed = counter
    for round_key in (key + increments).unbind(0):
        products = packed.bitwise_right_shift(shift).bitwise_and_(mask).mul_(multipliers)
        packed = products.flip(0).bitwise_xor_(packed.bitwise_left_shift(shift)).bitwise_xor_(round_key)
    return packed


@lru_cache(maxsize=16)
def _constants(device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Multipliers [2, 1], key increments by round [10, 2, 1], shift and mask on ``device``.

    Made once: a step copies nothing to the device for its numbers.
    """
    multipliers = torch.tensor(_MULTIPLIERS, dtype=torch.int64, device=device).view(2, 1)
    weyl = torch.tensor(_KEY_INCREMENTS, dtype=torch.int64, device=device).view(1, 2, 1)
    rounds = torch.arange(NUM_ROUNDS, dtype=torch.int64, device=device).view(-1, 1, 1)
    shift = torch.tensor(32, dtype=torch.int64, device=device)
    mask = torch.tensor(_WORD_MASK, dtype=torch.int64, device=device)
    return multipliers, (rounds * weyl) << 32, shift, mask
