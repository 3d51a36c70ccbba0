"""Drafters with a model in a scenario: what may be written, what it means and takes, what it does to the output."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from head_checkpoints import DRAFT_VOCAB, EAGLE3, MTP, SPECULATORS, eagle3_tensors, mtp_tensors, write_head

from specbench.engine.config import DrafterSpec, drafter_parts, require_drafter
from specbench.engine.drafters import heads
from specbench.engine.drafters.heads import Head
from specbench.engine.models.presets import TINY
from specbench.errors import CapacityError, CheckpointError, InputError, ModelNotFoundError, UnknownNameError
from specbench.scenario.contributions import list_parts
from specbench.scenario.designs import choose_design
from specbench.scenario.differences import find_differences, reason_of, weakest
from specbench.scenario.loader import load_scenario
from specbench.scenario.resolve import ResolvedScenario, resolve
from specbench.scenario.schema import Scenario
from specbench.scenario.settled import settle

Refusal = Callable[..., InputError]
Write = Callable[[str], Path]
ROOT = Path(__file__).parents[2]

WORK = {"kind": "random_tokens", "isl": 16, "osl": 16, "concurrency": 2}
SAMPLED = {"temperature": 1.0}


def _with_one_module(config: dict[str, Any]) -> None:
    config["num_nextn_predict_layers"] = 1


@pytest.fixture(autouse=True)
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Both heads of the registry, made for the preset tiny, by drafter."""
    places = {
        "eagle3": write_head(tmp_path / "shipped" / "eagle3", EAGLE3, eagle3_tensors()),
        "mtp": write_head(tmp_path / "shipped" / "mtp", MTP, mtp_tensors(num_modules=1), change=_with_one_module),
    }
    monkeypatch.setattr(heads, "SMOLLM2_135M_EAGLE3", Head("eagle3", "tiny", places["eagle3"]))
    monkeypatch.setattr(heads, "SMOLLM2_135M_MTP", Head("mtp", "tiny", places["mtp"]))
    return places


def _resolved(available: int | None = None, **sections: Any) -> ResolvedScenario:
    scenario = Scenario.model_validate({"name": "x", "model": "tiny", "workload": WORK, **sections})
    return resolve(scenario, available_memory=lambda _: available)


# ------------------------------------------------------------------------------------------- names


def test_the_parts_of_a_name() -> None:
    assert drafter_parts("ngram") == ("ngram",)
    assert drafter_parts("ngram+eagle3") == ("ngram", "eagle3")
    assert require_drafter("ngram+mtp") == ("ngram", "mtp")
    assert [DrafterSpec(name).model_part for name in ("none", "ngram", "eagle3", "ngram+draft_model")] == [
        None, None, "eagle3", "draft_model",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "error", "what", "hint"),
    [
        ("eagle", UnknownNameError, "unknown drafter 'eagle'; allowed: draft_model, eagle3", "did you mean 'eagle3'?"),
        ("ngran+eagle3", UnknownNameError, "unknown drafter 'ngran'", "did you mean 'ngram+eagle3'?"),
        ("ngram+eagle", UnknownNameError, "unknown drafter 'eagle'", "did you mean 'ngram+eagle3'?"),
        ("ngram+", UnknownNameError, "'ngram+' is half a pair: a drafter is miss", "ngram+eagle3, or ngram alone"),
        ("+mtp", UnknownNameError, "'+mtp' is half a pair", "ngram+mtp, or mtp alone"),
        ("+", UnknownNameError, "'+' names no drafter", "ngram+eagle3, or ngram alone"),
        ("ngram + eagle3", UnknownNameError, "unknown drafter 'ngram '", "did you mean 'ngram+eagle3'?"),
        ("eagle3+ngram", InputError, "'eagle3+ngram' is no pair; allowed: a lookup (ngram), then a", "ngram+eagle3"),
        ("ngram+none", InputError, "'ngram+none' is no pair", "ngram+eagle3"),
        ("none+eagle3", InputError, "'none+eagle3' is no pair", "ngram+eagle3"),
        ("ngram+ngram", InputError, "'ngram+ngram' is no pair", "ngram+eagle3"),
        ("eagle3+mtp", InputError, "'eagle3+mtp' is no pair", "ngram+eagle3"),
        ("ngram+eagle3+mtp", InputError, "'ngram+eagle3+mtp' is no pair", "ngram+eagle3"),
    ],
)
def test_a_name_that_is_none(name: str, error: type[InputError], what: str, hint: str | None) -> None:
    with pytest.raises(InputError) as caught:
        require_drafter(name)
    assert type(caught.value) is error
    assert what in caught.value.what
    assert (caught.value.where, caught.value.hint) == ("drafter.name", hint)


