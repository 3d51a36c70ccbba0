"""Every trial of a plan in the order in which it is measured, with masks: a pure function of seeds and counts.

A *round* visits every comparison once, in an order of its own, so that a drift of the machine meets all of them alike.
A visit is a few consecutive trials that stand or fall together: the two passes of a mirrored segment, or the four
whole runs of one unit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from specbench.scenario.plan import MIRRORED, RUNS, AbSettings, ComparisonPlan, RunPlan, Trial
from specbench.workloads.base import stable_seed

QUADS = ("ABBA", "BAAB")
TRIALS_PER_VISIT = {MIRRORED: 2, RUNS: 4}
_OTHER_ARM = str.maketrans("AB", "BA")


def units_per_visit(comparison: ComparisonPlan, settings: AbSettings) -> int:
    """Units that one visit gives."""
    return settings.quads_per_segment if comparison.design == MIRRORED else 1


def planned_units(plan: RunPlan, comparison: int) -> int:
    """Units of one comparison at which it ends, over all processes."""
    if plan.settings is None:
        return 0
    planned, design = plan.comparisons[comparison], plan.comparisons[comparison].design
    return plan.trials_by_comparison[comparison] // TRIALS_PER_VISIT[design] * units_per_visit(planned, plan.settings)


def enumerate_trials(
    comparisons: Sequence[ComparisonPlan],
    settings: AbSettings,
    visits_per_process: Sequence[int],
    sampling_seeds: Sequence[int],
) -> tuple[Trial, ...]:
    """Every trial of an ``ab``, process after process and round after round.

    :param visits_per_process: by comparison: rounds of each process that it takes part in, from the first on.
    :param sampling_seeds: by comparison: its scenarios' ``sampling.seed``.
    """
    rounds = max(visits_per_process, default=0)
    trials: list[Trial] = []
    for process in range(settings.processes):
        for turn in range(rounds):
            segment = turn + process * rounds
            for index in _order(len(comparisons), settings.seed, process, turn):
                if turn >= visits_per_process[index]:
                    continue
                seed = stable_seed(sampling_seeds[index], segment)
                trials.extend(_visit(comparisons[index], settings, process, segment, seed, len(trials)))
    return tuple(trials)


def enumerate_sweep(num_points: int, rounds: int, seed: int, sampling_seeds: Sequence[int]) -> tuple[Trial, ...]:
    """Every trial of a sweep: ``rounds`` times all points, each round in an order of its own.

    Every round replays a point's requests: its trials share one seed.

    :param sampling_seeds: by point, the scenario's ``sampling.seed``.
    """
    order = [(turn, point) for turn in range(rounds) for point in _order(num_points, seed, 0, turn)]
    return tuple(
        Trial(trial=index, point=point, segment=turn, pass_=0, mask=None, seed=sampling_seeds[point])
        for index, (turn, point) in enumerate(order)
    )


def draw_mask(num_quads: int, seed: int, comparison: int, process: int, segment: int) -> str:
    """Which arm runs each period of a pass: ``num_quads`` times ABBA or BAAB, each by the toss of a coin."""
    coin = random.Random(f"mask/{seed}/{comparison}/{process}/{segment}")
    return "".join(QUADS[coin.random() < 0.5] for _ in range(num_quads))


def complement(mask: str) -> str:
    """``mask`` with the arms exchanged."""
    return mask.translate(_OTHER_ARM)


def _order(count: int, seed: int, process: int, turn: int) -> list[int]:
    """0 to ``count`` - 1, shuffled. Sorting by :meth:`random.Random.random` draws the same on every Python."""
    source = random.Random(f"order/{seed}/{process}/{turn}")
    keys = [source.random() for _ in range(count)]
    return sorted(range(count), key=keys.__getitem__)


def _visit(
    comparison: ComparisonPlan, settings: AbSettings, process: int, segment: int, seed: int, first: int
) -> Iterator[Trial]:
    if comparison.design == MIRRORED:
        mask = draw_mask(settings.quads_per_segment, settings.seed, comparison.index, process, segment)
        for pass_, arms in enumerate((mask, complement(mask))):
            yield Trial(
                trial=first + pass_,
                point=comparison.baseline,
                segment=segment,
                pass_=pass_,
                mask=arms,
                seed=seed,
                comparison=comparison.index,
                process=process,
            )
        return
    for place, arm in enumerate(draw_mask(1, settings.seed, comparison.index, process, segment)):
        yield Trial(
            trial=first + place,
            point=comparison.baseline if arm == "A" else comparison.candidate,
            segment=segment,
            pass_=place,
            mask=None,
            seed=seed,
            comparison=comparison.index,
            arm=arm,
            process=process,
        )
