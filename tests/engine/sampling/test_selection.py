"""Order statistics and cumulative sums against sorting and Python integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specbench.engine.sampling.selection import (
    BLOCK,
    CumulativeMass,
    first_argmax,
    largest_values,
    ordered_keys,
    pad_columns,
    select_by_mass,
    values_of,
)

SHAPES = st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 63, 64, 65, 128, 1000, 5003]))


def random_values(shape: tuple[int, int], distinct: int, seed: int) -> torch.Tensor:
    """Float32 with few or many distinct values, of both signs and all magnitudes."""
    generator = np.random.default_rng(seed)
    values = generator.choice(generator.normal(size=distinct) * 10.0 ** generator.integers(-6, 6, distinct), shape)
    return torch.from_numpy(values.astype(np.float32))


@given(shape=SHAPES, distinct=st.sampled_from([1, 3, 10_000]), seed=st.integers(0, 10**6))
def test_first_argmax_is_the_lowest_id(shape: tuple[int, int], distinct: int, seed: int) -> None:
    values = random_values(shape, distinct, seed)
    assert first_argmax(values).tolist() == values.numpy().argmax(axis=1).tolist()


@pytest.mark.parametrize("column", [0, 5, 64, 199])
def test_first_argmax_points_at_nan(column: int) -> None:
    values = torch.zeros(1, 200)
    values[0, 100] = float("inf")
    values[0, column] = float("nan")
    assert first_argmax(values).item() == column


@given(shape=SHAPES, count=st.integers(1, 80), distinct=st.sampled_from([1, 3, 40, 10_000]), seed=st.integers(0, 10**6))
def test_largest_values_are_those_of_a_sort(shape: tuple[int, int], count: int, distinct: int, seed: int) -> None:
    values = random_values(shape, distinct, seed)
    count = min(count, shape[1])
    expected = np.sort(values.numpy(), axis=1)[:, ::-1][:, :count]
    assert np.array_equal(largest_values(pad_columns(values), count).numpy(), expected)


def test_largest_values_when_one_block_has_them_all_and_when_each_has_one() -> None:
    values = torch.zeros(2, 100 * BLOCK)
    values[0, 7 * BLOCK : 8 * BLOCK] = torch.arange(1.0, BLOCK + 1)
    values[1, ::BLOCK] = torch.arange(1.0, 101.0)
    largest = largest_values(values, 20)
    assert largest[0].tolist() == [float(BLOCK - i) for i in range(20)]
    assert largest[1].tolist() == [100.0 - i for i in range(20)]


@given(shape=SHAPES, distinct=st.sampled_from([1, 3, 40, 10_000]), seed=st.integers(0, 10**6), data=st.data())
def test_selection_by_count_is_the_kth_largest(
    shape: tuple[int, int], distinct: int, seed: int, data: st.DataObject
) -> None:
    values = random_values(shape, distinct, seed)
    k = torch.tensor([data.draw(st.integers(1, shape[1])) for _ in range(shape[0])])
    key, above = select_by_mass(ordered_keys(values), torch.ones(shape, dtype=torch.int64), shape[1] - k)
    expected = values.sort(dim=1, descending=True).values.gather(1, k.unsqueeze(1) - 1)
    assert torch.equal(values_of(key), expected.squeeze(1))
    assert torch.equal(above, (values > expected).sum(dim=1))


@given(shape=SHAPES, distinct=st.sampled_from([1, 3, 10_000]), seed=st.integers(0, 10**6), data=st.data())
def test_selection_by_mass_against_python(
    shape: tuple[int, int], distinct: int, seed: int, data: st.DataObject
) -> None:
    values = random_values(shape, distinct, seed).abs()
    mass = torch.from_numpy(np.random.default_rng(seed).integers(0, 2**40, shape))
    mass[:, 0] += 1  # no row is without mass
    slack = [data.draw(st.integers(0, int(row.sum()) - 1)) for row in mass]
    key, above = select_by_mass(values.view(torch.int32), mass, torch.tensor(slack))
    for row in range(shape[0]):
        below, expected = 0, None
        for value, weight in sorted(zip(values[row].tolist(), mass[row].tolist(), strict=True)):
            below += weight
            if below > slack[row]:
                expected = value
                break
        assert key.view(torch.float32)[row].item() == expected
        assert above[row].item() == mass[row][values[row] > expected].sum().item()


@given(
    rows=st.integers(1, 3),
    blocks=st.integers(1, 5),
    density=st.sampled_from([0.02, 0.5, 1.0]),
    seed=st.integers(0, 10**6),
    data=st.data(),
)
def test_locate_against_python(rows: int, blocks: int, density: float, seed: int, data: st.DataObject) -> None:
    generator = np.random.default_rng(seed)
    whole = generator.integers(1, 2**23, (rows, blocks * BLOCK)) << generator.integers(0, 17)
    whole *= generator.random(whole.shape) < density
    whole[:, generator.integers(0, blocks * BLOCK)] += 1 << 20
    cumulative = CumulativeMass(torch.from_numpy(whole.astype(np.float32)))
    assert cumulative.total.tolist() == whole.sum(axis=1).tolist()
    target = [data.draw(st.integers(0, int(total) - 1)) for total in whole.sum(axis=1)]
    expected = [int(np.argmax(np.cumsum(row) > t)) for row, t in zip(whole, target, strict=True)]
    assert cumulative.locate(torch.tensor(target)).tolist() == expected


def test_keys_are_in_the_order_of_the_values() -> None:
    values = torch.tensor([float("-inf"), -3.4e38, -1.0, -1e-45, 0.0, 1e-45, 1.0, 3.4e38, float("inf")])
    keys = ordered_keys(values)
    assert keys.tolist() == sorted(set(keys.tolist()))
    assert torch.equal(values_of(keys), values)
