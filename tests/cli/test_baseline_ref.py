"""``ab --baseline-ref``: a commit as the baseline, both arms in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ab_commands import SCENARIO, num_lines, read, wait_for
from arm_process import git, make_repository

from specbench.cli.app import main
from specbench.measure import worktree
from specbench.measure.worktree import Worktree

ROOT = Path(__file__).parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario file in a folder of its own, which is the current one; links go below it as well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Revisions that were checked out; each lies at another path, as temporary folders do, and is this checkout."""
    asked: list[str] = []

    @contextmanager
    def open_worktree(revision: str) -> Iterator[Worktree]:
        asked.append(revision)
        path = tmp_path / f"checkout-{len(asked)}"
        path.symlink_to(ROOT)
        try:
            yield Worktree(path, COMMIT)
        finally:
            path.unlink()

    monkeypatch.setattr(worktree, "open_worktree", open_worktree)
    return asked


def link(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "worktrees" / COMMIT[:12]


def arms() -> list[tuple[str, dict[str, object] | None, dict[str, str]]]:
    question = read("out", "question.json")
    return [
        (point["variant"], point["scenario"]["process"], point["scenario"]["optimizations"])
        for point in question["points"]
    ]


@pytest.mark.slow
def test_a_commit_against_what_is_here(
    scenario: Path, opened: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["ab", str(scenario), "--baseline-ref", "main~2", "--set", "measure.max_units=2"]
    assert main([*asked, "--out", "out"]) == 0
    assert opened == ["main~2"]
    assert not link(tmp_path).is_symlink()
    (baseline, before, toggles), (candidate, here, same) = arms()
    assert (baseline, candidate, toggles) == ("main-2", "here", same)
    assert before == {"python": None, "env": {}, "worktree": str(link(tmp_path))}
    assert here == {"python": None, "env": {}, "worktree": None}
    assert read("out", "question.json")["baseline_ref"] == {
        "revision": "main~2", "commit": COMMIT, "path": str(link(tmp_path)),
    }  # fmt: skip
    (found,) = read("out", "analysis.json")["comparisons"]
    assert (found["design"], found["tokens_identical"], found["n_units"]) == ("runs", True, 2)

    path = Path("out/trials.jsonl")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    Path("out/looks.jsonl").unlink()
    assert main(["ab", "--resume", "out"]) == 0  # the commit is checked out again, at the path of the plan
    assert opened == ["main~2", COMMIT]
    assert main([*asked, "--resume", "out"]) == 0
    assert main(["ab", str(scenario), "--baseline-ref", "v2", "--resume", "out"]) == 2
    assert "the folder began with --baseline-ref main~2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "names", "toggles"),
    [
        (["--baseline", "off"], ["off-at-v1", "off-here"], ["refill", "refill"]),
        (["--baseline", "off", "--candidate", "on"], ["off-at-v1", "on-here"], ["refill", "signature"]),
        (["--candidate", "off"], ["v1", "off-here"], ["signature", "refill"]),
        (["--candidate", "drafter=ngram,drafter.draft_len=2"], ["v1", "drafter-ngram-drafter-draft_len-2-here"], None),
    ],
)
def test_variants_of_both_arms(
    scenario: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch, flags: list[str], names: list[str],
    toggles: list[str] | None,
) -> None:  # fmt: skip
    from specbench.errors import EngineError
    from specbench.measure import orchestration

    def stop(*_: object) -> str:
        raise EngineError("measuring begins")

    monkeypatch.setattr(orchestration, "measure_ab", stop)
    assert main(["ab", str(scenario), "--baseline-ref", "v1", *flags, "--out", "out"]) == 4
    assert [name for name, _, _ in arms()] == names
    if toggles:
        assert [found["sampling_params"] for _, _, found in arms()] == toggles
    assert opened == ["v1"]


def test_a_baseline_with_a_process_of_its_own_is_refused(
    scenario: Path, opened: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--baseline-ref", "v1", "--baseline", "process.python=/usr/bin/python3"]
    assert main(["ab", str(scenario), *flags]) == 2
    errors = capsys.readouterr().err
    assert "sets process, as --baseline-ref does" in errors
    assert opened == ["v1"]
    assert not link(tmp_path).is_symlink()


def test_what_a_killed_command_left_is_replaced(
    scenario: Path, opened: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.errors import EngineError
    from specbench.measure import orchestration

    seen: list[bool] = []

    def stop(*_: object) -> str:
        seen.append((link(tmp_path) / "specbench" / "__init__.py").is_file())
        raise EngineError("measuring begins")

    monkeypatch.setattr(orchestration, "measure_ab", stop)
    link(tmp_path).parent.mkdir(parents=True)
    link(tmp_path).symlink_to(tmp_path / "gone")
    assert main(["ab", str(scenario), "--baseline-ref", "v1", "--out", "out"]) == 4
    assert seen == [True]
    assert opened == ["v1"]
    assert not link(tmp_path).is_symlink()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository whose one commit can serve an arm, and which serves nothing else."""
    made = make_repository(tmp_path / "project", whole=False)
    server = made / "specbench" / "measure" / "subject_server.py"
    server.parent.mkdir()
    server.touch()
    git(made, "add", ".")
    git(made, "commit", "--quiet", "-m", "Serve arms")
    return made


HOLDER = """
import signal, sys, tempfile
from contextlib import ExitStack
from types import SimpleNamespace
from specbench.cli.ab_planning import AbOptions, Settings
from specbench.cli.baseline_ref import check_out
from specbench.cli.session_folder import Options
from specbench.errors import InputError
from specbench.measure import worktree
project, tempfile.tempdir, goes_on = sys.argv[1:]
worktree.specbench = SimpleNamespace(__file__=f"{project}/specbench/__init__.py")
with ExitStack() as stack:
    try:
        shared = Options("ab", "tiny.yaml", [], None, None, False)
        found = check_out(AbOptions(shared, None, [], "main", Settings(), False, False, ()), stack)
    except InputError as error:
        sys.exit(f"refused: {error}")
    print(found.path, found.path.resolve(), flush=True)
    if not goes_on:
        signal.pause()
"""


def hold(project: Path, tmp_path: Path, *, goes_on: bool = False) -> subprocess.Popen[str]:
    """A process that has the commit checked out, and keeps it unless it ``goes_on``."""
    (tmp_path / "temporary").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(project), str(tmp_path / "temporary"), "1" if goes_on else ""],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPECBENCH_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_who_holds_the_commit_keeps_it_until_it_is_dead(project: Path, tmp_path: Path) -> None:
    with hold(project, tmp_path) as owner:
        assert owner.stdout is not None
        try:
            link, first = map(Path, owner.stdout.readline().split())
            _, errors = hold(project, tmp_path).communicate(timeout=60)
            assert "refused" in errors
            assert "another specbench measures against this commit" in errors
            assert link.resolve() == first
        finally:
            owner.kill()
    assert (link / "specbench" / "__init__.py").is_file()  # nobody has tidied up after it
    output, errors = hold(project, tmp_path, goes_on=True).communicate(timeout=60)
    assert errors == ""
    again, second = map(Path, output.split())
    assert (again, second == first) == (link, False)
    assert not link.is_symlink()
    assert list((tmp_path / "temporary").iterdir()) == []
    assert len(git(project, "worktree", "list").splitlines()) == 1


def test_a_link_that_leads_elsewhere_is_replaced_and_nothing_removed_there(
    scenario: Path, opened: list[str], tmp_path: Path
) -> None:
    link(tmp_path).parent.mkdir(parents=True)
    link(tmp_path).symlink_to(tmp_path)
    assert main(["ab", str(scenario), "--baseline-ref", "v1", "--baseline", "nobody"]) == 2
    assert opened == ["v1"]
    assert not link(tmp_path).is_symlink()
    assert scenario.is_file()


@pytest.mark.parametrize("taken", ["cache", "cache/worktrees", f"cache/worktrees/{COMMIT[:12]}"])
def test_a_file_in_the_place_of_the_cache_is_one_message(
    scenario: Path, opened: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], taken: str
) -> None:
    (tmp_path / taken).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / taken).touch()
    assert main(["ab", str(scenario), "--baseline-ref", "v1"]) == 2
    errors = capsys.readouterr().err
    assert errors.count("error: ") == 1
    assert "the commit cannot be linked here" in errors
    assert "SPECBENCH_CACHE" in errors
    assert opened == ["v1"]
    assert (tmp_path / taken).is_file()


@pytest.mark.slow
def test_a_killed_comparison_with_a_commit_is_resumed(scenario: Path, tmp_path: Path) -> None:
    project = make_repository(tmp_path / "whole", whole=True)
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def specbench(*arguments: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "specbench", "ab", *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(project), "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    flags = ["--baseline-ref", "HEAD", "--looks", "1", "--set", "measure.max_units=6", "--out", "out"]
    killed = specbench(scenario, *flags)
    wait_for(lambda: num_lines(Path("out/trials.jsonl")) >= 5, killed)
    killed.kill()
    killed.communicate(timeout=60)
    assert len(list(temporary.iterdir())) >= 1
    plan = Path("out/plan.json").read_bytes()
    resumed = specbench("--resume", "out")
    _, errors = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, errors
    assert Path("out/plan.json").read_bytes() == plan
    assert read("out", "analysis.json")["comparisons"][0]["n_units"] == 6
    assert [path.name for path in temporary.iterdir() if path.name.startswith("specbench-worktree-")] == []
    assert len(git(project, "worktree", "list").splitlines()) == 1
