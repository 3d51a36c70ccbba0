"""What is wrong with the toggles that a scenario sets, and what those that it does not name are. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from specbench.engine.optimizations.base import load_toggle
from specbench.registry import OPTIMIZATIONS
from specbench.scenario.applicable import applicable_toggles, find_inapplicable
from specbench.scenario.machine import settle_device
from specbench.scenario.places import Issue
from specbench.scenario.schema import Scenario
from specbench.scenario.variants import OFF, ON


def complete_optimizations(chosen: Mapping[str, str], source: str, device: str) -> dict[str, str]:
    """``chosen``, with the production variant of every toggle of model ``source`` that it does not name.

    :param device: as a scenario names it.
    """
    device = settle_device(device)
    production = {name: load_toggle(name).production_on(device) for name in applicable_toggles(source)}
    return dict(sorted({**production, **chosen}.items()))


def find_toggle_conflicts(scenario: Scenario) -> Iterator[Issue]:
    """Toggles and variants that there are not, that the model has no use for, or that do not go together."""
    for name, variant in scenario.optimizations.items():
        if name not in OPTIMIZATIONS:
            yield Issue.unknown(("optimizations", name), "toggle", name, OPTIMIZATIONS)
        elif variant not in (variants := load_toggle(name).variants):
            yield _unknown_variant(name, variant, variants)
    for index, name in enumerate(scenario.study or ()):
        if name not in OPTIMIZATIONS:
            yield Issue.unknown(("study", index), "toggle", name, OPTIMIZATIONS)
    yield from find_inapplicable(scenario)
    chosen = complete_optimizations(scenario.optimizations, scenario.model.source, scenario.engine.device)
    if all(name in OPTIMIZATIONS for name in chosen):
        yield from _toggle_pairs(chosen)
        yield from _variant_needs(chosen, scenario)


def _toggle_pairs(chosen: Mapping[str, str]) -> Iterator[Issue]:
    """What a toggle off its baseline needs of the others, and what it cannot stand beside."""
    settings = {f"{name}={variant}" for name, variant in chosen.items()}
    for name, variant in chosen.items():
        toggle = load_toggle(name)
        if variant == toggle.baseline or variant not in toggle.variants:
            continue
        for needed in toggle.requires:
            if needed not in settings:
                yield Issue(("optimizations", name), f"{variant} needs {needed}", f"set optimizations.{needed}")
        for other in toggle.conflicts:
            if other in settings:
                yield Issue(("optimizations", name), f"{variant} cannot stand beside {other}", "change one of the two")


def _variant_needs(chosen: Mapping[str, str], scenario: Scenario) -> Iterator[Issue]:
    """Variants that mean nothing beside what the rest of the scenario is, and why that is what it is."""
    for name, variant in chosen.items():
        declared = load_toggle(name).variants.get(variant)
        if declared is None:
            continue
        if declared.needs_speculation and scenario.drafter.name == "none":
            what = f"{variant} means nothing without speculation, and the drafter is none here"
            yield Issue(("optimizations", name), what, "drafter: ngram, or another variant")
        for needed in declared.missing_from(chosen):
            other = needed.partition("=")[0]
            what = f"{variant} means nothing without {needed}, and {other} is {chosen.get(other, 'not there')} here"
            if other in chosen and other not in scenario.optimizations:
                what += f", as in production on {settle_device(scenario.engine.device)}"
            yield Issue(("optimizations", name), what, f"set optimizations.{needed} as well")


def _unknown_variant(toggle: str, name: str, known: Iterable[str]) -> Issue:
    """Of one that says no more than on or off, the hint is what that means; another one's name may be close to it."""
    issue = Issue.unknown(("optimizations", toggle), f"variant of {toggle}", name, known)
    declared = load_toggle(toggle)
    hints = {ON: f"{declared.recommended} is the recommended variant", OFF: f"{declared.baseline} is the baseline"}
    return replace(issue, hint=hints.get(name, issue.hint))
