"""The table of acceptance lengths: steps are pooled by what drafts, and trees and heads are told apart."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "acceptance.py"
TREE = {"top_k": 4, "depth": 4, "num_nodes": 12}
EMPTY = {"schema_version": 1, "kind": "sweep", "label": "natural", "scenario": {}, "environment": {}}


@pytest.fixture(scope="module")
def acceptance() -> ModuleType:
    spec = importlib.util.spec_from_file_location("acceptance", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_folder(path: Path, *trials: tuple[str, str | None, dict[str, int] | None]) -> Path:
    """A sweep's folder; each trial of a drafter, its head and its tree has one request more step than the last."""
    path.mkdir()
    (path / "analysis.json").write_text(json.dumps({**EMPTY, "points": [], "gates": []}))
    lines: list[dict[str, Any]] = []
    requests: list[dict[str, Any]] = []
    for number, (drafter, head, tree) in enumerate(trials):
        engine = {"drafter": {"name": drafter, "draft_len": 4, "tree": tree}}
        subject = {"engine": engine, **({"draft_model": head} if head else {})}
        lines.append({"trial": number, "axes": {"drafter": drafter, "draft_len": 4}, "subject": subject})
        lengths = [number + 1, number + 2]
        requests.append({"trial": number, "category": "math", "accepted_lengths": lengths})
        requests.append({"trial": number, "category": "stem", "accepted_lengths": [1]})
    for name, rows in (("trials.jsonl", lines), ("requests.jsonl", requests)):
        (path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_tree_is_named_and_steps_weigh_alike(acceptance: ModuleType, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", ("eagle3", "mine", None), ("eagle3", "mine", TREE), ("ngram", None, None))
    table = acceptance.tabulate(acceptance.read_lengths(folder))
    assert list(table.index) == [
        ("eagle3", 4),
        ("eagle3, a tree of 12 nodes (top_k 4, depth 4)", 4),
        ("ngram", 4),
    ]
    assert table["all"].tolist() == pytest.approx([4 / 3, 6 / 3, 8 / 3])
    assert table["math"].tolist() == pytest.approx([1.5, 2.5, 3.5])
    assert table["stem"].tolist() == [1.0, 1.0, 1.0]


def test_heads_are_named_where_a_drafter_has_several(acceptance: ModuleType, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", ("eagle3", "first", None), ("eagle3", "second", None), ("mtp", "third", None))
    table = acceptance.tabulate(acceptance.read_lengths(folder))
    assert [drafter for drafter, _ in table.index] == ["eagle3, first", "eagle3, second", "mtp"]


def test_the_printed_table_has_a_row_each(
    acceptance: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "a", ("eagle3", "mine", TREE))
    monkeypatch.setattr(sys, "argv", ["acceptance.py", str(folder)])
    acceptance.main()
    assert "| eagle3, a tree of 12 nodes (top_k 4, depth 4) | 4 | 1.333 | 1.500 | 1.000 |" in capsys.readouterr().out
