"""Prompt files: what is accepted, what is refused and how, and that nothing else ever happens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specbench.errors import WorkloadError
from specbench.workloads import jsonl
from specbench.workloads.base import Conversation, WorkloadSettings, build_workload
from specbench.workloads.chat_template import Message
from specbench.workloads.mt_bench import read_questions
from specbench.workloads.prompts import read_prompts
from specbench.workloads.tokenizer import Tokenizer


def write(path: Path, *rows: Any) -> Path:
    """Write rows as JSON Lines; bytes and text go in as they are."""
    parts = [
        row if isinstance(row, bytes) else (row if isinstance(row, str) else json.dumps(row)).encode() for row in rows
    ]
    path.write_bytes(b"\n".join(parts) + b"\n")
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a test writes its prompts."""
    return tmp_path / "prompts.jsonl"


def error_of(path: Path) -> WorkloadError:
    """The error reading ``path`` ends with; its message must be printable."""
    with pytest.raises(WorkloadError) as caught:
        read_prompts(path)
    str(caught.value).encode("utf-8")
    return caught.value


def test_prompts_turns_and_messages_are_read(file: Path) -> None:
    write(
        file,
        {"prompt": "alone", "source": {"ignored": 1}},
        {"id": 7, "category": "chat", "turns": ["one", "two"], "output_len": 40},
        {
            "id": "m",
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "hello"},
                {"role": "user", "content": "well?"},
            ],
            "max_tokens": 9,
        },
    )
    alone, chat, messages = read_prompts(file)
    assert alone == Conversation("line-1", "prompts", ("alone",), None, None, 0)
    assert chat == Conversation("7", "chat", ("one", "two"), None, 40, 0)
    assert messages.turns == ("well?",)
    assert messages.output_len == 9
    assert messages.history == (
        Message("system", "be brief"),
        Message("user", "hi"),
        Message("assistant", "hello"),
    )


def test_the_files_order_is_kept_and_lengths_are_completed(file: Path, byte_tokenizer: Tokenizer) -> None:
    write(file, *({"prompt": f"p{i}"} for i in range(5)), {"prompt": "last", "max_tokens": 3})
    chosen = WorkloadSettings("prompts", path=str(file), osl=50, system_prompt="s")
    workload = build_workload(chosen, vocab_size=512, tokenizer=byte_tokenizer)
    read = workload.conversations()
    assert [c.turns for c in read] == [("p0",), ("p1",), ("p2",), ("p3",), ("p4",), ("last",)]
    assert [c.output_len for c in read] == [50] * 5 + [3]
    assert {c.history for c in read} == {(Message("system", "s"),)}
    assert workload.label == "synthetic input"  # byte-level ids


def test_text_through_the_models_tokenizer_is_natural(file: Path, tiny_tokenizer: Tokenizer) -> None:
    write(file, {"prompt": "hi"})
    chosen = WorkloadSettings("prompts", path=str(file))
    assert build_workload(chosen, vocab_size=512, tokenizer=tiny_tokenizer).label == "natural"
    with pytest.raises(WorkloadError, match="the model only 10"):
        build_workload(chosen, vocab_size=10, tokenizer=tiny_tokenizer)


def test_byte_order_marks_blank_lines_and_windows_line_ends_do_no_harm(file: Path) -> None:
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n   \n{"prompt": "b\\u2028c"}\r\n{"prompt": "d"}')
    assert [(c.conversation_id, c.turns) for c in read_prompts(file)] == [
        ("line-1", ("a",)),
        ("line-4", ("b\u2028c",)),
        ("line-5", ("d",)),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"prompt": "x"', "not JSON: .* at column"),
        ('[{"prompt": "x"}]', "expected a JSON object, found a list of 1"),
        ('"x"', "expected a JSON object, found the text 'x'"),
        ("[", "one object a line, not one list over the whole file"),
        (b'{"prompt": "\xff"}', r"not UTF-8 \(byte 13 of the line\)"),
        ("[" * 200_000, "not usable JSON"),
        ("9" * 5000, "not usable JSON"),
        ({}, "no 'prompt', 'turns' or 'messages'; found no keys"),
        ({"promt": "x"}, "did you mean 'prompt'"),
        ({"text": "x"}, r"found the keys 'text'\n  try: {\"prompt\""),
        ({"prompt": "x", "turns": ["y"]}, "has 'prompt' and 'turns'; only one"),
        ({"prompt": ""}, "'prompt' is blank"),
        ({"prompt": ["x"]}, "'prompt' must be text, found a list of 1"),
        ('{"prompt": "\\ud800"}', "'prompt' has half a surrogate pair"),
        ({"turns": "x"}, "'turns' must be a list of texts, found the text 'x'"),
        ({"turns": []}, "'turns' is an empty list"),
        ({"messages": {}}, "'messages' must be a list of messages, found an object"),
        ({"messages": []}, "'messages' must be a list of messages, found a list of 0"),
        ({"messages": ["x"]}, r"'messages\[0\]' must be an object with role and content, found the text 'x'"),
        ({"messages": [{"role": "usr", "content": "x"}]}, "must be one of system, user, assistant.*\n.*'user'"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "must be one of .* found a list of 1"),
        ({"messages": [{"role": "user", "content": None}]}, r"'messages\[0\].content' must be text, found nothing"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "the last message is from the assistant"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]},
            r"messages\[1\] is a system message; only the first",
        ),
        ({"prompt": "x", "output_len": 0}, "'output_len' must be a positive integer, found the number 0"),
        ({"prompt": "x", "output_len": 1.5}, "'output_len' must be a positive integer, found the number 1.5"),
        ({"prompt": "x", "max_tokens": True}, "'max_tokens' must be a positive integer, found true"),
        ({"prompt": "x", "max_tokens": 10**12}, "output length must lie in"),
        ({"prompt": "x", "max_tokens": 5, "output_len": 6}, "'output_len' and 'max_tokens' differ"),
        ({"prompt": "x", "id": {}}, "'id' must be text, found an object"),
        ({"prompt": "x", "id": "i" * 300}, "'id' has 300 characters"),
        ({"prompt": "x", "category": 4}, "'category' must be text, found the number 4"),
    ],
)
def test_a_wrong_line_is_named_with_what_was_found(file: Path, row: Any, message: str) -> None:
    write(file, {"prompt": "fine"}, "", row)
    error = error_of(file)
    assert error.where == f"{file}:3"
    with pytest.raises(WorkloadError, match=message):
        raise error


