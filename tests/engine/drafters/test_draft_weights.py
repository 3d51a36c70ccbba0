"""What drafters with weights take in memory, and what tells one from another, from configurations and headers alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from head_checkpoints import DRAFT_VOCAB, EAGLE3, MTP, Tensors, eagle3_tensors, mtp_tensors, write_head

from specbench.downloads import DownloadError
from specbench.engine.config import DrafterSpec, EngineConfig, ModelSpec
from specbench.engine.drafters import heads
from specbench.engine.drafters.declaration import DraftWeights, WeightsQuery
from specbench.engine.drafters.draft_identity import find_draft_identity
from specbench.engine.drafters.draft_weights import find_draft_weights
from specbench.engine.drafters.head_formats import read_head_config
from specbench.engine.drafters.head_weights import open_head
from specbench.engine.drafters.heads import Head
from specbench.engine.models import checkpoint
from specbench.engine.models.hf_config_writer import to_hf_config
from specbench.engine.models.presets import TINY

TARGET = ModelSpec("tiny")


@pytest.mark.parametrize(
    ("spec", "source", "draft_vocab", "layers"),
    [
        (DrafterSpec("eagle3", 4), "smollm2-135m-eagle3", DRAFT_VOCAB, 1),
        (DrafterSpec("ngram+eagle3", 4), "smollm2-135m-eagle3", DRAFT_VOCAB, 1),
        (DrafterSpec("mtp", 2), "smollm2-135m-mtp", 512, 2),
        (DrafterSpec("ngram+draft_model", 4, model="tiny"), "tiny", 512, 2),
    ],
)
def test_what_a_drafter_takes(
    spec: DrafterSpec, source: str, draft_vocab: int, layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eagle3 = write_head(tmp_path / "eagle3", EAGLE3, eagle3_tensors())
    modules = write_head(tmp_path / "mtp", MTP, mtp_tensors())
    monkeypatch.setattr(heads, "SMOLLM2_135M_EAGLE3", Head("eagle3", "tiny", eagle3))
    monkeypatch.setattr(heads, "SMOLLM2_135M_MTP", Head("mtp", "tiny", modules))
    shape = find_draft_weights(WeightsQuery(spec, TARGET, TINY.config))
    assert shape is not None
    assert (shape.source, shape.draft_vocab_size) == (source, draft_vocab)
    assert shape.kv_bytes_per_token(2) == 2 * layers * 2 * 16 * 2
    expected = {1: eagle3_tensors, 2: mtp_tensors}[layers]() if source != "tiny" else {}
    held = sum(tensor.numel() for name, tensor in expected.items() if name not in ("d2t", "t2d"))
    assert shape.num_parameters == (held or TINY.config.num_parameters)


@pytest.mark.parametrize("name", ["none", "ngram"])
def test_a_drafter_without_a_model_takes_nothing(name: str) -> None:
    assert find_draft_weights(WeightsQuery(DrafterSpec(name, 4), TARGET, TINY.config)) is None


def _engine(**drafter: Any) -> EngineConfig:
    return EngineConfig(TARGET, "cpu", 64, 2, 8, drafter=DrafterSpec(**drafter))


def test_the_identity_of_a_drafter_changes_with_its_weights(tmp_path: Path) -> None:
    one = write_head(tmp_path / "one", EAGLE3, eagle3_tensors())
    two = write_head(
        tmp_path / "two", EAGLE3, {**eagle3_tensors(), "norm.weight": mtp_tensors()["modules.0.norm.weight"]}
    )
    found = [find_draft_identity(_engine(name="eagle3", draft_len=2, model=str(path))) for path in (one, one, two)]
    assert found[0] is not None
    assert found[2] is not None
    assert found[0] == found[1]
    assert (found[0].source, found[0].num_parameters) == (str(one), found[2].num_parameters)
    assert found[0].fingerprint != found[2].fingerprint
    assert find_draft_identity(_engine(name="ngram", draft_len=2)) is None


def test_the_identity_of_a_draft_model(tmp_path: Path) -> None:
    found = find_draft_identity(_engine(name="draft_model", draft_len=2, model="tiny"))
    assert found is not None
    assert found.source == "random:tiny (seed 0)"
    (tmp_path / "config.json").write_text(json.dumps(to_hf_config(replace(TINY.config, num_layers=1))))
    smaller = find_draft_identity(_engine(name="draft_model", draft_len=2, model=f"random:{tmp_path}"))
    assert smaller is not None
    assert smaller.fingerprint != found.fingerprint
    assert smaller.num_parameters < found.num_parameters


# -------------------------------------------------------------------------- tensors that may be left out


def _weights(name: str, model: Path | str) -> DraftWeights:
    found = find_draft_weights(WeightsQuery(DrafterSpec(name, 2, model=str(model)), TARGET, TINY.config))
    assert found is not None
    return found


def _own_ends(num_modules: int) -> Tensors:
    names = ("embed_tokens.weight", "lm_head.weight")
    return {f"modules.{index}.{name}": torch.randn(512, 64) for index in range(num_modules) for name in names}


def _held(tensors: Tensors) -> int:
    return sum(tensor.numel() for name, tensor in tensors.items() if name not in ("d2t", "t2d"))


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "pickle"])
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize(
    ("drafter", "naming", "tensors", "ends"),
    [
        ("eagle3", EAGLE3, eagle3_tensors, lambda: {"embed_tokens.weight": torch.randn(512, 64)}),
        ("mtp", MTP, mtp_tensors, lambda: _own_ends(2)),
    ],
)
def test_an_embedding_and_a_head_of_its_own_are_counted_in_either_format(
    tmp_path: Path,
    drafter: str,
    naming: str,
    tensors: Callable[[], Tensors],
    ends: Callable[[], Tensors],
    own: bool,
    pickled: bool,
) -> None:
    stored = {**tensors(), **(ends() if own else {})}
    directory = write_head(tmp_path / "head", naming, stored, pickled=pickled)
    assert _weights(drafter, directory).num_parameters == _held(stored)
    config = read_head_config(directory)
    with open_head(directory, config) as opened:
        assert opened.config == config, "what is known beforehand is what is loaded"


def test_a_head_on_a_hub_is_counted_with_all_that_it_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configuration alone is fetched to plan memory; once its files are here, they are counted as they are."""
    directory = write_head(tmp_path / "snapshot", MTP, mtp_tensors())

    def snapshot(*_: Any, only: Any = None, local_only: bool = False, **__: Any) -> Path:
        if local_only:
            raise DownloadError("not here")
        return configuration if only else directory

    configuration = tmp_path / "configuration"
    configuration.mkdir()
    (configuration / "config.json").write_bytes((directory / "config.json").read_bytes())
    monkeypatch.setattr(checkpoint, "download_snapshot", snapshot)
    most = _weights("mtp", "someone/head").num_parameters
    assert most == _held({**mtp_tensors(), **_own_ends(2)})
    assert _weights("mtp", directory).num_parameters == _held(mtp_tensors()) < most
