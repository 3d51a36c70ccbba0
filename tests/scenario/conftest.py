"""Fixtures of the scenario tests."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.errors import InputError
from specbench.scenario.loader import load_scenario

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write text to a scenario file and return its path."""

    def write_text(text: str) -> Path:
        path = tmp_path / "x.yaml"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write_text


@pytest.fixture
def refusal(write: Write) -> Callable[..., InputError]:
    """Load text that must be refused and return the error."""

    def load(text: str, *overrides: str, variant: str | None = None) -> InputError:
        path = write(text)
        with pytest.raises(InputError) as caught:
            load_scenario(path, overrides, variant)
        return caught.value

    return load
