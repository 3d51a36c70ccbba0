"""``specbench list``: the names a scenario may use, read from the registries without importing implementations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import product
from typing import Annotated, Any

import typer

from specbench.cli.tables import print_json, print_table
from specbench.device.times import TimesPreset
from specbench.engine.config import PAIR
from specbench.engine.drafters.declaration import Role, names_with
from specbench.engine.drafters.heads import Head
from specbench.engine.optimizations.base import Exactness, Toggle, load_toggle
from specbench.engine.optimizations.defects import KNOWN_DEFECT
from specbench.engine.tree_spec import drafts_trees
from specbench.errors import UnknownNameError
from specbench.registry import ALL, DEVICES, DRAFTERS, HEADS, OPTIMIZATIONS, SIM_PRESETS
from specbench.scenario.conflicts import ACCEPTANCE_MODES

ACCEPTANCE = "acceptance"
"""A kind that is no registry: what a mode does is the engine's own."""
_IN_TABLE = ("name", "summary", "baseline", "recommended", "exactness")
"""What is short enough for a column of the toggles' table; the rest follows, a section a toggle."""
_BELOW = ("source", "card", "directory")
"""What is too long for a column beside others."""
_OWN_PACKAGE = "specbench.engine.optimizations."
_DOCS = "docs/optimizations"


