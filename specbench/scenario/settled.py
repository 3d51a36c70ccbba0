"""A resolved scenario as it can be written down and read back anywhere: what is measured is what is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from specbench.registry import PRESETS
from specbench.scenario.masking import mask, mask_scenario
from specbench.scenario.plan import NOT_MEASURED
from specbench.scenario.resolve import ResolvedScenario
from specbench.scenario.schema import Scenario
from specbench.scenario.yaml12 import to_plain

MASKED_PROMPT = "workload.system_prompt: what looks like a secret in it is replaced by ***, in what is sent as well"


def settle(resolved: ResolvedScenario, announce: Callable[[str], None] | None = None) -> ResolvedScenario:
    """``resolved`` with files by their absolute path and secrets masked in what is sent.

    A secret in the system prompt is masked in what is sent as well, since a resumed run knows no other text.

    :param announce: is told what a reader would not expect.
    """
    scenario = resolved.scenario
    workload, model = scenario.workload, scenario.model
    prompt = None if workload.system_prompt is None else mask(workload.system_prompt)
    if prompt != workload.system_prompt and announce is not None:
        announce(MASKED_PROMPT)
    source = model.source
    if source not in PRESETS and os.path.exists(os.path.expanduser(source)):
        source = _absolute(source)
    acceptance, process = scenario.acceptance, scenario.process
    update: dict[str, Any] = {
        "workload": workload.model_copy(update={"path": _maybe(workload.path), "system_prompt": prompt}),
        "model": model.model_copy(update={"source": source}),
        "acceptance": acceptance.model_copy(update={"source": _maybe(acceptance.source)}),
    }
    if process is not None:
        files = {"python": _maybe(process.python), "worktree": _maybe(process.worktree)}
        update["process"] = process.model_copy(update=files)
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


def _maybe(path: str | None) -> str | None:
    return None if path is None else _absolute(path)


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))
