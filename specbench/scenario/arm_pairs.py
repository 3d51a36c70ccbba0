"""The comparisons of a question: pairs of arms, with the design that holds for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from specbench.errors import ScenarioError
from specbench.records import CANDIDATE, Difference
from specbench.scenario.conflicts import REPLAY
from specbench.scenario.contributions import Arm, list_contributions, list_parts
from specbench.scenario.designs import choose_design
from specbench.scenario.differences import find_differences, refuse_simulated_beside_real, refuse_unlike, weakest
from specbench.scenario.places import shorten
from specbench.scenario.plan import MIRRORED, RUNS, AbSettings, ComparisonPlan, Question
from specbench.scenario.point_book import PointBook
from specbench.scenario.resolve import ResolvedScenario
from specbench.scenario.schema import Scenario
from specbench.scenario.settled import write_scenario
from specbench.scenario.variants import naming


class PairBook(PointBook):
    """Points, and the comparisons between them.

    :param requested_design: ``measure.design``.
    """

    def __init__(self, requested_design: str) -> None:
        super().__init__()
        self.comparisons: list[ComparisonPlan] = []
        self._requested_design = requested_design

    def compare(
        self, baseline: Arm, candidate: Arm, coordinates: Mapping[str, Any], *, each: bool, pairs: bool
    ) -> Scenario:
        """Add the comparison of a candidate with the baseline, and with ``each`` what its parts contribute.

        :return: the candidate resolved.
        :raises ScenarioError: the arms do not do the same work, or nothing differs.
        """
        names = (f"--baseline {shorten(baseline.name)}", f"--candidate {shorten(candidate.name)}")
        with naming(baseline.name, "--baseline"):
            first = self.add(baseline.scenario, baseline.name, coordinates)
        with naming(candidate.name, "--candidate"):
            second = self.add(candidate.scenario, candidate.name, coordinates)
        before, after = self.resolved[first].scenario, self.resolved[second].scenario
        refuse_unlike(before, after, names)
        refuse_simulated_beside_real(before, after, names)
        differences = find_differences(before, after)
        if not differences:
            raise ScenarioError(
                f"nothing differs between {names[0]} and {names[1]}",
                where="specbench ab",
                hint="another candidate, or `specbench selftest`, which compares a variant with itself",
            )
        self._append(first, second, CANDIDATE, differences)
        if not each:
            return after
        parts = list_parts(baseline.scenario, candidate.scenario, differences, self.resolve)
        if len(parts) < 2:
            self.note(
                f"--each adds nothing to {candidate.name}: it differs from {baseline.name} in {parts[0].name} alone"
            )
        for part in list_contributions(baseline, candidate, parts, pairs=pairs):
            self.add_pair(part.baseline, part.candidate, part.role, coordinates)
        return after

    def add_pair(
        self,
        baseline: Arm,
        candidate: Arm,
        role: str,
        coordinates: Mapping[str, Any],
        injected: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        """Add one comparison; arms that are the same share a point.

        :raises InputError: an arm cannot be, or the requested design cannot hold.
        """
        first = self.add(baseline.scenario, baseline.name, coordinates)
        second = self.add(candidate.scenario, candidate.name, coordinates)
        differences = find_differences(self.resolved[first].scenario, self.resolved[second].scenario)
        self._append(first, second, role, differences, injected)

    @property
    def overlaps(self) -> bool:
        """Whether some arm launches a step before the one in flight has ended."""
        return any(resolved.scenario.optimizations.get("overlap") == "on" for resolved in self.resolved)

    def _append(
        self,
        first: int,
        second: int,
        role: str,
        differences: tuple[Difference, ...],
        injected: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        before, after = self.resolved[first].scenario, self.resolved[second].scenario
        same_process = before.process is None and after.process is None
        design, why = choose_design(self._requested_design, differences, same_process=same_process)
        if design == MIRRORED and before.acceptance.mode == REPLAY and before.acceptance.source is None:
            design, why = _whole_runs(self._requested_design)
        index = len(self.comparisons)
        exactness = weakest(differences)
        self.comparisons.append(
            ComparisonPlan(index, first, second, role, design, why, differences, exactness, injected)
        )

    def ask(self, kind: str, base: ResolvedScenario, settings: AbSettings) -> Question:
        """The question that all of it makes."""
        return Question(
            kind=kind,
            points=self.write_points(),
            comparisons=tuple(self.comparisons),
            settings=settings,
            warmup_requests=self.warmup_requests,
            scenario=write_scenario(_settle_periods(base, settings)),
            notes=tuple(self.notes),
        )


def _settle_periods(base: ResolvedScenario, settings: AbSettings) -> ResolvedScenario:
    """The scenario with what ``settings`` made of periods that it left open."""
    chosen = {"period_steps": settings.period_steps, "quads_per_segment": settings.quads_per_segment}
    measure = base.scenario.measure.model_copy(update=chosen)
    return replace(base, scenario=base.scenario.model_copy(update={"measure": measure}))


def refuse_twins(candidates: Sequence[Arm], resolved: Sequence[Scenario]) -> None:
    """Refuse two candidates that are one configuration.

    :param resolved: the scenario of each.
    :raises ScenarioError: names both.
    """
    for (one, first), (other, second) in combinations(zip(candidates, resolved, strict=True), 2):
        if not find_differences(first, second):
            raise ScenarioError(
                f"nothing differs between --candidate {shorten(one.name)} and --candidate {shorten(other.name)}",
                where="specbench ab",
                hint="drop one of the two",
            )


def _whole_runs(requested: str) -> tuple[str, str]:
    """The design of arms that replay what the baseline accepts in the same command: it is recorded run by run.

    :raises ScenarioError: another design was asked for.
    """
    if requested == MIRRORED:
        raise ScenarioError(
            "accepted lengths are recorded from whole runs of the baseline, and a mirrored segment is cut",
            where="measure.design",
            hint="acceptance.source, a folder of a run to replay; or measure.design=runs",
        )
    return RUNS, "acceptance is replayed from the baseline, whose lengths are recorded run by run"