def test_a_wrong_name_is_found_in_its_line(refusal: Refusal) -> None:
    error = refusal("model: tiny\ndrafter: {name: eagle3+ngram}\n")
    assert "'eagle3+ngram' is no pair" in error.what
    assert str(error.where).endswith("x.yaml:2: drafter.name")


# ------------------------------------------------------------------------------------------ the key


@pytest.mark.parametrize(
    ("text", "key", "what"),
    [
        ("drafter: {name: ngram, model: x}", "drafter.model", "has no effect: the drafter ngram has no model"),
        ("drafter: {name: none, model: x}", "drafter.model", "has no effect: the drafter none has no model"),
        ("drafter: draft_model", "drafter.model", "is missing: draft_model drafts with a model of its own"),
        ("drafter: ngram+draft_model", "drafter.model", "is missing: draft_model drafts with a model of its own"),
        ("drafter: {name: eagle3, model: ''}", "drafter.model", "allowed: text"),
        ("drafter: {name: eagle3, model: 3}", "drafter.model", "found 3; allowed: text"),
        (
            "acceptance: {mode: forced, length: 1}\nengine: {device: sim, sim: h100-8b}\n"
            "drafter: {name: eagle3, model: x}",
            "drafter.model",
            "has no effect on device sim, which loads no weights and runs no drafter",
        ),
    ],
)
def test_a_model_that_does_not_go_with_the_drafter(refusal: Refusal, text: str, key: str, what: str) -> None:
    error = refusal(text)
    assert what in error.what
    assert str(error.where).endswith(key)


@pytest.mark.parametrize(
    ("drafter", "head"),
    [
        ("eagle3", "smollm2-135m-eagle3"),
        ("mtp", "smollm2-135m-mtp"),
        ("ngram+eagle3", "smollm2-135m-eagle3"),
        ("ngram", None),
        ("none", None),
    ],
)
def test_null_is_the_head_that_ships_and_stays_null(drafter: str, head: str | None) -> None:
    """A name written out would stay behind when a sweep or a variant chooses another drafter."""
    resolved = _resolved(drafter=drafter)
    assert resolved.scenario.drafter.model is None
    assert resolved.engine.drafter == DrafterSpec(drafter, 0 if drafter == "none" else 4)
    assert (None if resolved.draft is None else resolved.draft.source) == head


def test_a_head_in_a_directory_beside_the_scenario(write: Write, tmp_path: Path) -> None:
    write_head(tmp_path / "mine", SPECULATORS, eagle3_tensors())
    path = write("model: tiny\ndrafter: {name: eagle3, model: mine, draft_len: 3}\nworkload: random_tokens\n")
    resolved = settle(resolve(load_scenario(path), available_memory=lambda _: None))
    assert resolved.scenario.drafter.model == str(tmp_path / "mine")
    assert resolved.engine.drafter.max_draft_len == 3
    copy = tmp_path / "elsewhere" / "copy.yaml"
    copy.parent.mkdir()
    copy.write_text(resolved.to_yaml())
    assert resolve(load_scenario(copy), available_memory=lambda _: None).scenario == resolved.scenario


def test_names_of_heads_and_models_are_no_paths(write: Write) -> None:
    for drafter in ("{name: eagle3}", "{name: draft_model, model: tiny}"):
        path = write(f"model: tiny\ndrafter: {drafter}\nworkload: random_tokens\n")
        resolved = resolve(load_scenario(path), available_memory=lambda _: None)
        assert settle(resolved).scenario.drafter == resolved.scenario.drafter


def test_an_override_reaches_it_and_a_shorthand_forgets_it(write: Write) -> None:
    path = write("model: tiny\ndrafter: {name: draft_model, model: random:tiny}\n")
    assert load_scenario(path, ["drafter.model=tiny"]).drafter.model == "tiny"
    assert load_scenario(path, ["drafter=ngram"]).drafter.model is None


@pytest.mark.parametrize("drafter", [{"draft_len": 3}, {"runtime_draft_len": {1: 3, 2: 2}}])
def test_more_draft_tokens_than_modules_are_refused_before_anything_runs(
    tmp_path: Path, drafter: dict[str, Any]
) -> None:
    modules = {"name": "mtp", "model": str(write_head(tmp_path / "head", MTP, mtp_tensors()))}
    with pytest.raises(InputError, match="3 draft tokens are more than the head's 2 modules draft") as caught:
        _resolved(drafter={**modules, **drafter})
    assert caught.value.where == "scenario: drafter.draft_len"
    assert caught.value.hint == "set drafter.draft_len to 2 or less"
    assert _resolved(drafter={**modules, "draft_len": 2}).engine.drafter.max_draft_len == 2


