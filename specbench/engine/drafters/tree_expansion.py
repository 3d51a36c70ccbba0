"""Growing a draft tree with a draft head; see :class:`specbench.engine.tree_spec.TreeSpec` for which one.

The head runs once a level, over the ``top_k`` nodes that are expanded there. Its cache has a cell for each of them
behind the committed tokens, level by level; a node sees the committed tokens, itself and its ancestors. What is left
in these cells is overwritten, or never looked at again, as that of a draft without branches.

*Candidates* are all nodes that an expansion gives, numbered level by level and parent by parent: a parent's number is
smaller than its children's.

Shapes: B requests that go on, k = top_k, D levels, C candidates, N nodes kept, H hidden size, Vd draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.engine.attention.base import AttentionOperator
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.drafters.base import DraftStep, TargetRows
from specbench.engine.drafters.model_drafter import DraftHead
from specbench.engine.tree_spec import TreeSpec


class DraftNodes(NamedTuple):
    """The nodes that are kept, parents before their children.

    :ivar token_ids: [B, N] int64; ``parents`` [B, N] int64, the row of each node's parent: 0 is the root, i + 1 node i.
    :ivar num_levels: [B] int64, depth of the deepest node.
    """

    token_ids: Tensor
    parents: Tensor
    num_levels: Tensor


class _Children(NamedTuple):
    """Candidates of one level, n of them a request, each [B, n].

    :ivar scores: float32, sums of log probabilities; never above the parent's.
    :ivar parents: candidate number of the parent, -1 for the root.
    """

    token_ids: Tensor
    scores: Tensor
    parents: Tensor


class _Expanded(NamedTuple):
    """The nodes of one level that are expanded, k a request.

    :ivar token_ids: [B, k]; ``scores`` and ``numbers`` (of candidates) likewise.
    :ivar hidden: [B, k, H] what the head put out for each one's parent.
    :ivar visible: [B, k, level * k] bool, which of the nodes expanded so far each sees, itself included.
    """

    token_ids: Tensor
    scores: Tensor
    numbers: Tensor
    hidden: Tensor
    visible: Tensor


@dataclass(frozen=True)
class TreeExpansion:
    """Grows the trees of a step.

    :param prepare: hands metadata to ``attention``.
    """

    spec: TreeSpec
    head: DraftHead
    attention: AttentionOperator
    prepare: Callable[[AttentionMetadata], None]

    def expand(self, step: DraftStep, rows: TargetRows, hidden: Tensor) -> DraftNodes:
        """The trees of the requests that go on, from the head's output ``hidden`` [B, H] at their ``rows.ends``."""
        width = self.spec.top_k
        token_ids, scores = self._children(hidden)
        levels = [_Children(token_ids, scores, torch.full_like(token_ids, -1))]
        eye = torch.eye(width, dtype=torch.bool, device=hidden.device).expand(hidden.shape[0], -1, -1)
        numbers = torch.arange(width, device=hidden.device).expand_as(token_ids)
        nodes = _Expanded(token_ids, scores, numbers, hidden.unsqueeze(1).expand(-1, width, -1), eye)
        for level in range(1, self.spec.depth):
            output = self._run(step, rows, nodes, level)
            token_ids, log_probs = self._children(output.flatten(0, 1))
            children = _Children(
                token_ids.view(-1, width * width),
                (nodes.scores.unsqueeze(2) + log_probs.view(-1, width, width)).flatten(1),
                nodes.numbers.repeat_interleave(width, dim=1),
            )
            if level + 1 < self.spec.depth:
                first = sum(part.scores.shape[1] for part in levels)
                nodes = self._choose(children, nodes, output, eye, first)
            levels.append(children)
        return self._keep(levels)

    def _run(self, step: DraftStep, rows: TargetRows, nodes: _Expanded, level: int) -> Tensor:
        """The head's output [B, k, H] for the nodes of ``level``, whose parents' cells are written."""
        width = self.spec.top_k
        last = rows.positions[rows.ends]
        positions = (last + level).unsqueeze(1).expand(-1, width).flatten()
        cells = last.unsqueeze(1) + 1 + (level - 1) * width + torch.arange(width, device=last.device)
        longest = None if step.max_num_tokens is None else step.max_num_tokens + level * width
        self.prepare(
            AttentionMetadata(
                num_context=0,
                context_query_lens=[],
                context_kv_lens=[],
                num_generation=last.shape[0],
                rows_per_generation=width,
                generation_kv_lens=last + 1 + level * width,
                block_table=rows.block_table,
                positions=cells.flatten(),
                max_generation_kv_len=longest,
                visible=nodes.visible,
            )
        )
        output = self.head.next(nodes.token_ids.flatten(), positions, nodes.hidden.flatten(0, 1), self.attention)
        return output.view(-1, width, output.shape[1])

    def _children(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Target ids and log probabilities [B, k] of the likeliest tokens after ``hidden`` [B, H], falling."""
        log_probs = self.head.compute_logits(hidden).log_softmax(dim=-1)
        # Whatever a head puts out, no child may come before its parent.
        log_probs = log_probs.nan_to_num(nan=-torch.inf).clamp_(max=0)
        likeliest = log_probs.topk(self.spec.top_k, dim=-1)
        vocabulary = self.head.vocabulary
        token_ids = likeliest.indices if vocabulary is None else vocabulary[likeliest.indices]
        return token_ids, likeliest.values

    def _choose(self, children: _Children, nodes: _Expanded, output: Tensor, eye: Tensor, first: int) -> _Expanded:
        """The likeliest of ``children``, whose numbers begin with ``first``; ``nodes``: their parents."""
        width = self.spec.top_k
        chosen = children.scores.sort(dim=1, descending=True, stable=True).indices[:, :width]
        parent = torch.div(chosen, width, rounding_mode="floor").unsqueeze(2)
        return _Expanded(
            token_ids=children.token_ids.gather(1, chosen),
            scores=children.scores.gather(1, chosen),
            numbers=chosen + first,
            hidden=output.gather(1, parent.expand(-1, -1, output.shape[2])),
            visible=torch.cat([nodes.visible.gather(1, parent.expand(-1, -1, nodes.visible.shape[2])), eye], dim=2),
        )

    def _keep(self, levels: list[_Children]) -> DraftNodes:
        """The likeliest of all candidates; of those as likely as each other, the smaller number."""
        token_ids, scores, parents = (torch.cat(parts, dim=1) for parts in zip(*levels, strict=True))
        order = scores.sort(dim=1, descending=True, stable=True).indices
        kept = order[:, : self.spec.num_nodes].sort(dim=1).values
        parent = parents.gather(1, kept)
        # Ancestors are kept, and numbers are in order: where a parent's would go is where it is.
        rows = torch.where(parent < 0, 0, torch.searchsorted(kept, parent) + 1)
        # Filled on the device: a copy from the host would make the host wait, and cannot be part of a graph.
        depths = torch.cat(
            [torch.full((part.scores.shape[1],), depth, device=kept.device) for depth, part in enumerate(levels, 1)]
        )
        return DraftNodes(token_ids.gather(1, kept), rows, depths[kept].amax(dim=1))
