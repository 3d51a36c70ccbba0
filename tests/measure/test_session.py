"""Going on where another start began: the processes of arms have to be what they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from arm_process import Settings, git, make_repository, tiny_config
from fake_subject import make_run, open_folder

from specbench.errors import ResultsError
from specbench.measure.executor import measure_trial
from specbench.measure.remote import RemoteSubject
from specbench.measure.results_folder import ARMS, ResultsFolder
from specbench.measure.session import join_process

BUILD: dict[str, Any] = {
    "specbench": "1.0",
    "imported_from": "/somewhere/specbench",
    "git": {"revision": "a" * 40, "dirty": True, "changes_sha256": "b" * 64},
    "python": "3.11.2",
    "torch": {"version": "2.6.0", "threads": 2},
    "weights": "c" * 64,
}


def measure_point(folder: ResultsFolder) -> None:
    """One trial of point 0."""
    run = make_run(folder)
    record, requests = measure_trial(run, run.plan.trials[0], None)
    assert record.point == 0
    folder.append(record, requests)


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"git": {**BUILD["git"], "changes_sha256": "d" * 64}}, "git.changes_sha256: bbbbbbbbbbbb -> dddddddddddd"),
    ({"git": {"revision": "a" * 40, "dirty": False}}, "git.dirty: True -> False, git.changes_sha256: .* -> absent"),
    ({"git": None}, "git.revision: aaaaaaaaaaaa -> absent"),
    ({"imported_from": "/elsewhere"}, "imported_from: /somewhere/specbench -> /elsewhere"),
    ({"specbench": "1.1"}, "specbench: 1.0 -> 1.1"),
    ({"python": "3.12.1"}, "python: 3.11.2 -> 3.12.1"),
    ({"torch": {"version": "2.7.0", "threads": 2}}, "torch.version: 2.6.0 -> 2.7.0"),
    ({"weights": "e" * 64}, "weights: cccccccccccc -> eeeeeeeeeeee"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=[next(iter(change)) for change, _ in CHANGES])
def test_a_process_of_another_build_is_refused_and_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with open_folder(tmp_path) as folder:
        join_process(folder, 0, BUILD)
        measure_point(folder)
    with ResultsFolder(folder.path) as again:
        join_process(again, 0, BUILD)
        before = (folder.path / ARMS).read_bytes()
        with pytest.raises(ResultsError, match=rf"began elsewhere \(the process of point 0: {words}") as caught:
            join_process(again, 0, {**BUILD, **change})
    assert caught.value.where == f"--resume {folder.path}"
    assert (folder.path / ARMS).read_bytes() == before


def test_every_arm_has_a_build_of_its_own(tmp_path: Path) -> None:
    other = {**BUILD, "git": None}
    with open_folder(tmp_path) as folder:
        join_process(folder, 0, BUILD)
        join_process(folder, 1, other)
        measure_point(folder)
    with ResultsFolder(folder.path) as again:
        join_process(again, 1, other)
        join_process(again, 0, BUILD)
        join_process(again, 1, BUILD)  # nothing of this arm was measured that could be of another build
    assert json.loads((folder.path / ARMS).read_text())["arms"] == {"0": BUILD, "1": BUILD}


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    with open_folder(tmp_path) as folder:
        for text, words in (('{"arms": 3}', "arms is damaged"), ("{", "cannot be read")):
            (folder.path / ARMS).write_text(text)
            with pytest.raises(ResultsError, match=words):
                join_process(folder, 0, BUILD)


def test_it_is_taken_back_with_a_question_that_was_wrong(tmp_path: Path) -> None:
    with ResultsFolder(tmp_path) as folder:
        join_process(folder, 0, BUILD)
    ResultsFolder(tmp_path).discard_unmeasured(keep_folder=True)
    assert list(tmp_path.iterdir()) == []


def test_a_checkout_that_was_changed_between_two_starts_is_another_build(tmp_path: Path) -> None:
    project = make_repository(tmp_path / "project", whole=True)
    code = project / "specbench" / "errors.py"
    code.write_text(f"{code.read_text()}\n# changed\n")
    found = []
    for change in ("", "# and changed again\n"):
        code.write_text(code.read_text() + change)
        arm = RemoteSubject.start(tiny_config(), Settings(worktree=str(project)))
        with arm:
            assert arm.identify()["weights"] == arm.facts.fingerprint
            found.append(arm.identify())
    first, second = found
    assert first["imported_from"] == str(project / "specbench")
    assert first["git"]["revision"] == git(project, "rev-parse", "HEAD")
    with open_folder(tmp_path / "out") as folder:
        join_process(folder, 0, first)
        measure_point(folder)
        with pytest.raises(ResultsError, match=r"point 0: git\.changes_sha256: \w+ -> \w+\)"):
            join_process(folder, 0, second)