@pytest.mark.parametrize(
    ("sections", "error", "what"),
    [
        ({"model": "qwen3-8b", "drafter": "eagle3"}, InputError, "no eagle3 head ships for qwen3-8b"),
        ({"drafter": {"name": "eagle3", "model": "no/such/place/at/all"}}, ModelNotFoundError, "no/such/place"),
        ({"drafter": {"name": "mtp", "model": "smollm2-135m-eagle3"}}, InputError, "is a head for eagle3, and the"),
        (
            {"model": "smollm2-135m", "drafter": {"name": "eagle3", "model": "smollm2-135m-eagle3"}},
            CheckpointError,
            "made for a target with a hidden size of 64, and this target has 576",
        ),
        (
            {"model": "smollm2-135m", "drafter": {"name": "draft_model", "model": "tiny"}},
            InputError,
            "has 512 tokens and the target 49152",
        ),
        (
            {"drafter": {"name": "draft_model", "model": "tiny-hybrid"}},
            InputError,
            "keeps recurrent state",
        ),
    ],
)
def test_a_head_that_cannot_be_is_said_before_anything_runs(
    sections: dict[str, Any], error: type[InputError], what: str
) -> None:
    with pytest.raises(error) as caught:
        _resolved(**sections)
    assert what in caught.value.what
    assert caught.value.hint


