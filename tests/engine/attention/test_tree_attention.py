"""A draft tree's rows through the target: logits of each node are those of its path alone, in both backends."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.engine.attention.cpu_paged import CpuPagedAttention
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.attention.torch_gather import GatherAttention
from specbench.engine.attention.visibility import visible_cells
from specbench.engine.draft_tree import DraftTree
from specbench.engine.kv_cache import KVCache
from tests.engine.engine_driver import tiny_model

BACKENDS = [CpuPagedAttention, GatherAttention]
BLOCK = 8
PARENTS = [
    [0, 0, 1, 1, 2, 4, 3],
    [0, 1, 2, 3, 4, 5, 6],
    [0, 0, 0, 0, 0, 0, 0],
]
"""One tree a request: branches, a chain, one level."""
LENGTHS = [5, 23, 17]
"""Committed tokens of each request."""
CHUNK = 6
"""Tokens of a prompt in the same step."""


def ids(seed: int, count: int) -> list[int]:
    return torch.randint(512, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


SEQUENCES = [ids(index, length) for index, length in enumerate(LENGTHS)]
NODES = [ids(10 + index, len(PARENTS[0])) for index in range(len(LENGTHS))]


def build(backend, scattered: bool):
    config = tiny_model().model.config
    cache = KVCache(
        config.num_layers, 40, BLOCK, config.num_kv_heads, config.head_dim, torch.float32, torch.device("cpu")
    )
    attention = backend(cache, num_heads=config.num_heads)
    table = torch.arange(4 * 5, dtype=torch.int32).view(4, 5)
    if scattered:
        table = torch.randperm(40, generator=torch.Generator().manual_seed(1))[:20].to(torch.int32).view(4, 5)
    return attention, table


def logits_of(token_ids: list[int]) -> torch.Tensor:
    """After the last of ``token_ids``, alone in a cache of its own."""
    attention, table = build(GatherAttention, scattered=False)
    run(attention, metadata_of([(0, token_ids)], [], table), token_ids, list(range(len(token_ids))))
    return run.logits[-1]


def metadata_of(context, lengths, table, num_rows=1, cells=None, visible=None):
    """Prompt chunks (cached tokens, token ids), then requests whose last row attends to ``lengths`` tokens."""
    chunk_cells = [torch.arange(start, start + len(token_ids)) for start, token_ids in context]
    return AttentionMetadata(
        num_context=len(context),
        context_query_lens=[len(token_ids) for _, token_ids in context],
        context_kv_lens=[start + len(token_ids) for start, token_ids in context],
        num_generation=len(lengths),
        rows_per_generation=num_rows,
        generation_kv_lens=torch.tensor(lengths, dtype=torch.int64),
        block_table=table,
        positions=torch.cat([*chunk_cells, *([] if cells is None else [cells])]),
        visible=visible,
    )


def run(attention, metadata, token_ids, positions):
    model = tiny_model().model
    with torch.inference_mode():
        attention.prepare(metadata)
        hidden = model.forward(torch.tensor(token_ids), torch.tensor(positions), attention)
        run.logits = model.compute_logits(hidden)
    return run.logits


def tree_logits(backend, scattered=False, **broken):
    """Logits of all rows of the trees [G, R, V], in one step with a prompt; see ``broken`` for what is left out."""
    attention, table = build(backend, scattered)
    for request, sequence in enumerate(SEQUENCES):  # all but the last token is in the cache
        own = table[request + 1 : request + 2]
        run(attention, metadata_of([(0, sequence[:-1])], [], own), sequence[:-1], list(range(len(sequence) - 1)))
    prompt, num_rows = ids(99, CHUNK), len(PARENTS[0]) + 1
    tree = DraftTree.of(torch.tensor(PARENTS), num_rows)
    depths = torch.arange(num_rows).expand(3, -1) if broken.get("by_row") else tree.depths
    first = torch.tensor(LENGTHS).unsqueeze(1) - 1
    cells = (first + torch.arange(num_rows)).flatten()
    metadata = metadata_of(
        [(0, prompt)], [length + num_rows - 1 for length in LENGTHS], table, num_rows, cells,
        None if broken.get("causal") else tree.visible,
    )  # fmt: skip
    token_ids = [*prompt]
    for sequence, nodes in zip(SEQUENCES, NODES, strict=True):
        token_ids += [sequence[-1], *nodes]
    logits = run(attention, metadata, token_ids, [*range(CHUNK), *(first + depths).flatten().tolist()])
    torch.testing.assert_close(logits[CHUNK - 1], logits_of(prompt), rtol=1e-4, atol=1e-4)
    return logits[CHUNK:].view(3, num_rows, -1)


def path_to(request: int, row: int) -> list[int]:
    path = []
    while row:
        path.append(NODES[request][row - 1])
        row = PARENTS[request][row - 1]
    return SEQUENCES[request] + path[::-1]


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_of_a_tree_are_those_of_its_paths(backend, scattered):
    logits = tree_logits(backend, scattered)
    for request in range(3):
        for row in range(logits.shape[1]):
            expected = logits_of(path_to(request, row))
            torch.testing.assert_close(logits[request, row], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("broken", ["causal", "by_row"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_without_mask_or_with_positions_by_row_logits_are_others(backend, broken):
    logits = tree_logits(backend, **{broken: True})
    worst = [(logits[0, row] - logits_of(path_to(0, row))).abs().max() for row in range(logits.shape[1])]
    assert max(worst) > 0.01
    chain = [(logits[1, row] - logits_of(path_to(1, row))).abs().max() for row in range(logits.shape[1])]
    assert max(chain) < 1e-3, "of a chain neither changes anything"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_moved_path_is_what_the_sequence_would_have_left(backend):
    """After an accepted path has moved, the next token sees what it would have seen after plain decoding."""
    for moves in (True, False):
        attention, table = build(backend, scattered=True)
        own, sequence = table[:1], SEQUENCES[0]
        run(attention, metadata_of([(0, sequence[:-1])], [], own), sequence[:-1], list(range(len(sequence) - 1)))
        tree = DraftTree.of(torch.tensor(PARENTS[:1]), 8)
        first, rows = len(sequence) - 1, [0, 1, 4, 6]  # the root, and a path through it
        cells = first + torch.arange(8)
        metadata = metadata_of([], [first + 8], own, 8, cells, tree.visible)
        run(attention, metadata, [sequence[-1], *NODES[0]], (first + tree.depths[0]).tolist())
        if moves:
            places = torch.tensor([first + row for row in rows]), torch.arange(first, first + 4)
            sources, targets = (replace(metadata, rows_per_generation=4, positions=p).cells(BLOCK) for p in places)
            attention.cache.move(sources, targets)
        path = sequence + [NODES[0][row - 1] for row in rows[1:]]
        metadata = metadata_of([], [len(path) + 1], own, 1, torch.tensor([len(path)]))
        logits = run(attention, metadata, [7], [len(path)])[0]
        error = (logits - logits_of([*path, 7])).abs().max()
        assert (error < 1e-3) == moves


@st.composite
def trees(draw):
    return [draw(st.integers(0, row)) for row in range(draw(st.integers(1, 12)))]


@given(trees())
def test_rows_see_themselves_and_their_ancestors(parents):
    tree = DraftTree.of(torch.tensor([parents]), len(parents))
    for row in range(len(parents) + 1):
        ancestors, at = {row}, row
        while at:
            at = parents[at - 1]
            ancestors.add(at)
        assert tree.visible[0, row].nonzero().flatten().tolist() == sorted(ancestors)
        assert int(tree.depths[0, row]) == len(ancestors) - 1


@settings(max_examples=50)
@given(trees(), st.integers(0, 9), st.integers(0, 5))
def test_visible_cells_are_the_committed_ones_and_what_the_tree_says(parents, num_before, slack):
    tree = DraftTree.of(torch.tensor([parents]), len(parents))
    num_rows = len(parents) + 1
    length = num_before + num_rows
    found = visible_cells(torch.tensor([length]), num_rows, length + slack, tree.visible)
    assert found[:, :, :num_before].all()
    assert found[:, :, num_before:length].equal(tree.visible)
    assert not found[:, :, length:].any()
