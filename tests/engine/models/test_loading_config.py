"""config.json of every family, as transformers writes it now and wrote it before, and what is refused."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.engine.config import ModelSpec
from specbench.engine.models.checkpoint import resolve_model_config
from specbench.engine.models.config import RopeScaling
from specbench.engine.models.hf_config import FAMILIES, parse_config, read_config_directory
from specbench.engine.models.hf_config_writer import to_hf_config
from specbench.errors import CheckpointError
from specbench.registry import MODELS, PRESETS

SIZES = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
BASE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", **SIZES}

# Published totals, to the parameter.
PUBLISHED_PARAMETERS = {
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b": 7_248_023_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
}


def save_config(directory, class_name, **values):
    """Write config.json with transformers; return what it holds."""
    architecture = class_name.replace("Config", "ForCausalLM")
    config = getattr(transformers, class_name)(**{**SIZES, **values})
    config.architectures = [architecture]
    config.save_pretrained(directory)
    return json.loads((directory / "config.json").read_text())


@pytest.mark.parametrize("name", sorted(PUBLISHED_PARAMETERS))
def test_presets_have_the_published_number_of_parameters(name):
    assert PRESETS.load(name).config.num_parameters == PUBLISHED_PARAMETERS[name]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_survive_config_json(name):
    config = PRESETS.load(name).config
    assert parse_config(to_hf_config(config), where="x") == config


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_transformers_reads_the_config_that_is_written(tmp_path, name):
    config = PRESETS.load(name).config
    (tmp_path / "config.json").write_text(json.dumps(to_hf_config(config)))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert theirs.architectures == [config.architecture]
    assert theirs.head_dim == config.head_dim if hasattr(theirs, "head_dim") else True
    assert theirs.num_key_value_heads == config.num_kv_heads
    assert theirs.rms_norm_eps == config.rms_norm_eps
    assert theirs.tie_word_embeddings == config.tie_word_embeddings
    assert (theirs.sliding_window if hasattr(theirs, "sliding_window") else None) == config.sliding_window
    rope = getattr(theirs, "rope_parameters", None) or {"rope_theta": theirs.rope_theta, **(theirs.rope_scaling or {})}
    assert rope["rope_theta"] == config.rope_theta
    assert (rope.get("factor") if config.rope_scaling else None) == (config.rope_scaling and config.rope_scaling.factor)


@pytest.mark.parametrize("class_name", ["LlamaConfig", "MistralConfig", "Qwen2Config", "Qwen3Config"])
def test_every_family_is_read_as_transformers_saves_it(tmp_path, class_name):
    written = save_config(tmp_path, class_name, rope_theta=5e4, eos_token_id=[5, 3], bos_token_id=1)
    config = read_config_directory(tmp_path)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert config.architecture == written["architectures"][0]
    assert config.num_kv_heads == 2
    assert config.head_dim == (getattr(theirs, "head_dim", None) or 8)
    assert config.rms_norm_eps == theirs.rms_norm_eps
    assert config.rope_theta == 5e4
    assert config.rope_scaling is None
    assert config.eos_token_ids == (3, 5)
    assert config.bos_token_id == 1
    assert config.sliding_window == theirs.sliding_window if class_name == "MistralConfig" else True
    assert config.attention_bias is (class_name == "Qwen2Config")
    assert config.attention_output_bias is False
    assert config.qk_norm is (class_name == "Qwen3Config")


def test_missing_keys_take_the_defaults_of_transformers():
    for architecture in MODELS:
        family = FAMILIES[architecture]
        config = {"architectures": [architecture], **SIZES, "hidden_size": 64, "num_attention_heads": 32}
        if family.is_hybrid:
            config |= {"num_experts": 0, "num_hidden_layers": 4}  # by default: experts, and one layer in four attends
        for key in ("num_key_value_heads", "max_position_embeddings"):
            del config[key]
        theirs = transformers.AutoConfig.for_model(family.model_type, **config)
        ours = parse_config(config, where="x")
        assert ours.num_kv_heads == theirs.num_key_value_heads
        assert ours.max_position_embeddings == theirs.max_position_embeddings
        assert ours.rms_norm_eps == theirs.rms_norm_eps
        assert ours.tie_word_embeddings == theirs.tie_word_embeddings
        assert ours.sliding_window == getattr(theirs, "sliding_window", None)


def test_llama3_scaling_in_both_spellings(tmp_path):
    expected = RopeScaling(8.0, 1.0, 4.0, 64)
    old = parse_config({**BASE, "rope_theta": 5e5, "rope_scaling": LLAMA3}, where="x")
    new = parse_config({**BASE, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}}, where="x")
    assert old.rope_scaling == new.rope_scaling == expected
    assert old.rope_theta == new.rope_theta == 5e5
    save_config(tmp_path, "LlamaConfig", rope_theta=5e5, rope_scaling=dict(LLAMA3))
    assert replace(read_config_directory(tmp_path), bos_token_id=None, eos_token_ids=()) == replace(
        new, eos_token_ids=(), rms_norm_eps=1e-6
    )


def test_llama_attention_bias_covers_the_output_and_qwen2_does_not():
    llama = parse_config({**BASE, "attention_bias": True, "mlp_bias": True}, where="x")
    assert (llama.attention_bias, llama.attention_output_bias, llama.mlp_bias) == (True, True, True)
    qwen2 = parse_config({**BASE, "architectures": ["Qwen2ForCausalLM"]}, where="x")
    assert (qwen2.attention_bias, qwen2.attention_output_bias, qwen2.mlp_bias) == (True, False, False)
    qwen3 = parse_config({**BASE, "architectures": ["Qwen3ForCausalLM"], "attention_bias": True}, where="x")
    assert (qwen3.attention_bias, qwen3.attention_output_bias) == (True, True)


def test_sliding_windows():
    def window(architecture, **values):
        return parse_config({**BASE, "architectures": [architecture], **values}, where="x").sliding_window

    assert window("MistralForCausalLM") == 4096
    assert window("MistralForCausalLM", sliding_window=None) is None
    assert window("Qwen2ForCausalLM", sliding_window=64) is None
    sliding = {"sliding_window": 64, "use_sliding_window": True}
    assert window("Qwen2ForCausalLM", **sliding, max_window_layers=1) == 64
    assert window("Qwen2ForCausalLM", **sliding, max_window_layers=2) is None
    assert window("Qwen3ForCausalLM", **sliding, layer_types=["full_attention", "sliding_attention"]) == 64


def test_end_tokens_come_from_both_configs_and_the_chat_template(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**BASE, "eos_token_id": 7}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    tokens = [{"id": 11, "content": "<|im_end|>"}, {"id": 12, "content": "<|im_start|>"}]
    tokenizer = {"version": "1.0", "added_tokens": tokens, "model": {"vocab": {}}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert read_config_directory(tmp_path).eos_token_ids == (7, 9, 11)


def test_a_broken_tokenizer_does_not_hide_the_configuration(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**BASE, "eos_token_id": 7}))
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [{"id": 1, "cont')
    assert read_config_directory(tmp_path).eos_token_ids == (7,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GptOssForCausalLM"]}, "GptOssForCausalLM is not supported; supported: LlamaForCausalLM"),
        ({"architectures": None, "model_type": "bert"}, "model_type 'bert' is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn' is not supported; supported: default, llama3"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({"rope_scaling": "linear"}, "must be an object"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "differ by layer"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor must be a positive number"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised (gptq)"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"hidden_size": None}, "key 'hidden_size' is missing"),
        ({"hidden_size": "32"}, "hidden_size must be a positive integer, found '32'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a positive integer"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a positive number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id"),
        ({"num_attention_heads": 3}, "hidden_size 32"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
    ],
)
def test_what_is_not_supported_is_named(change, message):
    with pytest.raises(CheckpointError) as caught:
        parse_config({**BASE, **change}, where="dir/config.json")
    assert message in str(caught.value)
    assert "dir/config.json" in str(caught.value)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 200) | st.floats() | st.text(max_size=5) | st.sampled_from([*MODELS]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*LLAMA3, "rope_theta"]), inner),
    max_leaves=5,
)
KEYS = [
    *to_hf_config(PRESETS.load("qwen3-8b").config),
    "rope_parameters",
    "quantization_config",
    "layer_types",
    "mlp_bias",
]


@settings(max_examples=300)
@given(
    start=st.sampled_from([*MODELS]),
    changes=st.dictionaries(st.sampled_from(KEYS), JSON_VALUES, min_size=1, max_size=4),
)
def test_any_configuration_is_read_or_refused(start, changes):
    config = {**to_hf_config(replace(PRESETS.load("tiny").config, architecture=start)), **changes}
    try:
        parsed = parse_config(config, where="x", generation={"eos_token_id": changes.get("eos_token_id")})
    except CheckpointError:
        return
    assert parsed.num_parameters > 0
    assert parsed.kv_bytes_per_token(2) > 0


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"'])
def test_a_damaged_config_is_one_error(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_config_directory(tmp_path)


def test_resolving_a_configuration_needs_no_torch(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    code = f"""
import sys
from specbench.engine.config import ModelSpec
from specbench.engine.models.checkpoint import find_model, resolve_model_config
assert resolve_model_config(ModelSpec("llama-3.1-8b")).num_layers == 32
assert resolve_model_config(ModelSpec({str(tmp_path)!r})).num_layers == 2
assert find_model(ModelSpec({str(tmp_path)!r}), weights=False).kind == "directory"
loaded = {{"torch", "transformers", "numpy", "gguf", "huggingface_hub"}} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_preset_resolves_before_it_is_pulled(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path))
    assert resolve_model_config(ModelSpec("smollm2-135m")) == PRESETS.load("smollm2-135m").config


