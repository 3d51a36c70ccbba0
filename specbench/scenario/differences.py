"""In which keys two arms differ, and what each difference does to the output.

What a change may do was read off the engine. Shapes decide: a matrix product or an attention call over another number
of rows sums in another order, so whatever changes how many rows share a step changes last bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.device.times import SIM
from specbench.engine.config import REJECTION, drafter_parts
from specbench.engine.drafters.declaration import Role, role_of
from specbench.engine.optimizations.base import Exactness, load_toggle
from specbench.engine.sampling.params import SamplingParams
from specbench.errors import ScenarioError
from specbench.records import Difference
from specbench.scenario.conflicts import draft_len_of
from specbench.scenario.draft_models import positions_of
from specbench.scenario.measure_schema import Process
from specbench.scenario.places import describe_place, shorten
from specbench.scenario.plan import SET_APART, TOGGLES
from specbench.scenario.schema import Scenario
from specbench.scenario.yaml12 import to_plain

STRENGTH = tuple(item.value for item in Exactness)
"""From the strictest to the weakest."""
SAME_WORK = (
    *(f"workload.{key}" for key in ("kind", "path", "num_requests", "isl", "osl", "categories", "turns", "seed")),
    *("workload.shuffle", "workload.system_prompt"),
    *("sampling.seed", "sampling.ignore_eos", "sampling.stop_token_ids"),
)
"""Keys that say what is asked: arms that differ here do not do the same work."""
_LOOKUP_KEYS = ("drafter.max_ngram", "drafter.min_ngram")
_MODE = "acceptance.mode"
_POOL = ("engine.num_blocks", "engine.max_seq_len")
FOLLOWS = {
    "engine.max_batch_size": ("workload.concurrency",),
    "engine.max_num_tokens": ("workload.concurrency", "engine.max_batch_size", "drafter."),
    "engine.num_blocks": ("workload.concurrency", "engine.max_batch_size", "engine.max_seq_len", "drafter."),
}
"""Key -> those that its default follows; a trailing dot stands for a section."""


@dataclass(frozen=True)
class _Rule:
    exactness: Exactness
    reason: str


_SHAPES = Exactness.NUMERICALLY_EQUIVALENT
_CHANGES = Exactness.CHANGES_OUTPUT
_RULES = {
    "drafter": _Rule(_SHAPES, "K + 1 rows a request are verified at once, and sums go in another order"),
    "workload.concurrency": _Rule(_SHAPES, "another number of requests shares each step"),
    "engine.max_batch_size": _Rule(_SHAPES, "another number of requests may share a step"),
    "engine.max_num_tokens": _Rule(_SHAPES, "prompts are cut into other chunks"),
    "engine.attention": _Rule(_SHAPES, "another kernel sums in another order"),
    "engine.tokens_per_block": _Rule(_SHAPES, "attention reads the cache in other pieces"),
    "engine.num_threads": _Rule(_SHAPES, "sums are divided among threads differently"),
    "engine.sim": _Rule(Exactness.BIT_IDENTICAL, "made-up tokens do not depend on declared times; a device of its own"),
    "engine.device": _Rule(_SHAPES, "another device's kernels sum in another order"),
    "engine.num_blocks": _Rule(
        _SHAPES, "a pool that may run out preempts requests, which are then computed again in other shapes"
    ),
    "engine.max_seq_len": _Rule(
        _SHAPES, "a pool that may run out lays requests out differently, and attention reads them in other shapes"
    ),
    "engine.dtype": _Rule(_CHANGES, "every number is rounded differently"),
    "model": _Rule(_CHANGES, "other weights, or another vocabulary"),
    "sampling": _Rule(_CHANGES, "tokens are drawn from another distribution"),
    "acceptance": _Rule(_CHANGES, "what is committed is decided by another rule"),
    "process": _Rule(_SHAPES, "another build or environment: tokens are compared, and a difference is labelled"),
}
_DRAWS = "rejection sampling draws by the drafts: other tokens, of the target's distribution"
_WHOLE_POOL = _Rule(
    Exactness.BIT_IDENTICAL,
    "both pools hold every request in full, so that each step computes the same; a cache of its own",
)


def find_differences(baseline: Scenario, candidate: Scenario) -> tuple[Difference, ...]:
    """Every key in which two resolved scenarios differ: toggles first, then keys in scenario order.

    Keys that say how it is measured, and those that the chosen drafter does not read, are left out.
    """
    before, after = _leaves(baseline), _leaves(candidate)
    keys = [key for key in dict.fromkeys([*before, *after]) if before.get(key) != after.get(key)]
    if not (_looks_up(baseline) and _looks_up(candidate)):
        keys = [key for key in keys if key not in _LOOKUP_KEYS]
    keys.sort(key=lambda key: not key.startswith(TOGGLES))
    return tuple(_difference(key, before.get(key), after.get(key), baseline, candidate) for key in keys)


def weakest(differences: Iterable[Difference]) -> str:
    """The weakest exactness of ``differences``; ``bit-identical`` where there are none."""
    ranks = [STRENGTH.index(difference.exactness) for difference in differences]
    return STRENGTH[max(ranks, default=0)]


def reason_of(difference: Difference) -> str:
    """Why ``difference`` has its exactness, in words."""
    draws = difference.exactness == Exactness.DISTRIBUTION_PRESERVING.value
    if difference.key.startswith(TOGGLES):
        toggle = load_toggle(difference.key.removeprefix(TOGGLES))
        if not draws or toggle.exactness is Exactness.DISTRIBUTION_PRESERVING:
            return toggle.exactness_reason or "as the toggle declares"
    if draws:
        return _DRAWS
    if difference.key in _POOL and difference.exactness == Exactness.BIT_IDENTICAL.value:
        return _WHOLE_POOL.reason
    return _rule(difference.key).reason


def list_following(differences: Sequence[Difference]) -> list[str]:
    """Keys among ``differences`` whose defaults follow another one: to be shown, and no news."""
    keys = [difference.key for difference in differences]
    return [key for key in keys if any(other.startswith(FOLLOWS.get(key, ())) for other in keys)]


def refuse_unlike(baseline: Scenario, candidate: Scenario, names: tuple[str, str]) -> None:
    """Refuse arms that are not asked for the same work.

    :param names: what the user calls the arms.
    :raises ScenarioError: names the key and both values.
    """
    before, after = _leaves(baseline), _leaves(candidate)
    for key in SAME_WORK:
        if before.get(key) != after.get(key):
            values = " and ".join(shorten(repr(values.get(key))) for values in (before, after))
            path = tuple(key.split("."))
            changed = baseline if _is_arms_own(baseline.places.of(path)) else candidate
            section, _, name = key.partition(".")
            axis = f"sweep.{name}" if name in ("isl", "osl") else f"sweep.grid.{key}"
            raise ScenarioError(
                f"{names[0]} and {names[1]} are not asked for the same work: {values}",
                where=describe_place(path, changed.places),
                hint=f"--set {axis}=A,B compares the arms at each value" if section == "workload" else None,
            )


def refuse_simulated_beside_real(baseline: Scenario, candidate: Scenario, names: tuple[str, str]) -> None:
    """Refuse to compare a device that declares its times with one that takes them.

    :param names: what the user calls the arms.
    :raises ScenarioError: names both devices.
    """
    devices = baseline.engine.device, candidate.engine.device
    if devices[0] != devices[1] and SIM in devices:
        changed = baseline if _is_arms_own(baseline.places.of(("engine", "device"))) else candidate
        raise ScenarioError(
            f"{names[0]} runs on {devices[0]} and {names[1]} on {devices[1]}: "
            "declared times say nothing about real ones",
            where=describe_place(("engine", "device"), changed.places),
            hint="both arms on sim, or none",
        )


def _is_arms_own(place: str) -> bool:
    """Whether a place is in the arm itself, not in what both arms start from."""
    return place.startswith("--baseline") or "(variant " in place


def _difference(key: str, before: Any, after: Any, baseline: Scenario, candidate: Scenario) -> Difference:
    preserves_steps = False
    if key.startswith(TOGGLES):
        toggle = load_toggle(key.removeprefix(TOGGLES))
        each = [toggle.exactness_of(variant).value for variant in (before, after) if variant is not None]
        exactness, preserves_steps = max(each, key=STRENGTH.index), toggle.preserves_steps(before, after)
    elif key in _POOL and _has_whole_pool(baseline) and _has_whole_pool(candidate):
        exactness = _WHOLE_POOL.exactness.value
    elif key == _MODE and {before, after} == {"strict", REJECTION}:
        exactness = _SHAPES.value
    else:
        exactness = _rule(key).exactness.value
    if exactness == _SHAPES.value and (_draws_by_drafts(baseline) or _draws_by_drafts(candidate)):
        exactness = Exactness.DISTRIBUTION_PRESERVING.value
    return Difference(key, before, after, exactness, preserves_steps)


def _draws_by_drafts(scenario: Scenario) -> bool:
    """Whether tokens depend on the drafts: then last bits decide between draft tokens, and so between tokens.

    Under strict acceptance they do not, nor on a tree, whose branches are picked and not drawn. A greedy request takes
    the target's own token under either.
    """
    sampling = scenario.sampling
    params = SamplingParams(temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)
    judges_draws = scenario.acceptance.mode == REJECTION and scenario.drafter.tree is None
    return judges_draws and draft_len_of(scenario) > 0 and not params.is_greedy


def _looks_up(scenario: Scenario) -> bool:
    return any(role_of(part) is Role.LOOKUP for part in drafter_parts(scenario.drafter.name))


def _rule(key: str) -> _Rule:
    return _RULES.get(key) or _RULES[key.partition(".")[0]]


def _has_whole_pool(scenario: Scenario) -> bool:
    """True where no request is ever preempted, whatever its length."""
    engine = scenario.engine
    positions = positions_of(scenario.drafter, draft_len_of(scenario), engine.max_seq_len or 0)
    needed = (engine.max_batch_size or 1) * -(-positions // engine.tokens_per_block)
    return engine.num_blocks is not None and engine.num_blocks >= needed


def _leaves(scenario: Scenario) -> dict[str, Any]:
    """Key in full -> value, in scenario order."""
    leaves: dict[str, Any] = {f"{TOGGLES}{name}": variant for name, variant in scenario.optimizations.items()}
    for section in type(scenario).model_fields:
        if section not in SET_APART:
            values = to_plain(getattr(scenario, section).model_dump())
            leaves |= {f"{section}.{key}": value for key, value in values.items()}
    return leaves | _process_leaves(scenario.process)


def _process_leaves(process: Process | None) -> dict[str, Any]:
    if process is None:
        return {}
    leaves = {"process": "its own", "process.python": process.python, "process.worktree": process.worktree}
    return leaves | {f"process.env.{name}": value for name, value in process.env.items()}
