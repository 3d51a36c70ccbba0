"""What a scenario says of draft trees, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator

from specbench.device.times import SIM
from specbench.engine.config import DrafterSpec
from specbench.engine.tree_spec import TREE_MODES, TreeSpec
from specbench.errors import InputError
from specbench.scenario.applicable import has_recurrent_state
from specbench.scenario.places import Issue
from specbench.scenario.schema import Drafter, Scenario, Tree


def tree_spec(drafter: Drafter) -> TreeSpec | None:
    """The tree that ``drafter`` drafts; None: its drafts do not branch.

    :raises InputError: a tree that cannot be.
    """
    tree = drafter.tree
    return None if tree is None else TreeSpec.of(tree.top_k, tree.depth, tree.num_nodes)


def rows_of(drafter: Drafter, draft_len: int) -> int:
    """The most rows a generation request takes in a step; ``draft_len``: the largest K."""
    tree = written_tree(drafter.tree) if draft_len else None
    return (draft_len if tree is None or tree.num_nodes is None else tree.num_nodes) + 1


def written_tree(tree: Tree | None) -> Tree | None:
    """``tree`` with its number of nodes written out; one that cannot be as it is."""
    if tree is None or tree.num_nodes is not None:
        return tree
    return tree.model_copy(update={"num_nodes": TreeSpec.of(tree.top_k, tree.depth, None).num_nodes})


def find_tree_conflicts(scenario: Scenario) -> Iterator[Issue]:
    """A tree that cannot be, or that drafter, K or acceptance do not go with."""
    drafter = scenario.drafter
    if drafter.tree is None:
        return
    table = tuple((drafter.runtime_draft_len or {}).items())
    try:
        draft_len = drafter.tree.depth if drafter.draft_len is None or table else drafter.draft_len
        DrafterSpec(drafter.name, draft_len, table, tree=tree_spec(drafter))
    except InputError as error:
        where = error.where or "drafter.tree"
        if table and where == "drafter.draft_len":
            where = "drafter.runtime_draft_len"
        yield Issue(tuple(where.split(".")), error.what, error.hint)
    if not any(draft_len for _, draft_len in table) and (table or drafter.draft_len == 0):
        key = "runtime_draft_len" if table else "draft_len"
        what = "K is 0 in every step, so that no tree is ever drafted"
        yield Issue(("drafter", key), what, "leave draft_len out, or drop drafter.tree")
    if has_recurrent_state(scenario.model.source):
        yield Issue(("drafter", "tree"), "a draft tree cannot be verified by a model with recurrent state", "drop it")
    if scenario.acceptance.mode not in TREE_MODES and scenario.engine.device != SIM:  # sim has no trees at all
        yield Issue(
            ("acceptance", "mode"),
            f"{scenario.acceptance.mode} acceptance does not go with a draft tree",
            f"{' or '.join(TREE_MODES)}, or drop drafter.tree",
        )