def list_command(
    kind: Annotated[str | None, typer.Argument(help="Which names; without it, the kinds there are.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List the names a scenario may use."""
    rows = describe_kinds() if kind is None else describe_names(kind)
    if json:
        print_json(rows)
        return
    headers = [header for header in rows[0] if header not in _BELOW] if rows else ["name"]
    if kind == OPTIMIZATIONS.kind:
        headers = [header for header in headers if header in _IN_TABLE]
    print_table(headers, [[_cell(row.get(header)) for header in headers] for row in rows])
    if kind == OPTIMIZATIONS.kind:
        for row in rows:
            _print_toggle(row)
    for header in _BELOW if rows else ():
        if header in rows[0] and kind in (SIM_PRESETS.kind, HEADS.kind):
            print()
            print_table(["name", header], [[row["name"], _cell(row[header])] for row in rows])


def describe_kinds() -> list[dict[str, Any]]:
    """Each kind and its names: the registries, and the modes of acceptance."""
    modes = {"kind": ACCEPTANCE, "names": list(ACCEPTANCE_MODES)}
    return [*({"kind": kind, "names": list(registry)} for kind, registry in ALL.items()), modes]


def describe_names(kind: str) -> list[dict[str, Any]]:
    """Each name of one kind; toggles with their variants, declared times with their numbers and source, draft heads
    with their target and the first line of their card, drafters with their pairs.

    :raises UnknownNameError: no such kind.
    """
    if kind == ACCEPTANCE:
        return [{"name": name, "summary": summary} for name, summary in ACCEPTANCE_MODES.items()]
    if kind not in ALL:
        raise UnknownNameError.of("kind", kind, [*ALL, ACCEPTANCE], where="specbench list")
    rows: list[dict[str, Any]] = [{"name": name, "summary": entry.summary} for name, entry in ALL[kind].items()]
    if kind == OPTIMIZATIONS.kind:
        rows = [{**row, **_describe_toggle(load_toggle(row["name"]))} for row in rows]
    if kind == SIM_PRESETS.kind:
        rows = [{**row, **_declared_times(row["name"])} for row in rows]
    if kind == DRAFTERS.kind:
        rows = [{**row, **_describe_drafter(row["name"])} for row in rows]
    if kind == HEADS.kind:
        rows = [{**row, **_describe_head(HEADS.load(row["name"]))} for row in rows]
    return rows


def _describe_drafter(name: str) -> dict[str, Any]:
    """Whether it drafts trees, and the pairs that it is in."""
    pairs = [PAIR.join(pair) for pair in product(names_with(Role.LOOKUP), names_with(Role.MODEL)) if name in pair]
    return {"trees": drafts_trees(name), "pairs": pairs}


def _describe_head(head: Head) -> dict[str, Any]:
    return {
        "drafter": head.drafter,
        "target": head.target,
        "card": head.read_card_line() or (None if head.is_here else "not in this installation"),
        "directory": str(head.directory),
    }


def _declared_times(name: str) -> dict[str, Any]:
    preset: TimesPreset = SIM_PRESETS.load(name)
    return {**asdict(preset.times), "source": preset.source}


def _describe_toggle(toggle: Toggle) -> dict[str, Any]:
    """All that a toggle declares, as ``--json`` prints it."""
    return {
        "variants": list(toggle.variants),
        "baseline": toggle.baseline,
        "recommended": toggle.recommended,
        "production": {device: toggle.production_on(device) for device in DEVICES},
        "in_default_study": toggle.in_default_study,
        "exactness": toggle.exactness.value,
        "exactness_reason": toggle.exactness_reason,
        "step_preserving": toggle.step_preserving,
        "variant_summaries": {name: variant.summary for name, variant in toggle.variants.items()},
        "variant_exactness": {name: toggle.exactness_of(name).value for name in toggle.variants},
        "variant_requires": {name: list(variant.requires) for name, variant in toggle.variants.items()},
        "variant_needs_speculation": {name: variant.needs_speculation for name, variant in toggle.variants.items()},
        "requires": list(toggle.requires),
        "conflicts": list(toggle.conflicts),
        "needs_recurrent_state": toggle.needs_recurrent_state,
        "source": toggle.source,
        "documentation": _find_documentation(toggle.name),
    }


def _find_documentation(name: str) -> str | None:
    """The page of a toggle of this package; those of others have none here."""
    is_own = OPTIMIZATIONS[name].target.startswith(_OWN_PACKAGE)
    return f"{_DOCS}/{name}.md" if is_own else None


def _print_toggle(row: Mapping[str, Any]) -> None:
    """One toggle: its variants as ``--variant`` and ``--candidate`` take them, then what holds for all of them."""
    print(f"\n{row['name']}: {row['summary']}")
    rows = [_variant_line(row, variant) for variant in row["variants"]]
    print_table(["variant", "role", "exactness", "what it does"], rows)
    facts = {
        "production": _by_device(row["production"]),
        "study": "off and on switch it" if row["in_default_study"] else "off and on switch it only if `study` names it",
        "exactness": row["exactness_reason"],
        "steps": _describe_steps(row),
        "requires": _requirements(row),
        "conflicts": ", ".join(row["conflicts"]) or "none",
        "source": row["source"],
        "more in": row["documentation"],
    }
    for name, text in facts.items():
        if text:
            print(f"  {name:<10}  {text}")


def _describe_steps(row: Mapping[str, Any]) -> str:
    if not row["step_preserving"]:
        return "may differ: whole runs are compared"
    has_defects = Exactness.KNOWN_DEFECT.value in row["variant_exactness"].values()
    return "the same in every variant" + (" that is no known defect" if has_defects else "")


def _variant_line(row: Mapping[str, Any], variant: str) -> list[str]:
    roles = [role for role in ("baseline", "recommended") if row[role] == variant]
    exactness = row["variant_exactness"][variant]
    if exactness == Exactness.KNOWN_DEFECT.value:
        roles, exactness = ["by name alone"], KNOWN_DEFECT
    return [f"{row['name']}={variant}", ", ".join(roles), exactness, row["variant_summaries"][variant]]


def _by_device(production: Mapping[str, str]) -> str:
    """``off (cpu), on (cuda, sim)``; a variant that stands on every device by itself."""
    devices: dict[str, list[str]] = {}
    for device, variant in production.items():
        devices.setdefault(variant, []).append(device)
    if len(devices) == 1:
        return next(iter(devices))
    return ", ".join(f"{variant} ({', '.join(names)})" for variant, names in devices.items())


def _requirements(row: Mapping[str, Any]) -> str:
    """What the toggle requires off its baseline, what single variants do, and of the model."""
    found: list[str] = [*row["requires"]]
    variants: dict[str, list[str]] = {}
    for variant, needed in row["variant_requires"].items():
        for setting in needed:
            variants.setdefault(setting, []).append(variant)
    found += [f"{setting} ({', '.join(names)})" for setting, names in variants.items()]
    if speculating := [name for name, is_needed in row["variant_needs_speculation"].items() if is_needed]:
        found.append(f"a drafter ({', '.join(speculating)})")
    if row["needs_recurrent_state"]:
        found.append("a model with recurrent state")
    return "; ".join(found) or "nothing"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)
