"""Draft trees in scenarios: what is written out, and what is refused with which message."""

from __future__ import annotations

import pytest

from specbench.engine.config import DrafterSpec
from specbench.engine.tree_spec import TreeSpec
from specbench.scenario.conflicts import draft_len_of, find_conflicts
from specbench.scenario.draft_models import drafter_spec
from specbench.scenario.draft_trees import rows_of, tree_spec
from specbench.scenario.resolve import resolve
from specbench.scenario.schema import Scenario


def scenario(tree, **sections) -> Scenario:
    drafter = {"name": "eagle3", "tree": tree, **sections.pop("drafter", {})}
    return Scenario.model_validate({"model": "tiny", **sections, "drafter": drafter})


def problems(found: Scenario) -> list[tuple[str, str]]:
    return [(".".join(map(str, issue.path)), issue.what) for issue in find_conflicts(found)]


def test_a_tree_has_defaults_and_gives_k():
    found = scenario({})
    assert tree_spec(found.drafter) == TreeSpec(4, 4, 12)
    assert draft_len_of(found) == 4
    assert rows_of(found.drafter, 4) == 13
    assert drafter_spec(found.drafter).num_ahead == DrafterSpec("eagle3", 4, tree=TreeSpec(4, 4, 12)).num_ahead == 12
    assert problems(found) == []


@pytest.mark.parametrize(
    ("tree", "nodes"),
    [({"depth": 16}, 16), ({"top_k": 1}, 4), ({"top_k": 1, "depth": 16}, 16), ({"top_k": 16}, 12), ({"depth": 1}, 4)],
)
def test_one_key_of_a_tree_is_enough(tree, nodes):
    """The number of nodes follows the others, where it is not given."""
    found = scenario(tree)
    assert problems(found) == []
    assert tree_spec(found.drafter).num_nodes == nodes
    assert rows_of(found.drafter, draft_len_of(found)) == nodes + 1
    written = resolve(scenario(tree, model="random:smollm2-135m")).scenario.drafter.tree
    assert (written.num_nodes, written.depth) == (nodes, tree.get("depth", 4))


@pytest.mark.parametrize(
    ("tree", "hint"),
    [
        ({"num_nodes": 3}, "num_nodes: 4, or leave num_nodes out"),
        ({"top_k": 2, "depth": 2, "num_nodes": 30}, "num_nodes: 6, or leave num_nodes out"),
    ],
)
def test_too_few_or_too_many_nodes_have_a_way_out(tree, hint):
    (issue,) = find_conflicts(scenario(tree))
    assert issue.hint == hint
    assert problems(scenario({key: value for key, value in tree.items() if key != "num_nodes"})) == []


def test_a_tree_cannot_run_where_nothing_is_computed():
    """Said at once: no advice of the device leads to a message of the tree, or the other way round."""
    sim = {"engine": {"device": "sim", "sim": "h100-8b"}, "acceptance": {"mode": "forced", "length": 2.0}}
    ((path, what),) = problems(scenario({}, **sim))
    assert (path, what) == (
        "drafter.tree",
        "cannot run on device sim, which drafts no tokens and accepts a number of them, not a path in a tree",
    )
    found = dict(problems(scenario({}, engine=sim["engine"])))
    assert set(found) == {"drafter.tree", "acceptance.mode"}
    assert problems(scenario(None, **sim)) == []


def test_k_zero_by_batch_size_goes_with_a_tree():
    assert problems(scenario({"depth": 3}, drafter={"runtime_draft_len": {2: 3, 8: 0}})) == []


@pytest.mark.parametrize(
    ("tree", "sections", "path", "what"),
    [
        ({"depth": 3}, {"drafter": {"draft_len": 4}}, "drafter.draft_len", "K is its depth, 3, or 0"),
        ({"depth": 3}, {"drafter": {"draft_len": 0}}, "drafter.draft_len", "no tree is ever drafted"),
        ({"depth": 3}, {"model": "random:tiny-hybrid"}, "drafter.tree", "recurrent state"),
        ({"depth": 3}, {"drafter": {"runtime_draft_len": {2: 3, 8: 1}}}, "drafter.runtime_draft_len", "found K = 1"),
        ({"num_nodes": 3}, {}, "drafter.tree.num_nodes", "allowed: 4 (depth) to 52"),
        ({"top_k": 1, "depth": 2, "num_nodes": 3}, {}, "drafter.tree.num_nodes", "allowed: 2 (depth) to 2"),
        ({}, {"drafter": {"name": "ngram"}}, "drafter.tree", "the drafter ngram drafts no trees"),
        ({}, {"acceptance": {"mode": "forced", "length": 2.0}}, "acceptance.mode", "does not go with a draft tree"),
        (
            {},
            {"engine": {"max_batch_size": 4, "max_num_tokens": 51}, "workload": {"concurrency": 4}},
            "engine.max_num_tokens",
            "max_batch_size * (num_nodes + 1) = 52",
        ),
    ],
)
def test_conflicts_say_what_is_allowed(tree, sections, path, what):
    ((found, message),) = problems(scenario(tree, **sections))
    assert found == path
    assert what in message
