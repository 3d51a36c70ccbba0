"""Rejection sampling through whole engines: the distribution, and what tokens may not depend on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from captured_cases import (
    capture_set,
    counts_of,
    opened,
    rows_by_values,
    serve,
    serve_once,
    steps_of,
    wrong_rows,
)
from engine_driver import Outcome, count_near_ties, overlapping, run, tiny_config, tiny_model, with_variants
from rejection_cases import p_value
from rejection_engines import (
    PROMPT,
    exact_pairs_of_engine,
    head_of_few_tokens,
    model_of_few_tokens,
    rejection_config,
)
from test_engine_tokens import GREEDY, prompts

from specbench.engine.config import DrafterSpec, EngineConfig
from specbench.engine.sampling import rejection
from specbench.engine.sampling.metadata import round_to_float32
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.sampler import DRAW
from specbench.errors import InputError
from specbench.records import SamplingValues
from tests.engine.drafters.head_cases import eagle3_head, using_head

SAMPLED = SamplingParams(temperature=1.0, top_k=50, top_p=0.9, max_tokens=14, ignore_eos=True)
"""Row 1.11's."""
KINDS = (
    SAMPLED,
    replace(SAMPLED, temperature=0.7, top_k=None),
    replace(SAMPLED, top_p=None),
    replace(GREEDY, max_tokens=14),
    replace(SAMPLED, temperature=1.3, top_k=None, top_p=None),
)
NUM_REQUESTS = 1_200
TREES = [False]
"""Whether drafts are trees."""


@pytest.fixture(autouse=True)
def head() -> Iterator[None]:
    with using_head(eagle3_head()):
        yield


def requests_of(kinds: Sequence[SamplingParams], count: int = 6) -> list[tuple[list[int], SamplingParams]]:
    texts = prompts(count, seed=4)
    return [(text, replace(kinds[i % len(kinds)], seed=100 + i)) for i, text in enumerate(texts)]


def tokens_of(config: EngineConfig) -> Outcome:
    return serve_once(config, requests_of(KINDS))


def accepted_of(outcome: Outcome) -> int:
    return sum(sum(step.accepted) for step in steps_of(outcome))


def pairs_of_engine(graphs: str, params: SamplingParams, count: int) -> torch.Tensor:
    """The second and third token of ``count`` requests, [count, 2], with drafts of which some are accepted."""
    config = with_variants(rejection_config(2, max_batch_size=64, num_blocks=64 * 4, max_seq_len=16), graphs=graphs)
    with using_head(head_of_few_tokens()), opened(config, model_of_few_tokens()) as engine:
        requests = [(PROMPT, replace(params, seed=seed, max_tokens=3, ignore_eos=True)) for seed in range(count)]
        outcome = serve(engine, requests, concurrency=64)
    assert 0 < accepted_of(outcome) < sum(sum(step.drafted) for step in steps_of(outcome))
    return torch.tensor(outcome.outputs)[:, 1:]


@pytest.mark.parametrize(
    ("graphs", "params"),
    [
        ("off", SamplingParams(temperature=1.3)),
        ("captured", SamplingParams(temperature=1.0)),
        ("captured", SamplingParams(temperature=1.0, top_k=5, top_p=0.9)),
    ],
    ids=["eager", "captured", "captured, top-k and top-p"],
)
def test_pairs_of_a_whole_engine(graphs: str, params: SamplingParams) -> None:
    assert p_value(pairs_of_engine(graphs, params, NUM_REQUESTS), exact_pairs_of_engine(params)) > 1e-3


def test_pairs_of_a_whole_engine_that_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection, "passes", lambda draws, p, _q: draws < p)
    params = SamplingParams(temperature=1.0)
    assert p_value(pairs_of_engine("captured", params, NUM_REQUESTS), exact_pairs_of_engine(params)) < 1e-6


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("graphs", ["off", "captured"])
def test_row_1_11_sampling_modes_under_rejection(graphs: str, tree: bool) -> None:
    assert not tree
    config = with_variants(rejection_config(3), graphs=graphs)
    with opened(config) as engine:
        first, again = (serve(engine, requests_of([SAMPLED])) for _ in range(2))
        other = serve(engine, [(text, replace(params, seed=7)) for text, params in requests_of([SAMPLED])])
        audit = engine.drain_audit()
        assert wrong_rows(audit) == {}
        assert set(rows_by_values(audit)) == {SamplingValues(1.0, 50, round_to_float32(0.9))}
        assert first.outputs == again.outputs
        assert first.outputs != other.outputs
        assert accepted_of(first) > 0
        if graphs == "captured":
            assert counts_of(engine)["replays"] > 0
            steps = capture_set(engine).steps
            for key, step in steps.items():
                drawn = {DRAW, "recover_tokens"} & set(step.program.operators)
                assert drawn == (set() if key.is_greedy else {DRAW, "recover_tokens"})
    eager = serve_once(with_variants(config, graphs="off"), requests_of([SAMPLED]))
    assert first.outputs == eager.outputs


