"""Drafters of another package, installed beside this one: they pair, draft, and count in memory and fingerprint."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file

from specbench import registry
from specbench.engine.config import AcceptanceSpec, DrafterSpec, require_drafter
from specbench.engine.drafters.base import Drafter, build_drafter
from specbench.engine.drafters.declaration import DrafterDeclaration, Role, load_declaration
from specbench.engine.drafters.draft_identity import DraftIdentity, find_draft_identity
from specbench.engine.drafters.model_drafter import ModelDrafter
from specbench.engine.drafters.pair import PairDrafter
from specbench.errors import CapacityError, InputError
from specbench.profiling.ranges import RangeRecorder
from specbench.scenario.differences import find_differences
from specbench.scenario.resolve import ResolvedScenario, resolve
from specbench.scenario.schema import Scenario
from tests.engine.drafters.draft_checks import GREEDY, config_of, watching, without_speculation
from tests.engine.engine_driver import run, tiny_config

ROOT = Path(__file__).parents[3]
PACKAGE = Path(__file__).parent / "other_package"
ENTRY_POINTS = """[specbench.drafters]
bigram = bigram_drafter.declaration:BIGRAM
recent = bigram_drafter.declaration:RECENT
bare = bigram_drafter.drafter:BigramDrafter
"""
PROMPTS = [[5, 6, 7, 7], [3, 1, 4, 1, 5, 9, 2, 6], [8] * 12, [9, 9, 2]]
WORK = {"kind": "random_tokens", "isl": 16, "osl": 16, "concurrency": 2}
NUM_PARAMETERS = 2 * 512 * 8


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that says which package is installed, and what it registers."""
    folder = tmp_path / "site"
    (folder / "bigram_drafter-1.0.dist-info").mkdir(parents=True)
    (folder / "bigram_drafter-1.0.dist-info" / "METADATA").write_text("Name: bigram-drafter\nVersion: 1.0\n")
    (folder / "bigram_drafter-1.0.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    for path in (PACKAGE, folder):
        monkeypatch.syspath_prepend(str(path))
    monkeypatch.setattr(registry, "_installed", importlib.metadata.entry_points)
    vars(registry.DRAFTERS).pop("_entries", None)
    yield folder
    vars(registry.DRAFTERS).pop("_entries", None)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "table")


def write_table(directory: Path, seed: int = 0, num_tokens: int = 512) -> Path:
    directory.mkdir()
    source = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(num_tokens, 8, generator=source) for name in ("embedding", "output")}
    save_file(tensors, directory / "bigram.safetensors")
    return directory


def spec_of(name: str, table: Path) -> DrafterSpec:
    return DrafterSpec(name, 3, max_ngram=2, model=str(table))


def resolved(available: int | None = None, **sections: Any) -> ResolvedScenario:
    scenario = Scenario.model_validate({"name": "x", "model": "tiny", "workload": WORK, **sections})
    return resolve(scenario, available_memory=lambda _: available)


# ------------------------------------------------------------------------------------------- names and pairs


def test_where_in_a_pair_each_may_stand() -> None:
    for name in ("bigram", "recent", "ngram+bigram", "recent+bigram", "recent+eagle3"):
        assert require_drafter(name) == tuple(name.split("+"))
    assert DrafterSpec("recent+bigram", 3).model_part == "bigram"
    assert DrafterSpec("recent", 3).model_part is None
    assert (DrafterSpec("bigram", 3).num_ahead, DrafterSpec("recent", 3).num_ahead) == (2, 0)


@pytest.mark.parametrize("name", ["bigram+ngram", "bigram+recent", "ngram+recent", "bigram+eagle3", "none+bigram"])
def test_what_is_no_pair_is_refused_before_anything_is_built(name: str) -> None:
    allowed = r"a lookup \(ngram, recent\), then a drafter with a model \(eagle3, mtp, draft_model, bigram\)"
    registry.DRAFTERS.__dict__["_entries"] = {key: entry for key, entry in registry.DRAFTERS.items() if key != "bare"}
    with pytest.raises(InputError, match=allowed) as caught:
        require_drafter(name)
    assert caught.value.where == "drafter.name"


def test_a_class_in_place_of_a_declaration_is_refused() -> None:
    for build in (lambda: build_drafter(DrafterSpec("bare", 3)), lambda: resolved(drafter="bare")):
        with pytest.raises(InputError, match=r"bigram_drafter\.drafter:BigramDrafter, which is no DrafterDeclaration"):
            build()


def test_a_lookup_declares_no_weights() -> None:
    with pytest.raises(ValueError, match="declared as lookup, and has weights"):
        replace(load_declaration("bigram"), role=Role.LOOKUP)


def test_keys_of_a_lookup_are_read_by_any_lookup() -> None:
    differing = [resolved(drafter={"name": "recent", "max_ngram": size}).scenario for size in (3, 4)]
    assert [found.key for found in find_differences(*differing)] == ["drafter.max_ngram"]


# ------------------------------------------------------------------------------------------------- drafting


@pytest.mark.parametrize("name", ["bigram", "ngram+bigram", "recent+bigram", "recent"])
@pytest.mark.parametrize("graphs", ["off", "captured"])
def test_tokens_are_those_of_no_speculation(name: str, graphs: str, table: Path) -> None:
    drafter_class: type[Drafter] = PairDrafter if "+" in name else type(built(name, table))
    config = config_of({"overlap": True, "graphs": graphs}, spec_of(name, table))
    with watching(drafter_class) as log:
        outcome = run(config, PROMPTS, GREEDY, concurrency=4)
    assert outcome.outputs == without_speculation(prompts=PROMPTS).outputs
    assert sum(proposal.num_drafts for proposal in log.proposals) > 20


