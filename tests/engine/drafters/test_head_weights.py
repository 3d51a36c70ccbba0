"""A draft head's tensors: every naming gives the same ones, and what does not fit is one error that names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from head_checkpoints import (
    DRAFT_VOCAB,
    EAGLE3,
    MTP,
    OWN_CHECKPOINT,
    SPECULATORS,
    Tensors,
    draft_ids,
    eagle3_tensors,
    head_config,
    maps_of,
    mtp_tensors,
    stored_name,
    target_tensors,
    write_head,
)
from safetensors.torch import load_file, save_file

from specbench.engine.config import DrafterSpec, ModelSpec
from specbench.engine.drafters.head_formats import read_head_config
from specbench.engine.drafters.head_weights import HeadTensors, load_head, open_head, read_vocabulary
from specbench.engine.models import loading
from specbench.engine.models.checkpoint import ModelLocation
from specbench.engine.models.fingerprint import compute_fingerprint
from specbench.engine.models.presets import TINY
from specbench.errors import CheckpointError

CPU = torch.device("cpu")
EMBEDDING = {"embed_tokens.weight": torch.arange(512.0 * 64).reshape(512, 64)}


def _open(directory: Path) -> HeadTensors:
    return open_head(directory, read_head_config(directory))


def _read(directory: Path) -> Tensors:
    with _open(directory) as tensors:
        return dict(tensors.items())


def _assert_equal(found: Tensors, expected: Tensors) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
        assert found[name].dtype == tensor.dtype


def _vocabulary(directory: Path) -> torch.Tensor | None:
    with _open(directory) as tensors:
        return read_vocabulary(tensors)


@pytest.mark.parametrize("naming", [EAGLE3, SPECULATORS])
@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "pickle"])
@pytest.mark.parametrize("embedding", [{}, EMBEDDING], ids=["shared", "own"])
def test_an_eagle3_head_is_read_as_it_was_saved(tmp_path: Path, naming: str, pickled: bool, embedding: Tensors) -> None:
    expected = {**eagle3_tensors(), **embedding}
    directory = write_head(tmp_path / "head", naming, expected, pickled=pickled)
    _assert_equal(_read(directory), expected)
    with _open(directory) as tensors:
        assert tensors.config.has_embedding == bool(embedding)
        assert tensors.shapes["midlayer.self_attn.q_proj.weight"] == (64, 128)
    vocabulary = _vocabulary(directory)
    assert vocabulary is not None
    assert torch.equal(vocabulary, draft_ids())


def test_a_prefix_and_what_training_leaves_are_no_part_of_a_head(tmp_path: Path) -> None:
    def rename(name: str) -> str:
        return name if name in ("lm_head.weight", "d2t", "t2d") else f"model.{stored_name(name, SPECULATORS)}"

    expected = eagle3_tensors()
    directory = write_head(tmp_path / "head", SPECULATORS, expected, rename=rename)
    path = directory / "model.safetensors"
    extra = {"verifier_lm_head.weight": torch.zeros(96, 64), "verifier_norm.weight": torch.zeros(64)}
    save_file({**load_file(path), **extra, "rotary_emb.inv_freq": torch.zeros(8)}, path)
    _assert_equal(_read(directory), expected)


def test_a_head_of_qwen3_layers(tmp_path: Path) -> None:
    def change(keys: dict[str, Any]) -> None:
        keys["transformer_layer_config"] |= {"model_type": "qwen3"}

    expected = eagle3_tensors()
    expected |= {f"midlayer.self_attn.{name}.weight": torch.randn(16) for name in ("q_norm", "k_norm")}
    _assert_equal(_read(write_head(tmp_path / "head", SPECULATORS, expected, change=change)), expected)


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "pickle"])
def test_modules_are_read_as_they_were_saved(tmp_path: Path, pickled: bool) -> None:
    expected = mtp_tensors()
    directory = write_head(tmp_path / "head", MTP, expected, pickled=pickled)
    _assert_equal(_read(directory), expected)
    assert _vocabulary(directory) is None
    assert "model.layers.3.shared_head.norm.weight" in (
        torch.load(directory / "pytorch_model.bin") if pickled else load_file(directory / "model.safetensors")
    )


def test_modules_with_a_vocabulary_and_tables_of_their_own(tmp_path: Path) -> None:
    expected = {**mtp_tensors(), **maps_of(draft_ids())}
    for index in range(2):
        expected[f"modules.{index}.embed_tokens.weight"] = torch.randn(512, 64)
        expected[f"modules.{index}.lm_head.weight"] = torch.randn(DRAFT_VOCAB, 64)
    change: Callable[[dict[str, Any]], object] = lambda keys: keys.update(draft_vocab_size=DRAFT_VOCAB)  # noqa: E731
    directory = write_head(tmp_path / "head", MTP, expected, change=change)
    _assert_equal(_read(directory), expected)
    vocabulary = _vocabulary(directory)
    assert vocabulary is not None
    assert torch.equal(vocabulary, draft_ids())


def test_modules_in_the_targets_checkpoint_are_found_and_the_target_loads_beside_them(tmp_path: Path) -> None:
    expected, target = mtp_tensors(), target_tensors()
    directory = write_head(tmp_path / "target", OWN_CHECKPOINT, {**expected, **target})
    _assert_equal(_read(directory), expected)
    loaded = loading.load_model(ModelSpec(str(directory)), torch.float32, CPU)
    alone = write_head(tmp_path / "alone", OWN_CHECKPOINT, target, change=lambda k: k.pop("num_nextn_predict_layers"))
    plain = loading.load_model(ModelSpec(str(alone)), torch.float32, CPU)
    hidden = torch.randn(2, 64)
    assert torch.equal(loaded.model.compute_logits(hidden), plain.model.compute_logits(hidden))


def test_a_target_is_refused_for_layers_that_its_config_does_not_name(tmp_path: Path) -> None:
    # Modules that nobody declared are as likely layers of another model.
    change: Callable[[dict[str, Any]], object] = lambda keys: keys.pop("num_nextn_predict_layers")  # noqa: E731
    directory = write_head(tmp_path / "target", OWN_CHECKPOINT, {**mtp_tensors(), **target_tensors()}, change=change)
    with pytest.raises(CheckpointError, match=r"unexpected model\.layers\.2"):
        loading.load_model(ModelSpec(str(directory)), torch.float32, CPU)


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    expected = eagle3_tensors()
    directory = write_head(tmp_path / "head", EAGLE3, expected)
    whole = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = list(whole)
    halves = {"one.safetensors": names[:5], "two.safetensors": names[5:]}
    for file, part in halves.items():
        save_file({name: whole[name] for name in part}, directory / file)
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    _assert_equal(_read(directory), expected)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda t: t.pop("fc.weight"), r"missing fc\.weight"),
        (lambda t: t.pop("lm_head.weight"), r"missing lm_head\.weight"),
        (
            lambda t: t.update({"midlayer.self_attn.k_proj.weight": torch.zeros(32, 64)}),
            r"midlayer\.self_attn\.k_proj\.weight has shape \[32, 64\] in model\.safetensors, expected \[32, 128\]",
        ),
        (lambda t: t.update({"fc.weight": torch.zeros(64, 128)}), r"fc\.weight has shape \[64, 128\]"),
        (lambda t: t.update({"midlayer.mlp.extra.weight": torch.zeros(1)}), r"unexpected midlayer\.mlp\.extra\.weight"),
        (lambda t: t.update({"mask_hidden": torch.zeros(1, 192)}), "unexpected mask_hidden"),
        (lambda t: t.update({"d2t": torch.zeros(95, dtype=torch.int64)}), r"d2t has shape \[95\]"),
        (lambda t: t.update({"t2d": torch.zeros(96, dtype=torch.bool)}), r"t2d has shape \[96\]"),
        (
            lambda t: t.update({"embed_tokens.weight": torch.zeros(96, 64)}),
            r"embed_tokens\.weight has shape \[96, 64\]",
        ),
        (lambda t: t.update({"layers.0.hidden_norm.weight": torch.zeros(64)}), "is there as"),
    ],
)
def test_tensors_unlike_the_configuration_are_one_error(tmp_path: Path, change: Any, what: str) -> None:
    tensors = eagle3_tensors()
    change(tensors)
    directory = write_head(tmp_path / "head", EAGLE3, tensors)
    with pytest.raises(CheckpointError, match=what) as caught:
        _open(directory)
    assert str(directory) in str(caught.value.where)
    assert caught.value.hint


def test_a_module_that_lacks_a_tensor_is_named_as_in_its_file(tmp_path: Path) -> None:
    tensors = mtp_tensors()
    del tensors["modules.1.norm.weight"]
    with pytest.raises(CheckpointError, match=r"missing model\.layers\.3\.shared_head\.norm\.weight"):
        _open(write_head(tmp_path / "head", MTP, tensors))


def test_a_module_that_is_missing_whole_is_said_once(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in mtp_tensors().items() if name.startswith("modules.0.")}
    for directory, naming in ((tmp_path / "head", MTP), (tmp_path / "target", OWN_CHECKPOINT)):
        with pytest.raises(CheckpointError) as caught:
            _open(write_head(directory, naming, tensors))
        assert caught.value.what == (
            "num_nextn_predict_layers is 2 in config.json, and the files hold 1 of these modules: there is no "
            "model.layers.3.*"
        )


@pytest.mark.parametrize(
    ("naming", "prefix", "canonical", "stored"),
    [
        (EAGLE3, "", "midlayer.self_attn.q_proj.weight", "midlayer.self_attn.q_proj.weight"),
        (SPECULATORS, "", "midlayer.self_attn.q_proj.weight", "layers.0.self_attn.q_proj.weight"),
        (SPECULATORS, "model.", "midlayer.self_attn.q_proj.weight", "model.layers.0.self_attn.q_proj.weight"),
        (MTP, "", "modules.1.eh_proj.weight", "model.layers.3.eh_proj.weight"),
    ],
)
def test_a_missing_tensor_is_called_as_its_neighbours_are(
    tmp_path: Path, naming: str, prefix: str, canonical: str, stored: str
) -> None:
    tensors = dict(mtp_tensors() if naming == MTP else eagle3_tensors())
    del tensors[canonical]
    directory = write_head(
        tmp_path / "head",
        naming,
        tensors,
        rename=lambda name: f"{prefix}{stored_name(name, naming)}" if "." in name else name,
    )
    with pytest.raises(CheckpointError) as caught:
        _open(directory)
    assert caught.value.what == f"the tensors do not fit the configuration: missing {stored}"


@pytest.mark.parametrize(
    ("naming", "tensors"), [(EAGLE3, eagle3_tensors), (SPECULATORS, eagle3_tensors), (MTP, mtp_tensors)]
)
def test_the_hint_of_a_head_is_about_a_head(tmp_path: Path, naming: str, tensors: Callable[[], Tensors]) -> None:
    prefix = "modules.0" if naming == MTP else "midlayer"
    stored = {**tensors(), f"{prefix}.self_attn.q_proj.bias": torch.zeros(64)}
    with pytest.raises(CheckpointError, match=r"unexpected .*self_attn\.q_proj\.bias") as caught:
        _open(write_head(tmp_path / "head", naming, stored))
    assert caught.value.hint == "check that config.json and the weights belong to the same head"


def test_a_pickle_with_a_weighted_norm_before_fc_is_refused(tmp_path: Path) -> None:
    tensors = {**eagle3_tensors(), "input_norm.weight": torch.zeros(192)}
    directory = write_head(
        tmp_path / "head", EAGLE3, tensors, pickled=True, change=lambda keys: keys.update(norm_before_fc=True)
    )
    with pytest.raises(CheckpointError, match="a norm with weights over all hidden states"):
        _open(directory)


def test_a_head_narrower_than_its_target_needs_an_embedding(tmp_path: Path) -> None:
    tensors = {**eagle3_tensors(), "fc.weight": torch.randn(64, 3 * 256)}
    change: Callable[[dict[str, Any]], object] = lambda keys: keys.update(target_hidden_size=256)  # noqa: E731
    with pytest.raises(CheckpointError, match=r"64 wide and the target 256.* embed_tokens\.weight is missing"):
        _open(write_head(tmp_path / "without", EAGLE3, tensors, change=change))
    with _open(write_head(tmp_path / "with", EAGLE3, {**tensors, **EMBEDDING}, change=change)) as opened:
        assert opened.shapes["fc.weight"] == (64, 768)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(head_config(EAGLE3)))
    with pytest.raises(CheckpointError, match=r"a config\.json but no weights") as caught:
        _open(tmp_path)
    assert caught.value.where == str(tmp_path)


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "pickle"])
@pytest.mark.parametrize("keep", [0, 7, 300, -9])
def test_a_truncated_head_is_an_error(tmp_path: Path, pickled: bool, keep: int) -> None:
    directory = write_head(tmp_path / "head", EAGLE3, eagle3_tensors(), pickled=pickled)
    path = directory / ("pytorch_model.bin" if pickled else "model.safetensors")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError) as caught:
        _read(directory)
    assert str(path) in str(caught.value.where)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    directory = write_head(tmp_path / "head", EAGLE3, eagle3_tensors(), pickled=True)
    torch.save({"fc.weight": Path("x")}, directory / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="could run code: refused"):
        _open(directory)


# ---------------------------------------------------------------------------------------- vocabulary


def _with_maps(directory: Path, **maps: torch.Tensor) -> Path:
    tensors = {name: tensor for name, tensor in eagle3_tensors().items() if name not in ("d2t", "t2d")}
    return write_head(directory, EAGLE3, {**tensors, **maps})


@pytest.mark.parametrize("kept", [["d2t"], ["t2d"], ["d2t", "t2d"]])
def test_either_map_gives_the_ids(tmp_path: Path, kept: list[str]) -> None:
    maps = maps_of(draft_ids())
    vocabulary = _vocabulary(_with_maps(tmp_path / "head", **{name: maps[name] for name in kept}))
    assert vocabulary is not None
    assert vocabulary.dtype == torch.int64
    assert torch.equal(vocabulary, draft_ids())


def test_ids_may_be_in_any_order_and_of_any_whole_type(tmp_path: Path) -> None:
    ids = draft_ids().flip(0)
    offsets = (ids - torch.arange(DRAFT_VOCAB)).to(torch.int32)
    vocabulary = _vocabulary(_with_maps(tmp_path / "head", d2t=offsets))
    assert vocabulary is not None
    assert torch.equal(vocabulary, ids)


def test_a_head_of_the_whole_vocabulary_needs_no_map(tmp_path: Path) -> None:
    def change(keys: dict[str, Any]) -> None:
        keys["draft_vocab_size"] = None

    tensors = {name: t for name, t in eagle3_tensors(count=512).items() if name not in ("d2t", "t2d")}
    assert _vocabulary(write_head(tmp_path / "without", EAGLE3, tensors, change=change)) is None
    tensors |= {"d2t": torch.zeros(512, dtype=torch.int64), "t2d": torch.ones(512, dtype=torch.bool)}
    assert _vocabulary(write_head(tmp_path / "identity", EAGLE3, tensors, change=change)) is None
    tensors["d2t"] = torch.arange(511, -1, -1) - torch.arange(512)
    turned = _vocabulary(write_head(tmp_path / "turned", EAGLE3, tensors, change=change))
    assert turned is not None
    assert turned[0] == 511


def _offsets(row: int, token: int) -> torch.Tensor:
    ids = draft_ids()
    ids[row] = token
    return ids - torch.arange(DRAFT_VOCAB)


@pytest.mark.parametrize(
    ("maps", "what"),
    [
        ({}, "draft_vocab_size is 96 of 512 tokens, but neither d2t nor t2d says which"),
        ({"d2t": _offsets(7, 512)}, "d2t gives row 7 the token 512; the target has 0 to 511"),
        ({"d2t": _offsets(0, -1)}, "d2t gives row 0 the token -1"),
        ({"d2t": _offsets(5, int(draft_ids()[9]))}, "d2t gives several rows the same token"),
        ({"d2t": draft_ids() + 100}, "d2t gives row"),  # ids where distances belong
        ({"d2t": torch.zeros(DRAFT_VOCAB)}, r"d2t is stored as float32 in model\.safetensors; it holds whole numbers"),
        ({"t2d": torch.zeros(512, dtype=torch.bool)}, "t2d marks 0 tokens, draft_vocab_size is 96"),
        ({"d2t": _offsets(0, 4), "t2d": maps_of(draft_ids())["t2d"]}, "d2t and t2d name different tokens"),
    ],
)
def test_a_map_that_cannot_be_is_refused(tmp_path: Path, maps: Tensors, what: str) -> None:
    directory = _with_maps(tmp_path / "head", **maps)
    with pytest.raises(CheckpointError, match=what) as caught:
        _vocabulary(directory)
    assert str(directory) in str(caught.value.where)


@pytest.mark.parametrize("kept", [["d2t"], ["t2d"], ["d2t", "t2d"]])
def test_a_loaded_head_has_its_weights_and_its_vocabulary(tmp_path: Path, kept: list[str]) -> None:
    maps = maps_of(draft_ids())
    directory = _with_maps(tmp_path / "head", **{name: maps[name] for name in kept})
    spec = DrafterSpec("eagle3", 4, model=str(directory))
    loaded = load_head("eagle3", spec, ModelSpec("tiny"), TINY.config, torch.float32)
    expected = {name: tensor for name, tensor in eagle3_tensors().items() if name not in maps}
    _assert_equal(loaded.tensors, expected)
    assert loaded.config == read_head_config(directory)
    assert loaded.vocabulary is not None
    assert torch.equal(loaded.vocabulary, draft_ids())


def test_a_loaded_head_of_modules(tmp_path: Path) -> None:
    directory = write_head(tmp_path / "target", OWN_CHECKPOINT, {**mtp_tensors(), **target_tensors()})
    loaded = load_head("mtp", DrafterSpec("ngram+mtp", 4), ModelSpec(str(directory)), TINY.config, torch.float32)
    _assert_equal(loaded.tensors, mtp_tensors())
    assert loaded.vocabulary is None
    assert (loaded.config.num_modules, loaded.source) == (2, f"modules of {directory}")


def test_the_fingerprint_tells_heads_apart(tmp_path: Path) -> None:
    def fingerprint(directory: Path) -> str:
        location = ModelLocation("directory", str(directory), directory)
        return compute_fingerprint(location, read_head_config(directory), 0)

    first = write_head(tmp_path / "first", EAGLE3, eagle3_tensors())
    same = write_head(tmp_path / "same", EAGLE3, eagle3_tensors())
    assert fingerprint(first) == fingerprint(same)
    other = write_head(tmp_path / "other", EAGLE3, {**eagle3_tensors(), "norm.weight": torch.zeros(64)})
    assert fingerprint(other) != fingerprint(first)
    normed = write_head(tmp_path / "n", EAGLE3, eagle3_tensors(), change=lambda keys: keys.update(norm_before_fc=True))
    assert fingerprint(normed) != fingerprint(first)
