"""Drafters as the values of a sweep: by name, or as mappings with keys of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.errors import InputError, ScenarioError
from specbench.scenario.loader import ScenarioFile, open_scenario
from specbench.scenario.schema import Drafter, Tree
from specbench.scenario.sweep import expand_sweep, merged_points, refuse_void
from specbench.scenario.variants import variant_overrides

Write = Callable[[str], Path]
Refusal = Callable[..., InputError]

HEAD = "model: tiny\ndrafter: {name: eagle3, model: HEAD, draft_len: 4}\nworkload: {kind: random_tokens, isl: 8}\n"
WIDE = "{name: eagle3, tree: {top_k: 8, depth: 6, num_nodes: 32}}"
WIDE_LABEL = "eagle3 {tree: {top_k: 8, depth: 6, num_nodes: 32}}"


def _drafters(file: ScenarioFile) -> list[Drafter]:
    return [file.changed(point.overrides, drop=("sweep",)).drafter for point in expand_sweep(file)]


def test_names_drop_what_they_have_no_use_for(write: Write) -> None:
    tree = HEAD.replace("draft_len: 4", "tree: {depth: 5}")
    names = ["sweep.drafter=none,ngram,ngram+eagle3,eagle3"]
    assert _drafters(open_scenario(write(HEAD), names)) == [
        Drafter(name="none"),
        Drafter(name="ngram", draft_len=4),
        Drafter(name="ngram+eagle3", model="HEAD", draft_len=4),
        Drafter(name="eagle3", model="HEAD", draft_len=4),
    ]
    assert _drafters(open_scenario(write(tree), names))[1:] == [
        Drafter(name="ngram"),
        Drafter(name="ngram+eagle3", model="HEAD"),
        Drafter(name="eagle3", model="HEAD", tree=Tree(depth=5)),
    ]


def test_chain_tree_and_lookup_go_into_one_sweep(write: Write) -> None:
    file = open_scenario(write(HEAD), [f"sweep.drafter=none,ngram,eagle3,{WIDE}", "sweep.draft_len=2,4"])
    points = expand_sweep(file)
    assert [tuple(point.coordinates.values()) for point in points] == [
        ("none", 0),
        ("ngram", 2),
        ("ngram", 4),
        ("eagle3", 2),
        ("eagle3", 4),
        (WIDE_LABEL, 6),
    ]
    tree = _drafters(file)[-1]
    assert tree == Drafter(name="eagle3", model="HEAD", draft_len=6, tree=Tree(top_k=8, depth=6, num_nodes=32))
    assert merged_points(file)[-1] == (
        f"drafter.draft_len is not varied for {WIDE_LABEL}: K is the depth of its tree: 6 points instead of 8"
    )


def test_a_mapping_replaces_k_and_may_leave_the_model_out(write: Write) -> None:
    values = f"[{WIDE}, {{name: mtp, model: null, draft_len: 2}}, {{name: none}}, {{name: eagle3, tree: {{}}}}]"
    file = open_scenario(write(HEAD), [f"sweep.drafter={values}"])
    wide, mtp, none, tree = _drafters(file)
    assert (wide.draft_len, wide.model) == (None, "HEAD")
    assert mtp == Drafter(name="mtp", draft_len=2)
    assert none == Drafter(name="none")
    assert tree == Drafter(name="eagle3", model="HEAD", tree=Tree())
    labels = [point.coordinates["drafter.name"] for point in expand_sweep(file)]
    assert labels == [WIDE_LABEL, "mtp {model: null, draft_len: 2}", "none", "eagle3 {tree: {}}"]


def test_the_tree_of_the_scenario_can_be_left_out(write: Write) -> None:
    base = HEAD.replace("draft_len: 4", "tree: {depth: 3}")
    file = open_scenario(write(base), ["sweep.drafter=[eagle3, {name: eagle3, tree: null}]", "sweep.draft_len=2,4"])
    assert [point.coordinates["drafter.draft_len"] for point in expand_sweep(file)] == [3, 2, 4]
    assert [drafter.tree for drafter in _drafters(file)] == [Tree(depth=3), None, None]


def test_a_list_of_models_is_not_crossed_with_a_lookup(write: Write) -> None:
    models = ["sweep.drafter=none,ngram,eagle3", "sweep.grid.drafter.model=A,B", "sweep.grid.drafter.min_ngram=1"]
    file = open_scenario(write(HEAD), models)
    assert [(drafter.name, drafter.model) for drafter in _drafters(file)] == [
        ("none", None),
        ("ngram", None),
        ("eagle3", "A"),
        ("eagle3", "B"),
    ]
    assert merged_points(file)[1:] == [
        "drafter.model is not varied for ngram, which has no use for it",
        "drafter.min_ngram is not varied for eagle3, which has no use for it: 4 points instead of 6",
    ]


def test_lists_in_step_drop_it_as_well(write: Write) -> None:
    lists = "sweep.zip={drafter.name: [ngram, eagle3, mtp], drafter.model: [unused, A, B]}"
    points = expand_sweep(open_scenario(write(HEAD), [lists]))
    assert [tuple(point.coordinates.values()) for point in points] == [("ngram",), ("eagle3", "A"), ("mtp", "B")]


def test_mappings_go_in_grid_and_in_step(write: Write) -> None:
    for key in ("grid", "zip"):
        file = open_scenario(write(HEAD), [f"sweep.{key}={{drafter.name: [ngram, {WIDE}]}}"])
        assert [point.coordinates for point in expand_sweep(file)] == [
            {"drafter.name": "ngram"},
            {"drafter.name": WIDE_LABEL},
        ]


def test_a_secret_in_a_mapping_is_in_no_label(write: Write) -> None:
    file = open_scenario(write(HEAD), ["sweep.drafter=[{name: eagle3, model: 'https://me:hidden@hub/head'}]"])
    (point,) = expand_sweep(file)
    assert point.coordinates == {"drafter.name": "eagle3 {model: https://***@hub/head}"}
    assert _drafters(file)[0].model == "https://me:hidden@hub/head"


def test_an_arm_may_not_undo_what_a_mapping_sets(write: Write) -> None:
    file = open_scenario(write(HEAD), [f"sweep.drafter=[{WIDE}]"])
    (point,) = expand_sweep(file)
    with pytest.raises(ScenarioError, match=r"sets drafter\.tree\.top_k, which the sweep varies"):
        refuse_void(variant_overrides("drafter.tree.top_k=2", file.base), point, "x")


WHOLE = "drafter.tree: [null, {top_k: 2}]"


@pytest.mark.parametrize(
    ("change", "key", "what", "hint"),
    [
        (
            "drafter=[{tree: {}}]",
            "sweep.drafter[0]",
            "found a mapping without a name; allowed: a name, or",
            "{name: ea",
        ),
        ("drafter=[{name: ngram, draft_len: 20}]", "sweep.drafter[0]", "found 20; allowed: 16 or less", ""),
        ("drafter=[{name: eagle3, tre: {}}]", "sweep.drafter[0]", "no such key in drafter; allowed: name", "'tree'"),
        ("drafter=[{name: eagle3, tree: 3}]", "sweep.drafter[0]", "allowed: a mapping with keys of top_k", ""),
        ("drafter=[{name: eagle3, tree: {depth: 99}}]", "sweep.drafter[0]", "found 99; allowed: 16 or less", ""),
        ("drafter=[ngram, {name: ngram}]", "sweep.drafter", "holds a value twice", ""),
        ("drafter=[ngram, null]", "sweep.drafter[1]", "found nothing (null); allowed: a value", "mappings"),
        ("drafter={name: ngram}", "sweep.drafter", "found a mapping; allowed: a list of values to try", ""),
        ("drafter=5", "sweep.drafter[0]", "found 5; allowed: text", ""),
        ("draft_len=2,20", "sweep.draft_len[1]", "found 20; allowed: 16 or less", ""),
        ("draft_len=-1", "sweep.draft_len[0]", "found -1; allowed: 0 or more", ""),
        ("draft_len=a", "sweep.draft_len[0]", "found 'a' (text); allowed: a whole number", ""),
        ("osl=0", "sweep.osl[0]", "found 0; allowed: a whole number from 1 to", ""),
        ("grid.engine.dtype=bfloat61", "sweep.grid.engine.dtype[0]", "allowed: bfloat16, float32", "'bfloat16'"),
        (
            "grid.drafter.model=[A, null]",
            "sweep.grid.drafter.model[1]",
            "found nothing (null)",
            "{name: eagle3, model: n",
        ),
        (
            "grid.sampling.top_k=[null]",
            "sweep.grid.sampling.top_k[0]",
            "found nothing (null)",
            "variant=sampling.top_k=n",
        ),
        ("grid.workload.isl=[{low: 1}]", "sweep.grid.workload.isl[0]", "mappings in sweep.drafter alone", WIDE),
        (f"grid={{{WHOLE}}}", "sweep.grid.drafter.tree", "is no scenario key that can be swept", f"eagle3, {WIDE}"),
        (f"zip={{{WHOLE}}}", "sweep.zip.drafter.tree", "is no scenario key that can be swept", f"eagle3, {WIDE}"),
        ("grid={drafter: [ngram]}", "sweep.grid.drafter", "is no scenario key that can be swept", "sweep.drafter"),
    ],
)
def test_what_cannot_be_swept_is_said_with_what_can(
    refusal: Refusal, change: str, key: str, what: str, hint: str
) -> None:
    error = refusal(HEAD, f"sweep.{change}")
    assert str(error.where).endswith(key)
    assert what in error.what
    assert hint in (error.hint or "")


def test_a_key_in_a_mapping_and_in_a_list_is_one_too_many(refusal: Refusal) -> None:
    error = refusal(HEAD, f"sweep.drafter=[{WIDE}]", "sweep.grid.drafter.tree.top_k=2,3")
    assert error.what == "sets tree, and sweep.grid.drafter.tree.top_k varies drafter.tree.top_k"
    error = refusal(HEAD, "sweep.drafter=[{name: eagle3, draft_len: 2}]", "sweep.draft_len=2,4")
    assert error.what == "sets draft_len, and sweep.draft_len varies drafter.draft_len"


def test_null_in_a_list_is_written_as_a_scenario_writes_it(refusal: Refusal) -> None:
    assert "found a list, [null, 'x']" in refusal(HEAD, "engine.dtype=[null, x]").what


def test_variants_sweep_a_key_that_is_null_in_one_of_them(write: Write) -> None:
    """What the message about null advises."""
    file = open_scenario(write(HEAD), ["sweep.grid.variant=sampling.top_k=null,sampling.top_k=5"])
    found = [file.changed(point.overrides, drop=("sweep",)).sampling.top_k for point in expand_sweep(file)]
    assert found == [None, 5]
