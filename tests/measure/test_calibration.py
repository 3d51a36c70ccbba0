"""How many requests a run of a comparison gets."""

from __future__ import annotations

import pytest

from specbench.measure.calibration import BATCHES_PER_RUN, FEW_UNITS, TARGET_UNITS, _requests_per_run
from specbench.scenario.enumeration import TRIALS_PER_VISIT
from specbench.scenario.plan import RUNS

RUNS_A_UNIT = TRIALS_PER_VISIT[RUNS]


def requests(budget_s: float, least: int, *, most: int = 1000, batches: int = BATCHES_PER_RUN) -> int:
    """With a second for a request and half a second around a run."""
    return _requests_per_run(budget_s, 0.5, 1.0, least, most, batches=batches)


def test_one_request_at_once_leaves_the_budget_its_units() -> None:
    assert requests(TARGET_UNITS * RUNS_A_UNIT * 3.5, 1, batches=1) == 3


def test_several_at_once_get_batches_enough_to_be_full_most_of_the_time() -> None:
    assert requests(TARGET_UNITS * RUNS_A_UNIT * 6.5, 4) == 12
    assert requests(TARGET_UNITS * RUNS_A_UNIT * 100.5, 4) == 100


def test_fewer_batches_rather_than_too_few_units() -> None:
    assert requests(FEW_UNITS * RUNS_A_UNIT * 8.5, 4) == 8


@pytest.mark.parametrize(("budget_s", "most", "expected"), [(1.0, 1000, 4), (1e4, 10, 10)])
def test_never_less_than_a_batch_nor_more_than_there_are(budget_s: float, most: int, expected: int) -> None:
    assert requests(budget_s, 4, most=most) == expected
