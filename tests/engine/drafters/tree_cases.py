"""Draft trees grown plainly, and a running engine's trees watched and made to hold what the target will say."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.device.recording import runtime_operator
from specbench.engine.config import AcceptanceSpec, DrafterSpec, EngineConfig
from specbench.engine.drafters.base import DraftState, DraftStep
from specbench.engine.drafters.eagle3_tree import Eagle3TreeDrafter
from specbench.engine.drafters.head_weights import LoadedHead
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.tree_spec import TreeSpec
from tests.engine.drafters.head_cases import TAPPED, eagle3_head, target_states, using_head
from tests.engine.drafters.plain_heads import eagle3_outputs, fuse, rms_norm, target_ids
from tests.engine.engine_driver import Outcome, run, tiny_config, with_variants

PROMPTS = [[(i * 7 + j * 13) % 512 for j in range(2 + 9 * i)] for i in range(6)]
"""Of 2 to 47 tokens; more of them than the tiny engine has slots."""
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
SAMPLED = [
    SamplingParams(temperature=1.0, top_k=50, top_p=0.9, seed=seed, max_tokens=24, ignore_eos=True)
    for seed in range(len(PROMPTS))
]
WIDE, DEEP, LEAN = TreeSpec(4, 3, 12), TreeSpec(3, 5, 11), TreeSpec(1, 3, 3)
WHOLE, FLAT = TreeSpec(2, 3, 10), TreeSpec(5, 1, 4)
"""A chain, and trees that keep all candidates, or have one level."""


@dataclass(frozen=True)
class PlainNode:
    """``path``: its token after those of its ancestors; ``score``: the sum of their log probabilities."""

    path: tuple[int, ...]
    score: float


def plain_tree(token_ids: list[int], head: LoadedHead, spec: TreeSpec) -> list[PlainNode]:
    """The nodes that are kept after ``token_ids``, likeliest first; every path runs through the head by itself."""
    tensors, config = head.tensors, head.config
    fused = fuse(target_states(token_ids[:-1], TAPPED), tensors, config)

    def children(path: tuple[int, ...], score: float) -> list[PlainNode]:
        following, hidden = list(token_ids[1:]), fused
        for token in (*path, None):
            outputs = eagle3_outputs(tensors["embed_tokens.weight"][torch.tensor(following)], hidden, tensors, config)
            if token is not None:
                following, hidden = [*following, token], torch.cat([hidden, outputs[-1:]])
        row = rms_norm(outputs[-1], tensors["norm.weight"], config.decoder.rms_norm_eps)
        log_probs = F.linear(row, tensors["lm_head.weight"]).log_softmax(-1)
        best = log_probs.topk(spec.top_k)
        ids = target_ids(head)[best.indices].tolist()
        values = zip(ids, best.values.tolist(), strict=True)
        return [PlainNode((*path, token), score + value) for token, value in values]

    level = children((), 0.0)
    candidates = list(level)
    for _ in range(1, spec.depth):
        expanded = sorted(level, key=lambda node: -node.score)[: spec.top_k]
        level = [child for node in expanded for child in children(node.path, node.score)]
        candidates += level
    return sorted(candidates, key=lambda node: -node.score)[: spec.num_nodes]


@dataclass(frozen=True)
class Proposal:
    """What was drafted after ``token_ids``; ``parents`` are rows."""

    token_ids: list[int]
    drafts: list[int]
    parents: list[int]
    num_levels: int

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """Tokens from the root to each node; fails where a parent does not come first."""
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(self.drafts, self.parents, strict=True):
            paths.append((*paths[parent], token))
        return paths[1:]


@dataclass
class TreeLog:
    """``proposals`` of a run; where ``references`` are known, trees are changed to hold what follows in them."""

    references: Sequence[Sequence[int]] = ()
    proposals: list[Proposal] = field(default_factory=list)

    def note(self, slots: Tensor, state: tuple[Tensor, ...], padding_slot: int) -> None:
        token_ids, num_tokens, drafts, parents, num_levels = state
        for slot in slots.tolist():
            if slot == padding_slot:
                continue
            known = token_ids[slot, : int(num_tokens[slot])].tolist()
            self.proposals.append(Proposal(known, drafts[slot].tolist(), parents[slot].tolist(), int(num_levels[slot])))
            self._plant(known, drafts[slot], parents[slot].tolist())

    def _plant(self, known: list[int], drafts: Tensor, parents: list[int]) -> None:
        """Follow the reference on a path that is chosen at random, not always to its end."""
        follows = [reference[len(known) :] for reference in self.references if list(reference[: len(known)]) == known]
        if not follows:
            return
        choice, row = random.Random(len(known) * 1009 + known[-1]), 0
        for token in follows[0]:
            nodes = [node for node, parent in enumerate(parents) if parent == row]
            if not nodes or choice.random() < 0.2:
                return
            node = choice.choice(nodes)
            drafts[node], row = token, node + 1


@contextmanager
def watching_trees(references: Sequence[Sequence[int]] = ()) -> Iterator[TreeLog]:
    """What is drafted meanwhile, in captured steps too."""
    log = TreeLog(references)
    note = runtime_operator("note_trees")(log.note)
    draft = Eagle3TreeDrafter.draft

    def watched(self: Eagle3TreeDrafter, state: DraftState, step: DraftStep) -> None:
        draft(self, state, step)
        if step.draft_len:
            tensors = (
                state.token_ids, state.num_tokens, state.draft_token_ids, state.draft_parents, state.num_draft_tokens,
            )  # fmt: skip
            note(step.slots, tensors, state.token_ids.shape[0] - 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Eagle3TreeDrafter, "draft", watched)
        yield log


def tree_config(tree: TreeSpec, *, mode: str = "strict", graphs: str = "off", **changes: Any) -> EngineConfig:
    """A tiny engine that drafts ``tree``."""
    drafter = DrafterSpec("eagle3", tree.depth, tree=tree)
    return with_variants(tiny_config(drafter=drafter, acceptance=AcceptanceSpec(mode), **changes), graphs=graphs)


def plain_decoding(params: SamplingParams | Sequence[SamplingParams] = GREEDY, **changes: Any) -> Outcome:
    return run(tiny_config(**changes), PROMPTS, params, concurrency=4)


def run_trees(
    config: EngineConfig,
    expected: Outcome,
    params: SamplingParams | Sequence[SamplingParams] = GREEDY,
    head: LoadedHead | None = None,
) -> tuple[Outcome, TreeLog]:
    """Run the prompts with trees that hold much of what ``expected`` says."""
    sequences = [[*prompt, *output] for prompt, output in zip(PROMPTS, expected.outputs, strict=True)]
    with using_head(head or eagle3_head()), watching_trees(sequences) as log:
        return run(config, PROMPTS, params, concurrency=4), log


def mean_length(outcome: Outcome) -> float:
    lengths = [length for request in outcome.requests for length in request.accepted_lengths]
    return sum(lengths) / len(lengths)
