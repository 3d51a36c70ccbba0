"""Makes ``sample`` importable by the tests beside it, and compares with golden files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare a text with ``golden/<name>``; with UPDATE_GOLDEN=1 write it instead (then read the difference)."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if os.environ.get("UPDATE_GOLDEN") == "1":
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return compare
