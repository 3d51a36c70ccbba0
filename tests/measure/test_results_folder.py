"""What is on disk survives kills, full disks, second writers, and is never counted twice."""

from __future__ import annotations

import errno
import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from fake_subject import make_run, open_folder

from specbench import encoding
from specbench.errors import ResultsError, StorageError
from specbench.measure import results_folder
from specbench.measure.executor import execute, measure_trial
from specbench.measure.results_folder import ResultsFolder, create_folder, folder_name
from specbench.records import RequestRecord, TrialRecord

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=timezone.utc)


def measured(path: Path) -> tuple[TrialRecord, list[RequestRecord]]:
    with open_folder(path) as folder:
        run = make_run(folder)
        return measure_trial(run, run.plan.trials[0], None)


def test_name_has_time_scenario_and_hash() -> None:
    assert folder_name("my run/ü", "0123456789abcdef", NOON) == "20260131T120000Z-my-run-01234567"


def test_a_new_run_never_takes_a_folder_that_is_there(tmp_path: Path) -> None:
    first = create_folder(None, tmp_path / "results", "name")
    second = create_folder(None, tmp_path / "results", "name")
    assert (first.name, second.name) == ("name", "name-2")


def test_an_exact_folder_must_be_new_or_empty(tmp_path: Path) -> None:
    exact = tmp_path / "a" / "b"
    assert create_folder(exact, tmp_path, "name") == exact
    assert create_folder(exact, tmp_path, "name") == exact
    (exact / "trials.jsonl").touch()
    with pytest.raises(ResultsError, match="never overwrites") as error:
        create_folder(exact, tmp_path, "name")
    assert f"--resume {exact}" in str(error.value)


@pytest.mark.parametrize("exact", [True, False])
def test_a_folder_that_cannot_be_made_is_an_input_error(tmp_path: Path, exact: bool) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("x")
    with pytest.raises(ResultsError, match="--out"):
        create_folder(blocker / "run" if exact else None, blocker, "name")


def test_a_read_only_file_system_is_found_before_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(results_folder.os, "fsync", refuse)
    with pytest.raises(ResultsError, match="Read-only file system"):
        create_folder(tmp_path / "run", tmp_path, "name")