def test_row_1_11_a_captured_step_that_lost_its_draws_is_found() -> None:
    config = with_variants(rejection_config(3), graphs="captured", capture_params="clear_at_copy")
    with opened(config) as engine:
        serve(engine, requests_of([SAMPLED], 4))
        assert wrong_rows(engine.drain_audit())


@pytest.mark.parametrize("name", ["eagle3", "ngram"])
def test_tokens_do_not_depend_on_how_a_step_is_run(name: str) -> None:
    """Captured, padded, overlapped, with other attention, in other slots and another order."""
    base = rejection_config(3, name)
    expected = tokens_of(base)
    assert accepted_of(expected) > 0
    changed = {
        "captured": with_variants(base, graphs="captured"),
        "overlap": overlapping(base),
        "overlap, captured": with_variants(overlapping(base), graphs="captured"),
        "attention": replace(base, attention="torch-gather"),
        "prompts in pieces": replace(base, max_num_tokens=24),
    }
    for what, config in changed.items():
        assert tokens_of(config).outputs == expected.outputs, what
    with opened(base) as engine:
        backwards = serve(engine, requests_of(KINDS)[::-1])
        assert wrong_rows(engine.drain_audit()) == {}
    assert backwards.outputs[::-1] == expected.outputs


@pytest.mark.parametrize("name", ["eagle3", "ngram"])
@pytest.mark.parametrize("graphs", ["off", "captured"])
def test_greedy_requests_get_the_tokens_of_plain_decoding(name: str, graphs: str) -> None:
    """Alone, beside sampled requests, and preempted."""
    base = with_variants(rejection_config(3, name), graphs=graphs)
    greedy = [(text, GREEDY) for text in prompts(4)]
    plain = run(tiny_config(), [text for text, _ in greedy], GREEDY)
    mixed = [each for index, pair in enumerate(greedy) for each in (pair, requests_of([SAMPLED])[index])]
    tight = replace(base, num_blocks=-(-base.max_positions // 8) + 3)
    for config, requests in ((base, greedy), (base, mixed), (tight, mixed)):
        outcome = serve_once(config, requests)
        found = Outcome(outcome.requests if requests is greedy else outcome.requests[::2], 0)
        assert count_near_ties(tiny_model(), plain, found) <= 1
        assert bool(outcome.num_preemptions) is (config is tight)


def test_runtime_draft_len_and_a_drafter_that_proposes_nothing() -> None:
    staggered = [
        (text, replace(params, max_tokens=5 + 4 * index)) for index, (text, params) in enumerate(requests_of(KINDS, 4))
    ]
    several = DrafterSpec("eagle3", 0, runtime_draft_len=((1, 4), (2, 2)))
    for drafter in (several, DrafterSpec()):
        for graphs in ("off", "captured"):
            config = with_variants(rejection_config(drafter=drafter), graphs=graphs)
            with opened(config) as engine:
                outcome = serve(engine, staggered, concurrency=3)
                assert wrong_rows(engine.drain_audit()) == {}
            lens = {step.draft_len for step in steps_of(outcome) if step.num_generation}
            assert lens == ({0, 2, 4} if drafter is several else {0})
    plain = serve_once(tiny_config(), requests_of(KINDS))
    assert serve_once(rejection_config(drafter=DrafterSpec()), requests_of(KINDS)).outputs == plain.outputs


def test_without_rejection_nothing_is_kept_for_it() -> None:
    strict = replace(rejection_config(), acceptance=tiny_config().acceptance)
    for config, columns in ((strict, 0), (rejection_config(), 100), (rejection_config(name="ngram"), 0)):
        with opened(config) as engine:
            assert engine._model_runner.state.draft_probabilities.shape == (5, 3, columns)


def test_a_device_that_computes_nothing_has_nothing_to_judge() -> None:
    from captured_cases import simulated

    config = replace(simulated(rejection_config(name="ngram")), acceptance=rejection_config().acceptance)
    with pytest.raises(InputError, match="computes no tokens to judge"), opened(config):
        pass
