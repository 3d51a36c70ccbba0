"""The counter-based generator: published vectors, keys, range, independence."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specbench.engine.sampling.rng import Purpose, philox4x32, uniform

INT64 = st.integers(-(2**63), 2**63 - 1)

# The philox4x32-10 lines of Random123's tests/kat_vectors: counter, key, expected.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def column(text: str) -> torch.Tensor:
    return torch.tensor(words(text), dtype=torch.int64).unsqueeze(1)


def reference_philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 in Python's unbounded integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(second >> 32) ^ c[1] ^ k[0], second % 2**32, (first >> 32) ^ c[3] ^ k[1], first % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter: str, key: str, expected: str) -> None:
    assert philox4x32(column(counter), column(key)).squeeze(1).tolist() == words(expected)
    assert reference_philox(words(counter), words(key)) == words(expected)


def test_known_answers_side_by_side() -> None:
    counters, keys, expected = (torch.cat([column(row[i]) for row in KNOWN_ANSWERS], dim=1) for i in range(3))
    assert torch.equal(philox4x32(counters, keys), expected)


@given(seed=INT64, position=st.integers(0, 2**40), purpose=st.sampled_from(Purpose))
def test_uniform_is_philox_of_seed_position_and_purpose(seed: int, position: int, purpose: Purpose) -> None:
    unsigned = seed % 2**64
    first, second, *_ = reference_philox(
        [position >> 32, position % 2**32, int(purpose), 0], [unsigned % 2**32, unsigned >> 32]
    )
    drawn = uniform(torch.tensor([seed]), torch.tensor([position]), purpose)
    assert drawn.dtype == torch.float64
    assert drawn.item() == ((first << 32 | second) >> 11) / 2**53


def test_draws_do_not_depend_on_their_neighbours() -> None:
    seeds = torch.arange(257) * 7919 - 1000
    positions = torch.arange(257) % 13
    together = uniform(seeds, positions, Purpose.SAMPLE)
    order = torch.randperm(257, generator=torch.Generator().manual_seed(1))
    assert torch.equal(uniform(seeds[order], positions[order], Purpose.SAMPLE), together[order])
    alone = [uniform(seeds[i : i + 1], positions[i : i + 1], Purpose.SAMPLE).item() for i in range(257)]
    assert alone == together.tolist()
    assert len(set(alone)) == 257


def test_purposes_are_separate_streams() -> None:
    seeds, positions = torch.arange(5000), torch.full((5000,), 3)
    streams = torch.stack([uniform(seeds, positions, purpose) for purpose in Purpose])
    correlations = torch.corrcoef(streams) - torch.eye(len(Purpose), dtype=torch.float64)
    assert correlations.abs().max() < 5 / 5000**0.5


@pytest.mark.parametrize("axis", ["seeds", "positions"])
def test_uniform_along_each_axis(axis: str) -> None:
    counts = torch.arange(50_000)
    constant = torch.full_like(counts, 42)
    drawn = uniform(*((counts, constant) if axis == "seeds" else (constant, counts)), Purpose.SAMPLE)
    assert drawn.min() >= 0.0
    assert drawn.max() < 1.0
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > 1e-4
    successive = torch.corrcoef(torch.stack((drawn[:-1], drawn[1:])))[0, 1]
    assert successive.abs() < 5 / 50_000**0.5


def test_all_64_bits_of_a_seed_count() -> None:
    seeds = torch.tensor([5] + [5 ^ (1 << bit) for bit in range(63)] + [5 - 2**63])
    drawn = uniform(seeds, torch.zeros_like(seeds), Purpose.SAMPLE)
    assert len(set(drawn.tolist())) == 65


def test_the_last_of_53_bits_is_used() -> None:
    drawn = uniform(torch.arange(1000), torch.zeros(1000, dtype=torch.int64), Purpose.SAMPLE)
    odd = (drawn * 2**53).to(torch.int64) % 2
    assert 400 < odd.sum() < 600


@pytest.mark.gpu
def test_same_bits_on_cuda() -> None:
    seeds, positions = torch.arange(-5000, 5000) * 1_000_003, torch.arange(10_000) % 997
    for purpose in Purpose:
        here = uniform(seeds, positions, purpose)
        assert torch.equal(uniform(seeds.cuda(), positions.cuda(), purpose).cpu(), here)
