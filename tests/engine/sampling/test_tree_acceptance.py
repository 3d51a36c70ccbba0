"""Which path of a draft tree is committed, against plain walks and against the target's distribution."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling_reference import kept_probabilities, make_rows
from scipy import stats

from specbench.engine.config import AcceptanceSpec
from specbench.engine.draft_tree import DraftTree
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.sampler import select_tokens
from specbench.engine.sampling.tree_acceptance import AcceptedPath, TreeAcceptance, build_tree_acceptance
from specbench.errors import InputError

NUM_DRAWS = 100_000
NUM_TOKENS = 7
FIRST_POSITION = 11
NODE_PARENTS = [0, 0, 0, 1, 1, 2, 3]
"""Three children of the root, two of its first, one of its second, one below that of the third."""


@st.composite
def cases(draw):
    """Parents, tokens of few kinds (siblings differ), the target's choices, and whether anything was proposed."""
    num_nodes = draw(st.integers(1, 10))
    parents = [draw(st.integers(0, node)) for node in range(num_nodes)]
    tokens: list[int] = []
    for node, parent in enumerate(parents):
        taken = {tokens[other] for other in range(node) if parents[other] == parent}
        tokens.append(draw(st.sampled_from([token for token in range(12) if token not in taken])))
    choices = [draw(st.integers(0, 3)) for _ in range(num_nodes + 1)]
    return parents, [token % 4 if draw(st.booleans()) else token for token in tokens], choices, draw(st.booleans())


def depth_of(parents: list[int]) -> int:
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    return max(depths)


def walk_plainly(parents, tokens, choices):
    path, row = [0], 0
    while True:
        children = [i + 1 for i, parent in enumerate(parents) if parent == row and tokens[i] == choices[row]]
        if not children:
            return [choices[at] for at in path], path
        row = children[0]
        path.append(row)


@given(st.lists(cases(), min_size=1, max_size=3))
def test_the_walk_follows_the_target(several):
    num_nodes = max(len(parents) for parents, *_ in several)
    depth = max(depth_of(parents) for parents, *_ in several)
    padded = []
    for parents, tokens, choices, proposed in several:
        missing = num_nodes - len(parents)
        # Nodes that fill a tree up hold a token that no target chooses.
        padded.append((parents + [0] * missing, tokens + [99] * missing, choices + [0] * missing, proposed))
    tensors = [torch.tensor([case[part] for case in padded]) for part in range(3)]
    levels = torch.tensor([depth_of(case[0]) if case[3] else 0 for case in padded])
    tree = DraftTree.of(tensors[0], depth)
    found = TreeAcceptance().walk(tree, tensors[2], tensors[1], levels, depth)
    for request, (parents, tokens, choices, proposed) in enumerate(padded):
        expected, path = walk_plainly(parents, tokens, choices) if proposed else ([choices[0]], [0])
        count = int(found.num_committed[request])
        assert found.token_ids[request, :count].tolist() == expected
        assert found.rows[request].tolist() == path + [path[-1]] * (depth + 1 - len(path))


def sibling_by_sibling(p: dict[str, Fraction], children: tuple[str, ...]) -> dict[str, Fraction]:
    """Probability that each token is committed where ``children`` are tried one after another, as certain drafts."""
    outcome, reached = dict.fromkeys(p, Fraction(0)), Fraction(1)
    for child in children:
        accepted = p[child]
        outcome[child] += reached * accepted
        reached *= 1 - accepted
        left = {token: Fraction(0) if token == child else mass for token, mass in p.items()}
        total = sum(left.values())
        if not reached:
            return outcome
        p = {token: mass / total for token, mass in left.items()}
    for token, mass in p.items():
        outcome[token] += reached * mass
    return outcome


@pytest.mark.parametrize("num_children", range(5))
def test_trying_certain_siblings_comes_to_one_draw_from_the_target(num_children):
    """What the module says, in exact arithmetic: any children, in any order, give the target's own distribution."""
    p = {"a": Fraction(1, 2), "b": Fraction(1, 3), "c": Fraction(1, 6), "d": Fraction(0)}
    for children in permutations(p, num_children):
        assert sibling_by_sibling(p, children) == p


def table_of_logits() -> torch.Tensor:
    """[V + 1, V]: after each token, and at the root in the last row."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn((NUM_TOKENS + 1, NUM_TOKENS), generator=generator) * 1.5


def tree_tokens(kind: str, table: torch.Tensor) -> list[int]:
    """Tokens of :data:`NODE_PARENTS`: the target's likeliest, its least likely, or any."""
    tokens: list[int] = []
    for node, parent in enumerate(NODE_PARENTS):
        taken = sum(other == parent for other in NODE_PARENTS[:node])
        row = table[NUM_TOKENS if parent == 0 else tokens[parent - 1]]
        if kind == "bad":
            row = torch.sin(row * 1000)
        tokens.append(int(row.argsort(descending=kind != "adversarial")[taken]))
    return tokens


