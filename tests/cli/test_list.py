"""``specbench list``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from specbench.engine.optimizations.base import load_toggle
from specbench.registry import ALL

Cli = Callable[..., Any]


@pytest.mark.parametrize("kind", sorted(ALL))
def test_every_name_is_listed_with_its_summary(cli: Cli, kind: str) -> None:
    rows = json.loads(cli("list", kind, "--json").stdout)
    assert {row["name"]: row["summary"] for row in rows} == {name: entry.summary for name, entry in ALL[kind].items()}
    lines = cli("list", kind).stdout.splitlines()
    table = lines[: lines.index("")] if "" in lines else lines
    assert table[0].split()[:2] == ["name", "summary"]
    assert [line.split()[0] for line in table[1:]] == list(ALL[kind])


def test_without_a_kind_the_kinds_are_listed(cli: Cli) -> None:
    assert {row["kind"]: row["names"] for row in json.loads(cli("list", "--json").stdout)} == {
        kind: list(registry) for kind, registry in ALL.items()
    }
    assert "drafters" in cli("list").stdout


def test_toggles_have_their_variants(cli: Cli) -> None:
    row = json.loads(cli("list", "optimizations", "--json").stdout)[0]
    toggle = load_toggle(row["name"])
    assert row["variants"] == list(toggle.variants)
    assert (row["baseline"], row["recommended"]) == (toggle.baseline, toggle.recommended)
    assert row["exactness"] == toggle.exactness.value


def test_every_variant_of_a_toggle_is_explained(cli: Cli) -> None:
    rows = json.loads(cli("list", "optimizations", "--json").stdout)
    text = cli("list", "optimizations").stdout.split("\n\n", 1)[1]
    for row in rows:
        toggle = load_toggle(row["name"])
        assert row["variant_summaries"] == {name: variant.summary for name, variant in toggle.variants.items()}
        assert row["source"] == toggle.source
        for name, variant in toggle.variants.items():
            line = next(line for line in text.splitlines() if line.split()[0] == f"{toggle.name}={name}")
            assert variant.summary in line
            assert line.endswith(toggle.exactness_of(name).value)


def test_an_unknown_kind_has_the_nearest(cli: Cli) -> None:
    outcome = cli("list", "drafter")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "did you mean 'drafters'?" in outcome.stderr
