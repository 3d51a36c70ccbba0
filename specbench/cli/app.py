"""The command line: finds the command, runs it, and turns what it raised into one message and an exit code.

A command's module is imported only when that command runs, so that ``specbench --help`` costs next to nothing. To add
one, write ``specbench/cli/<name>.py`` with a function that Typer can read, and a line in :data:`COMMANDS`.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from specbench import __version__
from specbench.errors import SpecbenchError, nearest_hint

DEBUG = "SPECBENCH_DEBUG"
"""Environment variable that, when set to 1, has tracebacks printed."""
INTERRUPTED = 130
USAGE = 2
FAILED = 4

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Where a command prints to cannot hold more: no fault of the program."""
_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""Typer's base of every error in the arguments; where it is defined changes between Typer's versions."""


@dataclass(frozen=True)
class Command:
    """``target`` is ``"module:function"``, ``summary`` the line in ``specbench --help``."""

    target: str
    summary: str


COMMANDS = {
    "run": Command("specbench.cli.run:run_command", "Measure one configuration: throughput, latency, acceptance."),
    "ab": Command("specbench.cli.ab:ab_command", "Compare configurations: a verdict with an interval, and why."),
    "sweep": Command("specbench.cli.sweep:sweep_command", "Measure every point of a grid, and print a table."),
    "selftest": Command("specbench.cli.selftest:selftest_command", "Prove the instrument here, and what it can show."),
    "export": Command("specbench.cli.export:export_command", "Render results again: CSV, Markdown, JSON or HTML."),
    "check": Command("specbench.cli.check:check_command", "Check a scenario and print it with every default."),
    "list": Command("specbench.cli.list:list_command", "List drafters, presets, workloads and other names."),
    "doctor": Command("specbench.cli.doctor:doctor_command", "Tell what this machine has, and how to fix what lacks."),
    "pull": Command("specbench.cli.pull:pull_command", "Fetch a model or MT-Bench into the cache directory."),
}


class LazyGroup(TyperGroup):
    """The commands of :data:`COMMANDS`, each imported when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        del ctx
        command = COMMANDS.get(cmd_name)
        return _build(cmd_name, command) if command is not None else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            hint = nearest_hint(args[0], COMMANDS)
            ctx.fail(f"no such command {args[0]!r}; commands: {', '.join(COMMANDS)}" + (f"; {hint}" if hint else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. The only place where an error becomes one."""
    args = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not UTF-8 gets escapes instead of an error.
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = _run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _silence_stdout()
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    except _USAGE_ERROR as error:
        return _fail(_usage_message(error), USAGE)
    except SpecbenchError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        _silence_stdout()
        expected = error.errno in _FULL
        return _fail(f"{error.strerror}: output is lost" if expected else _internal_message(error), FAILED)
    except Exception as error:
        return _fail(_internal_message(error), FAILED)


def _run(args: list[str]) -> int:
    app = typer.Typer(
        cls=LazyGroup,
        name="specbench",
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Which of two speculative decoding configurations is faster, by how much, and why.",
    )
    app.callback()(_root)
    command: Any = typer.main.get_command(app)
    try:
        # Not command.main(): that one turns a closed pipe and an interrupt into exit codes of its own.
        with command.make_context("specbench", args) as context:
            result = command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return result if isinstance(result, int) else 0


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=lambda on: _version(on)),
    ] = False,
) -> None:
    del version


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specbench {__version__}")
        raise typer.Exit


def _build(name: str, command: Command) -> Any:
    module, _, attribute = command.target.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command(name=name)(function)
    return typer.main.get_command(app)


def _open_closed_streams() -> None:
    """Give what a shell closed (``>&-``, ``2>&-``) to the null device.

    Descriptors as well: the next file that is opened would get the number of a closed one, and child processes with it
    what is printed.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        with contextlib.suppress(OSError):
            try:
                os.fstat(number)
            except OSError:
                opened = os.open(os.devnull, flags)  # the lowest number that is free: this one
                os.set_inheritable(opened, True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as the process


def _silence_stdout() -> None:
    """Keep the interpreter from complaining about unwritten output when it exits."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    """Print one message on stderr; under :data:`DEBUG` the traceback goes before it."""
    if os.environ.get(DEBUG) == "1":
        import traceback

        traceback.print_exc()
    shown = "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in message)
    with contextlib.suppress(OSError, ValueError):
        print(f"error: {shown}", file=sys.stderr, flush=True)
    return code


def _usage_message(error: Any) -> str:
    path = error.ctx.command_path if getattr(error, "ctx", None) is not None else "specbench"
    text = str(error.format_message()).rstrip(".")
    return f"{path}: {text[:1].lower()}{text[1:]}\n  try: {path} --help"


def _internal_message(error: Exception) -> str:
    # Not at the top: together they cost every command a tenth of its start.
    import tempfile
    import traceback

    summary = " ".join(traceback.format_exception_only(type(error), error)[-1].split())
    text = f"unexpected {summary}"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="specbench-", suffix=".log", delete=False) as file:
            file.write(traceback.format_exc())
    except OSError:
        return f"{text}\n  try: {DEBUG}=1 to see where"
    return f"{text}\n  the traceback is in {file.name} ({DEBUG}=1 prints it); please report it"
