"""A draft that branches, as the rows of a step hold it.

Row 0 of a request is its last committed token, the root; row i its draft node i - 1. A node's parent stands before it.
A node's position is its depth behind the root's; its keys and values have a cell of their own, the i-th behind the
root's. When a path is accepted, its keys and values move to the cells of their positions, and the sequence is as if
the path's tokens had come one after the other.

Shapes: G generation requests, N nodes, R = N + 1 rows a request, D levels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DraftTree:
    """One tree a request.

    :param parents: [G, R] int64, the row of each row's parent; the root's is itself.
    :param visible: [G, R, R] bool, whether a row sees another: itself and its ancestors.
    """

    parents: Tensor
    visible: Tensor

    @classmethod
    def of(cls, node_parents: Tensor, depth: int) -> DraftTree:
        """The tree of nodes whose parents have the rows ``node_parents`` [G, N], ``depth`` levels at most."""
        parents = torch.nn.functional.pad(node_parents, (1, 0))
        num_rows = parents.shape[1]
        ancestor = torch.arange(num_rows, device=parents.device).expand_as(parents)
        visible = torch.zeros((*parents.shape, num_rows), dtype=torch.bool, device=parents.device)
        for _ in range(depth + 1):
            visible.scatter_(2, ancestor.unsqueeze(2), True)
            ancestor = parents.gather(1, ancestor)
        return cls(parents, visible)

    @property
    def depths(self) -> Tensor:
        """[G, R] int64, steps from the root."""
        return self.visible.sum(dim=2) - 1
