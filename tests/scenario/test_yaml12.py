"""YAML 1.2: what plain scalars mean, what is refused, and on which line."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from specbench.scenario.yaml12 import MAX_BYTES, MAX_DEPTH, YamlError, dump_yaml, read_yaml


@pytest.mark.parametrize("text", ["on", "off", "yes", "no", "On", "NO", "y", "2024-01-31", "1_000", "12:30:45", "0o9"])
def test_words_of_yaml_1_1_are_text(text: str) -> None:
    assert read_yaml(f"key: {text}").data == {"key": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1e5", 1e5),
        (".5", 0.5),
        ("3.", 3.0),
        ("+1.5E+3", 1500.0),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("-7", -7),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("", None),
        ('"3"', "3"),
        ("'true'", "true"),
        ("-.inf", -math.inf),
    ],
)
def test_plain_scalars(text: str, value: Any) -> None:
    found = read_yaml(f"key: {text}").data["key"]
    assert found == value
    assert type(found) is type(value)


def test_not_a_number_is_a_float() -> None:
    assert math.isnan(read_yaml("key: .nan").data["key"])


def test_lines_are_those_of_the_keys() -> None:
    lines = read_yaml("a: 1\n\nb:\n  c: 2\n  d:\n    - 5\n    - 6\n").lines
    assert lines[("a",)] == 1
    assert lines[("b", "c")] == 4
    assert lines[("b", "d", 1)] == 7


def test_aliases_are_copied_not_shared() -> None:
    data = read_yaml("a: &x {k: [1]}\nb: *x\n").data
    assert data["a"] == data["b"] == {"k": [1]}
    data["a"]["k"].append(2)
    assert data["b"] == {"k": [1]}


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "key 'a' stands here and in line 1"),
        ("a:\n  x: 1\n  x: 2\n", 3, "key 'x' stands here and in line 2"),
        ("a: 1\nb: !!python/object/apply:os.system [ls]\n", 2, "tag"),
        ("a: !!python/name:os.system x\n", 1, "!!python/name"),
        ("a: !local 3\n", 1, "!local"),
        ("a: !!set {x: null}\n", 1, "!!set"),
        ("a: !!int abc\n", 1, "!!int"),
        ("a: &x [*x]\n", 1, "nested deeper"),
        ("base: &b {k: 1}\na:\n  <<: *b\n", 3, "merge keys"),
        ("a: 1\n---\nb: 2\n", 2, "more than one YAML document"),
        ("a: [1, 2\nb: 3\n", 2, "flow sequence"),
        ("a: *nowhere\n", 1, "undefined alias"),
        ("true: 1\n", 1, "a key must be text"),
        ("[1]: 1\n", 1, "a key must be text"),
        ("a: 1\nb: \x07\n", 2, "not allowed in YAML"),
        ('a: "\\ud800"\n', 1, "no file name or prompt"),
        ('a: "x\\0y"\n', 1, "no file name or prompt"),
        ('a: "\\UFFFFFFFF"\n', 1, ""),
        (f"a: {'9' * 5000}\n", 1, "digits"),
    ],
)
def test_refused_with_its_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(YamlError) as caught:
        read_yaml(text)
    assert problem in caught.value.problem
    assert caught.value.line == line


def test_depth_is_bounded() -> None:
    deep = MAX_DEPTH - 2
    assert read_yaml("a: " + "[" * deep + "]" * deep).data
    with pytest.raises(YamlError, match="nested deeper"):
        read_yaml("a: " + "[" * 5000 + "]" * 5000)


def test_alias_bomb_is_refused_before_it_grows() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(YamlError, match="aliases counted"):
        read_yaml("\n".join(lines))


def test_size_is_bounded() -> None:
    with pytest.raises(YamlError, match="larger than"):
        read_yaml("a: " + "x" * MAX_BYTES)


_scalars = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False)
_text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)
_tricky = st.sampled_from(["on", "1e-5", "1e5", "0o17", "012", "null", "~", "<<", ".5", "1_0", "12:30", "=", "true"])
_keys = _text | _tricky | st.integers(-100, 10**6)
_values = st.recursive(
    _scalars | _text | _tricky,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(_keys, _values, max_size=4))
def test_what_is_dumped_reads_back_the_same(data: dict[Any, Any]) -> None:
    assert read_yaml(dump_yaml(data)).data == data


@given(st.dictionaries(_text, _scalars | _text | _tricky, max_size=4))
def test_other_readers_of_yaml_find_the_same_text(data: dict[str, Any]) -> None:
    read = yaml.safe_load(dump_yaml(data))
    assert {key: value for key, value in read.items() if isinstance(value, str)} == {
        key: value for key, value in data.items() if isinstance(value, str)
    }
