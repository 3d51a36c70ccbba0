"""Toggles together: every legal pair of variants gives the same tokens, and what may not stand together is refused.

Configurations are compared that run the same steps: those that differ from each other in ``overlap`` or ``graphs`` have
other shapes, and with them near ties. Within one choice of these two, tokens are equal to the bit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import pytest
from captured_cases import wrong_rows
from engine_driver import Outcome, count_near_ties, ngram, tiny_config, tiny_model
from steady_cases import shuffle_now_and_then
from test_hybrid_engine import hybrid_config, hybrid_model, texts
from test_switching import mixed_requests

from specbench.engine.build import build_engine
from specbench.engine.config import EngineConfig
from specbench.engine.llm_engine import LLMEngine
from specbench.engine.models.loading import LoadedModel
from specbench.engine.optimizations.base import Exactness, Toggle, load_toggle
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.signature import SignatureSamplingParams
from specbench.engine.steady_state import SteadyStateInputs
from specbench.errors import InputError
from specbench.registry import OPTIMIZATIONS
from specbench.scenario.loader import load_scenario

Settings = dict[str, str]
Requests = list[tuple[list[int], SamplingParams]]
TOGGLES: dict[str, Toggle] = {name: load_toggle(name) for name in sorted(OPTIMIZATIONS)}
SHAPED = tuple(name for name, each in TOGGLES.items() if each.exactness is Exactness.NUMERICALLY_EQUIVALENT)
"""Toggles that change the shapes of steps."""


def sound_variants(toggle: Toggle) -> list[str]:
    return [name for name in toggle.variants if toggle.exactness_of(name) is not Exactness.KNOWN_DEFECT]


def is_legal(settings: Mapping[str, str]) -> bool:
    """What scenarios accept, as the registry declares it."""
    present = {f"{name}={variant}" for name, variant in settings.items()}
    for name, variant in settings.items():
        toggle = TOGGLES[name]
        if toggle.variants[variant].missing_from(settings):
            return False
        if variant != toggle.baseline and (
            not present.issuperset(toggle.requires) or not present.isdisjoint(toggle.conflicts)
        ):
            return False
    return True


def legal_settings(has_recurrent_state: bool) -> list[Settings]:
    """Every legal choice of a variant for every toggle that the model has a use for."""
    names = [name for name, toggle in TOGGLES.items() if has_recurrent_state or not toggle.needs_recurrent_state]
    choices = product(*(sound_variants(TOGGLES[name]) for name in names))
    return [
        settings for settings in (dict(zip(names, choice, strict=True)) for choice in choices) if is_legal(settings)
    ]


def pairs_in(settings: Settings) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    return set(combinations(sorted(settings.items()), 2))


def cover_pairs(every: list[Settings], toggle: str | None = None) -> list[Settings]:
    """Few of ``every`` in which each pair of variants occurs that occurs in any, the richest first.

    :param toggle: count only the pairs that this toggle is in.
    """
    missing = {pair for settings in every for pair in pairs_in(settings) if toggle in (None, pair[0][0], pair[1][0])}
    chosen = []
    while missing:
        best = max(every, key=lambda settings: len(missing & pairs_in(settings)))
        chosen.append(best)
        missing -= pairs_in(best)
    return chosen


def test_few_configurations_have_every_legal_pair_in_them() -> None:
    for has_recurrent_state in (False, True):
        every = legal_settings(has_recurrent_state)
        few = cover_pairs(every)
        assert len(few) <= 14 < len(every)
        names = [name for name in TOGGLES if has_recurrent_state or not TOGGLES[name].needs_recurrent_state]
        wanted = {
            ((a, x), (b, y))
            for a, b in combinations(names, 2)
            for x, y in product(sound_variants(TOGGLES[a]), sound_variants(TOGGLES[b]))
        }
        # Two variants that never stand together are a requirement that is not met, and none is left out beside them.
        found = set().union(*map(pairs_in, few))
        assert wanted - found == {(("capture_params", "clear_after_capture"), ("graphs", "off"))}
    assert len(TOGGLES) == 7
    assert SHAPED == ("graphs", "overlap")


# Tokens.


def config_for(draft_len: int, is_hybrid: bool) -> EngineConfig:
    """A pool in which requests are preempted, prompts in pieces."""
    base = hybrid_config if is_hybrid else tiny_config
    # Every variant is built with the engine, whichever stands at first.
    return base(drafter=ngram(draft_len), max_seq_len=64, num_blocks=12 + draft_len, max_num_tokens=40)


def requests_for(is_hybrid: bool, count: int) -> Requests:
    """Greedy and sampled, of many lengths; the first three are long, so that the pool runs out."""
    made = mixed_requests(3, count)
    lengths = [18 if index < 3 else min(params.max_tokens, 18) for index, (_, params) in enumerate(made)]
    made = [(text, replace(params, max_tokens=n)) for (text, params), n in zip(made, lengths, strict=True)]
    return [(text, p) for text, (_, p) in zip(texts(count), made, strict=True)] if is_hybrid else made


@contextmanager
def shared_engine(draft_len: int, is_hybrid: bool) -> Iterator[LLMEngine]:
    engine = build_engine(config_for(draft_len, is_hybrid), loaded=model_for(is_hybrid))
    try:
        yield engine
    finally:
        engine.shutdown()


def model_for(is_hybrid: bool) -> LoadedModel:
    return hybrid_model() if is_hybrid else tiny_model()


def serve(engine: LLMEngine, requests: Requests, changes: Mapping[int, Settings]) -> Outcome:
    """Run all requests, four at a time, in an order that changes; ``changes`` come before steps of these numbers."""
    original = engine._scheduler.schedule
    shuffle_now_and_then(1)(engine)
    waiting, handles, unfinished, step = list(requests), [], 0, 0
    before = engine.num_preemptions
    while waiting or engine.has_work:
        while waiting and unfinished < 4:
            text, params = waiting.pop(0)
            handles.append(engine.add_request(text, params))
            unfinished += 1
        events = engine.switch(changes[step]) if step in changes else []
        unfinished -= sum(event.finished for event in [*events, *engine.step()])
        step += 1
    engine._scheduler.schedule = original  # type: ignore[method-assign]
    engine.blocks.check()
    assert wrong_rows(engine.drain_audit()) == {}
    return Outcome(handles, engine.num_preemptions - before, list(engine.drain_steps()))


Plan = dict[int, Settings]
"""What is switched, by the step that it comes before."""


def baselines(settings: Settings) -> Settings:
    """The same shapes, and of all other toggles the baseline, or what there is beside it."""
    found = {name: TOGGLES[name].baseline for name in settings} | {name: settings[name] for name in SHAPED}
    return found if is_legal(found) else {**found, "capture_params": "real_params"}


def switching(chosen: list[Settings], seed: int) -> Plan:
    """Another configuration every few steps, each of them at least once if the run is long enough."""
    rng = random.Random(seed)
    order = rng.sample(chosen, len(chosen)) * 6
    steps = [0]
    for _ in order[1:]:
        steps.append(steps[-1] + rng.randint(1, 5))
    return dict(zip(steps, order, strict=True))


def check(draft_len: int, is_hybrid: bool, plans: list[Plan], count: int = 6) -> list[Outcome]:
    """Run every plan in one shared engine, and next to it in an engine of its own where only shapes are switched."""
    requests, found = requests_for(is_hybrid, count), []
    expected: dict[str, Outcome] = {}
    with shared_engine(draft_len, is_hybrid) as engine:
        for plan in plans:
            reduced = {step: baselines(settings) for step, settings in plan.items()}
            key = str(reduced)
            if key not in expected:
                with shared_engine(draft_len, is_hybrid) as other:
                    expected[key] = serve(other, requests, reduced)
            outcome = serve(engine, requests, plan)
            assert outcome.outputs == expected[key].outputs, plan
            assert outcome.num_preemptions == expected[key].num_preemptions
            assert [vars(step)["num_committed"] for step in outcome.steps] == [
                vars(step)["num_committed"] for step in expected[key].steps
            ]
            found.append(outcome)
    alone = next(iter(expected.values()))
    for outcome in expected.values():
        assert count_near_ties(model_for(is_hybrid), alone, outcome) <= 1
    return found


CASES = [
    pytest.param(
        draft_len, is_hybrid, id=f"{'tiny-hybrid' if is_hybrid else 'tiny'}-{'ngram' if draft_len else 'none'}"
    )
    for is_hybrid in (False, True)
    for draft_len in (0, 3)
]


@pytest.mark.parametrize(("draft_len", "is_hybrid"), CASES)
def test_every_legal_pair_of_variants_gives_the_same_tokens(draft_len: int, is_hybrid: bool) -> None:
    # What a hybrid model adds is one toggle; the pairs of the others are those of the other model.
    few = cover_pairs(legal_settings(is_hybrid), "state_indices" if is_hybrid else None)
    outcomes = check(draft_len, is_hybrid, [{0: settings} for settings in few])
    assert min(outcome.num_preemptions for outcome in outcomes) > 0
    batches = {vars(step)["num_generation"] for outcome in outcomes for step in outcome.steps}
    assert batches >= {1, 2, 3}
    assert not draft_len or any(sum(vars(step)["accepted"]) for step in outcomes[0].steps)


@pytest.mark.parametrize(("draft_len", "is_hybrid"), CASES)
def test_switching_between_them_in_the_middle_changes_no_token(draft_len: int, is_hybrid: bool) -> None:
    check(draft_len, is_hybrid, [switching(cover_pairs(legal_settings(is_hybrid)), seed=0)])


@pytest.mark.slow
@pytest.mark.parametrize(("draft_len", "is_hybrid"), CASES)
def test_every_legal_configuration_gives_the_same_tokens(draft_len: int, is_hybrid: bool) -> None:
    every = legal_settings(is_hybrid)
    check(draft_len, is_hybrid, [{0: settings} for settings in every], count=10)
    check(draft_len, is_hybrid, [switching(every, seed) for seed in range(1, 11)], count=10)


def flickering(toggle: str) -> Plan:
    """The two variants of one toggle by turns, the other one before every step."""
    names = (TOGGLES[toggle].recommended, TOGGLES[toggle].baseline)
    start = baselines({name: TOGGLES[name].baseline for name in TOGGLES if not TOGGLES[name].needs_recurrent_state})
    start |= {"graphs": "off", "overlap": "off", "capture_params": "real_params"}
    return {step: {**start, toggle: names[step % 2]} for step in range(80)}


@pytest.mark.parametrize(
    ("broken", "toggle"), [(SignatureSamplingParams, "sampling_params"), (SteadyStateInputs, "input_prep")]
)
def test_a_variant_that_does_not_forget_is_found(broken: type, toggle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mechanism broken: what it believes about the buffers outlives the variants that wrote them meanwhile."""
    check(0, False, [flickering(toggle)])
    monkeypatch.setattr(broken, "activate", lambda _variant: None)
    with pytest.raises(AssertionError):
        check(0, False, [flickering(toggle)])


