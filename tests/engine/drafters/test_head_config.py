"""The configuration of a draft head, as every naming writes it, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from head_checkpoints import (
    DRAFT_VOCAB,
    EAGLE3,
    MTP,
    OWN_CHECKPOINT,
    SPECULATORS,
    draft_ids,
    eagle3_tensors,
    head_config,
    maps_of,
    mtp_tensors,
    write_head,
)

from specbench.engine.drafters.head_config import HeadConfig
from specbench.engine.drafters.head_formats import parse_head_config, read_head_config
from specbench.engine.models.presets import LLAMA_3_1_8B, QWEN3_8B, TINY
from specbench.errors import CheckpointError

TARGET = TINY.config


def _changed(naming: str, **keys: Any) -> dict[str, Any]:
    config = {**head_config(naming), **keys}
    return {key: value for key, value in config.items() if value is not ...}


@pytest.mark.parametrize(("naming", "before_residual"), [(EAGLE3, False), (SPECULATORS, True)])
def test_an_eagle3_head_in_either_naming(tmp_path: Path, naming: str, before_residual: bool) -> None:
    config = read_head_config(write_head(tmp_path / "head", naming, eagle3_tensors()), TARGET)
    decoder = replace(TARGET, num_layers=1, tie_word_embeddings=False)
    assert config == HeadConfig(
        "eagle3",
        decoder=replace(decoder, eos_token_ids=config.decoder.eos_token_ids),
        target_hidden_size=64,
        vocab_size=512,
        draft_vocab_size=DRAFT_VOCAB,
        hidden_layers=(0, 1, 1),
        norm_before_residual=before_residual,
    )
    assert (config.num_kv_layers, config.num_modules, config.vocab_size) == (1, 1, 512)
    assert config.kv_bytes_per_token(2) == 2 * 2 * 16 * 2


def test_parameters_are_counted_as_the_files_hold_them(tmp_path: Path) -> None:
    tensors = {**eagle3_tensors(), "embed_tokens.weight": eagle3_tensors()["norm.weight"].expand(512, 64)}
    config = read_head_config(write_head(tmp_path / "own", EAGLE3, tensors))
    assert config.has_embedding
    assert config.num_parameters == sum(t.numel() for name, t in tensors.items() if name not in ("d2t", "t2d"))
    without = read_head_config(write_head(tmp_path / "shared", EAGLE3, eagle3_tensors()))
    assert config.num_parameters - without.num_parameters == 512 * 64


def test_the_published_configuration_of_a_llama_head() -> None:
    # The keys and values of a published head for Llama 3.1 8B.
    config = parse_head_config(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_hidden_layers": 1,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-05,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
            "vocab_size": 128256,
            "draft_vocab_size": 32000,
        },
        where="config.json",
    )
    config.check_target(LLAMA_3_1_8B.config, "head")
    assert config.hidden_layers_of(32) == (2, 16, 29)
    # 4096 x 12288 fuse, 8192 columns feed attention; 32000 rows of logits.
    attention = 4096 * 8192 + 2 * 1024 * 8192 + 4096 * 4096
    expected = 4096 * 12288 + attention + 3 * 4096 * 14336 + 4 * 4096 + 32000 * 4096
    assert config.num_parameters == expected
    assert (config.decoder.rope_theta, config.decoder.qk_norm) == (10000.0, False)


def test_a_head_of_qwen3_layers_norms_queries_and_keys() -> None:
    layer = {
        "model_type": "qwen3",
        **{key: value for key, value in head_config(EAGLE3).items() if key not in ("architectures", "model_type")},
    }
    config = parse_head_config(_changed(SPECULATORS, transformer_layer_config=layer), where="config.json")
    assert config.decoder.qk_norm
    assert config.expected_tensors()["midlayer.self_attn.q_norm.weight"] == (16,)
    llama = parse_head_config(_changed(SPECULATORS), where="config.json")
    assert config.num_parameters - llama.num_parameters == 2 * 16


@pytest.mark.parametrize(
    ("listed", "read"),
    [
        ([2, 14, 27], (2, 14, 27)),  # inputs of layers
        ([1, 13, 26], (2, 14, 27)),  # outputs of layers: the first is 1
        ([0, 1, 2], (0, 1, 2)),
        ([27, 2, 14], (27, 2, 14)),  # the order of fc's columns is kept
        ([2, 14], (2, 14)),
    ],
)
@pytest.mark.parametrize("inside", [True, False])
def test_hidden_states_in_both_conventions(listed: list[int], read: tuple[int, ...], inside: bool) -> None:
    ids = {"eagle_aux_hidden_state_layer_ids": listed}
    config = parse_head_config(_changed(EAGLE3, **({"eagle_config": ids} if inside else ids)), where="config.json")
    assert config.hidden_layers_of(30) == read
    assert config.expected_tensors()["fc.weight"] == (64, len(read) * 64)


def test_without_a_list_the_target_says_which_hidden_states() -> None:
    config = parse_head_config(_changed(EAGLE3, eagle_config=...), where="config.json")
    assert config.hidden_layers is None
    assert config.hidden_layers_of(QWEN3_8B.config.num_layers) == (2, 18, 33)
    config.check_target(replace(TARGET, num_layers=3), "head")
    with pytest.raises(CheckpointError, match=r"lists no hidden states, and the default, .*3 layers or more") as caught:
        config.check_target(TARGET, "head")
    assert "this target has 2" in caught.value.what
    assert "-1" not in caught.value.what
    assert "eagle_aux_hidden_state_layer_ids" in (caught.value.hint or "")


def test_norms_without_weights_before_fc_are_a_key_of_our_own() -> None:
    config = parse_head_config(_changed(EAGLE3, norm_before_fc=True), where="config.json")
    assert config.norm_before_fc
    assert not parse_head_config(_changed(EAGLE3), where="config.json").norm_before_fc


def test_modules_in_a_directory_of_their_own(tmp_path: Path) -> None:
    change: Callable[[dict[str, Any]], object] = lambda keys: keys.update(draft_vocab_size=DRAFT_VOCAB)  # noqa: E731
    tensors = {**mtp_tensors(), **maps_of(draft_ids())}
    config = read_head_config(write_head(tmp_path / "head", MTP, tensors, change=change), TARGET)
    assert (config.kind, config.num_modules, config.num_kv_layers, config.first_layer) == ("mtp", 2, 2, 2)
    assert (config.draft_vocab_size, config.has_lm_head, config.in_target) == (DRAFT_VOCAB, False, False)
    assert config.hidden_layers_of(2) == ()
    assert config.num_parameters == sum(tensor.numel() for tensor in mtp_tensors().values())


def test_modules_in_the_targets_own_checkpoint() -> None:
    config = parse_head_config(head_config(OWN_CHECKPOINT), where="config.json")
    config.check_target(TARGET, "target")
    assert (config.kind, config.num_modules, config.in_target, config.first_layer) == ("mtp", 2, True, 2)
    assert config.draft_vocab_size == 512


@pytest.mark.parametrize(
    ("naming", "keys", "what"),
    [
        (EAGLE3, {"num_hidden_layers": 2}, "a head of 2 layers is not supported; supported: 1"),
        (EAGLE3, {"hidden_size": ...}, "key 'hidden_size' is missing"),
        (EAGLE3, {"hidden_size": "64"}, "hidden_size must be a positive integer, found '64'"),
        (EAGLE3, {"draft_vocab_size": 513}, "draft_vocab_size 513 is larger than the target's vocabulary, 512"),
        (EAGLE3, {"draft_vocab_size": 0}, "draft_vocab_size must be a positive integer, found 0"),
        (EAGLE3, {"target_hidden_size": -1}, "target_hidden_size must be a positive integer, found -1"),
        (EAGLE3, {"eagle_config": [1]}, "eagle_config must be an object, found"),
        (EAGLE3, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": "2"}}, "must be a list of layer numbers"),
        (EAGLE3, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, -3]}}, "must be a list of layer numbers"),
        (EAGLE3, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [True]}}, "must be a list of layer numbers"),
        (EAGLE3, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}}, "that is not empty"),
        (EAGLE3, {"eagle_aux_hidden_state_layer_ids": []}, "that is not empty"),
        (EAGLE3, {"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is false"),
        (EAGLE3, {"eagle_config": {"norm_before_fc": True}}, "a norm with weights over all hidden states"),
        (EAGLE3, {"norm_before_fc": 1}, "norm_before_fc must be true or false, found 1"),
        (EAGLE3, {"quantization_config": {"quant_method": "fp8"}}, "the weights are quantised (fp8)"),
        (
            EAGLE3,
            {"layer_types": ["sliding_attention"], "sliding_window": 128},
            "a head with sliding-window attention is not supported",
        ),
        (SPECULATORS, {"norm_before_fc": True}, "a norm with weights over all hidden states"),
        (SPECULATORS, {"fc_norm": True}, "fc_norm is not supported"),
        (SPECULATORS, {"norm_output": True}, "norm_output is not supported"),
        (SPECULATORS, {"transformer_layer_config": None}, "transformer_layer_config must be an object, found None"),
        (SPECULATORS, {"speculators_model_type": "dflash"}, "no draft head that is supported: speculators_model_type"),
        (EAGLE3, {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": ...}, "without draft_vocab_size"),
        (
            EAGLE3,
            {"architectures": ["DeepseekV3ForCausalLMEagle3"], "model_type": "deepseek_v3"},
            "no draft head that is supported: architecture DeepseekV3ForCausalLMEagle3",
        ),
        (MTP, {"num_nextn_predict_layers": ...}, "key 'num_nextn_predict_layers' is missing"),
        (MTP, {"num_nextn_predict_layers": "two"}, "num_nextn_predict_layers must be a positive integer, found 'two'"),
        (MTP, {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}, "DeepseekV3ForCausalLM"),
    ],
)
def test_what_is_not_supported_names_file_and_key(naming: str, keys: dict[str, Any], what: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse_head_config(_changed(naming, **keys), where="x/config.json")
    assert what in caught.value.what
    assert str(caught.value.where).startswith("x/config.json")


@pytest.mark.parametrize(
    ("target", "what"),
    [
        (replace(TARGET, hidden_size=32), "a hidden size of 64, and this target has 32"),
        (replace(TARGET, vocab_size=300), "a vocabulary size of 512, and this target has 300"),
    ],
)
def test_a_head_of_another_target_is_refused(tmp_path: Path, target: Any, what: str) -> None:
    directory = write_head(tmp_path / "head", EAGLE3, eagle3_tensors())
    with pytest.raises(CheckpointError) as caught:
        read_head_config(directory, target)
    assert what in caught.value.what
    assert caught.value.where == str(directory)
    assert "trained for" in (caught.value.hint or "")


def test_hidden_states_behind_the_last_layer_are_refused(tmp_path: Path) -> None:
    ids = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    directory = write_head(tmp_path / "head", EAGLE3, eagle3_tensors(), change=lambda keys: keys.update(ids))
    read_head_config(directory, replace(TARGET, num_layers=3))
    with pytest.raises(CheckpointError, match="reads hidden states 0, 1, 2; this target has 0 to 1"):
        read_head_config(directory, TARGET)


@pytest.mark.parametrize("naming", [EAGLE3, SPECULATORS])
@pytest.mark.parametrize(
    ("listed", "read", "is_moved"), [([1, 2, 9], "2, 3, 10", True), ([2, 3, 10], "2, 3, 10", False)]
)
def test_hidden_states_are_refused_by_the_numbers_of_the_file(
    tmp_path: Path, naming: str, listed: list[int], read: str, is_moved: bool
) -> None:
    ids = {"eagle_config": {}, "eagle_aux_hidden_state_layer_ids": listed}
    directory = write_head(tmp_path / "head", naming, eagle3_tensors(), change=lambda keys: keys.update(ids))
    with pytest.raises(CheckpointError) as caught:
        read_head_config(directory, TARGET)
    what = f"the head reads hidden states {read}; this target has 0 to 1"
    moved = f" (eagle_aux_hidden_state_layer_ids is {listed}: it begins with 1, and so lists outputs of layers, "
    moved += "and the output of layer i is hidden state i + 1)"
    assert caught.value.what == what + (moved if is_moved else "")


def test_modules_of_a_target_with_more_layers_are_refused(tmp_path: Path) -> None:
    directory = write_head(tmp_path / "head", MTP, mtp_tensors())
    with pytest.raises(CheckpointError, match="a number of layers of 2, and this target has 30"):
        read_head_config(directory, replace(TARGET, num_layers=30))


def test_a_directory_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json") as caught:
        read_head_config(tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize(("text", "what"), [("{", "is not JSON"), ("[]", "expected an object, found list")])
def test_a_damaged_config_is_refused(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=what):
        read_head_config(tmp_path)


def test_a_truncated_file_is_seen_without_its_tensors(tmp_path: Path) -> None:
    directory = write_head(tmp_path / "head", EAGLE3, eagle3_tensors())
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated: tensor"):
        read_head_config(directory)


def test_a_weighted_norm_before_fc_is_seen_in_the_files(tmp_path: Path) -> None:
    tensors = {**eagle3_tensors(), "input_norm.weight": eagle3_tensors()["norm.weight"].repeat(3)}
    directory = write_head(tmp_path / "head", EAGLE3, tensors, change=lambda keys: keys.update(norm_before_fc=True))
    with pytest.raises(CheckpointError, match=r"a norm with weights .*input_norm\.weight"):
        read_head_config(directory)


def test_reading_a_configuration_loads_no_torch(tmp_path: Path) -> None:
    directory = write_head(tmp_path / "head", EAGLE3, eagle3_tensors())
    code = (
        "import sys; from pathlib import Path; from specbench.engine.drafters.head_formats import read_head_config; "
        "print(read_head_config(Path(sys.argv[1])).draft_vocab_size, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(directory)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(DRAFT_VOCAB), "False"]
    assert json.loads((directory / "config.json").read_text())["draft_vocab_size"] == DRAFT_VOCAB
