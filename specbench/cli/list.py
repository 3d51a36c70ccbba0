"""``specbench list``: the names a scenario may use, read from the registries without importing implementations."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from specbench.cli.tables import print_json, print_table
from specbench.device.times import TimesPreset
from specbench.engine.optimizations.base import load_toggle
from specbench.errors import UnknownNameError
from specbench.registry import ALL, SIM_PRESETS

TOGGLES = "optimizations"
_LONG = ("variant_summaries", "source")
"""What is too long for a column of the table: variants and sources follow in a table of their own."""


def list_command(
    kind: Annotated[str | None, typer.Argument(help="Which names; without it, the kinds there are.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List the names a scenario may use."""
    rows = describe_kinds() if kind is None else describe_names(kind)
    if json:
        print_json(rows)
        return
    headers = [header for header in rows[0] if header not in _LONG] if rows else ["name"]
    print_table(headers, [[_cell(row.get(header)) for header in headers] for row in rows])
    if kind == TOGGLES:
        print()
        print_table(["variant", "what it does", "exactness"], _variants(rows))
    if kind == SIM_PRESETS.kind:
        print()
        print_table(["name", "source"], [[row["name"], row["source"]] for row in rows])


def describe_kinds() -> list[dict[str, Any]]:
    """Each registry and how many names it has."""
    return [{"kind": kind, "names": list(registry)} for kind, registry in ALL.items()]


def describe_names(kind: str) -> list[dict[str, Any]]:
    """Each name of one registry; toggles with their variants, declared times with their numbers and source.

    :raises UnknownNameError: no registry of that kind.
    """
    if kind not in ALL:
        raise UnknownNameError.of("kind", kind, ALL, where="specbench list")
    rows: list[dict[str, Any]] = [{"name": name, "summary": entry.summary} for name, entry in ALL[kind].items()]
    if kind == TOGGLES:
        rows = [{**row, **_toggle(row["name"])} for row in rows]
    if kind == SIM_PRESETS.kind:
        rows = [{**row, **_declared_times(row["name"])} for row in rows]
    return rows


def _declared_times(name: str) -> dict[str, Any]:
    preset: TimesPreset = SIM_PRESETS.load(name)
    return {**asdict(preset.times), "source": preset.source}


def _toggle(name: str) -> dict[str, Any]:
    toggle = load_toggle(name)
    return {
        "variants": list(toggle.variants),
        "baseline": toggle.baseline,
        "recommended": toggle.recommended,
        "exactness": toggle.exactness.value,
        "variant_summaries": {variant: item.summary for variant, item in toggle.variants.items()},
        "source": toggle.source,
    }


def _variants(rows: list[dict[str, Any]]) -> list[list[str]]:
    """A line a variant, as ``--variant`` and ``--candidate`` take it."""
    return [
        [f"{row['name']}={variant}", summary, load_toggle(row["name"]).exactness_of(variant).value]
        for row in rows
        for variant, summary in row["variant_summaries"].items()
    ]


def _cell(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
