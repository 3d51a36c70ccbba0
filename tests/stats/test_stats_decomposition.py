"""Log points that add up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.errors import InputError
from specbench.stats.decomposition import Decomposition, StepCosts, decompose

MS = st.floats(0, 50).map(lambda value: round(value, 4))
NAMES = ("device", "host_exposed", "other_idle")


def decompose_one(
    before: tuple[float, ...], after: tuple[float, ...], tokens: tuple[float, float] = (1.0, 1.0)
) -> Decomposition:
    arms = [
        StepCosts([count], {name: [value] for name, value in zip(NAMES, costs, strict=True)})
        for count, costs in ((tokens[0], before), (tokens[1], after))
    ]
    return decompose(arms[0], arms[1])


@given(
    st.tuples(MS, MS, MS).filter(lambda costs: sum(costs) > 0.01),
    st.tuples(MS, MS, MS).filter(lambda costs: sum(costs) > 0.01),
    st.tuples(st.floats(0.5, 8), st.floats(0.5, 8)),
)
def test_parts_add_up_to_the_gain(
    before: tuple[float, ...], after: tuple[float, ...], tokens: tuple[float, float]
) -> None:
    found = decompose_one(before, after, tokens)
    gain = math.log(tokens[1] / sum(after)) - math.log(tokens[0] / sum(before))
    assert math.fsum(found.means().values()) == pytest.approx(gain, abs=1e-12)
    assert found.total[0] == pytest.approx(gain, abs=1e-12)


def test_time_is_split_by_shares_of_the_change() -> None:
    """2 ms gained: 3 on the device, 1 lost to idle, nothing on the host."""
    parts = decompose_one((8.0, 1.0, 1.0), (5.0, 1.0, 2.0)).means()
    gain = math.log(10 / 8)
    assert parts["device"] == pytest.approx(gain * 3 / 2)
    assert parts["host_exposed"] == 0
    assert parts["other_idle"] == pytest.approx(-gain / 2)
    assert parts["tokens_per_step"] == 0


def test_tokens_and_time_are_apart() -> None:
    parts = decompose_one((8.0, 1.0, 1.0), (10.0, 1.0, 1.0), tokens=(2.0, 3.0)).means()
    assert parts["tokens_per_step"] == pytest.approx(math.log(1.5))
    assert parts["device"] == pytest.approx(-math.log(1.2))


def test_changes_that_cancel_stay_finite_and_cancel() -> None:
    parts = decompose_one((8.0, 1.0, 1.0), (7.0, 2.0, 1.0)).means()
    assert parts["device"] == pytest.approx(0.1)
    assert parts["host_exposed"] == pytest.approx(-0.1)
    # Just beside it the same figures come out: no jump where the step times meet.
    beside = decompose_one((8.0, 1.0, 1.0), (7.0, 2.0 + 1e-9, 1.0)).means()
    assert beside["device"] == pytest.approx(parts["device"], rel=1e-6)


def test_arms_alike_have_nothing_to_explain() -> None:
    assert set(decompose_one((8.0, 1.0, 1.0), (8.0, 1.0, 1.0)).means().values()) == {0.0}


def test_swapping_the_arms_changes_every_sign() -> None:
    there = decompose_one((8.0, 1.0, 1.0), (5.0, 3.0, 0.5), tokens=(2.0, 2.5)).means()
    back = decompose_one((5.0, 3.0, 0.5), (8.0, 1.0, 1.0), tokens=(2.5, 2.0)).means()
    assert {name: -value for name, value in back.items()} == pytest.approx(there)


def test_units_average_to_the_mean_log_ratio_and_have_intervals() -> None:
    rng = np.random.default_rng(0)
    before = {name: rng.uniform(1, 2, 10) for name in NAMES}
    after = {name: values * rng.uniform(0.8, 0.9, 10) for name, values in before.items()}
    found = decompose(StepCosts(np.ones(10), before), StepCosts(np.ones(10), after))
    logs = np.log(sum(before.values()) / sum(after.values()))
    assert found.total == pytest.approx(logs)
    assert sum(found.means().values()) == pytest.approx(logs.mean())
    interval = found.estimates()["device"].interval()
    assert interval is not None
    assert interval.low > 0
    assert found.estimates()["tokens_per_step"].not_computed is not None


def test_a_remainder_may_be_negative_but_no_step_may() -> None:
    assert decompose_one((8.0, 1.0, -0.1), (5.0, 1.0, 0.1)).total[0] > 0
    with pytest.raises(InputError, match="step_ms"):
        decompose_one((1.0, 1.0, -2.0), (1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("baseline", "candidate"),
    [
        (StepCosts([1.0], {"device": [1.0]}), StepCosts([1.0], {"host": [1.0]})),
        (StepCosts([1.0], {}), StepCosts([1.0], {})),
        (StepCosts([1.0], {"tokens_per_step": [1.0]}), StepCosts([1.0], {"tokens_per_step": [1.0]})),
        (StepCosts([1.0, 1.0], {"device": [1.0]}), StepCosts([1.0], {"device": [1.0]})),
        (
            StepCosts([1.0], {"device": [1.0], "idle": [1.0, 2.0]}),
            StepCosts([1.0], {"device": [1.0], "idle": [1.0]}),
        ),
        (StepCosts([0.0], {"device": [1.0]}), StepCosts([1.0], {"device": [1.0]})),
        (StepCosts([1.0], {"device": [float("nan")]}), StepCosts([1.0], {"device": [1.0]})),
    ],
)
def test_costs_that_cannot_be_compared_are_refused(baseline: StepCosts, candidate: StepCosts) -> None:
    with pytest.raises(InputError):
        decompose(baseline, candidate)
