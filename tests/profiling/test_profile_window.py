"""``--steps A-B``: what it accepts, and what it says when it does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.errors import InputError
from specbench.profiling.window import ProfileWindow


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
