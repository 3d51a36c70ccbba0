"""Tokens do not depend on how they were computed: K, batch, chunks, preemption, overlap."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from typing import cast

import pytest
import torch
from engine_driver import Outcome, count_near_ties, forced, ngram, overlapping, run, tiny_config, tiny_model
from torch import Tensor

from specbench.engine.attention.base import AttentionOperator
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.config import DrafterSpec
from specbench.engine.models.base import NO_TAPS, CausalLM, HiddenTaps
from specbench.engine.sampling.params import SamplingParams
from specbench.errors import CapacityError, InputError, NonFiniteLogitsError, PromptTooLongError
from specbench.measure.telemetry import hash_tokens
from specbench.records import StepRecord

GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, top_k=40, top_p=0.95, seed=11, max_tokens=40, ignore_eos=True)


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Prompts that repeat themselves, of 5 to 60 ids below 200."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        phrase = [rng.randrange(200) for _ in range(rng.randint(3, 9))]
        made.append((phrase * 12)[: rng.randint(5, 60)])
    return made


def differing(count: int) -> list[SamplingParams]:
    """Greedy and sampled requests in turn, each with a seed of its own."""
    return [replace(SAMPLED, seed=i) if i % 2 else GREEDY for i in range(count)]


def assert_same(expected: Outcome, found: Outcome, allowed: int = 1) -> None:
    near_ties = count_near_ties(tiny_model(), expected, found)
    assert near_ties <= allowed, f"{near_ties} near ties in {len(expected.requests)} requests"


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("draft_len", [1, 2, 4, 7])
def test_speculative_greedy_equals_plain_greedy(draft_len: int, batch: int) -> None:
    base = tiny_config(max_batch_size=batch, num_blocks=20 * batch)
    plain = run(base, prompts(16), GREEDY)
    # Prompts in pieces, and a pool that holds a few of the sequences at once.
    tight = replace(base, drafter=ngram(draft_len), max_num_tokens=batch * (draft_len + 1) + 7, num_blocks=21 + batch)
    speculative = run(tight, prompts(16), GREEDY)
    assert_same(plain, speculative)
    assert speculative.num_preemptions > 0 or batch == 1
    assert len({step.num_context_tokens for step in speculative.steps if isinstance(step, StepRecord)}) > 2
    accepted = sum(sum(step.accepted) for step in speculative.steps if isinstance(step, StepRecord))
    assert accepted > 0, "nothing was accepted, so nothing was tested"


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("draft_len", [0, 3])
def test_preemption_and_chunked_prefill_keep_the_tokens(draft_len: int, overlap: bool) -> None:
    base = tiny_config(drafter=ngram(draft_len), overlap=overlap)
    tight = replace(base, num_blocks=-(-base.max_positions // 8) + 3, max_num_tokens=24)
    roomy_run, tight_run = run(base, prompts(12), differing(12)), run(tight, prompts(12), differing(12))
    assert tight_run.num_preemptions > 0
    assert roomy_run.num_preemptions == 0
    chunked = [step for step in tight_run.steps if isinstance(step, StepRecord) and step.num_context_tokens == 24]
    assert chunked, "no prompt was cut"
    assert_same(roomy_run, tight_run)


@pytest.mark.parametrize("draft_len", [0, 4])
def test_overlap_changes_no_token(draft_len: int) -> None:
    base = tiny_config(drafter=ngram(draft_len))
    assert_same(
        run(base, prompts(16), differing(16), concurrency=4),
        run(overlapping(base), prompts(16), differing(16), concurrency=4),
    )


def test_sampled_tokens_do_not_depend_on_batch_order_or_slot() -> None:
    texts, params = prompts(12), differing(12)
    forward = run(tiny_config(), texts, params)
    backward = run(tiny_config(max_batch_size=3), texts[::-1], params[::-1])
    backward.requests.reverse()
    assert_same(forward, backward)


def test_sampled_speculation_equals_sampled_decoding() -> None:
    plain = run(tiny_config(), prompts(12), SAMPLED)
    assert_same(plain, run(tiny_config(drafter=ngram(3)), prompts(12), SAMPLED))


def test_seeds_matter() -> None:
    first = run(tiny_config(), prompts(4), SAMPLED)
    second = run(tiny_config(), prompts(4), replace(SAMPLED, seed=12))
    assert first.outputs != second.outputs


@pytest.mark.parametrize("overlap", [False, True])
def test_equal_runs_are_equal_in_one_process_and_across_processes(overlap: bool) -> None:
    """With a slot for each request the steps have equal shapes with overlap on and off, so the bits are equal too."""
    program = (
        "from engine_driver import *; from test_engine_tokens import *; from specbench.measure.telemetry import *;"
        f"config = tiny_config(drafter=ngram(3), overlap={not overlap}, max_batch_size=6, num_blocks=120);"
        "print(hash_tokens(run(config, prompts(6), differing(6)).outputs))"
    )
    config = tiny_config(drafter=ngram(3), overlap=overlap, max_batch_size=6, num_blocks=120)
    here = [hash_tokens(run(config, prompts(6), differing(6)).outputs) for _ in range(2)]
    paths = [__file__.rpartition("/")[0], *sys.path]
    code = f"import sys; sys.path[:0] = {paths!r}; import torch; torch.set_num_threads(1); {program}"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert here[0] == here[1]
    assert other.stdout.strip() == here[0]


@pytest.mark.parametrize("overlap", [False, True])
def test_forced_acceptance_commits_the_mean_it_was_told(overlap: bool) -> None:
    config = tiny_config(drafter=ngram(3), acceptance=forced(2.4), overlap=overlap, max_seq_len=512, num_blocks=4 * 66)
    outcome = run(config, prompts(8), replace(GREEDY, max_tokens=400))
    steps = [step for step in outcome.steps if isinstance(step, StepRecord)]
    lengths = [length for request in outcome.requests for length in request.accepted_lengths[:-1]]
    assert set(lengths) <= {2, 3}
    # 8 x 166 draws of a coin with p = 0.4: the standard error of the mean is 0.0135.
    assert abs(sum(lengths) / len(lengths) - 2.4) < 4 * 0.0135
    assert sum(step.num_committed + step.num_first_tokens for step in steps) == 8 * 400
    for step in steps:
        columns = zip(step.accepted, step.drafted, step.eligible, step.opened, strict=True)
        assert all(accepted <= min(drafted, eligible) <= opened for accepted, drafted, eligible, opened in columns)


def test_preemption_keeps_forced_tokens_too() -> None:
    base = tiny_config(drafter=ngram(3), acceptance=forced(2.4))
    tight = replace(base, num_blocks=-(-base.max_positions // 8) + 3)
    roomy, preempted = run(base, prompts(8), GREEDY), run(tight, prompts(8), GREEDY)
    assert preempted.num_preemptions > 0
    assert_same(roomy, preempted)


def test_runtime_draft_len_follows_the_batch_and_keeps_the_tokens() -> None:
    spec = DrafterSpec("ngram", 4, runtime_draft_len=((1, 4), (2, 2)), max_ngram=2, min_ngram=1)
    params = [replace(GREEDY, max_tokens=20 + 6 * i) for i in range(8)]
    outcome = run(tiny_config(drafter=spec), prompts(8), params)
    assert_same(run(tiny_config(), prompts(8), params), outcome)
    asked = {1: 4, 2: 2, 3: 0, 4: 0}
    steps = [step for step in outcome.steps if isinstance(step, StepRecord) and step.num_generation]
    assert all(step.draft_len <= asked[step.num_generation] for step in steps)
    # When the batch shrinks, K grows a step later: the step before proposed for its own batch.
    for before, step in pairwise(steps):
        if before.num_generation == step.num_generation and not before.num_context:
            assert step.draft_len == asked[step.num_generation]
    assert {(4, 0), (1, 4)} <= {(step.num_generation, step.draft_len) for step in steps}


def test_an_end_inside_a_draft_cuts_the_output_and_moves_no_rate() -> None:
    plain = run(tiny_config(), prompts(6), GREEDY)
    stops = tuple({request.output_token_ids[12] for request in plain.requests})
    params = replace(GREEDY, stop_token_ids=stops)
    for overlap in (False, True):
        outcome = run(tiny_config(drafter=ngram(4), overlap=overlap), prompts(6), params)
        for full, cut in zip(plain.requests, outcome.requests, strict=True):
            end = next(i for i, token in enumerate(full.output_token_ids) if token in stops)
            assert cut.output_token_ids == full.output_token_ids[: end + 1]
            assert cut.finish_reason == "stop"
            assert sum(cut.chunk_sizes) == len(cut.output_token_ids)
        for step in outcome.steps:
            assert isinstance(step, StepRecord)
            assert all(e >= a for e, a in zip(step.eligible, step.accepted, strict=True))
            assert all(first >= second for first, second in pairwise(step.accepted))
            assert step.num_committed >= sum(step.accepted)


def test_the_eos_of_the_model_ends_a_request_unless_ignored() -> None:
    loaded = tiny_model()
    plain = run(tiny_config(), prompts(1), GREEDY)
    eos = plain.outputs[0][5]
    ending = replace(loaded, config=replace(loaded.config, eos_token_ids=(eos,)))
    stopped = run(tiny_config(), prompts(1), replace(GREEDY, ignore_eos=False), loaded=ending)
    ignored = run(tiny_config(), prompts(1), GREEDY, loaded=ending)
    assert stopped.outputs[0] == plain.outputs[0][: plain.outputs[0].index(eos) + 1]
    assert stopped.requests[0].finish_reason == "stop"
    assert ignored.outputs == plain.outputs


def test_output_is_cut_at_max_seq_len() -> None:
    for overlap in (False, True):
        config = tiny_config(max_seq_len=64, num_blocks=60, drafter=ngram(4), overlap=overlap)
        outcome = run(config, [list(range(50))], replace(GREEDY, max_tokens=100))
        assert outcome.requests[0].num_tokens == 64
        assert outcome.requests[0].finish_reason == "length"


def test_bad_requests_are_refused_by_name() -> None:
    with pytest.raises(PromptTooLongError, match="128 tokens, and max_seq_len is 128"):
        run(tiny_config(), [[1] * 128], GREEDY)
    with pytest.raises(InputError, match="no tokens"):
        run(tiny_config(), [[]], GREEDY)
    with pytest.raises(InputError, match="outside"):
        run(tiny_config(), [[10**6]], GREEDY)
    with pytest.raises(CapacityError, match="the pool has 3"):
        run(tiny_config(num_blocks=3), [[1] * 40], GREEDY)
    with pytest.raises(CapacityError, match="rows"):
        run(tiny_config(max_num_tokens=8, drafter=ngram(4)), [[1]], GREEDY)


class NanPrompt:
    """A model whose first prompt chunk leaves NaN in the cache of its first layer, and that samples nothing there."""

    num_position_rows = 1

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self._num_forwards = 0

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: AttentionOperator,
        taps: HiddenTaps = NO_TAPS,  # noqa: ARG002
    ) -> Tensor:
        self._num_forwards += 1
        return self._model.forward(token_ids, positions, NanValues(attention) if self._num_forwards == 1 else attention)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self._model.compute_logits(hidden)


class NanValues(AttentionOperator):
    """Spoils one value of the first layer before it is written."""

    def __init__(self, inner: AttentionOperator) -> None:
        self._inner = inner

    def prepare(self, metadata: AttentionMetadata) -> None:
        self._inner.prepare(metadata)

    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer == 0:
            v = v.clone()
            v[3] = torch.nan
        return self._inner.forward(layer, q, k, v)


@pytest.mark.parametrize("attention", ["cpu-paged", "torch-gather"])
def test_nan_in_a_chunk_that_samples_nothing_is_an_error_too(attention: str) -> None:
    loaded = replace(tiny_model(), model=cast(CausalLM, NanPrompt(tiny_model().model)))
    config = tiny_config(attention=attention, max_num_tokens=16)
    with pytest.raises(NonFiniteLogitsError, match=r"step 1: .*request-0"):
        run(config, [list(range(40))], GREEDY, loaded=loaded)


class NanModel:
    """A model whose last logits row is NaN from the third forward on."""

    num_position_rows = 1

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self._num_forwards = 0

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: AttentionOperator,
        taps: HiddenTaps = NO_TAPS,  # noqa: ARG002
    ) -> Tensor:
        self._num_forwards += 1
        return self._model.forward(token_ids, positions, attention)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        logits = self._model.compute_logits(hidden)
        if self._num_forwards >= 3:
            logits[-1] = torch.nan
        return logits


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
@pytest.mark.parametrize("overlap", [False, True])
def test_nan_logits_are_an_error_with_the_request_and_step(overlap: bool, params: SamplingParams) -> None:
    loaded = replace(tiny_model(), model=cast(CausalLM, NanModel(tiny_model().model)))
    with pytest.raises(NonFiniteLogitsError, match=r"step 3: .*request-1"):
        run(tiny_config(overlap=overlap), prompts(2), params, loaded=loaded)


def test_overlap_launches_a_step_before_the_one_before_is_read() -> None:
    base = tiny_config(drafter=ngram(2))
    for overlap in (False, True):
        outcome = run(overlapping(base, overlap), prompts(4), GREEDY)
        steps = [step for step in outcome.steps if isinstance(step, StepRecord)]
        early = [later.launch_ns < step.output_ns for step, later in pairwise(steps)]
        assert all(early) if overlap else not any(early)
        assert all(step.device_start_ns >= step.host_start_ns for step in steps)
        assert all(later.device_start_ns >= step.device_end_ns for step, later in pairwise(steps))
