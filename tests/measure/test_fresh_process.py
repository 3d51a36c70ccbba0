"""A function in a fresh interpreter: what it returns and raises comes back, and it never outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from arm_process import PACKAGE, wait_until_gone

from specbench.errors import EngineError, InterruptedRunError, ResultsError
from specbench.measure.fresh_process import run_fresh
from specbench.measure.interruption import StopSignal

TARGETS = """
import os, signal, sys, time
from pathlib import Path
from specbench.errors import ResultsError
from specbench.measure.interruption import StopSignal

def echo(*words):
    print("stray output")
    return " ".join([*words, str(os.getpid()), str(sys.stdin.read() == "")])

def refuse():
    raise ResultsError("cannot be used", where="folder", hint="another one")

def crash():
    return 1 / 0

def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)

def leave():
    os._exit(7)

def work(started):
    with StopSignal() as stop:
        Path(started).write_text(str(os.getpid()))
        while not stop.requested:
            time.sleep(0.01)
        return "interrupted"

def start_up(started):
    Path(started).write_text(str(os.getpid()))
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fresh_targets.py").write_text(TARGETS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_the_string_comes_back_from_another_process(capfd: pytest.CaptureFixture[str]) -> None:
    words = run_fresh("fresh_targets:echo", ["a b", "é"], stop=StopSignal()).rsplit(" ", 2)
    assert words[0] == "a b é"
    assert int(words[1]) != os.getpid()
    assert words[2] == "True"  # it reads nobody's input
    captured = capfd.readouterr()
    assert captured.out == ""  # stdout belongs to the result
    assert "stray output" in captured.err


def test_an_error_comes_back_as_it_was_raised() -> None:
    with pytest.raises(ResultsError) as caught:
        run_fresh("fresh_targets:refuse", [], stop=StopSignal())
    assert str(caught.value) == str(ResultsError("cannot be used", where="folder", hint="another one"))


def test_a_defect_leaves_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        run_fresh("fresh_targets:crash", [], stop=StopSignal())
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("target", "message"), [("kill_itself", "was killed by SIGKILL"), ("leave", "ended with status 7")]
)
def test_a_dead_child_says_how_it_ended(target: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        run_fresh(f"fresh_targets:{target}", [], stop=StopSignal())


def test_a_target_that_does_not_exist() -> None:
    with pytest.raises(EngineError, match="no_such_module"):
        run_fresh("no_such_module:main", [], stop=StopSignal())


def await_file(path: Path) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if path.exists() and path.read_text():
            return int(path.read_text())
        time.sleep(0.02)
    raise AssertionError(f"{path.name} was never written")


def test_a_stop_is_passed_on_and_the_child_ends_in_its_own_time(tmp_path: Path) -> None:
    started, stop = tmp_path / "started", StopSignal()
    watcher = threading.Thread(target=lambda: (await_file(started), stop.request()))
    watcher.start()
    assert run_fresh("fresh_targets:work", [str(started)], stop=stop) == "interrupted"
    watcher.join()


def test_a_stop_while_the_child_still_starts_up_is_an_interruption(tmp_path: Path) -> None:
    started, stop = tmp_path / "started", StopSignal()
    watcher = threading.Thread(target=lambda: (await_file(started), stop.request()))
    watcher.start()
    with pytest.raises(InterruptedRunError):
        run_fresh("fresh_targets:start_up", [str(started)], stop=stop)
    watcher.join()


PARENT = """
import sys
from specbench.measure.fresh_process import run_fresh
from specbench.measure.interruption import StopSignal
with StopSignal() as stop:
    print(run_fresh(sys.argv[1], sys.argv[2:], stop=stop))
"""


def start_parent(target: str, started: Path) -> tuple[subprocess.Popen[str], int]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), os.environ["PYTHONPATH"]])}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, target, str(started)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    return parent, await_file(started)


def test_ctrl_c_of_a_terminal_reaches_the_child_once(tmp_path: Path) -> None:
    parent, child = start_parent("fresh_targets:work", tmp_path / "started")
    os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: everybody in its foreground group
    out, _ = parent.communicate(timeout=30)
    assert out.strip() == "interrupted"
    assert wait_until_gone(child)


def test_a_second_ctrl_c_ends_both_at_once(tmp_path: Path) -> None:
    parent, child = start_parent("fresh_targets:start_up", tmp_path / "started")
    os.kill(parent.pid, signal.SIGINT)
    os.kill(parent.pid, signal.SIGINT)
    parent.communicate(timeout=30)
    assert parent.returncode != 0
    assert wait_until_gone(child)


def test_the_child_of_a_killed_parent_dies(tmp_path: Path) -> None:
    parent, child = start_parent("fresh_targets:start_up", tmp_path / "started")
    parent.kill()
    parent.communicate(timeout=30)
    assert wait_until_gone(child)
