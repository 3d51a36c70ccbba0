"""Durations, sizes, percentages and step ranges as people write them.

Every parser takes text, returns a number in the unit its name says, and raises ``ValueError`` with the allowed form.
"""

from __future__ import annotations

import re

DURATION_FORM = "a duration such as 250ms, 90s, 5m or 1h30m"
SIZE_FORM = "a size such as 512MiB, 2GiB or 2GB"
PERCENT_FORM = "a percentage such as 0.5%"
STEP_RANGE_FORM = "a range of steps such as 100-200, the first not above the second"

DURATION_PATTERN = r"^\s*(?:[0-9]+(?:\.[0-9]+)?\s*(?:ms|s|m|h|d)\s*)+$"
SIZE_PATTERN = r"^\s*[0-9]+(?:\.[0-9]+)?\s*(?:[KMGT]i?)?B\s*$"
PERCENT_PATTERN = r"^\s*[0-9]+(?:\.[0-9]+)?\s*%\s*$"
STEP_RANGE_PATTERN = r"^\s*[0-9]{1,9}\s*-\s*[0-9]{1,9}\s*$"

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {f"{p}B": 1000**i for i, p in enumerate("KMGT", 1)}
_BYTES |= {"B": 1, **{f"{p}iB": 1024**i for i, p in enumerate("KMGT", 1)}}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)")
_SIZE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*((?:[KMGT]i?)?B)\s*$")
_PERCENT = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*$")
MAX_TEXT = 40
"""Longest text read as a quantity, so that no digit string can grow into an overflow."""


def parse_duration(text: str) -> float:
    """Seconds in ``text`` (``1h30m`` -> 5400.0)."""
    if len(text) > MAX_TEXT or not re.match(DURATION_PATTERN, text):
        raise ValueError(DURATION_FORM)
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))


def parse_size(text: str) -> int:
    """Bytes in ``text`` (``2GiB`` -> 2147483648; ``GB`` is decimal, ``GiB`` binary)."""
    match = _SIZE.match(text) if len(text) <= MAX_TEXT else None
    if match is None:
        raise ValueError(SIZE_FORM)
    return int(float(match.group(1)) * _BYTES[match.group(2)])


def parse_percent(text: str) -> float:
    """Percent in ``text`` (``0.5%`` -> 0.5)."""
    match = _PERCENT.match(text) if len(text) <= MAX_TEXT else None
    if match is None:
        raise ValueError(PERCENT_FORM)
    return float(match.group(1))


def parse_step_range(text: str) -> tuple[int, int]:
    """First and last step of ``A-B``, both included."""
    if not re.match(STEP_RANGE_PATTERN, text):
        raise ValueError(STEP_RANGE_FORM)
    first, last = (int(part) for part in text.split("-"))
    if first > last:
        raise ValueError(STEP_RANGE_FORM)
    return first, last


def format_bytes(count: float) -> str:
    """``count`` bytes for people: ``22.9 GiB``, ``640 B``."""
    for exponent, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**exponent:
            return f"{count / 1024**exponent:.1f} {unit}"
    return f"{count:.0f} B"
