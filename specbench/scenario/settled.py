"""A resolved scenario as it can be written down and read back anywhere: what is measured is what is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from specbench.registry import HEADS, PRESETS
from specbench.scenario.masking import NAMES_OF_FILES, mask, mask_scenario
from specbench.scenario.plan import NOT_MEASURED
from specbench.scenario.resolve import ResolvedScenario
from specbench.scenario.schema import Scenario
from specbench.scenario.yaml12 import to_plain

MASKED_PROMPT = "workload.system_prompt: what looks like a secret in it is replaced by ***, in what is sent as well"
MODELS = (("model", "source"), ("drafter", "model"))


def settle(resolved: ResolvedScenario, announce: Callable[[str], None] | None = None) -> ResolvedScenario:
    """``resolved`` with files by their absolute path and secrets masked in what is sent.

    A secret in the system prompt is masked in what is sent as well, since a resumed run knows no other text.

    :param announce: is told what a reader would not expect.
    """
    scenario = resolved.scenario
    prompt = None if scenario.workload.system_prompt is None else mask(scenario.workload.system_prompt)
    if prompt != scenario.workload.system_prompt and announce is not None:
        announce(MASKED_PROMPT)
    changes: dict[str, dict[str, Any]] = {"workload": {"system_prompt": prompt}}
    for section, key in NAMES_OF_FILES:
        name = getattr(getattr(scenario, section), key, None)
        if name is not None and ((section, key) not in MODELS or _is_here(name)):
            changes.setdefault(section, {})[key] = os.path.abspath(os.path.expanduser(name))
    update = {section: getattr(scenario, section).model_copy(update=files) for section, files in changes.items()}
    settled: Scenario = scenario.model_copy(update=update)
    return replace(resolved, scenario=settled)


def write_scenario(resolved: ResolvedScenario) -> dict[str, Any]:
    """The whole scenario in plain data as JSON holds it, secrets masked."""
    written: dict[str, Any] = _text_keys(mask_scenario(to_plain(resolved.scenario.model_dump())))
    return written


def write_point(resolved: ResolvedScenario) -> dict[str, Any]:
    """:func:`write_scenario` without what a single configuration does not use."""
    dropped = [key for key in NOT_MEASURED if key != "name"]
    return {key: value for key, value in write_scenario(resolved).items() if key not in dropped}


def _text_keys(data: Any) -> Any:
    """JSON knows no other keys; so a hash is the same before and after a file."""
    if isinstance(data, Mapping):
        return {str(key): _text_keys(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_text_keys(item) for item in data]
    return data


def _is_here(source: str) -> bool:
    """Whether a model or head is a path on this machine, not a name of ours or one in the hub."""
    return source not in PRESETS and source not in HEADS and os.path.exists(os.path.expanduser(source))
