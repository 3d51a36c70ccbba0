"""The grammar of a variant: a name, off, on, or a list of overrides."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench import registry
from specbench.engine.optimizations.base import Exactness, Toggle, Variant
from specbench.errors import InputError, ScenarioError
from specbench.scenario.loader import load_scenario
from specbench.scenario.overrides import Override, parse_override
from specbench.scenario.places import dotted
from specbench.scenario.questions import ask_sweep
from specbench.scenario.yaml12 import read_yaml

Write = Callable[[str], Path]
Refusal = Callable[..., InputError]

BASE = """\
drafter: {name: ngram, draft_len: 6}
workload: {kind: chat80, concurrency: 8}
variants:
  plain:
    drafter: none
  small:
    drafter.draft_len: 2
    workload: {concurrency: 1}
"""


def _toggle(name: str, *, requires: tuple[str, ...] = (), conflicts: tuple[str, ...] = ()) -> Toggle:
    return Toggle(
        name=name,
        summary="for tests",
        choice_point=name,
        variants={variant: Variant("for tests", "nowhere:x") for variant in ("slow", "fast", "odd")},
        baseline="slow",
        recommended="fast",
        source="tests",
        exactness=Exactness.BIT_IDENTICAL,
        step_preserving=True,
        requires=requires,
        conflicts=conflicts,
    )


@pytest.fixture
def toggles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three toggles in the registry in place of the engine's."""
    module = types.ModuleType("toggles_of_tests")
    declared = (_toggle("alpha"), _toggle("beta", requires=("alpha=fast",)), _toggle("gamma", conflicts=("beta=odd",)))
    for toggle in declared:
        setattr(module, toggle.name, toggle)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entries = {t.name: registry.Entry(f"{module.__name__}:{t.name}", t.summary) for t in declared}
    monkeypatch.setitem(vars(registry.OPTIMIZATIONS), "_entries", entries)


def test_a_named_variant_is_applied(write: Write) -> None:
    path = write(BASE)
    assert load_scenario(path, variant="plain").drafter.name == "none"
    small = load_scenario(path, variant="small")
    assert (small.drafter.name, small.drafter.draft_len) == ("ngram", 2)
    assert (small.workload.kind, small.workload.concurrency) == ("chat80", 1)


def test_the_scenario_itself_stays_as_it_is(write: Write) -> None:
    path = write(BASE)
    before = load_scenario(path)
    load_scenario(path, variant="small")
    assert load_scenario(path) == before


def test_a_list_of_overrides(write: Write) -> None:
    scenario = load_scenario(
        write(BASE), variant="drafter.draft_len=3,sampling.stop_token_ids=5,6,workload.categories=[math,coding]"
    )
    assert scenario.drafter.draft_len == 3
    assert scenario.sampling.stop_token_ids == (5, 6)
    assert scenario.workload.categories == ("math", "coding")


def test_an_unknown_variant_has_the_nearest(refusal: Refusal) -> None:
    error = refusal(BASE, variant="plan")
    assert error.what == "no such variant; this scenario has: plain, small, off, on"
    assert (error.where, error.hint) == ("--variant plan", "did you mean 'plain'?")


@pytest.mark.parametrize(
    ("variant", "where", "what"),
    [
        ("drafter.draft_len=x", "--variant drafter.draft_len", "found 'x' (text); allowed: a whole number"),
        ("drafter.draft_ln=3", "--variant drafter.draft_ln", "no such key in drafter"),
        ("draft_len=3", "--variant draft_len", "no such key 'draft_len'"),
        ("name=other", "--variant name", "a variant cannot set name"),
        ("variants.plain.drafter=none", "--variant variants.plain.drafter", "a variant cannot set variants"),
        ("=3", "--variant ", "a key is missing"),
        ("drafter.draft_len=[1", "--variant drafter.draft_len", "cannot be read"),
        ("", "--variant ''", "no such variant"),
    ],
)
def test_a_wrong_override_names_the_flag_and_key(refusal: Refusal, variant: str, where: str, what: str) -> None:
    error = refusal(BASE, variant=variant)
    assert error.where is not None
    assert error.where.startswith(where)
    assert what in error.what


def test_a_wrong_named_variant_names_its_line(refusal: Refusal) -> None:
    error = refusal(BASE.replace("draft_len: 2", "draft_len: two"), variant="small")
    assert error.where is not None
    assert error.where.endswith("x.yaml:7 (variant 'small'): drafter.draft_len")


@pytest.mark.usefixtures("toggles")
def test_off_and_on_switch_the_study(write: Write) -> None:
    path = write("study: [alpha]\noptimizations: {beta: slow}\n")
    assert load_scenario(path, variant="off").optimizations == {"alpha": "slow", "beta": "slow"}
    assert load_scenario(path, variant="on").optimizations == {"alpha": "fast", "beta": "slow"}


@pytest.mark.usefixtures("toggles")
def test_without_a_study_every_toggle_is_switched(write: Write) -> None:
    path = write("name: x\n")
    assert load_scenario(path, variant="off").optimizations == {"alpha": "slow", "beta": "slow", "gamma": "slow"}


@pytest.mark.usefixtures("toggles")
def test_toggles_go_by_their_name(write: Write) -> None:
    path = write("variants: {half: {alpha: fast, beta: slow, gamma: slow}}\n")
    half = {"alpha": "fast", "beta": "slow", "gamma": "slow"}
    assert load_scenario(path, variant="half").optimizations == half
    assert load_scenario(path, variant="alpha=fast,beta=slow,optimizations.gamma=slow").optimizations == half