# What may not stand together.


def refusals() -> list[tuple[str, str, str, str]]:
    """(toggle, variant, what stands beside it, what is refused) of everything that the registry declares illegal."""
    found = []
    for name, toggle in TOGGLES.items():
        for variant, declared in toggle.variants.items():
            needs = [*declared.requires, *(toggle.requires if variant != toggle.baseline else ())]
            for needed in needs:
                other, wanted = needed.split("=")
                for beside in TOGGLES[other].variants:
                    if beside != wanted:
                        found.append((name, variant, f"{other}: {beside}", f"{variant} .* {needed}"))
            for conflict in toggle.conflicts if variant != toggle.baseline else ():
                other, beside = conflict.split("=")
                found.append((name, variant, f"{other}: {beside}", f"{variant} cannot stand beside {conflict}"))
            if toggle.needs_recurrent_state:
                found.append((name, variant, "overlap: off", "recurrent state"))
    return found


TEXT = """model: tiny
workload: {{kind: random_tokens, num_requests: 2, isl: 4, osl: 4}}
optimizations: {{{0}: {1}, {2}}}
"""


@pytest.mark.parametrize(("toggle", "variant", "beside", "reason"), refusals())
def test_what_may_not_stand_together_is_refused_with_the_reason(
    toggle: str, variant: str, beside: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(TEXT.format(toggle, variant, beside))
    with pytest.raises(InputError, match=reason) as caught:
        load_scenario(path)
    assert f"x.yaml:3: optimizations.{toggle}" in str(caught.value)
    assert caught.value.exit_code == 2


def test_there_is_something_to_refuse() -> None:
    assert {(toggle, variant) for toggle, variant, _, _ in refusals()} == {
        *(("capture_params", each) for each in ("clear_after_capture", "leak", "clear_at_copy", "clear_after_warmup")),
        *(("state_indices", each) for each in ("per_request", "bulk")),
    }


@pytest.mark.parametrize("settings", cover_pairs(legal_settings(has_recurrent_state=False)))
def test_what_is_legal_is_accepted(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    chosen = ", ".join(f"{name}: {variant}" for name, variant in settings.items())
    path.write_text(TEXT.format(*chosen.partition(": ")[::2], "").replace(", }", "}"))
    assert load_scenario(path).optimizations == settings
