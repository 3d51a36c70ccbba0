"""``specbench pull``: put a model or a data set into the cache directory."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.tables import print_json
from specbench.errors import UnknownNameError
from specbench.registry import PRESETS

MT_BENCH = "mt-bench"


def pull_command(
    name: Annotated[str, typer.Argument(help=f"A model preset (`specbench list presets`), or {MT_BENCH}.")],
    force: Annotated[bool, typer.Option("--force", help="Fetch it again even if it is there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Fetch a model or MT-Bench. What is there is verified and kept; a pull that was stopped goes on."""
    start = time.monotonic()
    path = pull(name, force=force)
    if json:
        print_json({"name": name, "path": str(path), "seconds": round(time.monotonic() - start, 3)})
    else:
        print(path)


def pull(name: str, *, force: bool) -> Path:
    """Fetch ``name`` and return where it is; each stage is a line on stderr.

    :raises UnknownNameError: neither a preset nor a data set.
    """
    if name == MT_BENCH:
        from specbench.workloads import mt_bench

        return mt_bench.pull(progress=_say, force=force)
    if name not in PRESETS:
        raise UnknownNameError.of("download", name, [*PRESETS, MT_BENCH], where="specbench pull")
    from specbench.engine.models.pull import pull_model

    return pull_model(name, _say, force=force)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
