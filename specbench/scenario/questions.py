"""What ``ab``, ``sweep`` and ``selftest`` ask: scenario file and flags -> Question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specbench.device.times import SIM
from specbench.engine.config import ModelSpec
from specbench.engine.models.checkpoint import resolve_model_config
from specbench.engine.models.config import ModelConfig
from specbench.errors import ScenarioError
from specbench.records import DELAY, EQUAL_ARMS, SWAPPED
from specbench.scenario.arm_pairs import PairBook, refuse_twins
from specbench.scenario.axes import VARIANT
from specbench.scenario.contributions import Arm
from specbench.scenario.diagnosis import diagnose
from specbench.scenario.loader import ScenarioFile, open_scenario
from specbench.scenario.masking import mask
from specbench.scenario.measure_schema import Measure, Process
from specbench.scenario.overrides import Override
from specbench.scenario.places import Places, dotted, raise_issues, shorten
from specbench.scenario.plan import PERIOD_STEPS, SEGMENT_STEPS, AbSettings, PlanPoint, Question, RunPlan
from specbench.scenario.planner import BASE, require_recorded
from specbench.scenario.point_book import PointBook, locating
from specbench.scenario.resolve import ResolvedScenario, model_spec, resolve
from specbench.scenario.schema import Scenario
from specbench.scenario.settled import settle, write_scenario
from specbench.scenario.sizing import Calibration, plan_question, plan_sweep
from specbench.scenario.sweep import SweepPoint, expand_sweep, merged_points, refuse_void
from specbench.scenario.units import parse_duration, parse_percent
from specbench.scenario.variants import ON, naming, variant_overrides
from specbench.scenario.yaml12 import KeyPath

__all__ = [
    "Calibration",
    "ask_ab",
    "ask_selftest",
    "ask_sweep",
    "count_points",
    "plan_question",
    "plan_sweep",
    "read_settings",
    "resolved_points",
]

AB, SWEEP, SELFTEST = "ab", "sweep", "selftest"
KNOWN_DELAY = {"kind": "delay", "step_percent": 10.0}
"""What ``selftest`` puts into one arm: microseconds in the plan, on both lanes where they are this process's."""
OVERLAPPED_PERIOD_STEPS = 8
"""Under overlap a switch empties the device, and steps that fill it again are in no figure: long periods keep their
share small."""
GUARD_STEPS, OVERLAPPED_GUARD_STEPS = 1, 2
"""Under overlap the first step after a switch has none in flight that hides the host's work: it is a guard as well."""
NO_CHANGES = SweepPoint({}, ())


def ask_ab(
    path: str | Path,
    overrides: Sequence[str] = (),
    baseline: str = "off",
    candidates: Sequence[str] = (ON,),
    *,
    each: bool = False,
    pairs: bool = False,
) -> Question:
    """Ask how each candidate compares with the baseline, at every point of the scenario's sweep.

    :param overrides: ``key=value`` texts, as after ``--set``.
    :param baseline: a variant, as after ``--baseline``; ``candidates`` likewise, at least one.
    :param each: also what every key of each candidate contributes; ``pairs`` adds any two of them.
    :raises InputError: whatever is wrong.
    """
    file = open_scenario(path, overrides)
    base = settle(resolve(file.base))
    changes = _arm_changes(file, baseline, candidates)
    book = PairBook(base.scenario.measure.design)
    for point in expand_sweep(file):
        first, *others = _level([_arm(file, point, arm) for arm in changes])
        resolved = [book.compare(first, other, point.coordinates, each=each, pairs=pairs) for other in others]
        refuse_twins(others, resolved)
    for line in (*_unused(base.scenario.measure), *merged_points(file)):
        book.note(line)
    return book.ask(AB, base, read_settings(base.scenario.measure, book.overlaps))


def ask_sweep(path: str | Path, overrides: Sequence[str] = (), variant: str | None = None) -> Question:
    """Ask for the figures of every point of the scenario's sweep; of the scenario alone where it has none.

    :param variant: applied at every point, as after ``--variant``.
    :raises InputError: whatever is wrong.
    """
    file = open_scenario(path, overrides)
    book = _sweep_points(file, variant)
    for resolved in book.resolved:
        require_recorded(resolved.scenario)
    _refuse_simulated_beside_real(book.resolved)
    base = book.resolve(file.base)
    return Question(
        kind=SWEEP,
        points=book.write_points(),
        comparisons=(),
        settings=None,
        warmup_requests=book.warmup_requests,
        scenario=write_scenario(base),
        repeats=base.scenario.measure.repeats,
        notes=tuple(book.notes),
    )


