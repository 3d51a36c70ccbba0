"""Which toggles have a choice point in the engine of a scenario's model. Reads no weights and needs no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from specbench.engine.config import RANDOM_PREFIX
from specbench.engine.models.hf_config import parse_config, read_json_object
from specbench.engine.models.presets import Preset
from specbench.engine.optimizations.base import load_toggle
from specbench.errors import CheckpointError
from specbench.registry import OPTIMIZATIONS, PRESETS
from specbench.scenario.places import Issue, shorten
from specbench.scenario.schema import Scenario
from specbench.scenario.yaml12 import KeyPath


def applicable_toggles(source: str) -> list[str]:
    """Toggles that an engine serving model ``source`` has.

    :param source: as a scenario names it.
    """
    return [name for name in OPTIMIZATIONS if not _is_missing(name, source)]


def default_study(source: str) -> list[str]:
    """Toggles that ``off`` and ``on`` switch where a scenario for model ``source`` has no ``study``."""
    return [name for name in applicable_toggles(source) if load_toggle(name).in_default_study]


def find_inapplicable(scenario: Scenario) -> Iterator[Issue]:
    """Toggles that the scenario sets, or lists in ``study``, and that its model has no use for."""
    source = scenario.model.source
    named: list[tuple[KeyPath, str]] = [(("optimizations", name), name) for name in scenario.optimizations]
    listed: list[tuple[KeyPath, str]] = [(("study", index), name) for index, name in enumerate(scenario.study or ())]
    for path, name in (*named, *listed):
        if name in OPTIMIZATIONS and _is_missing(name, source):
            what = f"{name} has no effect: the model {shorten(source)} has no recurrent state"
            yield Issue(path, what, "drop it, or take a hybrid model such as tiny-hybrid")


def _is_missing(name: str, source: str) -> bool:
    return load_toggle(name).needs_recurrent_state and not has_recurrent_state(source)


def has_recurrent_state(source: str) -> bool:
    """Whether the model keeps recurrent state, as far as this machine tells: presets and directories.

    Names in the hub count as without: published hybrids have blocks of experts, which are not built.
    """
    name = source.removeprefix(RANDOM_PREFIX)
    if name in PRESETS:
        preset: Preset = PRESETS.load(name)
        return preset.config.has_recurrent_state
    path = Path(os.path.expanduser(name), "config.json")
    if not os.path.isfile(path):
        return False
    try:
        return parse_config(read_json_object(path), where=str(path)).has_recurrent_state
    except CheckpointError:
        # Said when the model is resolved.
        return False
