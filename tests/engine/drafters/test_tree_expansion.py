"""The trees that an EAGLE-3 head grows in a running engine, against trees that are grown path by path in plain code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.attention.torch_gather import GatherAttention
from specbench.engine.drafters.model_drafter import DraftHead
from specbench.engine.drafters.tree_expansion import TreeExpansion
from specbench.engine.sampling.tree_acceptance import TreeAcceptance
from specbench.engine.tree_spec import TreeSpec
from tests.engine.drafters.head_cases import eagle3_head
from tests.engine.drafters.tree_cases import (
    DEEP,
    FLAT,
    LEAN,
    WHOLE,
    WIDE,
    Proposal,
    TreeLog,
    plain_decoding,
    plain_tree,
    run_trees,
    tree_config,
)

NEAR = 1e-3
"""Two nodes whose scores are closer may be taken for each other: sums go in another order."""


def matches(proposal: Proposal, head, spec: TreeSpec) -> bool:
    """Whether the nodes are those of a tree grown plainly; nodes that no other is near to, exactly."""
    nodes = plain_tree(proposal.token_ids, head, spec)
    scores = {node.path: node.score for node in nodes}
    paths = proposal.paths
    if len(set(paths)) != spec.num_nodes or proposal.num_levels != max(map(len, paths)):
        return False
    least = min(scores.values())
    missing = [path for path in scores if path not in paths]
    return all(scores[path] < least + NEAR for path in missing)


def count_matches(log: TreeLog, head, spec: TreeSpec, every: int) -> tuple[int, int]:
    chosen = log.proposals[::every]
    return sum(matches(proposal, head, spec) for proposal in chosen), len(chosen)


CASES: list[dict[str, Any]] = [
    {},
    {"attention": "torch-gather", "overlap": True},
    {"graphs": "captured", "overlap": True},
    {"max_num_tokens": 60, "num_blocks": 19, "graphs": "captured"},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_trees_are_those_grown_plainly(case):
    head = eagle3_head()
    _, log = run_trees(tree_config(WIDE, **case), plain_decoding(), head=head)
    matched, looked_at = count_matches(log, head, WIDE, every=5)
    assert matched == looked_at > 8


@pytest.mark.parametrize("tree", [DEEP, LEAN, WHOLE, FLAT], ids=str)
def test_trees_of_any_shape_are_those_grown_plainly(tree):
    head = eagle3_head(seed=3, norm_before_fc=True)
    _, log = run_trees(tree_config(tree), plain_decoding(), head=head)
    matched, looked_at = count_matches(log, head, tree, every=9)
    assert matched == looked_at > 5


def test_hidden_states_of_other_rows_than_the_accepted_ones_grow_other_trees():
    head = eagle3_head()
    with pytest.MonkeyPatch.context() as patch:
        walk = TreeAcceptance.walk

        def first_rows(self, *args):
            found = walk(self, *args)
            return found._replace(rows=torch.arange(found.rows.shape[1]).expand_as(found.rows))

        patch.setattr(TreeAcceptance, "walk", first_rows)
        _, log = run_trees(tree_config(WIDE), plain_decoding(), head=head)
    matched, looked_at = count_matches(log, head, WIDE, every=5)
    assert matched < looked_at


def test_nodes_that_see_each_other_grow_other_trees():
    head = eagle3_head()
    with pytest.MonkeyPatch.context() as patch:
        run_level = TreeExpansion._run

        def all_seen(self, step, rows, nodes, level):
            return run_level(self, step, rows, nodes._replace(visible=torch.ones_like(nodes.visible)), level)

        patch.setattr(TreeExpansion, "_run", all_seen)
        _, log = run_trees(tree_config(DEEP), plain_decoding(), head=head)
    matched, looked_at = count_matches(log, head, DEEP, every=5)
    assert matched < looked_at


class CountingHead(DraftHead):
    """Puts out the token it reads; its logits after a token are the row of a table."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def first(self, rows, next_token_ids, attention):
        raise NotImplementedError

    def next(self, token_ids, positions, hidden, attention):  # noqa: ARG002 - it has no memory
        return token_ids.unsqueeze(1).float()

    def compute_logits(self, hidden):
        return self.table[hidden[:, 0].long()]


def expand(table: torch.Tensor, spec: TreeSpec, roots: list[int]):
    """Trees of a head without memory, whose last committed tokens are ``roots``."""
    rows = SimpleNamespace(
        positions=torch.zeros(len(roots), dtype=torch.int64), ends=torch.arange(len(roots)), block_table=None
    )
    step = SimpleNamespace(max_num_tokens=None)
    seen: list[AttentionMetadata] = []
    expansion = TreeExpansion(spec, CountingHead(table), GatherAttention.__new__(GatherAttention), seen.append)
    return expansion.expand(step, rows, torch.tensor(roots).unsqueeze(1).float()), seen


def test_equal_scores_keep_parents_before_children():
    """A head that is sure of everything: each node's score is its parent's, to the last bit."""
    table = torch.full((6, 6), -torch.inf)
    table[torch.arange(6), (torch.arange(6) + 1) % 6] = 0.0
    nodes, _ = expand(table, TreeSpec(2, 4, 6), [0, 3])
    parents = nodes.parents.tolist()
    assert all(parent <= node for row in parents for node, parent in enumerate(row))
    for token_ids, row in zip(nodes.token_ids.tolist(), parents, strict=True):
        depths = [0]
        for parent in row:
            depths.append(depths[parent] + 1)
        assert max(depths) == 4, f"the sure path {token_ids} is followed to its end"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_head_that_is_not_finite_still_gives_a_tree(value):
    nodes, _ = expand(torch.full((6, 6), value), TreeSpec(3, 3, 9), [0, 1])
    assert all(0 <= token < 6 for row in nodes.token_ids.tolist() for token in row)
    assert all(parent <= node for row in nodes.parents.tolist() for node, parent in enumerate(row))


def test_cells_are_one_a_node_and_positions_follow_the_depth():
    table = torch.randn((50, 50), generator=torch.Generator().manual_seed(0))
    _, seen = expand(table, TreeSpec(3, 4, 9), [0, 1])
    assert [metadata.positions.view(2, -1)[0].tolist() for metadata in seen] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert [metadata.generation_kv_lens.tolist() for metadata in seen] == [[4, 4], [7, 7], [10, 10]]
    for level, metadata in enumerate(seen, start=1):
        assert metadata.visible.shape == (2, 3, 3 * level)
        assert (metadata.visible.sum(2) == level).all(), "one node a level, itself the last"
        assert metadata.visible[:, :, -3:].equal(torch.eye(3, dtype=torch.bool).expand(2, -1, -1))
