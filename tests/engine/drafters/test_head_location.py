"""What ``drafter.model`` means for each drafter, and what is said when it means nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from head_checkpoints import (
    DRAFT_VOCAB,
    EAGLE3,
    MTP,
    OWN_CHECKPOINT,
    eagle3_tensors,
    head_config,
    mtp_tensors,
    write_head,
)

from specbench.downloads import DownloadError
from specbench.engine.config import ModelSpec
from specbench.engine.drafters import heads
from specbench.engine.drafters.head_location import (
    check_draft_model,
    default_head,
    find_draft_model,
    find_head,
)
from specbench.engine.drafters.heads import Head
from specbench.engine.models import checkpoint
from specbench.engine.models.presets import SMOLLM2_135M, TINY, TINY_HYBRID
from specbench.errors import CheckpointError, InputError, ModelNotFoundError
from specbench.registry import HEADS, PRESETS

TARGET = ModelSpec("tiny")


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Both heads of the registry, made for the preset tiny, by drafter."""
    places = {
        "eagle3": write_head(tmp_path / "shipped-eagle3", EAGLE3, eagle3_tensors()),
        "mtp": write_head(tmp_path / "shipped-mtp", MTP, mtp_tensors()),
    }
    monkeypatch.setattr(heads, "SMOLLM2_135M_EAGLE3", Head("eagle3", "tiny", places["eagle3"]))
    monkeypatch.setattr(heads, "SMOLLM2_135M_MTP", Head("mtp", "tiny", places["mtp"]))
    return places


@pytest.mark.parametrize("drafter", ["eagle3", "mtp"])
def test_null_is_the_head_that_ships_for_the_target(shipped: dict[str, Path], drafter: str) -> None:
    location = find_head(drafter, None, TARGET)
    assert (location.source, location.directory) == (f"smollm2-135m-{drafter}", shipped[drafter])
    assert location.read_config(TINY.config).kind == drafter
    assert default_head(drafter, TARGET) == location.source
    assert find_head(drafter, None, ModelSpec("tiny", "random", seed=4)) == location


@pytest.mark.usefixtures("shipped")
def test_a_name_of_the_registry() -> None:
    assert find_head("eagle3", "smollm2-135m-eagle3", ModelSpec("qwen3-8b")).source == "smollm2-135m-eagle3"


@pytest.mark.usefixtures("shipped")
def test_the_hub_id_of_a_preset_has_its_head(monkeypatch: pytest.MonkeyPatch, shipped: dict[str, Path]) -> None:
    monkeypatch.setattr(heads, "SMOLLM2_135M_EAGLE3", Head("eagle3", "smollm2-135m", shipped["eagle3"]))
    target = ModelSpec(str(SMOLLM2_135M.hub_id))
    assert find_head("eagle3", None, target).source == "smollm2-135m-eagle3"
    assert default_head("eagle3", ModelSpec("someone/else")) is None


def test_the_two_that_ship_are_declared() -> None:
    assert {name: (HEADS.load(name).drafter, HEADS.load(name).target) for name in HEADS} == {
        "smollm2-135m-eagle3": ("eagle3", "smollm2-135m"),
        "smollm2-135m-mtp": ("mtp", "smollm2-135m"),
    }
    directory = HEADS.load("smollm2-135m-eagle3").directory
    assert directory.parts[-3:] == ("specbench", "heads", "smollm2-135m-eagle3")


def test_a_directory(tmp_path: Path) -> None:
    directory = write_head(tmp_path / "mine", EAGLE3, eagle3_tensors())
    location = find_head("eagle3", str(directory), TARGET)
    assert (location.source, location.directory) == (str(directory), directory)
    assert location.read_config(TINY.config).draft_vocab_size == DRAFT_VOCAB


def test_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_head(tmp_path / "0123456789abcdef", EAGLE3, eagle3_tensors())
    asked: list[tuple[str, Any]] = []

    def snapshot(repo_id: str, *, only: Any = None, **_: Any) -> Path:
        asked.append((repo_id, only))
        return directory

    monkeypatch.setattr(checkpoint, "download_snapshot", snapshot)
    location = find_head("eagle3", "someone/some-eagle3", TARGET)
    assert (location.source, location.directory) == ("hub someone/some-eagle3@0123456789ab", directory)
    find_head("eagle3", "someone/some-eagle3", TARGET, weights=False)
    assert [repo_id for repo_id, _ in asked] == ["someone/some-eagle3"] * 2
    assert asked[0][1] is None
    assert "config.json" in asked[1][1]


