"""Attention backends against a dense reference in float64, over random ragged batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specbench.engine.attention import cpu_paged
from specbench.engine.attention.cpu_paged import CpuPagedAttention
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.attention.torch_gather import GatherAttention
from specbench.engine.kv_cache import KVCache

NUM_LAYERS = 2
HEAD_DIM = 8
MAX_BLOCKS = 7
CPU = torch.device("cpu")
BACKENDS = [CpuPagedAttention, GatherAttention]


@dataclass(frozen=True)
class Case:
    """A step: per request (cached tokens, new rows), context requests first; generation requests have equal rows.

    :param layout: ``grid`` (slot s starts at block s * MAX_BLOCKS), ``permuted`` (the same, slots shuffled and with
        holes), ``scattered`` (blocks anywhere) or ``mixed`` (some requests of each).
    """

    tokens_per_block: int
    num_kv_heads: int
    num_groups: int
    context: list[tuple[int, int]]
    generation: list[tuple[int, int]]
    layout: str
    seed: int

    @property
    def requests(self):
        return [*self.context, *self.generation]

    @property
    def num_blocks(self):
        return (len(self.requests) + 2) * MAX_BLOCKS

    def block_table(self, generator):
        """Rows of block ids; columns past a request's own are ids that do not exist."""
        count = len(self.requests)
        slots = torch.arange(count)
        if self.layout != "grid":
            slots = torch.randperm(count + 2, generator=generator)[:count]
        table = slots[:, None] * MAX_BLOCKS + torch.arange(MAX_BLOCKS)
        if self.layout in ("scattered", "mixed"):
            anywhere = torch.randperm(self.num_blocks, generator=generator)
            table = anywhere[table]
            if self.layout == "mixed":
                # A shuffle of whole requests keeps half of them in order; the others swap blocks among themselves.
                table = slots[:, None] * MAX_BLOCKS + torch.arange(MAX_BLOCKS)
                swapped = table[::2].flatten()
                table[::2] = swapped[torch.randperm(len(swapped), generator=generator)].view(-1, MAX_BLOCKS)
        for row, (cached, new) in enumerate(self.requests):
            table[row, -(-(cached + new) // self.tokens_per_block) :] = 10**6
        return table.to(torch.int32)


@st.composite
def cases(draw):
    tokens_per_block = draw(st.sampled_from([1, 3, 4, 8]))
    most = MAX_BLOCKS * tokens_per_block

    def requests(rows, limit):
        pairs = st.tuples(st.integers(0, most), rows).map(lambda pair: (min(pair[0], most - pair[1]), pair[1]))
        return st.lists(pairs, max_size=limit)

    context = draw(requests(st.integers(1, most), 3))
    num_rows = draw(st.integers(1, min(6, most)))
    generation = draw(requests(st.just(num_rows), 6).filter(lambda found: bool(found or context)))
    return Case(
        tokens_per_block=tokens_per_block,
        num_kv_heads=draw(st.integers(1, 3)),
        num_groups=draw(st.integers(1, 3)),
        context=context,
        generation=generation,
        layout=draw(st.sampled_from(["grid", "permuted", "scattered", "mixed"])),
        seed=draw(st.integers(0, 1000)),
    )


class Step:
    """A case's tensors: the whole sequences, and the step's metadata."""

    def __init__(self, case, dtype=torch.float32):
        generator = torch.Generator().manual_seed(case.seed)
        self.case, self.dtype = case, dtype
        self.num_heads = case.num_kv_heads * case.num_groups
        total = sum(cached + new for cached, new in case.requests)

        def normal(heads):
            return torch.randn(NUM_LAYERS, total, heads, HEAD_DIM, generator=generator).to(dtype)

        self.q, self.k, self.v = normal(self.num_heads), normal(case.num_kv_heads), normal(case.num_kv_heads)
        self.table = case.block_table(generator)
        self.generator = generator

    def sequences(self):
        """(request, first token of it in the tensors, cached, new)."""
        start = 0
        for request, (cached, new) in enumerate(self.case.requests):
            yield request, start, cached, new
            start += cached + new

    def new_rows(self):
        """The step's rows among all tokens."""
        return torch.cat(
            [torch.arange(start + cached, start + cached + new) for _, start, cached, new in self.sequences()]
        )

    def metadata(self):
        case = self.case
        return AttentionMetadata(
            num_context=len(case.context),
            context_query_lens=[new for _, new in case.context],
            context_kv_lens=[cached + new for cached, new in case.context],
            num_generation=len(case.generation),
            rows_per_generation=case.generation[0][1] if case.generation else 1,
            generation_kv_lens=torch.tensor([cached + new for cached, new in case.generation], dtype=torch.int64),
            block_table=self.table,
            positions=torch.cat([torch.arange(cached, cached + new) for cached, new in case.requests]),
        )

    def cache(self, garbage):
        """A cache with ``garbage`` in every cell."""
        case = self.case
        cache = KVCache(
            NUM_LAYERS, case.num_blocks, case.tokens_per_block, case.num_kv_heads, HEAD_DIM, self.dtype, CPU
        )
        for blocks in (*cache.keys, *cache.values):
            blocks.fill_(garbage)
        return cache

    def write_cached(self, cache):
        """Put the cached tokens' keys and values where the block table says."""
        for request, start, cached, _ in self.sequences():
            positions = torch.arange(cached)
            blocks = self.table[request, positions // self.case.tokens_per_block].to(torch.int64)
            cells = blocks * self.case.tokens_per_block + positions % self.case.tokens_per_block
            for layer in range(NUM_LAYERS):
                cache.write(layer, cells, self.k[layer, start : start + cached], self.v[layer, start : start + cached])

    def run(self, backend, garbage):
        """The backend's outputs of every layer, [NUM_LAYERS, T, num_heads * HEAD_DIM]."""
        return self.run_on(backend(self.cache(garbage), num_heads=self.num_heads))

    def run_on(self, attention):
        """The same on an operator whose cache others have used."""
        self.write_cached(attention.cache)
        rows = self.new_rows()
        with torch.inference_mode():
            attention.prepare(self.metadata())
            outputs = [
                attention.forward(layer, self.q[layer, rows], self.k[layer, rows], self.v[layer, rows])
                for layer in range(NUM_LAYERS)
            ]
        return torch.stack(outputs)

    def expected(self):
        """Dense attention, one request and one row at a time."""
        outputs = []
        for layer in range(NUM_LAYERS):
            q, k, v = (tensor[layer].double() for tensor in (self.q, self.k, self.v))
            for _, start, cached, new in self.sequences():
                for row in range(start + cached, start + cached + new):
                    keys = k[start : row + 1].repeat_interleave(self.case.num_groups, dim=1)
                    values = v[start : row + 1].repeat_interleave(self.case.num_groups, dim=1)
                    scores = torch.einsum("hd,shd->hs", q[row], keys) / math.sqrt(HEAD_DIM)
                    outputs.append(torch.einsum("hs,shd->hd", scores.softmax(dim=1), values).flatten())
        return torch.stack(outputs).view(NUM_LAYERS, -1, self.num_heads * HEAD_DIM)


@pytest.mark.parametrize("backend", BACKENDS)
@given(case=cases())
def test_random_batches_match_dense_attention(backend, case):
    step = Step(case)
    # What unused cells hold is far from anything real: a leak of it would be seen.
    got = step.run(backend, garbage=1e4)
    torch.testing.assert_close(got.double(), step.expected(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_rows", range(1, 7))
@pytest.mark.parametrize("layout", ["grid", "permuted", "scattered", "mixed"])
def test_every_draft_length_matches_dense_attention(backend, num_rows, layout):
    lens = [0, 40, 3, 11, 17, 40, 8, 1]
    case = Case(8, 2, 3, [(0, 9), (12, 20)], [(cached, num_rows) for cached in lens], layout, seed=num_rows)
    step = Step(case)
    torch.testing.assert_close(step.run(backend, garbage=1e4).double(), step.expected(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@given(case=cases())
def test_bfloat16_is_within_its_rounding(backend, case):
    step = Step(case, torch.bfloat16)
    got = step.run(backend, garbage=100.0)
    assert got.dtype == torch.bfloat16
    # Weights and outputs are rounded to 8 bits; values are of the order of 1.
    torch.testing.assert_close(got.double(), step.expected(), rtol=0.02, atol=0.03)


@pytest.fixture(params=[1, 2, 4])
def num_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("layout", ["grid", "permuted", "scattered", "mixed"])
@pytest.mark.parametrize("lens", [[40], [55], [9, 30, 55], [12] * 5])
def test_merged_heads_match_dense_attention(monkeypatch, num_threads, layout, lens):
    # As long batches are computed, on short ones: heads merged, and a lone request divided among threads.
    monkeypatch.setattr(cpu_paged, "_MERGED_CELLS", 1)
    monkeypatch.setattr(cpu_paged, "_PART_CELLS", 8)
    step = Step(Case(8, 3, 2, [], [(cached, 1) for cached in lens], layout, seed=num_threads), torch.bfloat16)
    got = step.run(CpuPagedAttention, garbage=100.0)
    torch.testing.assert_close(got.double(), step.expected(), rtol=0.02, atol=0.03)


@given(case=cases())
def test_gathering_ignores_nan_in_cells_nobody_may_see(case):
    step = Step(case)
    got = step.run(GatherAttention, garbage=math.nan)
    torch.testing.assert_close(got.double(), step.expected(), rtol=0, atol=2e-5)


def test_a_fresh_cache_is_finite_and_of_the_size_it_says():
    cache = KVCache(3, 5, 4, 2, 8, torch.bfloat16, CPU)
    assert cache.bytes == 2 * 3 * 5 * 4 * 2 * 8 * 2
    assert all(bool((blocks == 0).all()) for blocks in (*cache.keys, *cache.values))


def broken_rows(step, what):
    """Make every key and value of the step's rows ``what``, in the first layer; what follows would be NaN too."""
    rows = step.new_rows()
    step.k[0, rows] = what
    step.v[0, rows] = what
    step.q[1, rows] = math.nan
    step.k[1, rows] = math.nan
    step.v[1, rows] = math.nan


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", [math.nan, math.inf])
def test_what_a_broken_request_wrote_does_not_reach_the_next_owner_of_its_blocks(backend, what):
    broken = Step(Case(4, 2, 2, [(0, 25), (0, 25)], [], "grid", seed=1))
    broken_rows(broken, what)
    attention = backend(broken.cache(0.0), num_heads=4)
    assert broken.run_on(attention)[-1].isnan().all()
    # Requests of unlike length: a view as wide as the second spans cells of the first that only the broken one wrote.
    fine = Step(Case(4, 2, 2, [], [(2, 1), (20, 1)], "grid", seed=2))
    torch.testing.assert_close(fine.run_on(attention).double(), fine.expected(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_step_gives_the_same_bits(backend):
    case = Case(8, 2, 3, [(5, 20)], [(cached, 3) for cached in (30, 2, 17)], "grid", seed=4)
    first, second = (Step(case).run(backend, garbage=1.0) for _ in range(2))
    assert torch.equal(first, second)
