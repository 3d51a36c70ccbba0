"""Errors of a scenario file: file, line, key, what was found, what is allowed, the nearest name, several together."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.errors import DeviceUnavailableError, InputError, ScenarioError, UnknownNameError
from specbench.scenario.loader import load_scenario, open_scenario

Refusal = Callable[..., InputError]
Write = Callable[[str], Path]


def test_shorthand_is_the_section_with_one_key(write: Write) -> None:
    short = load_scenario(write("model: tiny\ndrafter: ngram\nworkload: random_tokens\n"))
    full = load_scenario(write("model: {source: tiny}\ndrafter: {name: ngram}\nworkload: {kind: random_tokens}\n"))
    assert short == full
    assert short.model.source == "tiny"


def test_empty_sections_are_defaults(write: Write) -> None:
    assert load_scenario(write("name: x\nmodel:\nsampling:\nengine: {}\n")) == load_scenario(write("name: x\n"))


def test_name_is_taken_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "my odd (name).yaml"
    path.write_text("model: tiny\n")
    assert load_scenario(path).name == "my-odd-name-"


def test_words_of_yaml_1_1_reach_text_keys(write: Write) -> None:
    scenario = load_scenario(write("name: on\noptimizations: {overlap: off}\nsampling: {temperature: 1e-1}\n"))
    assert (scenario.name, scenario.optimizations, scenario.sampling.temperature) == ("on", {"overlap": "off"}, 0.1)


def test_one_error_names_file_line_key_found_and_allowed(refusal: Refusal) -> None:
    error = refusal("name: a\nworkload:\n  kind: random_tokens\n  isl: many\n")
    assert error.where is not None
    assert error.where.endswith("x.yaml:4: workload.isl")
    assert error.what == "found 'many' (text); allowed: a whole number from 1 to 10000000, or a range [low, high]"
    assert type(error) is ScenarioError


def test_several_errors_come_together_in_one_message(refusal: Refusal) -> None:
    error = refusal(
        """\
        model: {source: tiny, sorce: x}
        workload:
          kind: random_tokens
          concurency: 3
        engine: {dtype: bf16}
        sampling: {temperature: true}
        """
    )
    lines = str(error).splitlines()
    assert lines[0].endswith("x.yaml: 4 problems")
    assert [line.split("x.yaml:")[1].split(": ")[:2] for line in lines[1:]] == [
        ["1", "model.sorce"],
        ["4", "workload.concurency"],
        ["6", "sampling.temperature"],
        ["5", "engine.dtype"],
    ]
    assert "did you mean 'source'?" in lines[1]
    assert "did you mean 'concurrency'?" in lines[2]
    assert "found true (true or false); allowed: a number" in lines[3]
    assert "found 'bf16' (text); allowed: bfloat16, float32, float16 (did you mean 'bfloat16'?)" in lines[4]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("workload: {concurrency: '4'}", "found '4' (text); allowed: a whole number"),
        ("workload: {concurrency: true}", "found true (true or false); allowed: a whole number"),
        ("workload: {concurrency: 4.0}", "found 4.0; allowed: a whole number"),
        ("workload: {concurrency: 0}", "found 0; allowed: 1 or more"),
        ("workload: {concurrency: null}", "found nothing (null); allowed: a whole number"),
        ("workload: {shuffle: yes}", "found 'yes' (text); allowed: true or false"),
        ("sampling: {temperature: .nan}", "found nan (not a finite number); allowed: a finite number"),
        ("sampling: {temperature: -1}", "found -1; allowed: 0 or more"),
        ("sampling: {stop_token_ids: 5}", "found 5; allowed: a list"),
        ("engine: {kv_cache: 2000000000}", "found 2000000000; allowed: a size such as 512MiB, 2GiB or 2GB"),
        ("engine: {kv_cache: 2G}", "found '2G' (text); allowed: a size such as 512MiB, 2GiB or 2GB"),
        ("measure: {timeout: 300}", "found 300; allowed: a duration such as 250ms, 90s, 5m or 1h30m"),
        ("measure: {steps: 9-2}", "found '9-2' (text); allowed: a range of steps such as 100-200, the first not above"),
        ("drafter: {draft_len: 17}", "found 17; allowed: 16 or less"),
        ("drafter: 3", "found 3; allowed: text, short for {name: ...}, or a mapping with keys of name, model"),
        ("engine: [1]", "found a list, [1]; allowed: a mapping with keys of device, dtype"),
        ("name: 5", "found 5; allowed: text"),
        ("name: a/b", "found 'a/b' (text); allowed: letters, digits, dot"),
        ("variants: {'a b': {}}", "found key 'a b' (text); allowed: letters"),
        ("workload: {num_requests: 0}", "found 0; allowed: a whole number from 1 to 1000000, or all"),
        ("workload: {kind: random_tokens, isl: [9, 3]}", "found a list, [9, 3]; allowed: a whole number"),
        ("acceptance: {mode: forced, length: [0.5, 1.5]}", "found a list, [0.5, 1.5]; allowed: a list of rates"),
    ],
)
def test_values_are_not_coerced(refusal: Refusal, text: str, what: str) -> None:
    assert refusal(text).what.startswith(what)


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("modle: tiny", "modle", "did you mean 'model'?"),
        ("dtype: float32", "dtype", "did you mean engine.dtype?"),
        ("workload: {temperature: 1}", "workload.temperature", "did you mean sampling.temperature?"),
        ("sampling_params: refill", "sampling_params", "write optimizations.sampling_params"),
    ],
)
def test_unknown_keys_have_the_nearest_name(refusal: Refusal, text: str, key: str, hint: str) -> None:
    error = refusal(text)
    assert error.where is not None
    assert error.where.endswith(f":1: {key}")
    assert error.hint == hint


def test_a_key_that_is_a_number_is_unknown(refusal: Refusal) -> None:
    assert "no such key at the top level" in str(refusal("5: x"))


def test_a_duplicate_key_is_refused_with_both_lines(refusal: Refusal) -> None:
    error = refusal("model: tiny\nworkload:\n  kind: chat80\nmodel: tiny\n")
    assert error.where is not None
    assert error.where.endswith("x.yaml:4")
    assert "line 1" in error.what


def test_a_path_is_found_beside_the_scenario_and_holds_from_the_current_folder(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "p.jsonl").write_text('{"prompt": "x"}\n')
    path = write("workload: {kind: prompts, path: data/p.jsonl}")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert load_scenario(path).workload.path == str(tmp_path / "data" / "p.jsonl")
    monkeypatch.chdir(tmp_path)
    found = load_scenario(path)
    assert found.workload.path == os.path.join("data", "p.jsonl")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b"# only a comment\n", "is empty"),
        (b"- a\n- b\n", "found a list, ['a', 'b']; allowed: a mapping"),
        (b"just text\n", "found 'just text' (text); allowed: a mapping"),
        (b"\x7fELF\x00\x01\x02", "is a binary file, not YAML"),
        (b"name: x\nmodel: \xff\n", "byte 0xff is not UTF-8"),
        ("name: x\n".encode("utf-16"), "is UTF-16 text"),
        (b"a: " + b"x" * 70_000, "larger than 64 KiB"),
    ],
)
def test_files_that_hold_no_scenario(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    assert caught.value.what.startswith(what)
    assert str(path) in str(caught.value)


def test_bytes_that_are_not_utf_8_are_located(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"name: x\n\nmodel: caf\xe9\n")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    assert caught.value.where == f"{path}:3"


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes("model: tiny\n".encode("utf-8-sig"))
    assert load_scenario(path).model.source == "tiny"


def test_a_missing_file_has_the_nearest_as_a_hint(write: Write, tmp_path: Path) -> None:
    write("model: tiny")
    with pytest.raises(ScenarioError, match="No such file") as caught:
        load_scenario(tmp_path / "xx.yaml")
    assert caught.value.hint == "did you mean 'x.yaml'?"


def test_a_missing_ending_is_supplied_as_a_hint(write: Write, tmp_path: Path) -> None:
    path = write("model: tiny")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(tmp_path / "x")
    assert caught.value.hint == str(path)


def test_a_folder_is_no_scenario(write: Write, tmp_path: Path) -> None:
    write("model: tiny")
    with pytest.raises(ScenarioError, match="is a folder") as caught:
        load_scenario(tmp_path)
    assert caught.value.hint == "one of its files: x.yaml"


def test_a_single_problem_keeps_its_own_class(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(refusal("drafter: {name: ngran}")) is UnknownNameError
    monkeypatch.setattr("specbench.scenario.conflicts.cuda_problem", lambda: "no CUDA device is present")
    error = refusal("engine: {device: cuda}")
    assert type(error) is DeviceUnavailableError
    assert error.where is not None
    assert error.where.endswith(":1: engine.device")


def test_many_problems_are_counted_and_cut(refusal: Refusal) -> None:
    error = refusal("\n".join(f"bad{i}: 1" for i in range(50)))
    lines = str(error).splitlines()
    assert lines[0].endswith("50 problems")
    assert lines[-1].strip() == "and 30 more"


def test_load_variants_checks_each_and_names_the_variant(write: Write) -> None:
    text = "drafter: ngram\nvariants:\n  plain: {drafter: none}\n  deep:\n    drafter.draft_len: 8\n"
    right = open_scenario(write(text))
    variants = {name: right.named_variant(name) for name in right.base.variants}
    assert {name: (v.drafter.name, v.drafter.draft_len) for name, v in variants.items()} == {
        "plain": ("none", None),
        "deep": ("ngram", 8),
    }
    file = open_scenario(write(text.replace("8", "800")))
    with pytest.raises(ScenarioError) as caught:
        file.named_variant("deep")
    assert caught.value.where is not None
    assert caught.value.where.endswith("x.yaml:5 (variant 'deep'): drafter.draft_len")