def test_a_hub_that_has_no_such_head_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Path:
        raise DownloadError("the hub did not give it", hint="check the spelling")

    monkeypatch.setattr(checkpoint, "download_snapshot", refuse)
    with pytest.raises(ModelNotFoundError, match="someone/else") as caught:
        find_head("eagle3", "someone/else", TARGET)
    assert (caught.value.where, caught.value.hint) == ("drafter.model", "check the spelling")


@pytest.mark.parametrize("model", ["./gone", "/no/such/head", "~/gone", "heads/mine/v2", "gone.gguf", "someone/gone"])
def test_a_head_that_is_not_there_is_not_looked_for_among_whole_models(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    def refuse(*_: Any, **__: Any) -> Path:
        raise DownloadError("the hub did not give it")

    monkeypatch.setattr(checkpoint, "download_snapshot", refuse)
    with pytest.raises(ModelNotFoundError) as caught:
        find_head("eagle3", model, TARGET)
    assert model in caught.value.what
    assert caught.value.where == "drafter.model"
    said = str(caught.value)
    assert "preset" not in said
    assert "random:" not in said
    assert not [name for name in PRESETS if name not in ("smollm2-135m",) and name in said]


def test_a_snapshot_without_weights_is_no_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(head_config(EAGLE3)))
    monkeypatch.setattr(checkpoint, "download_snapshot", lambda *_, **__: tmp_path)
    find_head("eagle3", "someone/head", TARGET, weights=False)
    with pytest.raises(ModelNotFoundError, match=r"a config\.json but no weights") as caught:
        find_head("eagle3", "someone/head", TARGET)
    assert caught.value.hint == "fetch the head's weight files as well"


def test_a_target_that_carries_modules_needs_no_head(tmp_path: Path) -> None:
    directory = write_head(tmp_path / "target", OWN_CHECKPOINT, mtp_tensors())
    location = find_head("mtp", None, ModelSpec(str(directory)))
    assert (location.source, location.directory) == (f"modules of {directory}", directory)
    assert location.read_config(TINY.config).in_target
    with pytest.raises(InputError, match=f"no eagle3 head ships for {directory}"):
        find_head("eagle3", None, ModelSpec(str(directory)))


def test_modules_of_a_target_with_random_weights_are_not_taken(tmp_path: Path) -> None:
    directory = write_head(tmp_path / "target", OWN_CHECKPOINT, mtp_tensors())
    with pytest.raises(InputError, match="carries no modules"):
        find_head("mtp", None, ModelSpec(str(directory), "random"))


def test_nothing_ships_for_a_target() -> None:
    with pytest.raises(InputError) as caught:
        find_head("eagle3", None, ModelSpec("qwen3-8b"))
    assert caught.value.what == ("no eagle3 head ships for qwen3-8b; there is smollm2-135m-eagle3 for smollm2-135m")
    assert caught.value.where == "drafter.model"
    assert "hub id" in (caught.value.hint or "")
    with pytest.raises(InputError, match="no mtp head ships for qwen3-8b, and its checkpoint carries no modules"):
        find_head("mtp", None, ModelSpec("qwen3-8b"))


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize(
    ("drafter", "model", "error", "what", "hint"),
    [
        ("mtp", "smollm2-135m-eagle3", InputError, "is a head for eagle3, and the drafter is mtp", "drafter.name to e"),
        (
            "eagle3",
            "smollm2-135m",
            InputError,
            "smollm2-135m is a whole model, and eagle3 needs a draft",
            "draft_model",
        ),
        ("eagle3", "random:tiny", InputError, "random:tiny is a whole model", "specbench list heads"),
        ("eagle3", "smollm2-135m-eagle", ModelNotFoundError, "no head 'smollm2-135m-eagle'", "did you mean"),
        ("eagle3", "nothing", ModelNotFoundError, "it is none that ships (smollm2-135m-eagle3", "organisation/name"),
    ],
)
def test_a_name_that_is_no_head(drafter: str, model: str, error: type[InputError], what: str, hint: str) -> None:
    with pytest.raises(error) as caught:
        find_head(drafter, model, TARGET)
    assert type(caught.value) is error
    assert what in caught.value.what
    assert caught.value.where == "drafter.model"
    assert hint in (caught.value.hint or "")