def test_check_reads_a_head_without_torch(tmp_path: Path) -> None:
    directory = write_head(tmp_path / "mine", EAGLE3, eagle3_tensors())
    scenario = tmp_path / "x.yaml"
    keys = {"model": "tiny", "drafter": {"name": "ngram+eagle3", "model": str(directory)}, "workload": WORK}
    scenario.write_text(yaml.safe_dump(keys))
    code = (
        "import sys; from specbench.cli.app import main; sys.argv = ['specbench', 'check', *sys.argv[1:]]\n"
        "status = main(); print('torch' in sys.modules, status, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(scenario), "--json"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stderr.split() == ["False", "0"]
    summary = json.loads(done.stdout)["summary"]
    assert (summary["drafter"], summary["draft_model"]) == ("ngram+eagle3", str(directory))
    held = sum(tensor.numel() for name, tensor in eagle3_tensors().items() if name not in ("d2t", "t2d"))
    assert (summary["draft_parameters"], summary["draft_weights_bytes"]) == (held, 2 * held)
    printed = subprocess.run([sys.executable, "-c", code, str(scenario)], capture_output=True, text=True, check=True)
    assert f"# drafter: ngram+eagle3: {directory}, {held / 1e6:.1f}M parameters" in printed.stdout
    assert "draft weights" in printed.stdout


# --------------------------------------------------------------------------------------- what it takes


def test_weights_layers_and_probabilities_are_counted() -> None:
    plain = _resolved(drafter="ngram").memory
    head = _resolved(drafter="eagle3").memory
    held = sum(tensor.numel() for name, tensor in eagle3_tensors().items() if name not in ("d2t", "t2d"))
    assert (plain.draft_weights_bytes, head.draft_weights_bytes) == (0, 2 * held)
    assert head.weights_bytes == plain.weights_bytes
    assert head.kv_cache_bytes == plain.kv_cache_bytes * 3 // 2  # one layer more than two, of the same shape
    assert (plain.draft_probs_bytes, head.draft_probs_bytes) == (0, 0)
    rejection = _resolved(drafter={"name": "eagle3", "draft_len": 5}, acceptance="rejection").memory
    assert rejection.draft_probs_bytes == (2 + 1) * 5 * DRAFT_VOCAB * 4
    assert _resolved(drafter="ngram", acceptance="rejection").memory.draft_probs_bytes == 0
    parts = head.weights_bytes + head.draft_weights_bytes + head.kv_cache_bytes
    assert head.total_bytes == parts + head.logits_bytes + head.activations_bytes


def test_a_size_of_the_cache_holds_fewer_blocks_with_draft_layers() -> None:
    blocks = [
        _resolved(drafter=drafter, engine={"kv_cache": "3MiB"}).engine.num_blocks for drafter in ("ngram", "eagle3")
    ]
    assert blocks[0] * 2 == blocks[1] * 3


def test_what_does_not_fit_is_refused_with_the_heads_share() -> None:
    need = _resolved(drafter="eagle3").memory.total_bytes
    _resolved(need, drafter="eagle3")
    with pytest.raises(CapacityError, match="draft weights"):
        _resolved(need - 1, drafter="eagle3")
    _resolved(need - 1, drafter="ngram")


def test_nothing_is_read_for_a_device_that_computes_nothing() -> None:
    resolved = _resolved(
        model="qwen3-8b",  # for which no head ships
        drafter="ngram+eagle3",
        acceptance={"mode": "forced", "length": 2.4},
        engine={"device": "sim", "sim": "h100-8b"},
    )
    assert (resolved.draft, resolved.scenario.drafter.model) == (None, None)
    assert resolved.engine.drafter.max_draft_len == 4


# ------------------------------------------------------------------------------ what it does to the output


def _differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    found = find_differences(_resolved(**before).scenario, _resolved(**after).scenario)
    return {item.key: item.exactness for item in found}


REJECTING = {"drafter": "eagle3", "acceptance": "rejection", "sampling": SAMPLED}


@pytest.mark.parametrize(
    ("before", "after", "key", "exactness"),
    [
        ({}, {"drafter": "eagle3"}, "drafter.name", "numerically-equivalent"),
        ({}, {"drafter": "eagle3"}, "drafter.draft_len", "numerically-equivalent"),
        ({"drafter": "eagle3"}, {**REJECTING, "sampling": {}}, "acceptance.mode", "numerically-equivalent"),
        ({"drafter": "eagle3", "sampling": SAMPLED}, REJECTING, "acceptance.mode", "distribution-preserving"),
        ({"sampling": SAMPLED}, REJECTING, "drafter.name", "distribution-preserving"),
        (REJECTING, {**REJECTING, "drafter": "mtp"}, "drafter.name", "distribution-preserving"),
        (REJECTING, {**REJECTING, "engine": {"tokens_per_block": 16}}, "engine.tokens_per_block", "distribution-pre"),
        (REJECTING, {**REJECTING, "engine": {"num_blocks": 99}}, "engine.num_blocks", "bit-identical"),
        (REJECTING, {**REJECTING, "engine": {"dtype": "float32"}}, "engine.dtype", "changes-output"),
        (REJECTING, {**REJECTING, "optimizations": {"overlap": "on"}}, "optimizations.overlap", "distribution-pre"),
        (
            REJECTING,
            {**REJECTING, "optimizations": {"sampling_params": "refill"}},
            "optimizations.sampling_params",
            "bit-identical",
        ),
        (
            REJECTING,
            {**REJECTING, "acceptance": {"mode": "forced", "length": 2}},
            "acceptance.mode",
            "changes-output",
        ),
        # No draft is ever proposed: the target's own draws stand under either.
        ({"sampling": SAMPLED}, {"sampling": SAMPLED, "acceptance": "rejection"}, "acceptance.mode", "numerically"),
    ],
)
def test_rejection_keeps_the_distribution_and_not_the_tokens(
    before: dict[str, Any], after: dict[str, Any], key: str, exactness: str
) -> None:
    assert _differences(before, after)[key].startswith(exactness)


def test_the_reason_is_that_drafts_decide_the_draws() -> None:
    found = find_differences(_resolved(drafter="eagle3", sampling=SAMPLED).scenario, _resolved(**REJECTING).scenario)
    assert [item.key for item in found] == ["acceptance.mode"]
    assert weakest(found) == "distribution-preserving"
    assert "draws by the drafts" in reason_of(found[0])
    assert choose_design("auto", found, same_process=True)[0] == "runs"


@pytest.mark.parametrize(
    ("baseline", "candidate", "keys"),
    [
        ("none", {"name": "ngram", "max_ngram": 5}, {"drafter.name", "drafter.draft_len"}),
        ("eagle3", {"name": "ngram", "max_ngram": 5}, {"drafter.name"}),
        ("ngram", {"name": "ngram+eagle3", "max_ngram": 5}, {"drafter.name", "drafter.max_ngram"}),
    ],
)
def test_keys_that_a_drafter_does_not_read_are_no_difference(baseline: Any, candidate: Any, keys: set[str]) -> None:
    assert set(_differences({"drafter": baseline}, {"drafter": candidate})) - {"engine.num_blocks"} == keys


def test_each_takes_the_drafter_as_one_part() -> None:
    baseline, candidate = _resolved(sampling=SAMPLED).scenario, _resolved(**REJECTING).scenario
    found = find_differences(baseline, candidate)
    parts = list_parts(baseline, candidate, found, lambda scenario: resolve(scenario, TINY.config))
    assert {part.keys for part in parts} == {("drafter",), ("acceptance",)}