@lru_cache(maxsize=8)
def choices(params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """What the target chooses at the root, and after that token, by request; [draws] each."""
    table, seeds, chosen = table_of_logits(), torch.arange(NUM_DRAWS), [torch.full((NUM_DRAWS,), NUM_TOKENS)]
    for position in (FIRST_POSITION, FIRST_POSITION + 1):
        logits, rows = table[chosen[-1]], make_rows([params], [NUM_DRAWS])
        chosen.append(select_tokens(logits, rows, seeds, torch.full_like(seeds, position)))
    return chosen[1], chosen[2]


def draw_pairs(params: SamplingParams, kind: str, walk) -> np.ndarray:
    """Counts [V, V] of the first two tokens that requests commit, in one step or in two.

    A row whose path the target did not choose holds any token: its draw has no say.
    """
    tokens = torch.tensor(tree_tokens(kind, table_of_logits()))
    root, after = choices(params)
    is_reached = (root.unsqueeze(1) == tokens) & (torch.tensor(NODE_PARENTS) == 0)
    anything = (root.unsqueeze(1) + torch.arange(len(tokens))) % NUM_TOKENS
    chosen = torch.cat([root.unsqueeze(1), torch.where(is_reached, after.unsqueeze(1), anything)], dim=1)
    tree = DraftTree.of(torch.tensor([NODE_PARENTS]).expand(NUM_DRAWS, -1), 3)
    found: AcceptedPath = walk(tree, chosen, tokens.expand(NUM_DRAWS, -1), torch.full_like(root, 3), 3)
    # Where no child was followed, the next step draws the second token.
    first, second = found.token_ids[:, 0], torch.where(found.num_committed > 1, found.token_ids[:, 1], after)
    counts = np.bincount((first * NUM_TOKENS + second).numpy(), minlength=NUM_TOKENS**2)
    return counts.reshape(NUM_TOKENS, NUM_TOKENS)


def pair_p_value(params: SamplingParams, counts: np.ndarray) -> float:
    """Chi-square of pairs against the target's distribution; 0 where a pair that cannot be was drawn."""
    table = table_of_logits().numpy()
    after = np.stack([kept_probabilities(table[token], params)[0] for token in range(NUM_TOKENS)])
    expected = (kept_probabilities(table[NUM_TOKENS], params)[0][:, None] * after).flatten() * counts.sum()
    observed, possible = counts.flatten(), expected > 0
    if observed[~possible].any():
        return 0.0
    return float(stats.chisquare(observed[possible], expected[possible]).pvalue)


PARAMS = [
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.3),
    SamplingParams(temperature=1.0, top_k=3),
    SamplingParams(temperature=1.0, top_p=0.8),
    SamplingParams(temperature=1.0, top_k=5, top_p=0.9),
]


@pytest.mark.parametrize("kind", ["good", "bad", "adversarial"])
@pytest.mark.parametrize("params", PARAMS, ids=["0.7", "1.0", "1.3", "top_k", "top_p", "both"])
def test_pairs_have_the_distribution_of_the_target(params, kind):
    counts = draw_pairs(params, kind, TreeAcceptance().walk)
    assert counts.sum() >= 100_000
    assert pair_p_value(params, counts) > 1e-4


def chosen_by_row(tree, target_token_ids, draft_token_ids, num_levels, depth) -> AcceptedPath:
    """A walk that takes the target's choice of the wrong row."""
    found = TreeAcceptance().walk(tree, target_token_ids, draft_token_ids, num_levels, depth)
    return found._replace(token_ids=target_token_ids[:, : depth + 1])


def drafts_believed(tree, target_token_ids, draft_token_ids, num_levels, depth) -> AcceptedPath:
    """A walk that accepts the first child wherever the target had another child's token."""
    found = TreeAcceptance().walk(tree, target_token_ids, draft_token_ids, num_levels, depth)
    first = torch.where(found.num_committed > 1, draft_token_ids[:, 0], found.token_ids[:, 0])
    return found._replace(token_ids=torch.cat([first.unsqueeze(1), found.token_ids[:, 1:]], dim=1))


@pytest.mark.parametrize("walk", [chosen_by_row, drafts_believed])
def test_walks_that_are_wrong_have_another_distribution(walk):
    params = SamplingParams(temperature=1.0)
    assert pair_p_value(params, draw_pairs(params, "good", walk)) < 1e-9


@pytest.mark.parametrize("mode", ["strict", "rejection"])
def test_rules_that_choose_a_path_are_built(mode):
    assert build_tree_acceptance(AcceptanceSpec(mode)).judges_content
    with pytest.raises(InputError, match="takes what the drafter earns"):
        build_tree_acceptance(AcceptanceSpec(mode, length=2.0))


@pytest.mark.parametrize("mode", ["forced", "replay", "luck"])
def test_other_rules_are_refused(mode):
    with pytest.raises(InputError, match="does not go with a draft tree"):
        build_tree_acceptance(AcceptanceSpec(mode))
