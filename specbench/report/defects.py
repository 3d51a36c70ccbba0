"""Known defects that stood while something was measured: no report of theirs may be taken for one of a sound engine."""

from __future__ import annotations

from collections.abc import Iterator

from specbench.engine.optimizations.defects import KNOWN_DEFECT, known_defects
from specbench.records import Analysis

_TOGGLES = "optimizations."


def defect_lines(analysis: Analysis) -> tuple[str, ...]:
    """One line a known defect: its name, where it stood, what it does wrong; empty for a sound engine."""
    wrong: dict[str, str] = {}
    places: dict[str, list[str]] = {}
    for toggle, variant, place in _settings(analysis):
        for setting, summary in known_defects({toggle: variant}).items():
            wrong[setting] = summary
            places.setdefault(setting, []).append(place)
    return tuple(describe_defect(setting, wrong[setting], places[setting]) for setting in wrong)


def describe_defect(setting: str, summary: str, places: list[str]) -> str:
    """``KNOWN DEFECT: capture_params=leak (variant broken): what it does wrong``.

    :param places: where it stood; those that say no more than its name are left out.
    """
    variant = setting.partition("=")[2]
    named = [place for place in dict.fromkeys(places) if place not in ("", variant) and setting not in place]
    where = f" ({', '.join(named)})" if named else ""
    return f"{KNOWN_DEFECT}: {setting}{where}: {summary}"


def _settings(analysis: Analysis) -> Iterator[tuple[str, object, str]]:
    """(toggle, variant, arm where it is one's own) of everything that was measured."""
    for comparison in analysis.comparisons:
        for item in comparison.differences:
            if item.key.startswith(_TOGGLES):
                toggle = item.key.removeprefix(_TOGGLES)
                yield toggle, item.baseline, comparison.baseline
                yield toggle, item.candidate, comparison.candidate
    coordinates = [point.axes for point in analysis.points] + [item.point for item in analysis.comparisons]
    for axes in coordinates:
        for key, variant in axes.items():
            if key.startswith(_TOGGLES):
                yield key.removeprefix(_TOGGLES), variant, ""
    for toggle, found in (analysis.subject.get("toggles") or {}).items():
        yield toggle, found.get("variant"), ""
    chosen = analysis.scenario.get("optimizations")
    if isinstance(chosen, dict):
        for toggle, variant in chosen.items():
            yield toggle, variant, ""
