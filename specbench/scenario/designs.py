"""Which design compares two arms: mirrored periods in one engine, or whole runs by turns."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.engine.optimizations.base import Exactness
from specbench.errors import ScenarioError
from specbench.records import Difference
from specbench.scenario.differences import list_following, reason_of
from specbench.scenario.plan import MIRRORED, RUNS, TOGGLES

AUTO = "auto"


def choose_design(requested: str, differences: Sequence[Difference], *, same_process: bool) -> tuple[str, str]:
    """The design and, in words, why.

    :param requested: ``auto``, ``mirrored`` or ``runs``.
    :param same_process: both arms run in specbench's own process.
    :raises ScenarioError: ``mirrored`` was asked for and cannot hold.
    """
    obstacle = _obstacle(differences, same_process)
    if requested == RUNS:
        return RUNS, "asked for"
    if obstacle is None:
        return MIRRORED, _describe(differences)
    if requested == MIRRORED:
        raise ScenarioError(
            f"mirrored periods cannot compare these arms: {obstacle}", where="measure.design", hint="auto, or runs"
        )
    return RUNS, obstacle


def _describe(differences: Sequence[Difference]) -> str:
    if not differences:
        return "nothing differs, so that every step can be timed in both arms"
    keys = ", ".join(difference.key.removeprefix(TOGGLES) for difference in differences)
    return f"{keys}: bit-identical and step-preserving, so that every step can be timed in both arms"


def _obstacle(differences: Sequence[Difference], same_process: bool) -> str | None:
    """Why both arms cannot share one engine and its steps; None where they can."""
    following = list_following(differences)
    for difference in differences:
        if difference.key in following:
            continue
        if difference.exactness != Exactness.BIT_IDENTICAL.value:
            return f"{difference.key} is {difference.exactness}: {reason_of(difference)}"
        if not difference.step_preserving:
            return f"{difference.key} is not step-preserving: {reason_of(difference)}"
        if not difference.key.startswith(TOGGLES):
            return f"{difference.key} needs an engine of its own: {reason_of(difference)}"
    return None if same_process else "an arm runs in a process of its own, whose steps no other arm can share"
