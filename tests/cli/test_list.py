"""``specbench list``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.engine.config import require_drafter
from specbench.engine.drafters import heads
from specbench.engine.optimizations.base import Exactness, load_toggle
from specbench.registry import ALL, DEVICES, OPTIMIZATIONS
from specbench.scenario.conflicts import ACCEPTANCE_MODES

Cli = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kind", sorted(ALL))
def test_every_name_is_listed_with_its_summary(cli: Cli, kind: str) -> None:
    rows = json.loads(cli("list", kind, "--json").stdout)
    assert {row["name"]: row["summary"] for row in rows} == {name: entry.summary for name, entry in ALL[kind].items()}
    lines = cli("list", kind).stdout.splitlines()
    table = lines[: lines.index("")] if "" in lines else lines
    assert table[0].split()[:2] == ["name", "summary"]
    assert [line.split()[0] for line in table[1:]] == list(ALL[kind])


def test_without_a_kind_the_kinds_are_listed(cli: Cli) -> None:
    kinds = {row["kind"]: row["names"] for row in json.loads(cli("list", "--json").stdout)}
    assert kinds.pop("acceptance") == ["strict", "rejection", "forced", "replay"]
    assert kinds == {kind: list(registry) for kind, registry in ALL.items()}
    assert "drafters" in cli("list").stdout


def test_modes_of_acceptance_are_listed(cli: Cli) -> None:
    rows = json.loads(cli("list", "acceptance", "--json").stdout)
    assert [row["name"] for row in rows] == list(ACCEPTANCE_MODES)
    assert all(row["summary"] in cli("list", "acceptance").stdout for row in rows)
    assert "did you mean 'acceptance'?" in cli("list", "aceptance").stderr


def test_drafters_have_their_pairs_and_whether_they_draft_trees(cli: Cli) -> None:
    rows = {row["name"]: row for row in json.loads(cli("list", "drafters", "--json").stdout)}
    assert [name for name, row in rows.items() if row["trees"]] == ["eagle3"]
    pairs = [pair for row in rows.values() for pair in row["pairs"]]
    assert rows["none"]["pairs"] == []
    assert rows["ngram"]["pairs"] == ["ngram+eagle3", "ngram+mtp", "ngram+draft_model"]
    assert all(require_drafter(pair) for pair in pairs)
    assert sorted(pairs) == sorted(rows["ngram"]["pairs"] * 2)  # each with both of its parts
    lines = {line.split()[0]: line for line in cli("list", "drafters").stdout.splitlines()}
    assert lines["eagle3"].split()[-2:] == ["yes", "ngram+eagle3"]
    assert lines["none"].split()[-1] == "no"


def test_heads_have_their_target_and_the_first_line_of_their_card(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, directory in (("SMOLLM2_135M_EAGLE3", tmp_path), ("SMOLLM2_135M_MTP", tmp_path / "gone")):
        monkeypatch.setattr(heads, name, dataclasses.replace(getattr(heads, name), directory=directory))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "CARD.md").write_text("# A head\n\nTrained on nothing at all.\n")
    rows = {row["name"]: row for row in json.loads(cli("list", "heads", "--json").stdout)}
    assert rows["smollm2-135m-eagle3"]["card"] == "Trained on nothing at all."
    assert rows["smollm2-135m-mtp"]["card"] == "not in this installation"
    assert {row["target"] for row in rows.values()} == {"smollm2-135m"}
    printed = cli("list", "heads").stdout
    assert "smollm2-135m-eagle3  Trained on nothing at all." in printed
    assert str(tmp_path / "gone") in printed


TOGGLES = list(OPTIMIZATIONS)
DECLARED = {
    "variants", "baseline", "recommended", "production", "in_default_study", "exactness", "exactness_reason",
    "step_preserving", "variant_summaries", "variant_exactness", "variant_requires",
    "variant_needs_speculation", "requires", "conflicts", "needs_recurrent_state", "source", "documentation",
}  # fmt: skip


def section(cli: Cli, name: str) -> list[str]:
    """The lines that explain one toggle."""
    sections = cli("list", "optimizations").stdout.split("\n\n")[1:]
    return next(text.splitlines() for text in sections if text.startswith(f"{name}: "))


def test_toggles_have_all_that_they_declare(cli: Cli) -> None:
    rows = json.loads(cli("list", "optimizations", "--json").stdout)
    for row in rows:
        toggle = load_toggle(row["name"])
        assert set(row) == {"name", "summary", *DECLARED}
        assert row["variants"] == list(toggle.variants)
        assert row["production"] == {device: toggle.production_on(device) for device in DEVICES}
        assert row["exactness"] == toggle.exactness.value
        for key in ("requires", "conflicts"):
            assert row[key] == list(getattr(toggle, key))
        same = DECLARED & {field.name for field in dataclasses.fields(toggle)}
        for key in same - {"variants", "production", "exactness", "requires", "conflicts"}:
            assert row[key] == getattr(toggle, key), key
        for name, variant in toggle.variants.items():
            assert row["variant_summaries"][name] == variant.summary
            assert row["variant_exactness"][name] == toggle.exactness_of(name).value
            assert row["variant_requires"][name] == list(variant.requires)
            assert row["variant_needs_speculation"][name] == variant.needs_speculation


@pytest.mark.parametrize("name", TOGGLES)
def test_every_toggle_is_explained(cli: Cli, name: str) -> None:
    toggle, lines = load_toggle(name), section(cli, name)
    assert lines[0] == f"{name}: {toggle.summary}"
    facts = dict(line.split(None, 1) for line in lines if line.startswith("  "))
    for variant in toggle.variants:
        for device in DEVICES:
            shown = variant in facts["production"]
            assert shown or toggle.production_on(device) != variant
    assert ("only if `study` names it" in facts["study"]) is not toggle.in_default_study
    assert facts["source"] == toggle.source
    assert facts["more"].split() == ["in", f"docs/optimizations/{name}.md"]
    assert (ROOT / "docs" / "optimizations" / f"{name}.md").is_file()
    needed = {setting for variant in toggle.variants.values() for setting in variant.requires}
    for setting in (*toggle.requires, *needed):
        assert setting in facts["requires"]
    for setting in toggle.conflicts:
        assert setting in facts["conflicts"]
    speculating = [variant for variant, declared in toggle.variants.items() if declared.needs_speculation]
    assert (f"a drafter ({', '.join(speculating)})" in facts["requires"]) == bool(speculating)


@pytest.mark.parametrize("name", TOGGLES)
def test_every_variant_is_explained_and_a_known_defect_is_marked(cli: Cli, name: str) -> None:
    toggle, lines = load_toggle(name), section(cli, name)
    for variant, declared in toggle.variants.items():
        line = next(line for line in lines if line.split()[0] == f"{name}={variant}")
        assert line.endswith(declared.summary)
        is_defect = toggle.exactness_of(variant) is Exactness.KNOWN_DEFECT
        assert ("KNOWN DEFECT" in line) is is_defect
        assert ("by name alone" in line) is is_defect
        assert is_defect or f" {toggle.exactness_of(variant).value} " in line
        assert ("  baseline" in line) is (variant == toggle.baseline)
        assert ("  recommended" in line) is (variant == toggle.recommended)


def test_the_known_defects_are_those_of_captures(cli: Cli) -> None:
    marked = [line.split()[0] for line in cli("list", "optimizations").stdout.splitlines() if "KNOWN DEFECT" in line]
    assert marked == [f"capture_params={name}" for name in ("leak", "clear_at_copy", "clear_after_warmup")]


def test_what_captures_require_is_said_with_the_variants_that_do(cli: Cli) -> None:
    lines = section(cli, "capture_params")
    (line,) = (line for line in lines if line.startswith("  requires"))
    needs = "graphs=captured (clear_after_capture, leak, clear_at_copy, clear_after_warmup)"
    assert line.split(None, 1)[1] == f"{needs}; a drafter (leak, clear_at_copy, clear_after_warmup)"
    (line,) = (line for line in section(cli, "overlap") if line.startswith("  production"))
    assert line.split(None, 1)[1] == "off (cpu), on (cuda, sim)"


def test_an_unknown_kind_has_the_nearest(cli: Cli) -> None:
    outcome = cli("list", "drafter")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "did you mean 'drafters'?" in outcome.stderr
