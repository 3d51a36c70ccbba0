"""``--set key=value``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.errors import InputError, ScenarioError
from specbench.scenario.loader import load_scenario
from specbench.scenario.overrides import parse_override, split_commas

Write = Callable[[str], Path]
Refusal = Callable[..., InputError]

BASE = """\
model: {source: smollm2-135m, revision: abc}
drafter: {name: ngram, draft_len: 6}
workload: {kind: chat80, concurrency: 8, osl: 64, categories: [math]}
"""


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("workload.concurrency=4", ("workload", "concurrency"), 4),
        ("sampling.temperature=1e-1", ("sampling", "temperature"), 0.1),
        ("optimizations.overlap=on", ("optimizations", "overlap"), "on"),
        ("sweep.concurrency=1,2,4", ("sweep", "concurrency"), [1, 2, 4]),
        ("sweep.concurrency=[1, 2]", ("sweep", "concurrency"), [1, 2]),
        ("sampling.stop_token_ids=5,6", ("sampling", "stop_token_ids"), [5, 6]),
        ("acceptance.length=0.8,0.5", ("acceptance", "length"), [0.8, 0.5]),
        ("acceptance.length=2.4", ("acceptance", "length"), 2.4),
        ("workload.isl=64,128", ("workload", "isl"), [64, 128]),
        ("workload.categories=math,coding", ("workload", "categories"), ["math", "coding"]),
        ("workload.system_prompt=Hello, you", ("workload", "system_prompt"), "Hello, you"),
        ("workload.path=a=b.jsonl", ("workload", "path"), "a=b.jsonl"),
        ("workload.path=", ("workload", "path"), None),
        ("drafter.runtime_draft_len.4=6", ("drafter", "runtime_draft_len", 4), 6),
        ("drafter.runtime_draft_len={4: 6}", ("drafter", "runtime_draft_len"), {4: 6}),
        ("sweep.grid.sampling.top_k=1,5", ("sweep", "grid", "sampling.top_k"), [1, 5]),
        (" name = x ", ("name",), "x"),
    ],
)
def test_values_are_yaml_and_lists_where_lists_fit(text: str, path: tuple[Any, ...], value: Any) -> None:
    override = parse_override(text)
    assert override.path == path
    assert override.value == value
    assert type(override.value) is type(value)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("workload.isl", "is not key=value"),
        ("=4", "is not key=value"),
        ("workload..isl=4", "has an empty part"),
        (".isl=4", "has an empty part"),
        ("workload.path=[1", "cannot be read"),
        ("workload.path=*x", "cannot be read"),
        ("workload.path=!!python/name:x y", "cannot be read"),
    ],
)
def test_what_is_no_override(text: str, what: str) -> None:
    with pytest.raises(ScenarioError, match=what) as caught:
        parse_override(text)
    assert str(caught.value).startswith("--set")


def test_an_override_names_itself_as_the_place(refusal: Refusal) -> None:
    error = refusal(BASE, "workload.concurrency=many")
    assert error.where == "--set workload.concurrency"
    assert error.what == "found 'many' (text); allowed: a whole number"


def test_a_key_that_does_not_exist_has_a_hint(refusal: Refusal) -> None:
    assert refusal(BASE, "isl=3").hint == "did you mean workload.isl or sweep.isl?"
    assert refusal(BASE, "workloads.isl=3").where == "--set workloads.isl"
    assert "no such key in workload" in str(refusal(BASE, "workload.isll=3"))


def test_a_path_through_a_value_is_refused(refusal: Refusal) -> None:
    assert "name holds no keys" in refusal("name: x", "name.first=3").what


def test_text_over_a_section_replaces_it(write: Write) -> None:
    scenario = load_scenario(write(BASE), ["model=tiny"])
    assert (scenario.model.source, scenario.model.revision) == ("tiny", None)


def test_text_over_the_drafter_keeps_what_that_drafter_has_a_use_for(write: Write) -> None:
    assert load_scenario(write(BASE), ["drafter=mtp"]).drafter.draft_len == 6
    assert load_scenario(write(BASE), ["drafter=none"]).drafter.draft_len is None


def test_text_over_the_workload_keeps_what_means_the_same_for_every_kind(write: Write) -> None:
    workload = load_scenario(write(BASE), ["workload=random_tokens"]).workload
    assert (workload.kind, workload.concurrency, workload.osl, workload.categories) == ("random_tokens", 8, 64, None)


def test_a_mapping_is_merged_and_a_list_replaced(write: Write) -> None:
    scenario = load_scenario(write(BASE), ["drafter={max_ngram: 5}", "workload.categories=[coding]"])
    assert (scenario.drafter.draft_len, scenario.drafter.max_ngram) == (6, 5)
    assert scenario.workload.categories == ("coding",)


def test_a_table_of_draft_lengths_is_one_value(write: Write) -> None:
    text = "drafter: {name: ngram, runtime_draft_len: {4: 6, 8: 2}}"
    assert load_scenario(write(text), ["drafter.runtime_draft_len={2: 5}"]).drafter.runtime_draft_len == {2: 5}
    assert load_scenario(write(text), ["drafter.runtime_draft_len.2=5"]).drafter.runtime_draft_len == {4: 6, 8: 2, 2: 5}


def test_the_last_of_two_wins(write: Write) -> None:
    assert load_scenario(write(BASE), ["workload.osl=3", "workload.osl=5"]).workload.osl == 5


def test_overrides_can_define_a_variant(write: Write) -> None:
    scenario = load_scenario(write(BASE), ["variants.deep.drafter.draft_len=9"], "deep")
    assert scenario.drafter.draft_len == 9


@given(st.text("ab,[]{}()\"'= ", max_size=20))
def test_splitting_at_commas_loses_nothing(text: str) -> None:
    assert ",".join(split_commas(text)) == text


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_in_one_way(text: str) -> None:
    refused = None
    try:
        override = parse_override(text)
    except ScenarioError as error:
        refused = str(error)
    if refused is None:
        assert override.path
        assert "=" in text
    else:
        assert refused.startswith("--set")
