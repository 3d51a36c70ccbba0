"""Durations, sizes, percentages and step ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.scenario.units import format_bytes, parse_duration, parse_percent, parse_size, parse_step_range


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("90s", 90.0), ("5m", 300.0), ("1h30m", 5400.0), ("0.5 h", 1800.0), ("1d", 86400.0)],
)
def test_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 * 1024**3),
        ("512MiB", 512 * 1024**2),
        ("2GB", 2 * 10**9),
        ("1.5KiB", 1536),
        ("7B", 7),
        ("1 TB", 10**12),
    ],
)
def test_size(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_percent_keeps_the_percent_unit() -> None:
    assert parse_percent("0.5%") == 0.5


def test_step_range_includes_both_ends() -> None:
    assert parse_step_range("100-200") == (100, 200)
    assert parse_step_range("7-7") == (7, 7)


@pytest.mark.parametrize("text", ["", "5", "5 minutes", "m", "-5m", "1e3s", "5m!", "9" * 50 + "s", "٣s"])
def test_duration_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="a duration such as"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "2", "2G", "2gib", "-1GiB", "GiB", "1e3MiB", "9" * 50 + "B"])
def test_size_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="a size such as"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "0.5", "%", "-1%", "0.5 percent"])
def test_percent_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="a percentage such as"):
        parse_percent(text)


@pytest.mark.parametrize("text", ["", "5", "200-100", "a-b", "-5-6", "1-2-3", "1-9999999999"])
def test_step_range_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="a range of steps"):
        parse_step_range(text)


@given(st.integers(0, 10**15))
def test_formatted_size_is_within_five_percent_of_the_size(count: int) -> None:
    number, unit = format_bytes(count).split()
    assert float(number) * parse_size(f"1{unit}") == pytest.approx(count, rel=0.05)
