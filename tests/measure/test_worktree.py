"""A commit as an arm: checked out, measured, removed whatever happens."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from arm_process import PACKAGE, Prompts, Settings, git, make_repository, run_loop, tiny_config

from specbench.engine.sampling.params import SamplingParams
from specbench.errors import EngineError, InputError
from specbench.measure import worktree
from specbench.measure.remote import RemoteSubject
from specbench.measure.worktree import open_worktree

SLEEP_MS = 20
SERVER = "specbench/measure/subject_server.py"


def run_from(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the package look as if it ran from ``repository``, in a folder that is no checkout."""
    package = SimpleNamespace(__file__=str(repository / "specbench" / "__init__.py"))
    monkeypatch.setattr(worktree, "specbench", package)
    (repository.parent / "nowhere").mkdir(exist_ok=True)
    monkeypatch.chdir(repository.parent / "nowhere")
    monkeypatch.setattr("tempfile.tempdir", str(repository.parent / "nowhere"))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits: one from before there was a server, and one with it."""
    made = make_repository(tmp_path / "project", whole=False)
    (made / SERVER).parent.mkdir()
    (made / SERVER).write_text("# the server\n")
    git(made, "add", ".")
    git(made, "commit", "--quiet", "-m", "Serve arms")
    run_from(made, monkeypatch)
    return made


def count_worktrees(repository: Path) -> int:
    return len(git(repository, "worktree", "list").splitlines())


def test_the_commit_is_there_and_then_gone(repository: Path) -> None:
    (repository / SERVER).write_text("# changed, not committed\n")
    with open_worktree("main") as tree:
        assert (tree.path / SERVER).read_text() == "# the server\n"
        assert tree.revision == git(repository, "rev-parse", "HEAD")
        assert git(tree.path, "status", "--short") == ""
        (tree.path / "left.pyc").write_text("what running it leaves")
    assert not tree.path.exists()
    assert not tree.path.parent.exists()
    assert count_worktrees(repository) == 1
    assert (repository / SERVER).read_text() == "# changed, not committed\n"


def test_the_same_commit_twice_at_once(repository: Path) -> None:
    with open_worktree("main") as first, open_worktree("main") as second:
        assert first.path != second.path
        assert first.revision == second.revision
    assert count_worktrees(repository) == 1


def test_an_error_inside_removes_it_too(repository: Path) -> None:
    with pytest.raises(EngineError, match="inside"), open_worktree("main") as tree:
        raise EngineError("inside")
    assert not tree.path.exists()
    assert count_worktrees(repository) == 1


@pytest.mark.usefixtures("repository")
def test_a_checkout_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worktree, "_resolve", lambda _repository, _revision: "0" * 40)
    monkeypatch.setattr(worktree, "_require_server", lambda *_: None)
    with pytest.raises(EngineError, match="could not check out"), open_worktree("main"):
        pass
    assert list(Path.cwd().iterdir()) == []


def test_a_package_below_the_top_of_its_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "all" / "tools" / "bench"
    (inner / SERVER).parent.mkdir(parents=True)
    (inner / SERVER).write_text("# the server\n")
    (inner / "specbench" / "__init__.py").write_text("")
    git(tmp_path / "all", "init", "--quiet")
    git(tmp_path / "all", "add", ".")
    git(tmp_path / "all", "commit", "--quiet", "-m", "first")
    run_from(inner, monkeypatch)
    with open_worktree("HEAD") as tree:
        assert (tree.path / SERVER).is_file()


@pytest.mark.usefixtures("repository")
def test_the_variables_of_a_hook_do_not_lead_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    with open_worktree("main") as tree:
        assert (tree.path / SERVER).is_file()


def test_hooks_of_the_user_do_not_run(repository: Path) -> None:
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {repository}/ran\n")
    hook.chmod(0o755)
    with open_worktree("main"):
        pass
    assert not (repository / "ran").exists()


@pytest.mark.parametrize("revision", ["no-such-branch", "--detach", "main:specbench", ""])
def test_what_names_no_commit(repository: Path, revision: str) -> None:
    with pytest.raises(InputError, match="names no commit") as caught, open_worktree(revision):
        pass
    assert "git fetch" in (caught.value.hint or "")
    assert count_worktrees(repository) == 1


def test_a_commit_without_a_server_says_from_which_on_it_works(repository: Path) -> None:
    first = git(repository, "rev-parse", "--short", "HEAD")
    with pytest.raises(InputError, match=SERVER) as caught, open_worktree("HEAD~1"):
        pass
    assert f"choose a commit from {first} of " in (caught.value.hint or "")
    assert "(Serve arms) on" in (caught.value.hint or "")


def test_the_current_folder_s_checkout_when_the_package_is_installed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = SimpleNamespace(__file__=str(tmp_path / "site-packages" / "specbench" / "__init__.py"))
    (tmp_path / "site-packages").mkdir()
    monkeypatch.setattr(worktree, "specbench", installed)
    with pytest.raises(InputError, match=r"neither .*site-packages.* is a git checkout"), open_worktree("main"):
        pass
    monkeypatch.chdir(repository / "specbench")
    with open_worktree("main") as tree:
        assert (tree.path / SERVER).is_file()


def test_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="git is not installed"), open_worktree("main"):
        pass


PARENT = """
import os, signal, sys, tempfile
from types import SimpleNamespace
from specbench.measure import worktree
worktree.specbench = SimpleNamespace(__file__=sys.argv[1])
tempfile.tempdir = os.getcwd()
with worktree.open_worktree("main") as tree:
    assert tree.path.is_dir()
    os.kill(os.getpid(), int(sys.argv[2]))
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_remove_it(repository: Path, number: signal.Signals) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT, str(repository / "specbench" / "__init__.py"), str(int(number))],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        stderr=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert list(Path.cwd().iterdir()) == []
    assert count_worktrees(repository) == 1


def test_two_commits_are_two_arms_and_the_slower_one_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make_repository(tmp_path / "project", whole=True)
    engine = project / "specbench" / "engine" / "llm_engine.py"
    code, launch = engine.read_text(), "launched = self._launch()\n"
    assert code.count(launch) == 1
    engine.write_text(code.replace(launch, f"{launch}        time.sleep({SLEEP_MS / 1e3})\n"))
    git(project, "commit", "--quiet", "--all", "-m", "slower")
    run_from(project, monkeypatch)
    params = SamplingParams(ignore_eos=True)
    fastest_ms, hashes = {}, {}
    with open_worktree("main~1") as before, open_worktree("main") as after:
        arms = {tree: RemoteSubject.start(tiny_config(), Settings(worktree=str(tree.path))) for tree in (before, after)}
        try:
            for tree, arm in arms.items():
                assert arm.process.hello["git"] == {"revision": tree.revision, "dirty": False}
                assert arm.process.hello["imported_from"] == str(tree.path / "specbench")
                loop = run_loop(arm, Prompts(3, params))
                outputs = [step.output_ns for step in arm.drain().steps]
                gaps = [(end - start) / 1e6 for start, end in itertools.pairwise(outputs)]
                fastest_ms[tree] = min(gaps)
                hashes[tree] = [flight.state.output_token_ids for flight in loop.flights if flight.state]
        finally:
            for arm in arms.values():
                arm.close()
    assert hashes[before] == hashes[after]
    assert fastest_ms[after] >= SLEEP_MS  # in every step