def test_a_head_whose_files_did_not_come_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "SMOLLM2_135M_EAGLE3", Head("eagle3", "smollm2-135m", tmp_path / "gone"))
    with pytest.raises(ModelNotFoundError, match="not in this installation") as caught:
        find_head("eagle3", None, ModelSpec("smollm2-135m"))
    assert str(tmp_path / "gone") in caught.value.what


def test_paths_that_hold_no_head(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelNotFoundError, match=r"has no config\.json") as caught:
        find_head("eagle3", str(empty), TARGET)
    assert caught.value.where == f"drafter.model: {empty}"
    (empty / "config.json").write_text(json.dumps(head_config(EAGLE3)))
    with pytest.raises(ModelNotFoundError, match=r"a config\.json but no weights") as caught:
        find_head("eagle3", str(empty), TARGET)
    assert caught.value.hint == "fetch the head's weight files as well"
    gguf = tmp_path / "x.gguf"
    gguf.touch()
    with pytest.raises(CheckpointError, match="GGUF file, which holds no draft head"):
        find_head("eagle3", str(gguf), TARGET)
    (tmp_path / "x.bin").touch()
    with pytest.raises(ModelNotFoundError, match="is a file"):
        find_head("eagle3", str(tmp_path / "x.bin"), TARGET)


def test_a_directory_with_a_head_of_the_other_kind(tmp_path: Path) -> None:
    location = find_head("eagle3", str(write_head(tmp_path / "head", MTP, mtp_tensors())), TARGET)
    with pytest.raises(CheckpointError, match="is a head for mtp, and the drafter is eagle3") as caught:
        location.read_config(TINY.config)
    assert (caught.value.hint or "").startswith("set drafter.name to mtp")


# ---------------------------------------------------------------------------------------- draft models


@pytest.mark.parametrize(
    ("model", "spec"),
    [
        ("tiny", ModelSpec("tiny", "random")),
        ("random:smollm2-135m", ModelSpec("smollm2-135m", "random")),
        ("smollm2-135m", ModelSpec("smollm2-135m")),
        ("org/name", ModelSpec("org/name")),
    ],
)
def test_a_draft_model_is_any_model(model: str, spec: ModelSpec) -> None:
    assert find_draft_model(model) == spec


def test_a_draft_model_has_to_be_named() -> None:
    with pytest.raises(InputError, match="is missing: draft_model drafts with a model of its own") as caught:
        find_draft_model(None)
    assert caught.value.where == "drafter.model"


def test_a_draft_model_that_cannot_read_the_targets_sequences_is_refused() -> None:
    check_draft_model(TINY.config, TINY.config, 2048)
    check_draft_model(SMOLLM2_135M.config, TINY.config, 2048)  # more tokens: those are never drafted
    with pytest.raises(InputError, match="has 512 tokens and the target 49152") as caught:
        check_draft_model(TINY.config, SMOLLM2_135M.config)
    assert caught.value.where == "drafter.model"
    with pytest.raises(InputError, match="keeps recurrent state"):
        check_draft_model(TINY_HYBRID.config, TINY.config)
    with pytest.raises(InputError, match=r"reads 2048 positions, and engine\.max_seq_len is 2049") as caught:
        check_draft_model(TINY.config, TINY.config, 2049)
    assert caught.value.hint == "set engine.max_seq_len to 2048 or less, or choose another draft model"
    slides = replace(TINY.config, sliding_window=64)
    with pytest.raises(InputError, match="reads 64 positions"):
        check_draft_model(slides, TINY.config, 65)


def test_a_card_is_shown_by_its_first_sentence(tmp_path: Path) -> None:
    head = Head("eagle3", "tiny", tmp_path)
    assert (head.read_card_line(), head.is_here) == ("", False)
    (tmp_path / "CARD.md").write_text("# A head\n\nTrained on 3 tokens.  \n\nMore.\n")
    assert head.read_card_line() == "Trained on 3 tokens."