@pytest.mark.parametrize(
    ("optimizations", "key", "what"),
    [
        (
            "{alpha: fats, beta: slow}",
            "optimizations.alpha",
            "unknown variant of alpha 'fats'; allowed: fast, odd, slow",
        ),
        ("{alpa: fast}", "optimizations.alpa", "unknown toggle 'alpa'; allowed: alpha, beta, gamma"),
        ("{alpha: slow}", "optimizations.beta", "fast needs alpha=fast"),
        ("{beta: odd}", "optimizations.gamma", "fast cannot stand beside beta=odd"),
        ("{alpha: 1}", "optimizations.alpha", "found 1; allowed: text"),
    ],
)
@pytest.mark.usefixtures("toggles")
def test_toggles_are_held_to_their_declarations(refusal: Refusal, optimizations: str, key: str, what: str) -> None:
    error = refusal(f"optimizations: {optimizations}")
    assert error.where is not None
    assert key in error.where
    assert what in error.what


@pytest.mark.usefixtures("toggles")
@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("on", "fast is the recommended variant"),
        ("off", "slow is the baseline"),
        ("fats", "did you mean 'fast'?"),
        ("nothing like it", None),
    ],
)
def test_an_unknown_variant_hints_at_what_is_meant(refusal: Refusal, word: str, hint: str | None) -> None:
    error = refusal(f"optimizations: {{alpha: {word}, beta: slow, gamma: slow}}")
    assert error.what == f"unknown variant of alpha '{word}'; allowed: fast, odd, slow"
    assert error.hint == hint


def test_off_of_graphs_is_no_hint_for_on(refusal: Refusal) -> None:
    assert refusal("optimizations: {graphs: on}").hint == "captured is the recommended variant"


def test_an_unknown_toggle_of_the_study_is_refused(refusal: Refusal) -> None:
    error = refusal("study: [sampling_parms]")
    assert error.hint == "did you mean 'sampling_params'?"


@pytest.mark.parametrize("name", ["off", "on"])
def test_off_and_on_are_no_names(refusal: Refusal, name: str) -> None:
    assert "are taken" in refusal(f"variants: {{{name}: {{drafter: none}}}}").what


def test_a_variant_that_undoes_an_override_is_refused(write: Write) -> None:
    path = write(BASE)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, ["drafter.draft_len=3"], "plain")
    assert caught.value.where == "--set drafter.draft_len"
    assert caught.value.what == "has no effect: the variant 'plain' sets drafter as well"
    assert load_scenario(path, ["drafter.draft_len=3"], "plain", allow_shadowed=True).drafter.name == "none"
    assert load_scenario(path, ["workload.osl=3"], "plain").workload.osl == 3


@pytest.mark.usefixtures("toggles")
def test_an_override_and_a_variant_of_other_toggles_are_merged(write: Write) -> None:
    path = write("optimizations: {beta: slow, gamma: slow}\nvariants: {quick: {optimizations: {alpha: fast}}}\n")
    merged = load_scenario(path, ["optimizations.gamma=fast"], "quick").optimizations
    assert merged == {"alpha": "fast", "beta": "slow", "gamma": "fast"}
    assert load_scenario(path, ["optimizations.alpha=fast"], "quick").optimizations["alpha"] == "fast"
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, ["optimizations.alpha=slow"], "quick")
    assert caught.value.where == "--set optimizations.alpha"
    assert caught.value.what == "has no effect: the variant 'quick' sets optimizations.alpha as well"
    assert (
        load_scenario(path, ["optimizations.alpha=slow"], "quick", allow_shadowed=True).optimizations["alpha"] == "fast"
    )


@pytest.mark.parametrize(
    ("change", "variant", "key"),
    [
        ("drafter.max_ngram=2", "drafter: {draft_len: 2}", None),
        ("drafter={max_ngram: 2, draft_len: 2}", "drafter: {draft_len: 2}", None),
        ("drafter={max_ngram: 2, draft_len: 3}", "drafter: {draft_len: 2}", "drafter.draft_len"),
        ("drafter=ngram", "drafter: {draft_len: 2}", None),
        ("drafter=ngram", "drafter: {name: none, draft_len: null}", "drafter.name"),
        ("drafter.max_ngram=2", "drafter: ngram", None),
        ("drafter.max_ngram=2", "drafter: eagle3", "drafter"),
        ("workload.concurrency=4", "workload: random_tokens", None),
        ("workload.concurrency=4", "workload: {concurrency: 2}", "workload.concurrency"),
        ("workload.turns=2", "workload: random_tokens", "workload"),
        ("drafter.runtime_draft_len={2: 1}", "drafter: {runtime_draft_len: {4: 1}}", "drafter.runtime_draft_len"),
    ],
)
def test_a_change_is_refused_where_a_variant_replaces_it_and_nowhere_else(change: str, variant: str, key: str) -> None:
    override = parse_override(change)
    changes = [Override((name,), value, "v") for name, value in read_yaml(variant).data.items()]
    found = [path for each in changes if (path := each.replacement_of(override)) is not None]
    assert [dotted(path) for path in found] == ([key] if key else [])


@pytest.mark.usefixtures("toggles")
def test_a_variant_of_one_toggle_beside_a_sweep_of_another(write: Write) -> None:
    path = write("variants: {quick: {optimizations: {alpha: fast}}}\noptimizations: {beta: slow, gamma: slow}\n")
    question = ask_sweep(path, ["sweep.grid.optimizations.gamma=slow,fast"], "quick")
    assert [point.coordinates for point in question.points] == [
        {"optimizations.gamma": "slow"}, {"optimizations.gamma": "fast"},
    ]  # fmt: skip
    with pytest.raises(ScenarioError, match=r"which the sweep varies"):
        ask_sweep(path, ["sweep.grid.optimizations.alpha=slow,fast"], "quick")
