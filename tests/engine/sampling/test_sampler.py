"""Selection of tokens: the distribution, its independence of the batch, greedy rows, logits that are not finite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sampling_reference import inverse_cdf, kept_probabilities, make_rows
from scipy import stats

from specbench.engine.sampling.metadata import RowFacts, SamplingRows
from specbench.engine.sampling.params import TOP_K_OFF, SamplingParams
from specbench.engine.sampling.rng import Purpose, uniform
from specbench.engine.sampling.sampler import finite_rows, select_and_check, select_tokens

NUM_DRAWS = 20_000
GREEDY = SamplingParams()
CLASSES = [
    GREEDY,
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.3, top_k=5),
    SamplingParams(temperature=0.9, top_k=300),
    SamplingParams(temperature=1.0, top_p=0.8),
    SamplingParams(temperature=1.1, top_k=20, top_p=0.7),
    SamplingParams(temperature=1.1, top_k=400, top_p=0.5),
]


def widest(rows: SamplingRows, num_tokens: int) -> SamplingRows:
    """The same rows, described as loosely as a captured step would."""
    num_rows = rows.facts.num_rows
    return replace(rows, facts=RowFacts(num_both=num_rows, any_greedy=True, top_k_max=num_tokens))


def draw(logits: torch.Tensor, params: SamplingParams, num_draws: int) -> np.ndarray:
    rows = make_rows([params], [num_draws])
    seeds, positions = torch.arange(num_draws), torch.arange(num_draws) % 7
    return select_tokens(logits.expand(num_draws, -1).contiguous(), rows, seeds, positions).numpy()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.0),
        SamplingParams(temperature=1.0, top_k=3),
        SamplingParams(temperature=1.0, top_k=0),
        SamplingParams(temperature=1.0, top_k=TOP_K_OFF),
        SamplingParams(temperature=1.0, top_k=1000),
        SamplingParams(top_k=6),
        SamplingParams(top_p=0.9),
        SamplingParams(temperature=1.5, top_p=0.3),
        SamplingParams(temperature=1.5, top_p=1.0),
        SamplingParams(temperature=1.0, top_k=6, top_p=0.6),
        SamplingParams(temperature=0.8, top_k=10, top_p=0.95),
    ],
    ids=str,
)
@pytest.mark.parametrize("logits_name", ["spread", "tied", "masked"])
def test_distribution_is_the_exact_softmax(params: SamplingParams, logits_name: str) -> None:
    logits = torch.linspace(-2.0, 2.0, 13)[torch.randperm(13, generator=torch.Generator().manual_seed(3))]
    if logits_name == "tied":
        logits = logits.round()  # 5 distinct values: ties at every rank
    elif logits_name == "masked":
        logits[[2, 5, 7]] = float("-inf")
    expected, margin = kept_probabilities(logits.numpy(), params)
    assert margin > 1e-6
    observed = np.bincount(draw(logits, params, NUM_DRAWS), minlength=13)
    assert observed[expected == 0.0].sum() == 0
    possible = expected > 0.0
    assert possible.sum() > 1
    assert stats.chisquare(observed[possible], expected[possible] * NUM_DRAWS).pvalue > 1e-4


def test_ties_with_the_kth_value_are_kept() -> None:
    logits = torch.tensor([1.0, 2.0, 3.0, 2.0, 2.0, 0.0])
    assert set(draw(logits, SamplingParams(temperature=1.0, top_k=2), 500).tolist()) == {1, 2, 3, 4}


def test_top_p_takes_tied_tokens_from_the_lowest_id() -> None:
    logits = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    # Each 1.0 has 0.2113 of the mass: three of them reach 0.5, two do not.
    assert set(draw(logits, SamplingParams(temperature=1.0, top_p=0.5), 500).tolist()) == {1, 2, 3}
    # After top-k they have 0.25 each, the two ties beyond k = 2 included: 0.5 takes two.
    assert set(draw(logits, SamplingParams(temperature=1.0, top_k=2, top_p=0.5), 500).tolist()) == {1, 2}
    assert set(draw(logits, SamplingParams(temperature=1.0, top_k=2, top_p=0.7), 500).tolist()) == {1, 2, 3}


@pytest.mark.parametrize("num_tokens", [7, 3000])
def test_top_p_stops_where_the_mass_is_reached_exactly(num_tokens: int) -> None:
    half = -torch.tensor(2.0).log()
    if half.exp() != 0.5:
        pytest.skip("this build's exp(-log 2) is not 0.5: the boundary cannot be hit exactly")
    logits = torch.full((num_tokens,), float("-inf"))
    logits[:6] = torch.stack([half, torch.tensor(0.0), half, torch.tensor(0.0), half, half])
    # Two likelihoods of 1 and four of 0.5: half of the mass is in the two.
    assert set(draw(logits, SamplingParams(temperature=1.0, top_p=0.5), 300).tolist()) == {1, 3}
    # The next float32 above asks for one more, the lowest id among equals.
    assert set(draw(logits, SamplingParams(temperature=1.0, top_p=0.5000001), 300).tolist()) == {0, 1, 3}


def test_top_p_keeps_at_least_one_token() -> None:
    logits = torch.tensor([0.0, 1.0, 3.0, 1.0])
    assert set(draw(logits, SamplingParams(temperature=1.0, top_p=1e-30), 200).tolist()) == {2}


def test_top_k_off_is_not_top_k_zero() -> None:
    logits = torch.zeros(50)
    everything = set(draw(logits, SamplingParams(temperature=1.0, top_k=TOP_K_OFF), 2000).tolist())
    assert everything == set(range(50))
    rows = make_rows([SamplingParams(temperature=1.0, top_k=TOP_K_OFF)])
    assert not rows.any_top_k
    assert rows.top_k.tolist() == [TOP_K_OFF]


params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([None, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([None, 0, 2, 3, 17, 290, TOP_K_OFF]),
    top_p=st.sampled_from([None, 0.05, 0.5, 0.93, 1.0]),
    seed=st.integers(0, 2**62),
)


@given(
    params=params_strategy,
    num_tokens=st.sampled_from([3, 64, 100, 1000, 4999]),
    distinct=st.sampled_from([4, 50, 10**6]),
    data_seed=st.integers(0, 10**6),
    position=st.integers(0, 5000),
)
def test_token_is_the_inverse_cdf_of_the_one_draw(
    params: SamplingParams, num_tokens: int, distinct: int, data_seed: int, position: int
) -> None:
    generator = np.random.default_rng(data_seed)
    logits = (generator.integers(0, distinct, num_tokens) / distinct * 8.0).astype(np.float32)
    seeds, positions = torch.tensor([params.seed]), torch.tensor([position])
    token = select_tokens(torch.from_numpy(logits)[None], make_rows([params]), seeds, positions).item()
    if params.is_greedy:
        assert token == int(logits.argmax())
        return
    drawn = uniform(seeds, positions, Purpose.SAMPLE).item()
    probabilities, margin = kept_probabilities(logits, params)
    expected, distance = inverse_cdf(probabilities, drawn)
    assume(min(distance, margin) > 1e-5)  # float32 likelihoods move a boundary by less
    assert token == expected


@pytest.mark.parametrize("num_tokens", [61, 5003, 20480])
def test_a_row_depends_on_itself_alone(num_tokens: int) -> None:
    """Alone, in any order, beside anything, in any number of threads and under any description: the same token."""
    generator = torch.Generator().manual_seed(11)
    params = [CLASSES[i % len(CLASSES)] for i in range(42)]
    logits = torch.randn(42, num_tokens, generator=generator) * 3
    logits[20:30] = (logits[20:30] * 2).round()  # ties
    seeds, positions = torch.arange(42) * 31 + 5, torch.arange(42) % 5 + 100
    alone = torch.cat(
        [
            select_tokens(logits[i : i + 1], make_rows(params[i : i + 1]), seeds[i : i + 1], positions[i : i + 1])
            for i in range(42)
        ]
    )
    assert len(set(alone.tolist())) > 10
    rows = make_rows(params)
    assert torch.equal(select_tokens(logits, rows, seeds, positions), alone)
    assert torch.equal(select_tokens(logits, widest(rows, num_tokens), seeds, positions), alone)
    order = torch.randperm(42, generator=generator)
    shuffled = make_rows([params[i] for i in order.tolist()])
    assert torch.equal(select_tokens(logits[order], shuffled, seeds[order], positions[order]), alone[order])


@pytest.mark.parametrize("num_threads", [1, 2])
def test_thread_count_changes_nothing(num_threads: int) -> None:
    num_rows = len(CLASSES)
    logits = torch.randn(num_rows, 50_257, generator=torch.Generator().manual_seed(2)) * 2
    seeds = torch.arange(num_rows)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        tokens = select_tokens(logits, make_rows(CLASSES), seeds, seeds)
    finally:
        torch.set_num_threads(before)
    alone = [
        select_tokens(logits[i : i + 1], make_rows(CLASSES[i : i + 1]), seeds[i : i + 1], seeds[i : i + 1])
        for i in range(num_rows)
    ]
    assert torch.equal(tokens, torch.cat(alone))


def test_rows_of_one_seed_differ_by_position() -> None:
    rows = make_rows([SamplingParams(temperature=1.0)], [200])
    tokens = select_tokens(torch.zeros(200, 1000), rows, torch.full((200,), 9), torch.arange(200))
    assert len(set(tokens.tolist())) > 150


def test_greedy_rows_take_the_lowest_id_in_every_batch() -> None:
    logits = torch.zeros(6, 5003)
    logits[:, [4999, 700, 130]] = 2.5
    logits[1, 0] = 2.5
    logits[2] = 0.0
    logits[3] = -0.0
    logits[3, 64:] = 0.0
    expected = [130, 0, 0, 0, 130, 130]
    seeds = positions = torch.arange(6)
    assert select_tokens(logits, make_rows([GREEDY] * 6), seeds, positions).tolist() == expected
    for other in CLASSES[1:]:
        rows = make_rows([GREEDY, GREEDY, GREEDY, GREEDY, other, GREEDY])
        for described in (rows, widest(rows, 5003)):
            tokens = select_tokens(logits, described, seeds, positions).tolist()
            assert [token for i, token in enumerate(tokens) if i != 4] == expected[:4] + expected[5:]


def test_zero_temperature_top_k_one_and_top_p_zero_are_greedy() -> None:
    logits = torch.randn(5, 99, generator=torch.Generator().manual_seed(4))
    params = [
        SamplingParams(temperature=0.0, top_k=50, top_p=0.9),
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=1.0, top_p=0.0),
        SamplingParams(),
        SamplingParams(temperature=0.0),
    ]
    rows = make_rows(params)
    assert rows.all_greedy
    assert torch.equal(select_tokens(logits, rows, torch.arange(5), torch.arange(5)), logits.argmax(dim=1))


def test_a_field_left_unset_is_neutral() -> None:
    logits = torch.randn(300, 40, generator=torch.Generator().manual_seed(8))
    seeds = positions = torch.arange(300)

    def tokens(params: SamplingParams) -> list[int]:
        return select_tokens(logits, make_rows([params] * 300), seeds, positions).tolist()

    assert tokens(SamplingParams(top_p=0.9)) == tokens(SamplingParams(temperature=1.0, top_k=TOP_K_OFF, top_p=0.9))
    assert tokens(SamplingParams(top_k=5)) == tokens(SamplingParams(temperature=1.0, top_k=5, top_p=1.0))
    assert tokens(SamplingParams(temperature=0.6)) == tokens(SamplingParams(temperature=0.6, top_k=0, top_p=1.0))
    assert tokens(SamplingParams(top_p=0.9)) != tokens(SamplingParams(temperature=0.6, top_p=0.9))


@pytest.mark.parametrize("params", CLASSES[1:], ids=str)
@pytest.mark.parametrize("temperature", [2e-5, 1.0, 1e39])
def test_extreme_logits(params: SamplingParams, temperature: float) -> None:
    lowest, highest = torch.finfo(torch.float32).min, torch.finfo(torch.float32).max
    logits = torch.zeros(5, 130)
    logits[0] = lowest / 2
    logits[0, 77] = highest / 2
    logits[1] = float("-inf")
    logits[1, 99] = lowest
    logits[2] = float("-inf")
    logits[2, [3, 120]] = 1e-30
    logits[3] = highest
    logits[4, :64] = 1e30
    tokens = select_tokens(
        logits, make_rows([replace(params, temperature=temperature)] * 5), torch.arange(5), torch.arange(5)
    ).tolist()
    assert all(0 <= token < 130 for token in tokens)
    assert tokens[1] == 99
    assert tokens[2] in (3, 120)
    if temperature <= 1.0:
        assert tokens[0] == 77
        assert tokens[4] < 64


@pytest.mark.parametrize("params", CLASSES, ids=str)
def test_rows_that_are_not_finite_are_flagged_and_touch_no_other(params: SamplingParams) -> None:
    logits = torch.randn(8, 5003, generator=torch.Generator().manual_seed(6))
    logits[5, ::2] = float("-inf")  # masked tokens are fine
    seeds = positions = torch.arange(8)
    rows = make_rows([params] * 8)
    clean, finite, _ = select_and_check(logits, rows, seeds, positions)
    assert finite.all()
    broken = logits.clone()
    broken[1, 4000] = float("nan")
    broken[2, 17] = float("inf")
    broken[3] = float("-inf")
    broken[6] = -float("nan")
    for described in (rows, widest(rows, 5003)):
        tokens, finite, _ = select_and_check(broken, described, seeds, positions)
        assert finite.tolist() == [True, False, False, False, True, True, False, True]
        assert torch.equal(tokens[finite], clean[finite])
        assert ((tokens >= 0) & (tokens < 5003)).all()
    assert torch.equal(finite_rows(broken), finite)


def test_logits_are_left_alone() -> None:
    logits = torch.randn(7, 300, generator=torch.Generator().manual_seed(9))
    before = logits.clone()
    select_tokens(logits, make_rows(CLASSES), torch.arange(7), torch.arange(7))
    assert torch.equal(logits, before)


@pytest.mark.gpu
def test_cuda_takes_the_same_branches() -> None:
    """Exponentials differ in the last bit between devices, so the tokens may, rarely; within CUDA they may not."""
    params = [CLASSES[i % len(CLASSES)] for i in range(70)]
    logits = torch.randn(70, 49_152, generator=torch.Generator().manual_seed(1)) * 3
    here = make_rows(params)
    there = SamplingRows(here.temperature.cuda(), here.top_k.cuda(), here.top_p.cuda(), here.facts)
    seeds = torch.arange(70)
    expected = select_tokens(logits, here, seeds, seeds)
    device_logits, device_seeds = logits.cuda(), seeds.cuda()
    tokens = select_tokens(device_logits, there, device_seeds, device_seeds)
    assert (tokens.cpu() == expected).sum() >= 69
    assert torch.equal(select_tokens(device_logits, widest(there, 49_152), device_seeds, device_seeds), tokens)