def test_a_torn_last_line_is_set_aside(tmp_path: Path) -> None:
    trial, requests = measured(tmp_path / "a")
    path = tmp_path / "b"
    with open_folder(path) as folder:
        folder.append(trial, requests)
    whole = (path / "trials.jsonl").read_bytes()
    for cut in (1, len(whole) // 2, len(whole) - 1):
        (path / "trials.jsonl").write_bytes(whole + whole[:cut])
        with ResultsFolder(path) as folder:
            assert len(folder.contents.trials) == 1
            assert folder.next_attempt(0) == 1
        assert (path / "trials.jsonl").read_bytes() == whole
    assert (path / "trials.jsonl.torn").read_text().count("\n") == 3


def test_a_last_line_with_its_newline_but_torn_inside_is_set_aside(tmp_path: Path) -> None:
    with open_folder(tmp_path) as folder:
        folder.append(*measured(tmp_path / "a"))
    with (tmp_path / "trials.jsonl").open("ab") as file:
        file.write(b'{"trial": 1, "po\n')  # a file system may keep the size and lose a page
    with ResultsFolder(tmp_path) as folder:
        assert [trial.trial for trial in folder.contents.trials] == [0]


def test_a_damaged_line_in_the_middle_is_refused(tmp_path: Path) -> None:
    with open_folder(tmp_path) as folder:
        folder.append(*measured(tmp_path / "a"))
    good = (tmp_path / "trials.jsonl").read_text()
    (tmp_path / "trials.jsonl").write_text("{broken\n" + good)
    with pytest.raises(ResultsError, match=r"trials.jsonl:1"), ResultsFolder(tmp_path):
        pass


def test_requests_without_their_trial_do_not_count(tmp_path: Path) -> None:
    trial, requests = measured(tmp_path / "a")
    path = tmp_path / "b"
    with open_folder(path) as folder:
        folder.append(trial, requests)
        kept = (path / "requests.jsonl").read_bytes()
        folder._append_lines(folder._requests, ['{"trial":1,"attempt":0,' + _rest(requests[0])])
    with (path / "requests.jsonl").open("ab") as file:
        file.write(b'{"trial":1,"att')
    with ResultsFolder(path) as folder:
        assert len(folder.contents.requests) == len(requests)
    assert (path / "requests.jsonl").read_bytes() == kept
    assert (path / "requests.jsonl.torn").read_text().count("\n") == 2


def _rest(request: RequestRecord) -> str:
    from specbench.encoding import to_json

    data = {key: value for key, value in to_json(request).items() if key not in ("trial", "attempt")}
    return json.dumps(data)[1:]


@pytest.mark.parametrize("file", ["requests.jsonl", "trials.jsonl"])
def test_a_full_disk_loses_nothing_earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    trial, requests = measured(tmp_path / "a")
    path = tmp_path / "b"
    real_write = os.write
    with open_folder(path) as folder:
        folder.append(trial, requests)
        before = {name: (path / name).read_bytes() for name in ("trials.jsonl", "requests.jsonl")}
        full = os.stat(path / file).st_ino

        def write(descriptor: int, data: Any) -> int:
            if os.fstat(descriptor).st_ino != full:
                return real_write(descriptor, data)
            if len(data) < 20:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real_write(descriptor, bytes(data)[: len(data) // 2])  # some of it fits, as on a real disk

        monkeypatch.setattr(results_folder.os, "write", write)
        with pytest.raises(StorageError, match="no space is left") as error:
            folder.append(trial, requests)
        assert error.value.exit_code == 4
        assert f"--resume {path}" in str(error.value)
        monkeypatch.undo()
    with ResultsFolder(path) as folder:
        assert len(folder.contents.trials) == 1
        assert len(folder.contents.requests) == len(requests)
    assert (path / "trials.jsonl").read_bytes() == before["trials.jsonl"]
    assert (path / "requests.jsonl").read_bytes() == before["requests.jsonl"]


def test_a_whole_file_is_replaced_at_once_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder(tmp_path)
    folder.write("analysis.json", "old")

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(results_folder.os, "fsync", refuse)
    with pytest.raises(StorageError):
        folder.write("analysis.json", "new")
    assert (tmp_path / "analysis.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["analysis.json"]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with open_folder(tmp_path), pytest.raises(ResultsError, match="another specbench process"):
        ResultsFolder(tmp_path).__enter__()
    with ResultsFolder(tmp_path):
        pass  # free again


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    with open_folder(tmp_path) as folder:
        execute(make_run(folder))
    line = json.loads((tmp_path / "trials.jsonl").read_text())
    (tmp_path / "trials.jsonl").write_text(json.dumps({**line, "schema_version": 2}) + "\n")
    with pytest.raises(ResultsError, match="newer than this specbench"), ResultsFolder(tmp_path):
        pass


@pytest.mark.parametrize("keep_folder", [True, False])
def test_only_an_unmeasured_folder_is_taken_back(tmp_path: Path, keep_folder: bool) -> None:
    empty, other, full = tmp_path / "empty", tmp_path / "other", tmp_path / "full"
    with open_folder(empty) as folder:
        folder.write("plan.json", "{}")
        folder.discard_unmeasured(keep_folder=keep_folder)
    assert empty.exists() is keep_folder
    assert not keep_folder or list(empty.iterdir()) == []
    with open_folder(other) as folder:
        (other / "mine.txt").touch()
        folder.discard_unmeasured(keep_folder=False)
    assert [path.name for path in other.iterdir()] == ["mine.txt"]
    with open_folder(full) as folder:
        execute(make_run(folder))
        folder.discard_unmeasured(keep_folder=keep_folder)
    unread = ResultsFolder(full)  # never entered, so that it does not know its trials
    unread.discard_unmeasured(keep_folder=keep_folder)
    assert (full / "trials.jsonl").stat().st_size > 0
    assert (full / "requests.jsonl").stat().st_size > 0


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_damage(number: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(f'{{"settings": {{"margin": [0.5, {number}]}}}}')
    with pytest.raises(ResultsError, match=rf"plan\.json: cannot be read: {number} is no JSON"):
        encoding.read_object(tmp_path / "plan.json")
    (tmp_path / "plan.json").write_text('{"settings": {"margin": [0.5, 1e3]}}')
    assert encoding.read_object(tmp_path / "plan.json") == {"settings": {"margin": [0.5, 1000.0]}}
