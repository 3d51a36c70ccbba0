"""``specbench list``: the names a scenario may use, read from the registries without importing implementations."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from specbench.cli.tables import print_json, print_table
from specbench.engine.optimizations.base import load_toggle
from specbench.errors import UnknownNameError
from specbench.registry import ALL


def list_command(
    kind: Annotated[str | None, typer.Argument(help="Which names; without it, the kinds there are.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List the names a scenario may use."""
    rows = describe_kinds() if kind is None else describe_names(kind)
    if json:
        print_json(rows)
        return
    headers = list(rows[0]) if rows else ["name"]
    print_table(headers, [[_cell(row.get(header)) for header in headers] for row in rows])


def describe_kinds() -> list[dict[str, Any]]:
    """Each registry and how many names it has."""
    return [{"kind": kind, "names": list(registry)} for kind, registry in ALL.items()]


def describe_names(kind: str) -> list[dict[str, Any]]:
    """Each name of one registry; toggles with their variants.

    :raises UnknownNameError: no registry of that kind.
    """
    if kind not in ALL:
        raise UnknownNameError.of("kind", kind, ALL, where="specbench list")
    rows: list[dict[str, Any]] = [{"name": name, "summary": entry.summary} for name, entry in ALL[kind].items()]
    if kind == "optimizations":
        rows = [{**row, **_toggle(row["name"])} for row in rows]
    return rows


def _toggle(name: str) -> dict[str, Any]:
    toggle = load_toggle(name)
    return {
        "variants": list(toggle.variants),
        "baseline": toggle.baseline,
        "recommended": toggle.recommended,
        "exactness": toggle.exactness.value,
    }


def _cell(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
