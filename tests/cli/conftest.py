"""Running the command line in this process."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from specbench.cli.app import main


@dataclass(frozen=True)
class Outcome:
    """What a shell would see."""

    code: int
    stdout: str
    stderr: str


Cli = Callable[..., Outcome]


@pytest.fixture(scope="session")
def cli() -> Cli:
    """``cli("check", "x.yaml")`` runs the command and returns its :class:`Outcome`."""

    def run(*argv: str) -> Outcome:
        stdout, stderr = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            code = main(argv)
        return Outcome(code, stdout.getvalue(), stderr.getvalue())

    return run
