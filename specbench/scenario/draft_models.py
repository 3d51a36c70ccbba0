"""``drafter`` in a scenario: whether its parts go together, what null means, what it takes. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from specbench.device.times import SIM
from specbench.engine.config import DrafterSpec, ModelSpec, drafter_parts, positions_for, require_drafter
from specbench.engine.drafters import draft_weights
from specbench.engine.drafters.declaration import DraftWeights, WeightsQuery
from specbench.engine.drafters.head_location import DRAFT_MODEL, KEY, find_draft_model
from specbench.engine.models.config import ModelConfig
from specbench.errors import InputError
from specbench.scenario.draft_trees import tree_spec
from specbench.scenario.drafter_use import has_use
from specbench.scenario.places import Issue, Places, describe_place
from specbench.scenario.schema import Drafter, Engine
from specbench.scenario.yaml12 import KeyPath


def find_name_conflicts(drafter: Drafter) -> Iterator[Issue]:
    """What is wrong with the drafter's name."""
    try:
        require_drafter(drafter.name)
    except InputError as error:
        yield Issue(("drafter", "name"), error.what, error.hint, type(error))


def find_model_conflicts(drafter: Drafter) -> Iterator[Issue]:
    """Whether model and drafter go together; what the model names is looked for when the scenario is resolved."""
    parts = drafter_parts(drafter.name)
    path: KeyPath = ("drafter", "model")
    if drafter.model is not None and not has_use(drafter.name, "model"):
        yield Issue(path, f"has no effect: the drafter {drafter.name} has no model", "drop it, or drafter.name: eagle3")
    if drafter.model is None and DRAFT_MODEL in parts:
        try:
            find_draft_model(None)
        except InputError as error:
            yield Issue(path, error.what, error.hint)


def drafter_spec(drafter: Drafter) -> DrafterSpec:
    """What the engine is told of the drafter."""
    table = tuple(sorted((drafter.runtime_draft_len or {}).items()))
    return DrafterSpec(
        drafter.name,
        drafter.draft_len or 0,
        table,
        drafter.max_ngram,
        drafter.min_ngram,
        drafter.model,
        tree_spec(drafter),
    )


def positions_of(drafter: Drafter, draft_len: int, max_seq_len: int) -> int:
    """KV cells that the longest sequence may touch, rows past its end included.

    :param draft_len: the largest K of any step, defaults applied.
    """
    spec = replace(drafter_spec(drafter), draft_len=draft_len)
    return positions_for(max_seq_len, spec.max_draft_len, spec.num_ahead)


def find_draft_weights(
    drafter: Drafter, target: ModelSpec, model: ModelConfig, engine: Engine, places: Places
) -> DraftWeights | None:
    """What the drafter keeps; None for one without weights, and on a device that computes nothing and loads none.

    :param model: shape of the target.
    :raises InputError: no such head or model, or it does not fit the target; the message says where it was named.
    """
    if engine.device == SIM:
        return None
    try:
        return draft_weights.find_draft_weights(WeightsQuery(drafter_spec(drafter), target, model, engine.max_seq_len))
    except InputError as error:
        key, _, rest = (error.where or KEY).partition(": ")
        place = describe_place(tuple(key.split(".")), places)
        raise type(error)(error.what, where=f"{place}: {rest}" if rest else place, hint=error.hint) from None