def test_the_two_spellings_of_one_length_agree(file: Path) -> None:
    (read,) = read_prompts(write(file, {"prompt": "x", "max_tokens": 5, "output_len": 5}))
    assert read.output_len == 5


def test_ids_used_twice_are_refused_the_made_up_ones_included(file: Path) -> None:
    write(file, {"prompt": "x"}, {"prompt": "y", "id": "line-1"})
    assert "'line-1' is used twice" in error_of(file).what


@pytest.mark.parametrize("content", [b"", b"\n \r\n\t\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert error_of(file).what == "the file is empty"


def test_missing_files_directories_and_odd_paths_are_refused(file: Path) -> None:
    assert error_of(file).what == "no such file"
    assert "directory" in error_of(file.parent).what.lower()
    assert "cannot read" in error_of(Path("nul\0byte")).what


def test_a_line_without_end_is_refused_before_it_fills_the_memory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 2**20)
    write(file, {"prompt": "x" * (2**20 - 20)}, {"prompt": "x" * 2**20})
    error = error_of(file)
    assert error.what == "the line is longer than 1 MiB"
    assert error.where == f"{file}:2"


def test_a_path_is_needed(byte_tokenizer: Tokenizer) -> None:
    with pytest.raises(WorkloadError, match="needs the path") as caught:
        build_workload(WorkloadSettings("prompts"), vocab_size=512, tokenizer=byte_tokenizer)
    assert caught.value.where == "workload.path"


KEYS = st.sampled_from(
    ["prompt", "turns", "messages", "id", "question_id", "category", "output_len", "max_tokens", "role", "content"]
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["user", "system"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)
ROWS = st.dictionaries(KEYS, JSON_VALUES, max_size=5)
LINES = st.one_of(
    ROWS.map(lambda row: json.dumps(row).encode()),
    JSON_VALUES.map(lambda v: json.dumps(v).encode()),
    st.binary(max_size=30),
)


FLIPS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6)


def mutate(lines: list[bytes], flips: list[tuple[int, int]]) -> bytes:
    """Join lines and overwrite single bytes."""
    content = bytearray(b"\n".join(lines))
    for position, value in flips:
        if position < len(content):
            content[position] = value
    return bytes(content)


def outcome(read: Callable[[Path], list[Conversation]], file: Path) -> list[Conversation] | WorkloadError:
    """What reading gives: conversations, or the one kind of error."""
    try:
        return read(file)
    except WorkloadError as error:
        return error


def check_that_only_workload_errors_come_out(file: Path, content: bytes) -> None:
    """Read bytes both ways; whatever is accepted must be usable, whatever is refused printable and placed."""
    file.write_bytes(content)
    for read in (read_prompts, read_questions):
        result = outcome(read, file)
        if isinstance(result, WorkloadError):
            assert (result.where or "").startswith(str(file))
            assert str(result).encode("utf-8")
            continue
        assert result
        for conversation in result:
            assert conversation.conversation_id
            assert all(turn.strip().encode("utf-8") for turn in conversation.turns or ("",))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=st.lists(LINES, max_size=4), flips=FLIPS)
def test_any_bytes_give_prompts_or_one_error(file: Path, lines: list[bytes], flips: list[tuple[int, int]]) -> None:
    check_that_only_workload_errors_come_out(file, mutate(lines, flips))


@pytest.mark.fuzz
@settings(max_examples=3000, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=st.lists(LINES, max_size=6), flips=FLIPS)
def test_thousands_of_any_bytes_give_prompts_or_one_error(
    file: Path, lines: list[bytes], flips: list[tuple[int, int]]
) -> None:
    check_that_only_workload_errors_come_out(file, mutate(lines, flips))
