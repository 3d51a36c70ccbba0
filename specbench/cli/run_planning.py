"""What ``specbench run`` is asked to do: its command line, and the plan that it means."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.cli.options import require_source
from specbench.errors import ScenarioError
from specbench.measure.results_folder import SCENARIO
from specbench.measure.session import read_plan
from specbench.scenario.loader import load_scenario
from specbench.scenario.masking import mask, mask_scenario
from specbench.scenario.plan import RunPlan
from specbench.scenario.planner import BASE, plan_run, require_recorded
from specbench.scenario.resolve import ResolvedScenario, resolve
from specbench.scenario.settled import settle
from specbench.scenario.variants import naming


@dataclass(frozen=True)
class Options:
    """The command line, parsed. ``scenario`` is None only with ``resume``."""

    scenario: str | None
    overrides: list[str]
    variant: str | None
    out: Path | None
    resume: Path | None
    json: bool
    profile: str
    steps: str | None
    save_outputs: bool
    save_prompts: bool


def plan_from(options: Options) -> tuple[ResolvedScenario, RunPlan]:
    """Load, check and plan, before anything is written or loaded.

    The plan is hashed as it is written: secrets masked, files by their absolute path. So the folder alone says what to
    measure, from whatever directory the run is resumed.

    :raises InputError: whatever is wrong with the scenario or the flags.
    """
    resolved, variant = _read(options)
    require_recorded(resolved.scenario)
    resolved = settle(resolved, say)
    plan = plan_run(resolved, mask(variant))
    return resolved, replace(plan, scenario=mask_scenario(plan.scenario))


def _read(options: Options) -> tuple[ResolvedScenario, str]:
    require_source("specbench run", options.scenario, options.out, options.resume)
    if options.scenario is not None:
        scenario = load_scenario(options.scenario, options.overrides, options.variant)
        with naming(options.variant):
            resolved = resolve(scenario)
        return resolved, options.variant or BASE
    assert options.resume is not None, "checked with the flags"
    if options.overrides or options.variant is not None:
        raise ScenarioError("--set and --variant need the scenario they change", where="specbench run --resume")
    points = read_plan(options.resume).get("points") or [{}]
    return resolve(load_scenario(options.resume / SCENARIO)), points[0].get("variant", BASE)


def say(line: str) -> None:
    """One line on stderr."""
    print(line, file=sys.stderr, flush=True)
