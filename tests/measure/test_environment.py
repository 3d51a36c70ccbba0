"""The environment says what matters and nothing secret."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specbench.measure import environment
from specbench.scenario.masking import mask, mask_all


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("https://user:hunter2@host/x", "https://***@host/x"),
        ("s3://KEYID@bucket/a", "s3://***@bucket/a"),
        ("https://h/x?token=abc&n=3", "https://h/x?token=***&n=3"),
        ("https://h/x?n=3&X-Amz-Signature=abc#top", "https://h/x?n=3&X-Amz-Signature=***#top"),
        ("--set model.source=https://h/m?api_key=abc", "--set model.source=https://h/m?api_key=***"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("hf_abcdefghijklmnopqrstuvwxyz", "***"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("a basic understanding: what is a key?", "a basic understanding: what is a key?"),
        ("https://host/path?isl=128&osl=64", "https://host/path?isl=128&osl=64"),
    ],
)  # fmt: skip
def test_masking(text: str, masked: str) -> None:
    assert mask(text) == masked


def test_masking_reaches_into_structures() -> None:
    data = {"model": {"source": "https://a:b@h/m"}, "list": ["https://h?key=1", 3, None, True]}
    assert mask_all(data) == {"model": {"source": "https://***@h/m"}, "list": ["https://h?key=***", 3, None, True]}


def test_variables_come_from_the_allow_list_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_TOKEN", "very-secret-value")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("LD_PRELOAD", "https://u:very-secret-value@h/lib.so")
    found = environment.describe_environment()
    assert found["variables"]["OMP_NUM_THREADS"] == "3"
    assert "very-secret-value" not in str(found)


def test_what_is_known_of_this_machine() -> None:
    found = environment.describe_environment()
    assert found["cpu"]["usable_cores"] >= 1
    assert found["memory_bytes"] > 2**20
    assert found["packages"]["torch"]
    assert set(found) >= {"git", "python", "os", "load_average", "governor", "gpus"}


def test_describing_loads_no_torch() -> None:
    code = "from specbench.measure.environment import describe_environment as d; d()"
    check = "import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", f"{code}; {check}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def git(path: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(path), *identity, *arguments], check=True, capture_output=True)


def test_git_revision_and_dirty_flag(tmp_path: Path) -> None:
    package = tmp_path / "specbench"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert environment.describe_git(package) is None
    git(tmp_path, "init", "-q")
    assert environment.describe_git(package) is None  # in somebody's repository, but not of it
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    found = environment.describe_git(package)
    assert found is not None
    assert len(found["revision"]) == 40
    assert found["dirty"] is False
    changes = []
    for text in ("changed", "changed again"):
        (package / "__init__.py").write_text(text)
        changed = environment.describe_git(package) or {}
        assert changed["dirty"] is True
        changes.append(changed["changes_sha256"])
    assert len(set(changes)) == 2


def test_another_machine_is_noticed() -> None:
    here = environment.describe_environment()
    assert environment.differences(here, here) == []
    assert environment.differences(here, {**here, "load_average": [9, 9, 9]}) == []
    other = {**here, "packages": {**here["packages"], "torch": "1.0"}}
    assert environment.differences(here, other) == [f"packages.torch: {here['packages']['torch']} -> 1.0"]


GPUS = [{"name": "A", "driver_version": "1", "power.limit": "300 W"}, {"name": "B", "driver_version": "1"}]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpus": [GPUS[0], {**GPUS[1], "name": "C"}]}, "gpus.name: ['A', 'B'] -> ['A', 'C']"),
        ({"gpus": [{**GPUS[0], "driver_version": "2"}, GPUS[1]]}, "gpus.driver_version: ['1', '1'] -> ['2', '1']"),
        ({"git": {"revision": "b", "dirty": False}}, "git.revision: a -> b"),
        ({"git": {"revision": "a", "dirty": True}}, "git.dirty: False -> True"),
        ({"git": {"revision": "a", "dirty": False, "changes_sha256": "c"}}, "git.changes_sha256: None -> c"),
        ({"torch": {"version": "2", "threads": 4}}, "torch.threads: 2 -> 4"),
        ({"torch": {"version": "3", "threads": 2}}, "torch.version: 2 -> 3"),
        ({"specbench": "9"}, "specbench: 1 -> 9"),
        ({"python": "3.9"}, "python: 3.11 -> 3.9"),
    ],
)
def test_what_makes_another_machine_or_build(change: dict[str, object], message: str) -> None:
    here = {
        "specbench": "1", "python": "3.11", "gpus": GPUS, "git": {"revision": "a", "dirty": False},
        "torch": {"version": "2", "threads": 2},
    }  # fmt: skip
    assert environment.differences(here, {**here, **change}) == [message]
    assert "gpus.name: ['A', 'B'] -> None" in environment.differences(here, {**here, "gpus": None})
    slower = [{**GPUS[0], "power.limit": "200 W"}, GPUS[1]]
    assert environment.differences(here, {**here, "gpus": slower}) == []
    assert environment.differences(here, {key: here[key] for key in here if key != "torch"}) == []  # not known yet
