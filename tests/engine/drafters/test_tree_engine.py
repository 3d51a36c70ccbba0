"""Engines that draft trees say what engines without speculation say, whatever the tree and however steps run."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.attention.cpu_paged import CpuPagedAttention
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.attention.torch_gather import GatherAttention
from specbench.engine.build import build_engine
from specbench.engine.config import AcceptanceSpec, DrafterSpec
from specbench.engine.draft_tree import DraftTree
from specbench.engine.kv_cache import KVCache
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.scheduler import Scheduler
from specbench.engine.tree_spec import TreeSpec
from specbench.errors import InputError
from tests.engine.drafters.head_cases import eagle3_head, using_head
from tests.engine.drafters.tree_cases import (
    DEEP,
    FLAT,
    GREEDY,
    LEAN,
    PROMPTS,
    SAMPLED,
    WHOLE,
    WIDE,
    mean_length,
    plain_decoding,
    run_trees,
    tree_config,
)
from tests.engine.engine_driver import Outcome, run, tiny_config, tiny_model

CASES: list[dict[str, Any]] = [
    {},
    {"attention": "torch-gather"},
    {"overlap": True},
    {"graphs": "captured"},
    {"overlap": True, "graphs": "captured", "attention": "torch-gather"},
    {"overlap": True, "max_num_tokens": 60},
    {"max_num_tokens": 60, "graphs": "captured", "attention": "torch-gather"},
    {"overlap": True, "num_blocks": 19},
    {"graphs": "captured", "num_blocks": 19},
    {"attention": "torch-gather", "num_blocks": 19, "max_num_tokens": 60},
]
"""Overlap, captured steps (whose batches are padded), prompts in chunks, preemption, both backends."""


def name_of(case: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in case.items()) or "plain"


@lru_cache(maxsize=4)
def expected(sampled: bool = False, attention: str = "cpu-paged") -> Outcome:
    return plain_decoding(SAMPLED if sampled else GREEDY, attention=attention)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_greedy_tokens_are_those_of_plain_decoding(case):
    found, log = run_trees(tree_config(WIDE, **case), expected())
    assert found.outputs == expected().outputs
    assert mean_length(found) > 1.8, "the trees held what the target said"
    assert bool(found.num_preemptions) == ("num_blocks" in case)
    assert len(log.proposals) > 30


@pytest.mark.parametrize("tree", [DEEP, LEAN, WHOLE, FLAT], ids=str)
@pytest.mark.parametrize("case", [pytest.param(CASES[0], marks=pytest.mark.slow), CASES[4]], ids=name_of)
def test_any_shape_of_tree_gives_the_tokens_of_plain_decoding(tree, case):
    found, _ = run_trees(tree_config(tree, **case), expected())
    assert found.outputs == expected().outputs
    assert mean_length(found) > 1.5


@pytest.mark.parametrize("mode", ["strict", "rejection"])
@pytest.mark.parametrize(
    "case", [*(pytest.param(CASES[index], marks=pytest.mark.slow) for index in (0, 3)), CASES[4], CASES[7]], ids=name_of
)
def test_sampled_tokens_are_those_of_plain_decoding(case, mode):
    found, _ = run_trees(tree_config(WIDE, mode=mode, **case), expected(sampled=True), SAMPLED)
    assert found.outputs == expected(sampled=True).outputs
    assert mean_length(found) > 1.8


def test_tokens_do_not_depend_on_the_batch():
    config = tree_config(WIDE, max_batch_size=1, num_blocks=24)
    found, _ = run_trees(config, expected())
    assert found.outputs == expected().outputs


@pytest.mark.parametrize("graphs", ["off", "captured"])
def test_a_batch_above_the_table_of_k_drafts_nothing(graphs):
    config = tree_config(WIDE, graphs=graphs)
    table = DrafterSpec("eagle3", 3, ((2, 3), (4, 0)), tree=WIDE)
    params = [replace(GREEDY, max_tokens=4 + 4 * index) for index in range(len(PROMPTS))]
    found, _ = run_trees(replace(config, drafter=table), expected(), params)
    assert found.outputs == [tokens[: 4 + 4 * index] for index, tokens in enumerate(expected().outputs)]
    assert {step.draft_len for step in found.steps} == {0, 3}


def test_counters_are_those_of_a_recount_from_lengths():
    found, _ = run_trees(tree_config(DEEP, overlap=True), expected())
    accepted = [0] * DEEP.depth
    for request in found.requests:
        for length in request.accepted_lengths[:-1]:  # the last one may end inside the draft
            for depth in range(length - 1):
                accepted[depth] += 1
    counted = [sum(step.accepted[depth] for step in found.steps if step.draft_len) for depth in range(DEEP.depth)]
    assert all(0 <= count - known <= len(PROMPTS) for count, known in zip(counted, accepted, strict=True))
    eligible = [sum(step.eligible[depth] for step in found.steps if step.draft_len) for depth in range(DEEP.depth)]
    assert all(reached <= before for reached, before in zip(eligible[1:], counted[:-1], strict=True))
    assert all(took <= reached for took, reached in zip(counted, eligible, strict=True))
    assert accepted[-1] > 0, "whole paths were accepted"


def test_an_end_inside_a_path_ends_the_request():
    stop = expected().outputs[3][7]
    params = replace(GREEDY, stop_token_ids=(stop,))
    plain = plain_decoding(params)
    found, _ = run_trees(tree_config(WIDE, overlap=True), plain, params)
    assert found.outputs == plain.outputs


def audited(config, params):
    with using_head(eagle3_head()):
        engine = build_engine(config, loaded=tiny_model())
    try:
        for prompt, each in zip(PROMPTS[:4], params, strict=False):
            engine.add_request(prompt, each)
        rows = 0
        while engine.has_work:
            engine.step()
        for step in engine.drain_steps():
            nodes = config.drafter.num_nodes_for(step.draft_len) or step.draft_len
            rows += step.num_generation * (nodes + 1)
        return engine.drain_audit(), rows
    finally:
        engine.shutdown()


@pytest.mark.parametrize("graphs", ["off", "captured"])
@pytest.mark.parametrize("tree", [WIDE, None], ids=["tree", "chain"])
@pytest.mark.parametrize("mode", ["strict", "rejection"])
def test_row_1_11_every_row_is_served_what_it_asked_for(graphs, tree, mode):
    params = SamplingParams(temperature=1.0, top_k=50, top_p=0.9, max_tokens=12, ignore_eos=True)
    config = replace(tree_config(WIDE, mode=mode, graphs=graphs), drafter=DrafterSpec("eagle3", 3, tree=tree))
    found, num_rows = audited(config, [replace(params, seed=s) for s in range(4)])
    assert [part.asked == part.effective for part in found] == [True] * len(found)
    assert found[0].asked.temperature == 1.0
    assert sum(part.rows for part in found) == num_rows + 4, "each row of each draft, and the prompts' last rows"


# Each part of the mechanism, taken away, is missed.


def without_mask(patch):
    for backend in (CpuPagedAttention, GatherAttention):
        prepare = backend.prepare

        def plain(self, metadata: AttentionMetadata, prepare=prepare) -> None:
            prepare(self, replace(metadata, visible=None))

        patch.setattr(backend, "prepare", plain)


def positions_by_row(patch):
    def rows(self: DraftTree) -> Tensor:
        return torch.arange(self.parents.shape[1]).expand_as(self.parents)

    patch.setattr(DraftTree, "depths", property(rows))


def cache_left_in_place(patch):
    patch.setattr(KVCache, "move", lambda *_: None)


@pytest.mark.parametrize(("attention", "sampled"), [("cpu-paged", False), ("torch-gather", True)])
@pytest.mark.parametrize("mutation", [without_mask, positions_by_row, cache_left_in_place])
def test_a_mechanism_that_is_broken_changes_tokens(mutation, attention, sampled):
    params = SAMPLED if sampled else GREEDY
    with pytest.MonkeyPatch.context() as patch:
        mutation(patch)
        found, _ = run_trees(tree_config(WIDE, attention=attention), expected(sampled), params)
    assert found.outputs != expected(sampled).outputs


def poisoned_blocks(patch):
    """Noise in every free block: whoever reads or writes outside a request's own blocks is found out."""
    init = KVCache.__init__

    def noisy(self, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self._storage.normal_(generator=torch.Generator().manual_seed(0)).mul_(50)

    patch.setattr(KVCache, "__init__", noisy)


@pytest.mark.parametrize("attention", ["cpu-paged", "torch-gather"])
def test_row_2_3_a_tree_stays_within_the_blocks_of_its_request(attention):
    with pytest.MonkeyPatch.context() as patch:
        poisoned_blocks(patch)
        seen = watch_blocks(patch)
        found, _ = run_trees(tree_config(WIDE, overlap=True, attention=attention, tokens_per_block=4), expected())
    assert found.outputs == expected().outputs
    assert seen, "cells were looked at"
    assert max(seen) <= 0


def test_row_2_3_a_tree_that_reserves_only_its_depth_leaves_its_blocks():
    with pytest.MonkeyPatch.context() as patch:
        init = Scheduler.__init__

        def forgetful(self, config) -> None:
            init(self, config)
            self._reserved = self._rows

        patch.setattr(Scheduler, "__init__", forgetful)
        seen = watch_blocks(patch)
        run_trees(tree_config(WIDE, overlap=True, tokens_per_block=4), expected())
    assert max(seen) > 0


def watch_blocks(patch) -> list[int]:
    """How far the rows of each step reach past what their request owns, in blocks; both caches."""
    seen: list[int] = []
    cells, reserve = AttentionMetadata.cells, Scheduler.schedule
    owned: dict[int, int] = {}

    def schedule(self):
        found = reserve(self)
        for request in self.running:
            blocks = self.blocks.table[request.slot, : self.blocks.num_owned(request.slot)].tolist()
            owned.update(dict.fromkeys(blocks[:1], len(blocks)))
        return found

    def watched(self, tokens_per_block):
        for request, place in zip(self._requests().tolist(), self.positions.tolist(), strict=True):
            first = int(self.block_table[request, 0])
            if first in owned:
                seen.append(place // tokens_per_block + 1 - owned[first])
        return cells(self, tokens_per_block)

    patch.setattr(Scheduler, "schedule", schedule)
    patch.setattr(AttentionMetadata, "cells", watched)
    return seen


@pytest.mark.parametrize("mode", ["forced", "replay"])
def test_rules_that_do_not_judge_content_are_refused(mode):
    spec = AcceptanceSpec(mode, length=2.0 if mode == "forced" else None)
    config = replace(tree_config(WIDE), acceptance=spec)
    with using_head(eagle3_head()), pytest.raises(InputError, match=f"{mode} acceptance does not go with a draft tree"):
        build_engine(config, loaded=tiny_model())


@pytest.mark.parametrize("name", ["ngram", "mtp", "ngram+eagle3", "none"])
def test_drafters_without_trees_are_refused(name):
    with pytest.raises(InputError, match="drafts no trees"):
        DrafterSpec(name, 3, tree=WIDE)


def test_another_k_than_the_depth_is_refused():
    with pytest.raises(InputError, match="K is its depth, 3, or 0"):
        DrafterSpec("eagle3", 2, tree=WIDE)
    with pytest.raises(InputError, match="K is its depth, 3, or 0"):
        DrafterSpec("eagle3", 3, ((1, 3), (4, 2)), tree=WIDE)


@pytest.mark.parametrize(
    ("shape", "where"),
    [
        ((0, 3, 3), "top_k"),
        ((17, 3, 3), "top_k"),
        ((2, 0, 2), "depth"),
        ((2, 3, 2), "num_nodes"),
        ((2, 3, 11), "num_nodes"),
    ],
)
def test_trees_that_cannot_be_are_refused(shape, where):
    with pytest.raises(InputError) as caught:
        TreeSpec(*shape)
    assert where in str(caught.value)


def test_more_children_than_the_head_has_tokens_are_refused():
    head = eagle3_head()
    tensors = {**head.tensors, "lm_head.weight": head.tensors["lm_head.weight"][:3]}
    small = replace(head, tensors=tensors, vocabulary=head.vocabulary[:3])
    with using_head(small), pytest.raises(InputError, match="the head knows 3 tokens"):
        build_engine(tree_config(WIDE), loaded=tiny_model())


def test_a_chain_is_the_tree_of_one_child_a_node():
    with using_head(eagle3_head()):
        chain = run(tiny_config(drafter=DrafterSpec("eagle3", 3)), PROMPTS, GREEDY, concurrency=4)
        tree = run(tree_config(LEAN), PROMPTS, GREEDY, concurrency=4)
    assert tree.outputs == chain.outputs
    assert [step.accepted for step in tree.steps] == [step.accepted for step in chain.steps]
