"""Order, masks and seeds of a plan's trials."""

from __future__ import annotations

from collections import Counter

import pytest

from specbench.scenario.enumeration import complement, draw_mask, enumerate_sweep, enumerate_trials
from specbench.scenario.plan import AbSettings, ComparisonPlan, Trial


def _comparison(index: int, design: str) -> ComparisonPlan:
    return ComparisonPlan(index, 2 * index, 2 * index + 1, "candidate", design, "", (), "bit-identical")


def _trials(*designs: str, processes: int = 1, visits: int = 3, seed: int = 0) -> tuple[Trial, ...]:
    comparisons = [_comparison(index, design) for index, design in enumerate(designs)]
    settings = AbSettings(processes=processes, seed=seed)
    return enumerate_trials(comparisons, settings, [visits] * len(designs), [7] * len(designs))


def test_a_mirrored_visit_is_two_passes_with_complementary_masks() -> None:
    trials = _trials("mirrored", visits=50)
    assert [trial.trial for trial in trials] == list(range(100))
    for first, second in zip(trials[::2], trials[1::2], strict=True):
        assert (first.pass_, second.pass_, first.point, second.point) == (0, 1, 0, 0)
        assert (first.segment, first.seed, first.arm) == (second.segment, second.seed, None)
        assert first.mask is not None
        assert second.mask == complement(first.mask)
        quads = [first.mask[i : i + 4] for i in range(0, 16, 4)]
        assert set(quads) <= {"ABBA", "BAAB"}
    counts = Counter(trial.mask[0] for trial in trials[::2] if trial.mask)
    assert min(counts.values()) > 10


def test_a_visit_of_runs_is_abba_or_baab_with_one_seed() -> None:
    trials = _trials("runs", visits=60)
    orders = []
    for start in range(0, len(trials), 4):
        four = trials[start : start + 4]
        orders.append("".join(trial.arm or "" for trial in four))
        assert [trial.pass_ for trial in four] == [0, 1, 2, 3]
        assert len({(trial.segment, trial.seed, trial.mask) for trial in four}) == 1
        assert all(trial.point == (0 if trial.arm == "A" else 1) for trial in four)
    assert set(orders) == {"ABBA", "BAAB"}
    assert 15 < orders.count("ABBA") < 45


def test_each_round_visits_every_comparison_in_an_order_of_its_own() -> None:
    trials = _trials("mirrored", "mirrored", "runs", visits=20)
    rounds: dict[int, list[int | None]] = {}
    for trial in trials:
        order = rounds.setdefault(trial.segment, [])
        if trial.comparison not in order:
            order.append(trial.comparison)
    assert all(sorted(order) == [0, 1, 2] for order in rounds.values())  # type: ignore[type-var]
    assert len({tuple(order) for order in rounds.values()}) > 3
    first = [order[0] for order in rounds.values()]
    assert min(Counter(first).values()) >= 2


def test_a_round_replays_the_same_requests_in_every_comparison() -> None:
    seeds: dict[int, set[int]] = {}
    for trial in _trials("mirrored", "runs"):
        seeds.setdefault(trial.segment, set()).add(trial.seed)
    assert all(len(found) == 1 for found in seeds.values())
    assert len(set.union(*seeds.values())) == len(seeds)


def test_processes_have_segments_and_masks_of_their_own() -> None:
    trials = _trials("mirrored", processes=4, visits=2)
    assert [trial.process for trial in trials] == sorted(trial.process for trial in trials)
    assert [trial.segment for trial in trials[::2]] == list(range(8))
    assert len({trial.mask for trial in trials}) > 4
    assert draw_mask(8, 0, 0, 0, 5) != draw_mask(8, 0, 0, 1, 5)


def test_a_comparison_that_needs_fewer_visits_leaves_after_them() -> None:
    comparisons = [_comparison(0, "mirrored"), _comparison(1, "runs")]
    trials = enumerate_trials(comparisons, AbSettings(), [1, 3], [0, 0])
    assert Counter(trial.comparison for trial in trials) == {0: 2, 1: 12}
    assert {trial.segment for trial in trials if trial.comparison == 0} == {0}


def test_masks_are_the_same_on_every_machine() -> None:
    """Pinned: a plan is hashed, and a resumed one must be the same."""
    assert draw_mask(4, 0, 0, 0, 0) == "BAABABBAABBAABBA"
    assert _trials("mirrored")[0].seed == 5395587824163660081


@pytest.mark.parametrize("seed", [1, 2])
def test_the_seed_changes_orders_and_masks_and_not_the_requests(seed: int) -> None:
    one, two = _trials("mirrored", "mirrored", visits=8), _trials("mirrored", "mirrored", visits=8, seed=seed)
    assert [trial.mask for trial in one] != [trial.mask for trial in two]
    assert {trial.seed for trial in one} == {trial.seed for trial in two}


def test_rounds_of_a_sweep_shuffle_its_points_and_replay_their_requests() -> None:
    trials = enumerate_sweep(5, 8, 0, [10, 11, 12, 13, 14])
    assert [trial.trial for trial in trials] == list(range(40))
    rounds = [[trial.point for trial in trials[start : start + 5]] for start in range(0, 40, 5)]
    assert all(sorted(points) == [0, 1, 2, 3, 4] for points in rounds)
    assert len({tuple(points) for points in rounds}) > 4
    assert all(trial.seed == 10 + trial.point for trial in trials)
    assert [trial.segment for trial in trials] == [turn for turn in range(8) for _ in range(5)]
