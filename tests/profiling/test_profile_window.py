"""``--steps A-B``: what it accepts, what it says when it does not, and whether the steps are pure decode (row 2.12)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.cli.app import main
from specbench.errors import InputError
from specbench.profiling.window import ProfileWindow, describe_purity

DECODING = """
name: decoding
model: tiny
drafter: none
workload: {kind: random_tokens, num_requests: 4, isl: 16, osl: 64, concurrency: 4}
engine: {device: cpu, dtype: float32, num_threads: 1}
measure: {warmup_requests: 0}
"""
WINDOWS = """
name: windows
model: llama-3.1-8b
acceptance: {mode: forced, length: 1.0}
workload: {kind: random_tokens, concurrency: 4}
engine: {device: sim, sim: {base_us: 500, us_per_row: 1, us_per_kv_token: 0.001, us_per_copy: 1, bytes_per_us: 6.4e4}}
measure: {windows: {kv_len: [64], steps: 60}}
"""
PURE = "pure decode, 0 context and 4 generation requests in each"


def check_50_pure_steps(scenario: str, first: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fifty steps from step number ``first`` on are profiled, and what is said of them is that they are pure."""
    path, window = tmp_path / "scenario.yaml", f"{first}-{first + 49}"
    path.write_text(scenario)
    assert main(["run", str(path), "--steps", window, "--out", str(tmp_path / "out")]) == 0
    assert f"profiled 50 steps ({window}): {PURE}\n" in capsys.readouterr().err


def steps_of(folder: Path, column: str) -> list[int]:
    """A column of the first trial's step table."""
    values: list[int] = json.loads((folder / "trials.jsonl").read_text().splitlines()[0])["steps"][column]
    return values


def test_row_2_12_a_window_of_50_steps_is_said_to_be_pure_decode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_50_pure_steps(DECODING, 2, tmp_path, capsys)
    # The steps themselves say the same: the prompts are in the first, and it is not in the window.
    assert steps_of(tmp_path / "out", "num_context")[:51] == [4] + 50 * [0]
    assert steps_of(tmp_path / "out", "num_generation")[1:51] == 50 * [4]


@pytest.mark.parametrize("first", [1, 20])
def test_row_2_12_windows_over_a_filled_cache_are_pure_from_the_first_step(
    first: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_50_pure_steps(WINDOWS, first, tmp_path, capsys)


def test_row_2_12_a_window_with_a_prompt_or_a_changing_batch_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in "ab":
        (tmp_path / folder).mkdir()
    with pytest.raises(AssertionError, match="not pure decode, 1 with context requests, first 1: ctx=4/64 gen=0 K=0"):
        check_50_pure_steps(DECODING, 1, tmp_path / "a", capsys)
    draining = DECODING.replace("osl: 64", "osl: [20, 90]")
    with pytest.raises(AssertionError, match=r"decode of a changing batch, [123] to 4 generation requests"):
        check_50_pure_steps(draining, 2, tmp_path / "b", capsys)


def test_row_2_12_a_window_that_takes_every_step_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProfileWindow, "__contains__", lambda _window, _step: True)
    with pytest.raises(AssertionError, match="not pure decode"):
        check_50_pure_steps(DECODING, 2, tmp_path, capsys)


def test_nothing_is_said_of_steps_whose_shape_is_not_known() -> None:
    assert describe_purity({}) is None
    assert describe_purity({1: "ctx=0/0 gen=4 K=0", 2: ""}) is None


@given(st.integers(1, 10**9), st.integers(0, 10**6))
def test_reads_back_what_it_prints(first: int, extra: int) -> None:
    window = ProfileWindow(first, first + extra)
    assert ProfileWindow.parse(str(window)) == window


def test_both_ends_are_included() -> None:
    window = ProfileWindow.parse(" 3 - 5 ")
    assert [step for step in range(8) if step in window] == [3, 4, 5]


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("", "is no range of steps", "100-149"),
        ("7", "is no range of steps", "100-149"),
        ("a-b", "is no range of steps", "100-149"),
        ("1-2-3", "is no range of steps", "100-149"),
        ("-1-4", "is no range of steps", "100-149"),
        ("1.5-4", "is no range of steps", "100-149"),
        ("٣-٤", "is no range of steps", "100-149"),
        ("0-4", "begins before step 1", "1-4"),
        ("0-0", "begins before step 1", "1-1"),
        ("9-3", "ends before it begins", "3-9"),
    ],
)
def test_bad_text_is_refused_with_a_way_out(text: str, what: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        ProfileWindow.parse(text)
    assert caught.value.exit_code == 2
    assert caught.value.where == "--steps"
    assert repr(text) in caught.value.what
    assert what in caught.value.what
    assert hint in (caught.value.hint or "")


@given(st.text(max_size=12))
def test_any_text_gives_a_window_or_an_input_error(text: str) -> None:
    try:
        window = ProfileWindow.parse(text)
    except InputError:
        return
    assert 1 <= window.first <= window.last
