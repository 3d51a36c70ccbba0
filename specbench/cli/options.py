"""Options that mean the same for ``run``, ``sweep``, ``ab`` and ``selftest``, said and checked once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.errors import ScenarioError

Scenario = Annotated[
    str | None, typer.Argument(help="The scenario file; may be left out with --resume.", show_default=False)
]
Variant = Annotated[
    str | None, typer.Option(metavar="V", help="A variant of the scenario, off, on, or key=value,key=value.")
]
Json = Annotated[bool, typer.Option("--json", help="Print analysis.json and nothing else on stdout.")]
SaveOutputs = Annotated[bool, typer.Option("--save-outputs", help="Keep output text and token ids in requests.jsonl.")]
SavePrompts = Annotated[bool, typer.Option("--save-prompts", help="Keep prompt text and token ids in requests.jsonl.")]


def set_option(text: str = "Change a key, as workload.concurrency=4. Repeatable.") -> Any:
    """``--set``."""
    return typer.Option("--set", metavar="KEY=VALUE", help=text)


def out_option(noun: str) -> Any:
    """``--out``; ``noun`` is what is measured."""
    return typer.Option(metavar="DIR", help=f"The folder of this {noun}, new or empty; else a new one in results/.")


def resume_option(noun: str) -> Any:
    """``--resume``."""
    return typer.Option(metavar="DIR", help=f"Finish an interrupted {noun} in its folder, to the same plan.")


def require_source(where: str, scenario: str | None, out: Path | None, resume: Path | None) -> None:
    """Refuse a command that has neither a scenario nor a folder to resume, or a folder too many.

    :param where: the command, for messages.
    :raises ScenarioError: names the flags.
    """
    if out is not None and resume is not None:
        raise ScenarioError("--out and --resume exclude each other", where=where)
    if scenario is None and resume is None:
        raise ScenarioError("no scenario is given", where=where, hint=f"{where} scenarios/quickstart.yaml")
