"""The points of a question, each configuration once: added one by one, numbered in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from specbench.engine.config import ModelSpec
from specbench.engine.models.checkpoint import resolve_model_config
from specbench.engine.models.config import ModelConfig
from specbench.errors import InputError
from specbench.scenario.masking import mask
from specbench.scenario.plan import PlanPoint
from specbench.scenario.planner import name_axes
from specbench.scenario.resolve import ResolvedScenario, model_spec, resolve
from specbench.scenario.schema import Scenario
from specbench.scenario.settled import settle, write_point


class PointBook:
    """Resolves scenarios and numbers them; models are read once."""

    def __init__(self) -> None:
        self.resolved: list[ResolvedScenario] = []
        self.notes: list[str] = []
        self._models: dict[ModelSpec, ModelConfig] = {}
        self._at: dict[str, list[int]] = {}
        self._named: list[tuple[str, dict[str, Any]]] = []

    def resolve(self, scenario: Scenario) -> ResolvedScenario:
        """Write out defaults, with absolute paths and masked text.

        :raises InputError: what does not go together or fit.
        """
        spec = model_spec(scenario)
        if spec not in self._models:
            self._models[spec] = resolve_model_config(spec)
        return settle(resolve(scenario, self._models[spec]), self.note)

    def add(self, scenario: Scenario, variant: str, coordinates: Mapping[str, Any]) -> int:
        """The index of the point with this configuration, a new one where there is none yet.

        :param variant: what it is called; the first name stays.
        :param coordinates: of the sweep.
        :raises InputError: as :meth:`resolve`, naming the coordinates.
        """
        with locating(coordinates):
            resolved = self.resolve(scenario)
        place = repr(sorted(coordinates.items()))
        for known in self._at.setdefault(place, []):
            if self.resolved[known].scenario == resolved.scenario:
                return known
        index = len(self.resolved)
        self._at[place].append(index)
        self._named.append((mask(variant), dict(coordinates)))
        self.resolved.append(resolved)
        return index

    def write_points(self) -> tuple[PlanPoint, ...]:
        """The points in plain data, secrets masked."""
        return tuple(
            PlanPoint(index, variant, name_axes(resolved.scenario), write_point(resolved), coordinates)
            for index, (resolved, (variant, coordinates)) in enumerate(zip(self.resolved, self._named, strict=True))
        )

    def note(self, line: str) -> None:
        """Keep what the asker should be told, once."""
        if line not in self.notes:
            self.notes.append(line)

    @property
    def warmup_requests(self) -> int:
        """The most that any point asks for."""
        return max((resolved.scenario.measure.warmup_requests or 0 for resolved in self.resolved), default=0)


@contextmanager
def locating(coordinates: Mapping[str, Any]) -> Iterator[None]:
    """Name the coordinates of a point, where it has any, in what is wrong with it.

    :raises InputError: what was raised inside.
    """
    try:
        yield
    except InputError as error:
        if not coordinates:
            raise
        point = ", ".join(f"{key}={value}" for key, value in coordinates.items())
        raise type(error)(f"at {point}: {error.what}", where=error.where, hint=error.hint) from None