def built(name: str, table: Path) -> Drafter:
    from tests.engine.drafters.head_cases import tiny_host

    spec = spec_of(name, table)
    return build_drafter(spec, tiny_host(spec))


def test_the_table_decides_what_is_drafted(tmp_path: Path) -> None:
    drafts = []
    for seed in (0, 0, 1):
        table = write_table(tmp_path / f"table{len(drafts)}", seed)
        with watching(ModelDrafter) as log:
            run(config_of({}, spec_of("bigram", table)), PROMPTS, GREEDY, concurrency=4)
        drafts.append([proposal.drafts for proposal in log.proposals])
    assert drafts[0] == drafts[1] != drafts[2]


def test_its_distribution_is_judged_by_rejection(table: Path) -> None:
    config = config_of({}, spec_of("ngram+bigram", table), acceptance=AcceptanceSpec("rejection"))
    outcome = run(config, PROMPTS, replace(GREEDY, temperature=1.0, seed=3), concurrency=4)
    assert [len(output) for output in outcome.outputs] == [GREEDY.max_tokens] * len(PROMPTS)


# ----------------------------------------------------------------------------------- memory and fingerprint


@pytest.mark.parametrize("name", ["bigram", "ngram+bigram"])
def test_weights_and_layers_are_in_the_memory_plan(name: str, table: Path) -> None:
    drafter = {"name": name, "model": str(table), "draft_len": 3}
    plain, mine = resolved(drafter="ngram"), resolved(drafter=drafter, engine={"num_blocks": 50})
    assert mine.draft is not None
    assert mine.draft.source == "bigrams of table"
    assert mine.memory.draft_weights_bytes == 2 * NUM_PARAMETERS
    plain_block = plain.memory.kv_cache_bytes // plain.engine.num_blocks
    assert mine.memory.kv_cache_bytes == 50 * (plain_block + 32 * 2 * 8 * 2)  # tokens, keys and values, head_dim, bytes
    rejecting = resolved(drafter=drafter, acceptance="rejection").memory
    assert rejecting.draft_probs_bytes == (2 + 1) * 3 * 512 * 4


def test_what_does_not_fit_is_refused_with_its_share(table: Path) -> None:
    drafter = {"name": "bigram", "model": str(table)}
    need = resolved(drafter=drafter).memory.total_bytes
    resolved(need, drafter=drafter)
    with pytest.raises(CapacityError, match="draft weights 16"):
        resolved(need - 1, drafter=drafter)


def test_weights_for_another_vocabulary_are_refused(tmp_path: Path) -> None:
    directory = write_table(tmp_path / "small", num_tokens=100)
    with pytest.raises(InputError, match="the table has 100 tokens and the target 512"):
        resolved(drafter={"name": "bigram", "model": str(directory)})


def test_the_fingerprint_of_the_build_tells_its_weights(tmp_path: Path) -> None:
    from specbench.measure.subject import BuiltinSubject

    one, same, other = (write_table(tmp_path / name, seed) for name, seed in (("1", 0), ("2", 0), ("3", 1)))

    def describe(name: str, table: Path | None) -> dict[str, Any]:
        drafter = DrafterSpec() if table is None else spec_of(name, table)
        subject, loaded = BuiltinSubject.build(tiny_config(drafter=drafter), RangeRecorder(), None)
        subject.close()
        assert subject.describe()["fingerprint"] == loaded.fingerprint
        return subject.describe()

    plain, first, again, another = (describe("bigram", table) for table in (None, one, same, other))
    assert first["fingerprint"] == again["fingerprint"]
    assert len({plain["fingerprint"], first["fingerprint"], another["fingerprint"]}) == 3
    assert (first["draft_model"], first["draft_parameters"]) == ("bigrams of 1", NUM_PARAMETERS)
    assert describe("recent+bigram", one)["fingerprint"] == first["fingerprint"]
    assert describe("recent", one)["fingerprint"] == plain["fingerprint"]


def test_weights_that_are_not_declared_count_nowhere(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is the declaration: without it, the checks above would fail."""
    import bigram_drafter.declaration as declared

    drafter, config = {"name": "bigram", "model": str(table)}, tiny_config(drafter=spec_of("bigram", table))
    assert isinstance(find_draft_identity(config), DraftIdentity)
    undeclared = DrafterDeclaration(declared.BIGRAM.builder, Role.MODEL)
    monkeypatch.setattr(declared, "BIGRAM", undeclared)
    assert resolved(drafter=drafter).memory.draft_weights_bytes == 0
    assert find_draft_identity(config) is None


def test_check_counts_it_without_torch(tmp_path: Path, table: Path, site: Path) -> None:
    scenario = tmp_path / "x.yaml"
    drafter = {"name": "recent+bigram", "model": str(table)}
    scenario.write_text(yaml.safe_dump({"model": "tiny", "drafter": drafter, "workload": WORK}))
    code = (
        "import sys; from specbench.cli.app import main; sys.argv = ['specbench', 'check', *sys.argv[1:]]\n"
        "status = main(); print('torch' in sys.modules, status, file=sys.stderr)"
    )
    paths = os.pathsep.join(map(str, (PACKAGE, site, ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", code, str(scenario), "--json"],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.stderr.split() == ["False", "0"]
    summary = json.loads(done.stdout)["summary"]
    assert (summary["draft_model"], summary["draft_parameters"]) == ("bigrams of table", NUM_PARAMETERS)