def count_points(file: ScenarioFile) -> int:
    """Points of the scenario's sweep, at each context length of its windows, all checked; 1 where it has neither.

    :raises InputError: whatever is wrong.
    """
    return len(_sweep_points(file, None).resolved)


def ask_selftest(path: str | Path, overrides: Sequence[str] = (), *, num_aa: int = 20) -> Question:
    """Ask whether the instrument can be believed here: does a variant differ from itself, is a known delay found?

    ``num_aa`` comparisons of the variant ``on`` with itself (role ``A/A``), one with a delay of 10% of a step in arm B
    (``delay``) and one with it in arm A (``swapped``). No look ends them early. The scenario's sweep has no part in it.

    :raises InputError: whatever is wrong.
    """
    file = open_scenario(path, overrides)
    base = settle(resolve(file.base))
    book = PairBook(base.scenario.measure.design)
    windows = base.scenario.measure.windows
    if windows is not None and len(windows.kv_len) > 1:
        book.note(f"measure.windows: a selftest compares at one context length, {windows.kv_len[0]} tokens")
    arm = Arm(ON, _change(file, NO_CHANGES, variant_overrides(ON, file.base)))
    for _ in range(num_aa):
        book.add_pair(arm, arm, EQUAL_ARMS, {})
    delay = {**KNOWN_DELAY, "lane": "both" if arm.scenario.process is None else "host"}
    book.add_pair(arm, arm, DELAY, {}, injected={"B": delay})
    book.add_pair(arm, arm, SWAPPED, {}, injected={"A": delay})
    settings = read_settings(base.scenario.measure, book.overlaps)
    return book.ask(SELFTEST, base, replace(settings, stop_early=False))


