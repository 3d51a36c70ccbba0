"""Rows 3.6, 3.8 and 3.9: what serving asserts, what has to be looked at beside it, and whom the defects reach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pytest
from captured_cases import (
    DEFECTS,
    RIGHT,
    batch_of,
    capture_set,
    captured_config,
    eager,
    live_of,
    opened,
    serve,
    watch_batches,
    wrong_rows,
)
from engine_driver import Outcome, count_near_ties, tiny_model, with_variants
from test_engine_tokens import GREEDY, SAMPLED, prompts

from specbench.engine import capture_params
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.step_sampling import OVERRIDE, StepSampling
from specbench.errors import EngineError, OverrideLiveError


@pytest.mark.parametrize("graphs", ["off", "captured"])
@pytest.mark.parametrize("draft_len", [0, 3])
@pytest.mark.parametrize("steps_before", [0, 4], ids=["prompt", "generation"])
def test_row_3_6_serving_with_a_live_override_is_fatal(graphs: str, draft_len: int, steps_before: int) -> None:
    with opened(with_variants(captured_config(draft_len), graphs=graphs)) as engine:
        request = engine.add_request(prompts(1)[0], replace(SAMPLED, max_tokens=30))
        for _ in range(steps_before):
            engine.step()
        before = list(request.output_token_ids)
        live_of(engine).override = OVERRIDE
        with pytest.raises(OverrideLiveError, match="while requests are served") as caught:
            engine.step()
        assert caught.value.exit_code == 4
        assert request.output_token_ids == before


def test_row_3_6_the_warm_up_is_not_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    original = StepSampling.fill

    def fill(sampling: StepSampling, *arguments: Sequence[object]) -> object:
        seen.append(sampling.override)
        return original(sampling, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(StepSampling, "fill", fill)
    with opened(captured_config(3, "clear_after_capture")):
        assert seen.count(OVERRIDE) == 6, "both rounds of the advanced pass have it, and nobody objects"


def test_row_3_6_without_the_assertion_requests_are_served_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepSampling, "require_no_override", lambda _live: None)
    with opened(captured_config(3)) as engine:
        live_of(engine).override = OVERRIDE
        serve(engine, batch_of("sampled", 2))
        assert wrong_rows(engine.drain_audit())


def test_a_capture_that_fails_leaves_an_engine_that_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    config = captured_config(capture_params="clear_after_capture")
    with opened(eager(config)) as engine:

        def fail(_program: object, name: str) -> None:
            raise EngineError("out of memory", where=name)

        monkeypatch.setattr(engine.device, "capture", fail)
        with pytest.raises(EngineError, match="out of memory"):
            engine.switch({"graphs": "captured", "capture_params": "clear_after_capture"})
        engine.switch({"graphs": "off", "capture_params": "real_params"})
        request = engine.add_request([1, 2, 3], SamplingParams(temperature=1.0, max_tokens=4, ignore_eos=True))
        while engine.has_work:
            engine.step()
        assert len(request.output_token_ids) == 4


def draws_under_advanced_keys(engine: LLMEngine) -> set[bool]:
    """The first check that an assertion cannot make: does what was recorded as sampled draw tokens?"""
    return {step.draws for key, step in capture_set(engine).steps.items() if not key.is_greedy}


def different_repeats(engine: LLMEngine) -> bool:
    """The second one: do repeats of a prompt with other seeds differ where captured steps drew the tokens?

    The first token comes from the step that ends the prompt, which is never captured: repeats are compared that agree
    in it.
    """
    wild = replace(SAMPLED, temperature=2.0, top_k=2, top_p=None, max_tokens=12)
    outcome = serve(engine, [(prompts(1)[0], replace(wild, seed=seed)) for seed in range(8)])
    groups = defaultdict(set)
    for first, *others in outcome.outputs:
        groups[first].add(tuple(others))
    assert sum(len(others) for others in groups.values()) <= 8
    assert len(groups) <= 2, "two tokens are allowed, so that some must agree in the first one"
    return all(len(others) > 1 for others in groups.values())


@pytest.mark.parametrize(
    ("variant", "draws", "differ"),
    [
        ("real_params", True, True),
        ("clear_after_capture", True, True),
        ("clear_at_copy", False, False),
        ("clear_after_warmup", False, False),
        ("leak", True, True),  # neither finds it: the audit does
    ],
)
def test_row_3_6_two_checks_that_no_assertion_makes(variant: str, draws: bool, differ: bool) -> None:
    with opened(captured_config(3, variant)) as engine:
        # Nothing of the defect is alive, so that serving has nothing to assert on.
        assert live_of(engine).override is None
        assert draws_under_advanced_keys(engine) == {draws}
        assert different_repeats(engine) is differ
        assert bool(wrong_rows(engine.drain_audit())) is (variant in DEFECTS)


GREEDY_ROW = (prompts(3)[2], replace(GREEDY, max_tokens=18))


def beside(seed: int) -> list[tuple[list[int], SamplingParams]]:
    """The greedy request, and three sampled ones that outlive it."""
    others = [replace(SAMPLED, seed=seed + index, temperature=1.0 + index, max_tokens=22) for index in range(3)]
    return [GREEDY_ROW, *zip(prompts(4, seed), others, strict=False)]


@pytest.mark.parametrize("graphs", ["off", "captured"])
@pytest.mark.parametrize("draft_len", [0, 3])
def test_row_3_8_a_greedy_row_beside_sampled_ones_is_deterministic(graphs: str, draft_len: int) -> None:
    with opened(with_variants(captured_config(draft_len), graphs=graphs)) as engine:
        batches = watch_batches(engine) if graphs == "captured" else []
        alone, *mixed = (serve(engine, requests) for requests in ([GREEDY_ROW], beside(1), beside(100), beside(1)))
        assert wrong_rows(engine.drain_audit()) == {}
    if graphs == "captured":
        facts = [batch.sampling.facts for batch in batches if batch.num_generation == 4 and not batch.context]
        assert any(each.num_greedy == draft_len + 1 and each.num_sampled == 3 * (draft_len + 1) for each in facts)
    first = [Outcome(outcome.requests[:1], 0) for outcome in mixed]
    assert first[0].outputs == first[2].outputs
    assert mixed[0].outputs[1:] != mixed[1].outputs[1:], "the sampled ones are others"
    # In a batch of its own the row has other shapes beside it.
    assert [count_near_ties(tiny_model(), alone, outcome) for outcome in first] in ([0, 0, 0], [0, 1, 0], [1, 0, 1])


def test_row_3_8_a_greedy_row_that_is_drawn_is_not_deterministic() -> None:
    """Broken by the override that lives on: it makes every row of a sampled batch a sampled one."""
    with opened(captured_config(3, "leak")) as engine:
        alone, mixed = serve(engine, [GREEDY_ROW]), serve(engine, beside(1))
    with pytest.raises(AssertionError, match="differs with a margin"):
        count_near_ties(tiny_model(), alone, Outcome(mixed.requests[:1], 0))


VARIANTS = (*RIGHT, *DEFECTS)
REQUESTS = [(text, replace(params, max_tokens=12)) for text, params in batch_of("sampled", 3)]


def reach_of(engine: LLMEngine, expected: list[list[int]]) -> str:
    """How the requests were served; ``expected``: the outputs where all is right."""
    outcome = serve(engine, REQUESTS)
    wrong = {served for _, served in wrong_rows(engine.drain_audit())}
    assert (outcome.outputs == expected) is (not wrong), "what is served otherwise gives other tokens, and only that"
    if not wrong:
        return "as asked"
    (served,) = wrong
    return "0.7 / 50 / 0.9" if served.top_k == 50 else "argmax"


def blast_radius() -> dict[tuple[str, str], dict[str, str]]:
    """(drafter, graphs) -> variant -> how sampled requests were served; one engine a row."""
    matrix = {}
    for draft_len, graphs in ((0, "off"), (0, "captured"), (3, "off"), (3, "captured")):
        with opened(with_variants(captured_config(draft_len), graphs=graphs)) as engine:
            expected = serve(engine, REQUESTS).outputs
            assert wrong_rows(engine.drain_audit()) == {}
            row = {}
            for variant in VARIANTS:
                engine.switch({"capture_params": variant})
                row[variant] = reach_of(engine, expected)
        matrix["ngram" if draft_len else "none", graphs] = row
    return matrix


def test_row_3_9_only_speculation_with_captured_steps_is_reached() -> None:
    matrix = blast_radius()
    print(f"\n{'drafter':8} {'graphs':9}" + "".join(f" {variant:20}" for variant in VARIANTS))
    for (drafter, graphs), row in matrix.items():
        print(f"{drafter:8} {graphs:9}" + "".join(f" {row[variant]:20}" for variant in VARIANTS))
    harmless = dict.fromkeys(VARIANTS, "as asked")
    reached = {**harmless, "leak": "0.7 / 50 / 0.9", "clear_at_copy": "argmax", "clear_after_warmup": "argmax"}
    assert matrix == {
        ("none", "off"): harmless,
        ("none", "captured"): harmless,
        ("ngram", "off"): harmless,
        ("ngram", "captured"): reached,
    }


def test_row_3_9_an_override_that_is_not_speculation_s_would_reach_every_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capture_params, "_where_speculating", lambda _config, variant: variant)
    with opened(captured_config(0, "leak")) as engine:
        serve(engine, REQUESTS)
        assert wrong_rows(engine.drain_audit())
