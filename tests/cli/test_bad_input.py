"""What a user gets wrong most, end to end: exit code 2, one message, the place and the way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

QUICKSTART = Path(__file__).resolve().parents[2] / "scenarios" / "quickstart.yaml"
RESULT = QUICKSTART.parents[1] / "results" / "quickstart_ab"

CASES = {
    "K over the cap": ("drafter.draft_len=17", ["drafter.draft_len", "17", "16"]),
    "concurrency over memory": ("workload.concurrency=4096", ["GiB", "concurrency"]),
    "unknown model": ("model=smolm2-135m", ["smolm2-135m", "smollm2-135m"]),
    "unknown drafter": ("drafter=n-gram", ["drafter", "ngram"]),
    "forced length beyond K + 1": ("acceptance={mode: forced, length: 9}", ["acceptance.length", "9"]),
    "no room for a prompt": ("engine.max_seq_len=96", ["workload.osl", "96"]),
    "a device that is not here": ("engine.device=tpu", ["engine.device", "cpu"]),
    "another acceptance": ("acceptance=rejectoin", ["acceptance", "strict", "forced", "did you mean 'rejection'?"]),
}


@pytest.mark.parametrize("command", ["check", "run"])
@pytest.mark.parametrize("case", CASES)
def test_one_message_names_the_place_and_the_way_out(
    case: str, command: str, cli: Callable[..., object], tmp_path: Path
) -> None:
    change, words = CASES[case]
    arguments = [command, str(QUICKSTART), "--set", change, "--set", "workload.num_requests=2"]
    if not change.startswith("model="):
        # Only the shape of the larger one is read: its KV cache does not fit anywhere.
        arguments += ["--set", f"model=random:{'llama-3.2-1b' if 'memory' in case else 'tiny'}"]
    if command == "run":
        arguments += ["--out", str(tmp_path / "out")]
    outcome = cli(*arguments)
    assert outcome.code == 2, outcome.stdout  # type: ignore[attr-defined]
    message = outcome.stderr  # type: ignore[attr-defined]
    assert message.startswith("error: ")
    assert message.count("error: ") == 1
    assert "Traceback" not in message
    assert all(word in message for word in words), message
    assert not (tmp_path / "out").exists()


TINY = ("--set", "model=random:tiny")
LONG = "x" * 300
"""Longer than a file may be called."""


@pytest.mark.parametrize(
    "argv",
    [
        ("run", QUICKSTART, "--out", LONG, *TINY),
        ("run", "--resume", LONG),
        ("sweep", QUICKSTART, "--out", LONG, *TINY),
        ("ab", QUICKSTART, "--baseline", "off", "--out", LONG, *TINY),
        ("ab", "--resume", LONG),
        ("selftest", "--out", LONG, *TINY),
        ("check", LONG),
        ("export", LONG, "--format", "csv"),
        ("export", RESULT, "-o", f"{LONG}/x.md"),
    ],
)
def test_a_name_too_long_for_a_file_is_bad_input(cli: Callable[..., object], argv: tuple[str | Path, ...]) -> None:
    outcome = cli(*map(str, argv))
    assert outcome.code == 2  # type: ignore[attr-defined]
    assert LONG in outcome.stderr  # type: ignore[attr-defined]
    assert "traceback" not in outcome.stderr  # type: ignore[attr-defined]


def test_a_report_that_cannot_be_stored_is_said(cli: Callable[..., object]) -> None:
    outcome = cli("export", str(RESULT), "-o", f"{LONG}.md")
    assert outcome.code == 4  # type: ignore[attr-defined]
    assert "could not be written: File name too long" in outcome.stderr  # type: ignore[attr-defined]