def read_settings(measure: Measure, overlaps: bool) -> AbSettings:
    """How comparisons are measured, in numbers.

    :param overlaps: some arm launches a step before the one in flight has ended.
    """
    period_steps = measure.period_steps or (OVERLAPPED_PERIOD_STEPS if overlaps else PERIOD_STEPS)
    guard_steps = measure.guard_steps or (OVERLAPPED_GUARD_STEPS if overlaps else GUARD_STEPS)
    steps_per_quad = 4 * (period_steps + guard_steps)
    segment_steps = SEGMENT_STEPS if measure.windows is None else measure.windows.steps
    quads = measure.quads_per_segment or 1
    if measure.windows is not None and quads * steps_per_quad > segment_steps:
        taken = "1 quad of four periods takes" if quads == 1 else f"{quads} quads of four periods take"
        raise ScenarioError(
            f"{taken} {quads * steps_per_quad} steps, and a window has {segment_steps}",
            where="measure.windows.steps",
            hint=f"{quads * steps_per_quad} or more, or fewer measure.period_steps",
        )
    return AbSettings(
        margin=parse_percent(measure.margin) / 100,
        confidence=parse_percent(measure.confidence) / 100,
        budget_s=parse_duration(measure.budget),
        num_looks=measure.looks,
        anytime=measure.anytime,
        processes=measure.processes,
        period_steps=period_steps,
        guard_steps=guard_steps,
        quads_per_segment=measure.quads_per_segment or max(segment_steps // steps_per_quad, 1),
        segment_requests=measure.segment_requests,
        max_units=measure.max_units,
        seed=measure.seed,
    )


def resolved_points(plan: RunPlan | Question) -> list[ResolvedScenario]:
    """Each point as it will run, from the plan alone. Memory was checked when it was asked, and is not again."""
    models: dict[ModelSpec, ModelConfig] = {}
    return [_resolve_point(plan, point, models) for point in plan.points]


def _sweep_points(file: ScenarioFile, variant: str | None) -> PointBook:
    changes = [] if variant is None else variant_overrides(variant, file.base)
    who = f"the variant {shorten(repr(variant))}"
    _refuse_all_shadowed(file, [changes], f"{who} sets")
    book = PointBook()
    for point in expand_sweep(file):
        refuse_void(changes, point, who)
        name = str(point.coordinates.get(VARIANT) or variant or BASE)
        with naming(variant):
            book.add(_change(file, point, changes), name, point.coordinates)
    for line in merged_points(file):
        book.note(line)
    return book


def _refuse_simulated_beside_real(points: Sequence[ResolvedScenario]) -> None:
    """Refuse a table in which declared times stand beside real ones."""
    devices = list(dict.fromkeys(point.engine.device for point in points))
    if len(devices) > 1 and SIM in devices:
        raise ScenarioError(
            f"points run on {' and '.join(devices)}: declared times in one table with real ones",
            where="engine.device",
            hint="a sweep of its own for sim",
        )


def _unused(measure: Measure) -> list[str]:
    """What a scenario that other commands share sets, and a comparison has no use for."""
    lines = []
    if measure.timeout is not None:
        lines.append("measure.timeout has no part in ab: a run that is cut is half of no pair; measure.budget ends it")
    if measure.repeats != 1:
        lines.append("measure.repeats has no part in ab: measure.max_units and measure.budget say how much is measured")
    if measure.steps is not None:
        lines.append("measure.steps has no part in ab: nothing is profiled")
    return lines


@dataclass(frozen=True)
class _Changes:
    """An arm: the variant as typed, and what it changes."""

    name: str
    flag: str
    overrides: list[Override]


def _arm_changes(file: ScenarioFile, baseline: str, candidates: Sequence[str]) -> list[_Changes]:
    """The baseline's changes, then each candidate's.

    :raises ScenarioError: no candidate, an arm that changes how it is measured, or a --set that no arm heeds.
    """
    if not candidates:
        raise ScenarioError("there is no candidate", where="--candidate", hint="--candidate on")
    texts = [("--baseline", baseline), *(("--candidate", text) for text in candidates)]
    arms = [_Changes(text, flag, variant_overrides(text, file.base, flag=flag)) for flag, text in texts]
    for arm in arms:
        for override in arm.overrides:
            if override.path[0] == "measure":
                raise ScenarioError(
                    f"sets {dotted(override.path)}, which says how both arms are measured",
                    where=override.place,
                    hint=f"--set {dotted(override.path)}=VALUE, for both",
                )
    _refuse_all_shadowed(file, [arm.overrides for arm in arms], "every arm sets")
    return arms


def _refuse_all_shadowed(file: ScenarioFile, arms: Sequence[Sequence[Override]], who: str) -> None:
    """Refuse a ``--set`` that each of ``arms`` replaces: it would do nothing."""
    for change in file.overrides:
        replacing = [_first_replacing(change, overrides) for overrides in arms]
        if replacing and all(replacing):
            raise ScenarioError(
                f"has no effect: {who} {dotted(replacing[0] or ())} as well",
                where=change.place,
                hint="drop it",
            )


def _first_replacing(change: Override, overrides: Iterable[Override]) -> KeyPath | None:
    found = (other.replacement_of(change) for other in overrides)
    return next((path for path in found if path is not None), None)


def _arm(file: ScenarioFile, point: SweepPoint, changes: _Changes) -> Arm:
    refuse_void(changes.overrides, point, f"{changes.flag} {shorten(mask(changes.name))}")
    with naming(changes.name, changes.flag):
        return Arm(mask(changes.name), _change(file, point, changes.overrides))


def _level(arms: list[Arm]) -> list[Arm]:
    """Every arm in a process of its own where one is, so that all of them pay for the pipe."""
    if all(arm.scenario.process is None for arm in arms):
        return arms
    alone = [arm.scenario.model_copy(update={"process": arm.scenario.process or Process()}) for arm in arms]
    return [
        replace(arm, scenario=scenario.with_places(arm.scenario.places))
        for arm, scenario in zip(arms, alone, strict=True)
    ]


def _change(file: ScenarioFile, point: SweepPoint, overrides: Sequence[Override]) -> Scenario:
    with locating(point.coordinates):
        return file.changed([*point.overrides, *overrides], drop=("sweep", "variants"))


def _resolve_point(
    plan: RunPlan | Question, point: PlanPoint, models: dict[ModelSpec, ModelConfig]
) -> ResolvedScenario:
    data: dict[str, Any] = dict(plan.scenario if point.scenario is None else point.scenario)
    try:
        scenario = Scenario.model_validate(data)
    except ValidationError as error:
        # A plan of another version of specbench: its keys were others.
        raise_issues(diagnose(error), Places("scenario of the plan"), "scenario of the plan")
        raise
    spec = model_spec(scenario)
    if spec not in models:
        models[spec] = resolve_model_config(spec)
    return resolve(scenario, models[spec], available_memory=lambda _: None)
