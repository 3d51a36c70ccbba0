"""Which keys of a scenario's drafter stay where another drafter is named, in every form in which one can be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.errors import InputError
from specbench.scenario.drafter_use import has_use
from specbench.scenario.loader import load_scenario, open_scenario
from specbench.scenario.overrides import Override, parse_override
from specbench.scenario.resolve import resolve
from specbench.scenario.schema import Drafter

Write = Callable[[str], Path]
Refusal = Callable[..., InputError]

PAIR = "model: tiny\ndrafter: {name: ngram+eagle3, model: HEAD, draft_len: 3, min_ngram: 2, max_ngram: 5}\n"
TREE = "model: tiny\ndrafter: {name: eagle3, model: HEAD, tree: {top_k: 2, depth: 3, num_nodes: 4}}\n"
FORMS = ("drafter={}", "drafter.name={}", "drafter={{name: {}}}")
STAYS = {
    "none": Drafter(name="none"),
    "ngram": Drafter(name="ngram", draft_len=3, min_ngram=2, max_ngram=5),
    "eagle3": Drafter(name="eagle3", model="HEAD", draft_len=3),
    "mtp": Drafter(name="mtp", model="HEAD", draft_len=3),
    "ngram+mtp": Drafter(name="ngram+mtp", model="HEAD", draft_len=3, min_ngram=2, max_ngram=5),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", STAYS)
def test_every_form_keeps_what_the_named_drafter_has_a_use_for(write: Write, name: str, form: str) -> None:
    path = write(PAIR)
    assert load_scenario(path, [form.format(name)]).drafter == STAYS[name]
    assert load_scenario(path, variant=form.format(name)).drafter == STAYS[name]


@pytest.mark.parametrize("form", FORMS)
def test_a_variant_of_the_file_keeps_it_too(write: Write, form: str) -> None:
    key, _, value = form.format("eagle3").partition("=")
    assert (
        load_scenario(write(f"{PAIR}variants: {{other: {{{key}: {value}}}}}\n"), variant="other").drafter
        == (STAYS["eagle3"])
    )


@pytest.mark.parametrize("name", ["ngram", "mtp", "ngram+eagle3"])
def test_a_tree_stays_behind_with_what_drafts_none(write: Write, name: str) -> None:
    assert load_scenario(write(TREE), [f"drafter.name={name}"]).drafter.tree is None
    tree = load_scenario(write(TREE), ["drafter=eagle3"]).drafter.tree
    assert tree is not None
    assert tree.num_nodes == 4


def test_what_is_set_beside_the_name_stays_and_is_judged(refusal: Refusal) -> None:
    for changes in (["drafter.name=ngram", "drafter.model=X"], ["drafter.model=X", "drafter=ngram"]):
        error = refusal(PAIR, *changes)
        assert (error.where, error.what) == (
            "--set drafter.model",
            "has no effect: the drafter ngram has no model",
        )
    assert refusal(PAIR, "drafter={name: none, draft_len: 2}").what == "the drafter none proposes nothing, but K is 2"


def test_what_stays_is_found_where_it_was_written(write: Write, refusal: Refusal) -> None:
    text = PAIR.replace("draft_len: 3", "draft_len: 30")
    assert refusal(text, "drafter=eagle3").where == f"{write(text)}:2: drafter.draft_len"
    text = "model: tiny\nworkload: {kind: chat80, concurrency: 0}\n"
    assert refusal(text, "workload=random_tokens").where == f"{write(text)}:2: workload.concurrency"


def test_the_last_of_several_names_counts(write: Write) -> None:
    assert load_scenario(write(PAIR), ["drafter=none", "drafter=eagle3"]).drafter == STAYS["eagle3"]


def test_a_tree_brings_k_unless_k_is_set_beside_it(write: Write, refusal: Refusal) -> None:
    drafter = load_scenario(write(PAIR), ["drafter=eagle3", "drafter.tree.depth=5"]).drafter
    assert (drafter.draft_len, drafter.model) == (None, "HEAD")
    error = refusal(PAIR, "drafter=eagle3", "drafter.tree.depth=5", "drafter.draft_len=4")
    assert "with a tree, K is its depth, 5" in error.what
    assert load_scenario(write(PAIR), ["drafter=eagle3", "drafter.tree=null"]).drafter.draft_len == 3


@pytest.mark.parametrize(
    ("change", "path", "value", "is_replaced"),
    [
        ("drafter.model=X", ("drafter", "name"), "ngram", True),
        ("drafter.model=X", ("drafter",), "none", True),
        ("drafter.model=X", ("drafter",), "mtp", False),
        ("drafter.min_ngram=2", ("drafter",), "eagle3", True),
        ("drafter.draft_len=2", ("drafter",), "eagle3", False),
        ("drafter.runtime_draft_len={2: 3}", ("drafter",), "eagle3", False),
        ("drafter.tree.depth=2", ("drafter", "name"), "ngram+eagle3", True),
        ("drafter.tree.depth=2", ("drafter",), "eagle3", False),
        ("drafter.draft_len=2", ("drafter",), {"name": "eagle3", "tree": {"depth": 3}}, True),
    ],
)
def test_a_change_that_a_later_name_drops_is_known_to_be_void(
    change: str, path: tuple[str, ...], value: object, is_replaced: bool
) -> None:
    found = Override(path, value, "v").replacement_of(parse_override(change))
    assert (found is not None) is is_replaced


@pytest.mark.parametrize("name", ["eagle3", "mtp", "draft_model"])
@pytest.mark.parametrize("key", ["min_ngram", "max_ngram"])
def test_lookup_keys_are_refused_where_nothing_is_looked_up(refusal: Refusal, name: str, key: str) -> None:
    keys = "min_ngram: 2, max_ngram: 3" if key == "min_ngram" else "max_ngram: 2"
    error = refusal(f"model: tiny\ndrafter: {{name: {name}, model: random:tiny, {keys}}}\n")
    assert error.what == f"has no effect: the drafter {name} looks nothing up"
    assert str(error.where).endswith(f"drafter.{key}")
    assert error.hint == "drop it, or drafter.name: ngram"


def test_a_scenario_written_out_in_full_is_still_right(write: Write) -> None:
    first = resolve(load_scenario(write("model: tiny\ndrafter: {name: draft_model, model: random:tiny}\n")))
    assert "min_ngram: 1" in first.to_yaml()
    assert resolve(open_scenario(write(first.to_yaml())).base).scenario == first.scenario


def test_a_name_that_is_none_is_taken_to_read_every_key() -> None:
    for name in ("eagel3", "ngram+", "", None, 5):
        assert all(has_use(name, key) for key in Drafter.model_fields)