HYBRID = to_hf_config(PRESETS.load("tiny-hybrid").config)


def test_a_hybrid_is_read_as_transformers_saves_it(tmp_path):
    save_config(tmp_path, "Qwen3NextConfig", num_experts=0, num_hidden_layers=8, head_dim=32, rope_theta=5e4)
    config = read_config_directory(tmp_path)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert config.linear_attention is not None
    assert list(config.linear_attention.layer_types) == theirs.layer_types
    assert config.num_kv_layers == 2
    assert config.linear_attention.num_value_heads == theirs.linear_num_value_heads
    assert (config.partial_rotary_factor, config.rotary_dim, config.rope_theta) == (0.25, 8, 5e4)
    assert config.qk_norm
    assert config.attention_output_gate
    assert config.zero_centered_norms


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts": 512}, "layers of 512 experts are not supported"),
        ({"num_experts": 4, "mlp_only_layers": [0, 1, 3]}, "layers of 4 experts are not supported"),
        ({"num_experts": 4, "mlp_only_layers": 3}, "mlp_only_layers must be a list of layers, found 3"),
        ({"layer_types": ["linear_attention"] * 4}, "no layer has full attention"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types must be 4 of full_attention or linear_attention"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types must be 4 of full_attention or linear_attention"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads 3 is not a multiple of linear_num_key_heads 2"),
        ({"partial_rotary_factor": 0}, "partial_rotary_factor must be above 0 and at most 1, found 0"),
        ({"partial_rotary_factor": 0.1}, "3 elements of each head are rotated"),
    ],
)
def test_what_a_hybrid_may_not_be_is_named(change, message):
    with pytest.raises(CheckpointError, match=message):
        parse_config({**HYBRID, **change}, where="x")


@pytest.mark.parametrize("change", [{"num_experts": 4, "mlp_only_layers": [0, 1, 2, 3]}, {"layer_types": None}])
def test_spellings_of_a_dense_hybrid(change):
    assert parse_config({**HYBRID, **change}, where="x") == PRESETS.load("tiny-hybrid").config


@settings(max_examples=200)
@given(changes=st.dictionaries(st.sampled_from([*HYBRID, "mlp_only_layers"]), JSON_VALUES, min_size=1, max_size=3))
def test_any_hybrid_configuration_is_read_or_refused(changes):
    try:
        parsed = parse_config({**HYBRID, **changes}, where="x")
    except CheckpointError:
        return
    assert parsed.num_parameters > 0
    assert parsed.kv_bytes_per_token(2) > 0
