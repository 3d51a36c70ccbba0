"""``specbench selftest`` as a user types it, on the tiny model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ab_commands import SCENARIO, read

from specbench.cli.app import main
from specbench.cli.selftest import DEFAULT_SCENARIO

SMALL = ["--set", "measure.max_units=6", "--set", "measure.period_steps=1", "--out", "out"]


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario file in a folder of its own, which is the current one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.mark.slow
def test_twenty_equal_arms_a_delay_and_the_floor(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a loaded machine it may fail, which is an answer as well: then the exit code says so."""
    code = main(["selftest", str(scenario), *SMALL])
    output, errors = capsys.readouterr()
    selftest = read("out", "selftest.json")
    assert code == (0 if selftest["verdict"] == "PASS" else 3), errors
    assert selftest["equal_arms"]["comparisons"] == 20
    assert selftest["equal_arms"]["alarm_at"] == 4
    assert [check["name"] for check in selftest["checks"]] == [
        "valid", "equal arms", "known delay in arm B", "known delay in arm A", "labels swapped",
    ]  # fmt: skip
    assert [floor["minutes"] for floor in selftest["floor"]] == [1, 5, 15]
    assert all(floor["smallest_pct"] > 0 for floor in selftest["floor"])
    assert selftest["verdict"] in output
    assert "labels swapped" in Path("out/report.md").read_text()
    assert Path("out/report.html").exists()
    roles = [comparison["role"] for comparison in read("out", "analysis.json")["comparisons"]]
    assert (roles.count("A/A"), roles.count("delay"), roles.count("swapped")) == (20, 1, 1)
    assert main(["selftest", "--resume", "out", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["kind"] == "ab"


@pytest.mark.slow
def test_arms_that_are_not_equal_fail_it(
    scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever slows one arm alone, and is no part of what was asked: here 2 ms in every step."""
    from specbench.scenario import questions

    real = questions.ask_selftest

    def spoil(*arguments: Any) -> Any:
        question = real(*arguments)
        slow = {"B": {"kind": "delay", "us": 2000}}
        equal = (replace(c, injected=slow) if c.role == "A/A" else c for c in question.comparisons)
        return replace(question, comparisons=tuple(equal))

    monkeypatch.setattr(questions, "ask_selftest", spoil)
    assert main(["selftest", str(scenario), *SMALL]) == 3
    output, errors = capsys.readouterr()
    assert "the selftest failed: " in errors
    assert "FAIL" in output
    selftest = read("out", "selftest.json")
    assert {check["name"]: check["passed"] for check in selftest["checks"]}["equal arms"] is False
    assert selftest["equal_arms"]["rejections"] >= 12  # a step takes about 3 ms: on an idle machine all 20 are found


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tiny.yaml", "--budget", "5"], ["--budget", "5m"]),
        (["tiny.yaml", "--set", "workload.osl=none"], ["workload.osl"]),
        (["nowhere.yaml"], ["nowhere.yaml", "cannot be read"]),
        (["--set", "workload.kind=nothing"], ["workload.kind"]),
        (["tiny.yaml", "--out", "taken"], ["never overwrites"]),
        (["--resume", "nowhere"], ["no such folder"]),
        (["tiny.yaml", "--out", "a", "--resume", "b"], ["exclude each other"]),
    ],
    ids=" ".join,
)
def test_bad_flags_are_one_message(
    scenario: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    Path("taken").mkdir()
    Path("taken/x").touch()
    assert main(["selftest", *arguments]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.count("error: ") == 1
    assert all(word in errors for word in words), errors
    assert sorted(path.name for path in scenario.parent.iterdir()) == ["taken", "tiny.yaml"]


def test_the_default_scenario_is_right(cli: Any) -> None:
    assert cli("check", str(DEFAULT_SCENARIO), "--set", "model=random:tiny").code == 0
