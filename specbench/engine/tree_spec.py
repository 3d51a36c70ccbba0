"""The shape of a draft that branches. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specbench.engine.drafters.declaration import load_declaration
from specbench.errors import InputError
from specbench.registry import DRAFTERS

MAX_TREE_NODES = 63
"""Cap on draft nodes: a generation request takes one row more in a step, and every slot reserves them."""
DEFAULT_TREE_NODES = 12
MAX_TOP_K = 16
"""Cap on children of a node."""
TREE_MODES = ("strict", "rejection")
"""Rules of acceptance that choose a path; the others say how many tokens are accepted, and not on which."""


@dataclass(frozen=True)
class TreeSpec:
    """A draft tree that takes its shape from the drafter's probabilities, as EAGLE-2 (Li, Wei, Zhang and Zhang, 2024).

    Level by level, the ``top_k`` likeliest nodes are expanded, each to its ``top_k`` likeliest children; of all nodes
    the ``num_nodes`` likeliest are verified. How likely a node is: the product of the drafter's probabilities on the
    way to it, so a node's ancestors are always among those that are kept.

    :param top_k: nodes expanded a level, and children of each.
    :param depth: levels below the last committed token; a step accepts so many draft tokens at most.
    :param num_nodes: draft tokens a request and step.
    :raises InputError: a tree that cannot be.
    """

    top_k: int
    depth: int
    num_nodes: int

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= MAX_TOP_K:
            raise InputError(f"found {self.top_k}; allowed: 1 to {MAX_TOP_K}", where="drafter.tree.top_k")
        if self.depth < 1:
            raise InputError(f"found {self.depth}; allowed: 1 or more", where="drafter.tree.depth")
        most = min(self.num_candidates, MAX_TREE_NODES)
        if not self.depth <= self.num_nodes <= most:
            raise InputError(
                f"found {self.num_nodes}; allowed: {self.depth} (depth) to {most} "
                f"(what top_k {self.top_k} and depth {self.depth} give, {MAX_TREE_NODES} at most)",
                where="drafter.tree.num_nodes",
                hint=f"num_nodes: {min(max(self.num_nodes, self.depth), most)}, or leave num_nodes out"
                if self.depth <= most
                else f"depth: {most} or less",
            )

    @classmethod
    def of(cls, top_k: int, depth: int, num_nodes: int | None) -> TreeSpec:
        """The tree; ``num_nodes`` None: :data:`DEFAULT_TREE_NODES`, or as near to it as ``top_k`` and ``depth`` allow.

        :raises InputError: a tree that cannot be.
        """
        most = min(_num_candidates(top_k, depth), MAX_TREE_NODES)
        return cls(top_k, depth, min(max(DEFAULT_TREE_NODES, depth), most) if num_nodes is None else num_nodes)

    @property
    def num_candidates(self) -> int:
        """Nodes that an expansion looks at: ``top_k`` on the first level, ``top_k`` squared on each other."""
        return _num_candidates(self.top_k, self.depth)

    @property
    def num_ahead(self) -> int:
        """Cells behind those of ``depth`` draft tokens that a step may write to, see :attr:`DrafterSpec.num_ahead`.

        The target has one a node, behind the last committed token. The drafter has one a node that it expands, behind
        what the step commits.
        """
        return max(self.num_nodes - self.depth, (self.depth - 1) * self.top_k)


def _num_candidates(top_k: int, depth: int) -> int:
    return top_k + (depth - 1) * top_k**2


def check_tree_drafter(tree: TreeSpec, name: str, draft_lens: Iterable[int]) -> None:
    """Refuse a drafter that drafts no trees, and a K other than the depth.

    :param draft_lens: every K of the drafter.
    :raises InputError: see above.
    """
    if not drafts_trees(name):
        able = [other for other in DRAFTERS if drafts_trees(other)]
        raise InputError(
            f"the drafter {name} drafts no trees; those that do: {', '.join(able)}",
            where="drafter.tree",
            hint="drop it, or drafter.name: eagle3",
        )
    for draft_len in draft_lens:
        if draft_len not in (0, tree.depth):
            raise InputError(
                f"found K = {draft_len}; with a tree, K is its depth, {tree.depth}, or 0",
                where="drafter.draft_len",
                hint="leave draft_len out, or change drafter.tree.depth",
            )


def drafts_trees(name: str) -> bool:
    """Whether a drafter drafts trees; a pair drafts none."""
    return name in DRAFTERS and load_declaration(name).tree_builder is not None
