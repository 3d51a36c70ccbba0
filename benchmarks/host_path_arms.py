"""The arms of the host path: which variants are measured side by side, and how they take turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from host_path_decoder import SETTLING_STEPS, TIMED_STEPS, Decoder, spread

from specbench.registry import OPTIMIZATIONS

Choices = tuple[tuple[str, str], ...]
"""(toggle, variant) pairs of every toggle that shapes the host path."""
TOGGLES = ("sampling_params", "block_staging", "input_prep")
HEADLINES = {"sampling_params": "populate_sampling_params", "block_staging": "stage_block_offsets"}
"""The range whose time a group is about; elsewhere the whole preparation."""


@dataclass(frozen=True)
class Arm:
    """One variant of a group. Arms of equal choices are measured once."""

    group: str
    variant: str
    choices: Choices
    is_baseline: bool

    @property
    def headline(self) -> str:
        return HEADLINES.get(self.group, "prepare_inputs")


def list_arms() -> list[Arm]:
    """Each toggle's variants beside fixed ones of the others, then all baselines against all recommended.

    ``input_prep`` is measured with either variant of ``block_staging``; the others with ``rebuild``, because the steady
    path stages only what is new.
    """
    toggles = {name: OPTIMIZATIONS.load(name) for name in TOGGLES}
    baselines = {name: toggle.baseline for name, toggle in toggles.items()}
    recommended = {name: toggle.recommended for name, toggle in toggles.items()}
    rebuilt = {**recommended, "input_prep": baselines["input_prep"]}
    groups = [
        ("sampling_params", "sampling_params", rebuilt),
        ("block_staging", "block_staging", rebuilt),
        *(
            (f"input_prep, {variant} staging", "input_prep", {**recommended, "block_staging": variant})
            for variant in toggles["block_staging"].variants
        ),
    ]
    arms = [
        Arm(group, variant, tuple({**others, name: variant}.items()), variant == baselines[name])
        for group, name, others in groups
        for variant in toggles[name].variants
    ]
    both = (("baselines", baselines, True), ("recommended", recommended, False))
    return arms + [Arm("all", name, tuple(choices.items()), is_baseline) for name, choices, is_baseline in both]


@dataclass
class Taken:
    """What was found for one set of choices: microseconds by range, one entry a round, and counters over all."""

    rounds: list[dict[str, float]]
    counted: dict[str, int]

    @property
    def per_step(self) -> dict[str, float]:
        num_steps = len(self.rounds) * (SETTLING_STEPS + TIMED_STEPS)
        return {name: value / num_steps for name, value in self.counted.items()}


def measure(batch_size: int, draft_len: int, lengths: str, num_rounds: int) -> list[dict[str, Any]]:
    """Return one row an arm: times, ratios to the baseline of its group, counters."""
    arms = list_arms()
    distinct = list(dict.fromkeys(arm.choices for arm in arms))
    num_steps = (num_rounds + 1) * len(distinct) * (SETTLING_STEPS + TIMED_STEPS)
    decoder = Decoder(batch_size, draft_len, num_steps, lengths)
    taken = {choices: Taken([], {}) for choices in distinct}
    for round_ in range(-1, num_rounds):  # the first one warms up
        for turn in range(len(distinct)):
            choices = distinct[(turn + round_) % len(distinct)]
            before = decoder.read_counters(dict(choices))
            found = decoder.take_turn(dict(choices))
            if round_ >= 0:
                after, counted = decoder.read_counters(dict(choices)), taken[choices].counted
                taken[choices].rounds.append(found)
                taken[choices].counted = {k: counted.get(k, 0) + after[k] - before[k] for k in after}
    decoder.engine.shutdown()
    where = {"batch_size": batch_size, "draft_len": draft_len, "lengths": lengths}
    return [{**where, **_row(arm, taken[arm.choices], taken[_baseline(arm, arms).choices])} for arm in arms]


def _baseline(arm: Arm, arms: list[Arm]) -> Arm:
    return next(each for each in arms if each.group == arm.group and each.is_baseline)


def _row(arm: Arm, taken: Taken, baseline: Taken) -> dict[str, Any]:
    ratios = {}
    for name in dict.fromkeys((arm.headline, "prepare_inputs", "prepare_and_launch")):
        pairs = zip(taken.rounds, baseline.rounds, strict=True)
        ratios[name] = spread([mine[name] / other[name] for mine, other in pairs if other[name]])
    return {
        "group": arm.group,
        "variant": arm.variant,
        "is_baseline": arm.is_baseline,
        "choices": dict(arm.choices),
        "headline": arm.headline,
        "us": {name: spread([found[name] for found in taken.rounds]) for name in taken.rounds[0]},
        "ratio_to_baseline": ratios,
        "counted_per_step": taken.per_step,
    }
