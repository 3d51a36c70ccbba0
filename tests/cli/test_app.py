"""The command line as a whole: help, usage errors, exit codes, and what a command may not import."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench import __version__
from specbench.cli import app
from specbench.errors import EngineError, InterruptedRunError, InvalidMeasurementError, ScenarioError

Cli = Callable[..., Any]
ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "scenarios" / "quickstart.yaml")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Put a function behind the command ``probe``."""

    def put(function: Callable[[], Any]) -> None:
        monkeypatch.setattr(app, "_of_tests", function, raising=False)
        monkeypatch.setitem(app.COMMANDS, "probe", app.Command("specbench.cli.app:_of_tests", "for tests"))

    return put


def _specbench(*argv: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specbench", *argv], capture_output=True, text=True, check=False, cwd=ROOT, **kwargs
    )


def test_help_lists_every_command(cli: Cli) -> None:
    outcome = cli("--help")
    assert outcome.code == 0
    for name, command in app.COMMANDS.items():
        assert name in outcome.stdout
        assert command.summary[:30] in outcome.stdout
    assert cli().stdout == outcome.stdout


def test_every_command_can_be_built_and_has_help(cli: Cli) -> None:
    for name in app.COMMANDS:
        outcome = cli(name, "--help")
        assert (outcome.code, outcome.stderr) == (0, "")
        assert f"Usage: specbench {name}" in outcome.stdout


def test_version(cli: Cli) -> None:
    assert cli("--version").stdout == f"specbench {__version__}\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["chek"], f"error: specbench: no such command 'chek'; commands: {', '.join(app.COMMANDS)}; did you mean"),
        (["zzz"], f"error: specbench: no such command 'zzz'; commands: {', '.join(app.COMMANDS)}\n  try: specbench"),
        (["check", "--jsn"], "error: specbench check: no such option: --jsn"),
        (["check", "x.yaml", "y.yaml"], "error: specbench check: got unexpected extra argument"),
        (["check", "--set"], "error: specbench"),
        (["pull"], "error: specbench pull: missing argument"),
        (["--verison"], "error: specbench: no such option: --verison"),
    ],
)
def test_usage_errors_are_one_message_and_exit_2(cli: Cli, argv: list[str], message: str) -> None:
    outcome = cli(*argv)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith(message)
    assert "--help" in outcome.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ScenarioError("wrong", where="x.yaml:3", hint="this"), 2),
        (InvalidMeasurementError("unusable"), 3),
        (EngineError("broke"), 4),
        (InterruptedRunError("stopped"), 130),
    ],
)
def test_errors_become_their_exit_code_and_message(
    cli: Cli, install: Callable[..., None], error: Exception, code: int
) -> None:
    def probe() -> None:
        raise error

    install(probe)
    outcome = cli("probe")
    assert (outcome.code, outcome.stdout, outcome.stderr) == (code, "", f"error: {error}\n")


def test_a_command_may_return_its_exit_code(cli: Cli, install: Callable[..., None]) -> None:
    install(lambda: 1)
    assert cli("probe").code == 1


def test_a_bug_is_exit_4_with_its_traceback_in_a_file(cli: Cli, install: Callable[..., None]) -> None:
    def probe() -> None:
        raise KeyError("surprise")

    install(probe)
    outcome = cli("probe")
    assert outcome.code == 4
    assert "Traceback" not in outcome.stderr
    first, second = outcome.stderr.splitlines()
    assert first == "error: unexpected KeyError: 'surprise'"
    log = Path(second.split("the traceback is in ")[1].split(" (SPECBENCH_DEBUG=1")[0])
    assert "in probe" in log.read_text()
    log.unlink()


def test_debug_prints_the_traceback(cli: Cli, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def probe() -> None:
        raise ScenarioError("wrong")

    install(probe)
    monkeypatch.setenv("SPECBENCH_DEBUG", "1")
    outcome = cli("probe")
    assert outcome.code == 2
    assert "Traceback" in outcome.stderr
    assert outcome.stderr.endswith("error: wrong\n")


def test_an_interrupt_is_exit_130(cli: Cli, install: Callable[..., None]) -> None:
    def probe() -> None:
        raise KeyboardInterrupt

    install(probe)
    assert cli("probe").code == 130


def test_control_characters_do_not_reach_the_terminal(cli: Cli, install: Callable[..., None]) -> None:
    def probe() -> None:
        raise ScenarioError("found '\x1b[31m\x07'")

    install(probe)
    assert cli("probe").stderr == "error: found '\\x1b[31m\\x07'\n"


def test_a_reader_that_leaves_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m specbench check {QUICKSTART} --schema | head -c 1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "{", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_output_that_cannot_be_written_is_one_message() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "specbench", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=ROOT,
        )
    assert done.returncode == 4
    assert done.stderr == "error: No space left on device: output is lost\n"


@pytest.mark.parametrize(("argv", "code"), [("list presets", 0), ("check nowhere.yaml", 2), ("--version", 0)])
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_keep_the_exit_code(argv: str, code: int, closed: str) -> None:
    command = f"{sys.executable} -m specbench {argv} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    if closed == "2>&-":
        assert bool(done.stdout) == (code == 0)  # what was meant for stderr does not land here


def test_nothing_is_opened_in_the_place_of_a_closed_stream() -> None:
    program = "import os\nfrom specbench.cli.app import main\nmain(['--version'])\nfile = open('/dev/zero')\n"
    program += "os.write(3, f'{file.fileno() > 2} {os.readlink(\"/proc/self/fd/1\")}'.encode())"
    command = f"{sys.executable} -c '{program.replace(chr(39), chr(39) + chr(92) + chr(39) * 2)}' 3>&1 >&- 2>&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout == "True /dev/null"


def test_a_terminal_without_utf_8_gets_escapes() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = _specbench("check", QUICKSTART, "--set", "workload.system_prompt=café", env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "caf\\xe9" in done.stdout


@pytest.mark.parametrize("argv", [["--help"], ["list", "presets"], ["check", QUICKSTART], ["doctor", "--json"]])
def test_heavy_packages_stay_unloaded(argv: list[str]) -> None:
    code = (
        "import json, sys\n"
        "from specbench.cli.app import main\n"
        f"code = main({argv!r})\n"
        "heavy = {'torch', 'transformers', 'pandas', 'scipy', 'numpy'} & set(sys.modules)\n"
        "print(json.dumps([code, sorted(heavy)]), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stderr.splitlines()[-1]) == [0, []]


def _cpu_seconds(argv: list[str], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert _specbench(*argv, env=environment).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(("argv", "limit_s"), [(["--help"], 0.5), (["check", QUICKSTART], 1.0)])
def test_start_is_quick(argv: list[str], limit_s: float, tmp_path: Path) -> None:
    """Best of ten in processor time, compiled files in place.

    The promise is half of each limit, on a quiet machine: processor seconds stretch where others share the cores.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    times = []
    for _ in range(10):
        times.append(_cpu_seconds(argv, environment))
        if times[-1] < limit_s:
            return
    pytest.fail(f"best of {len(times)}: {min(times):.3f} s, the limit is {limit_s} s")
