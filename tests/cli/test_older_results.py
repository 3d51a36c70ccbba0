"""Results of versions in which overlap was a key of the engine: rendered and loaded as ever."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import specbench
from specbench.registry import FORMATS
from specbench.report.facts import run_facts, setup_facts
from specbench.report.reading import read_analysis

Cli = Callable[..., Any]
RESULTS = Path(__file__).resolve().parents[2] / "results"


def age(data: dict[str, Any]) -> None:
    """Put the key where such versions had it, and take the toggle away."""
    if "subject" in data:
        data["subject"]["engine"]["overlap"] = True
        data["subject"].get("toggles", {}).pop("overlap", None)
    for scenario in [data.get("scenario"), *(point.get("scenario") for point in data.get("points", ()))]:
        if scenario:
            scenario["engine"]["overlap"] = "on"
            scenario.get("optimizations", {}).pop("overlap", None)


@pytest.fixture(params=["quickstart", "quickstart_ab"])
def older(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "older"
    shutil.copytree(RESULTS / request.param, folder)
    for name in ("analysis.json", "plan.json", "question.json"):
        if (folder / name).is_file():
            data = json.loads((folder / name).read_text())
            age(data)
            (folder / name).write_text(json.dumps(data))
    lines = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    for line in lines:
        age(line)
    (folder / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_they_are_exported(cli: Cli, older: Path, name: str) -> None:
    outcome = cli("export", str(older), "--format", name)
    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout
    if name in ("markdown", "html"):
        assert "overlap on" in outcome.stdout


def test_they_are_loaded(older: Path) -> None:
    loaded = specbench.load_results(older)
    assert len(loaded.points) > 0
    assert len(loaded.trials) > 0


def test_a_report_says_which_variant_stood(older: Path) -> None:
    analysis = read_analysis(older)
    facts = run_facts if analysis.kind == "run" else setup_facts
    assert "overlap on" in dict(facts(analysis))["engine"]
    for variant in ("off", "on"):
        analysis.subject["toggles"]["overlap"] = {"variant": variant, "counters": {}}
        assert f"overlap {variant}" in dict(facts(analysis))["engine"]
