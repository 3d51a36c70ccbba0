"""Which path of a draft tree is committed.

From the root on, the target's choice at a node is followed to the child that has that token, until there is none. The
tokens on the way are accepted, the last choice, which no child has, is committed after them.

Strict acceptance is that by definition. Rejection sampling comes to the same. The children of a node are the drafter's
likeliest tokens: they are picked, not drawn, so each is tried as a draft of which the drafter was certain. It is
accepted with the target's probability of it, and where it is not, it is struck from the target's distribution, what is
left is renormalised, and the next child is tried; at the end a token is drawn from what no child had. By induction
over the children, each is then accepted with exactly the probability that the target's distribution gave it at first:
the whole is one draw from that distribution, and the question which child, if any, was drawn. So the target's own draw
decides. It is lossless for any tree, and accepts as often as any order of trying its children would.

Shapes: G generation requests, R rows of each, N = R - 1 nodes, D levels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specbench.engine.config import AcceptanceSpec
from specbench.engine.draft_tree import DraftTree
from specbench.engine.sampling.acceptance import StrictAcceptance
from specbench.engine.tree_spec import TREE_MODES
from specbench.errors import InputError


class AcceptedPath(NamedTuple):
    """What each request commits.

    :ivar token_ids: [G, D + 1] int64, of which the first ``num_committed`` count; ``num_committed`` [G], 1 .. D + 1.
    :ivar rows: [G, D + 1] int64, the row that chose each of them; from the last one that counts on, that one.
    """

    token_ids: Tensor
    num_committed: Tensor
    rows: Tensor


class TreeAcceptance(StrictAcceptance):
    """See the module. Steps without a tree, in which nothing is proposed, commit the target's choice."""

    def walk(
        self,
        tree: DraftTree,
        target_token_ids: Tensor,
        draft_token_ids: Tensor,
        num_levels: Tensor,
        depth: int,
    ) -> AcceptedPath:
        """Follow the target through the tree. Device operations throughout.

        :param target_token_ids: [G, R] int64, the target's choice at each row.
        :param draft_token_ids: [G, N] int64, the nodes' tokens; those of one parent differ.
        :param num_levels: [G] int64, 0 where nothing was proposed.
        :param depth: D, at least the levels of any tree.
        """
        node_parents = tree.parents[:, 1:]
        row, is_going = torch.zeros_like(num_levels), num_levels > 0
        rows, num_committed = [row], torch.ones_like(num_levels)
        for _ in range(depth):
            choice = target_token_ids.gather(1, row.unsqueeze(1))
            follows = (node_parents == row.unsqueeze(1)) & (draft_token_ids == choice) & is_going.unsqueeze(1)
            is_going = follows.any(dim=1)
            row = torch.where(is_going, follows.to(torch.int64).argmax(dim=1) + 1, row)
            num_committed = num_committed + is_going
            rows.append(row)
        path = torch.stack(rows, dim=1)
        return AcceptedPath(target_token_ids.gather(1, path), num_committed, path)


def build_tree_acceptance(spec: AcceptanceSpec) -> TreeAcceptance:
    """Build the rule that ``spec`` asks for, for an engine that drafts trees.

    :raises InputError: it is not one of :data:`TREE_MODES`.
    """
    if spec.mode not in TREE_MODES:
        raise InputError(
            f"{spec.mode} acceptance does not go with a draft tree: which of its branches would be taken is not said",
            where="acceptance.mode",
            hint=f"{' or '.join(TREE_MODES)}, or drop drafter.tree",
        )
    if spec.length is not None or spec.rates:
        raise InputError(
            f"a length is given, but {spec.mode} acceptance takes what the drafter earns", where="acceptance.length"
        )
    return TreeAcceptance()
