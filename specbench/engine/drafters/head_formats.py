"""``config.json`` of a draft head -> :class:`HeadConfig`, in the namings that are in use. No torch here.

- EAGLE-3 as its authors and most trainers publish it: a Llama or Qwen3 config of one layer with ``draft_vocab_size``;
  optional ``target_hidden_size``, ``norm_before_residual``, and ``eagle_aux_hidden_state_layer_ids`` at the top or in
  ``eagle_config``. Own extension: ``norm_before_fc``.
- speculators: ``speculators_model_type: eagle3``, the layer in ``transformer_layer_config``.
- MTP as DeepSeek names it, ``num_nextn_predict_layers`` modules behind ``num_hidden_layers`` layers: in a directory of
  their own (``LlamaForCausalLMMTP``; own extension: ``draft_vocab_size``), or in the target's own checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from specbench.engine.drafters.head_config import LAYER_IDS, HeadConfig
from specbench.engine.drafters.head_files import WEIGHTED_NORM, check_head_files
from specbench.engine.models.config import ModelConfig
from specbench.engine.models.config_reader import ConfigReader
from specbench.engine.models.hf_config import FAMILIES, parse_config, parse_num_mtp_modules, read_json_object
from specbench.engine.models.model_files import read_tensor_headers
from specbench.errors import CheckpointError

SUPPORTED = (
    "EAGLE-3 (LlamaForCausalLMEagle3, LlamaForCausalLM with draft_vocab_size, speculators' eagle3), "
    "MTP modules (LlamaForCausalLMMTP, or a target with num_nextn_predict_layers)"
)
_SUFFIXES = ("Eagle3", "MTP")
_OTHER_NORMS = ("fc_norm", "norm_output")


def read_head_config(directory: Path, target: ModelConfig | None = None) -> HeadConfig:
    """Read the configuration of the head in ``directory``, and compare the headers of its files with it.

    Whether it has an embedding or a head of its own is read off the names in the files, safetensors or pickles, of
    which no numbers are read. Where no weights are here, as of a hub id whose configuration alone was fetched, both are
    taken to be there, so that what it takes in memory is the most that it can be.

    :param target: refuse a head that was made for another model.
    :raises CheckpointError: unreadable, incomplete, of a family that is not supported, or unlike ``target``; or files
        with other tensors than the configuration calls for.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise CheckpointError("has no config.json", where=str(directory), hint="give the directory of a draft head")
    keys = read_json_object(path)
    config = parse_head_config(keys, where=str(path))
    if target is not None:
        config.check_target(target, directory, listed_layers(keys, where=str(path)))
    stored = read_tensor_headers(directory, integers=True)
    if stored is None:
        return replace(config, has_embedding=True, has_lm_head=True)
    return check_head_files(config, stored, directory).config


def parse_head_config(config: Mapping[str, Any], *, where: str) -> HeadConfig:
    """Translate the keys of a ``config.json``; ``where`` names it in errors.

    :raises CheckpointError: as :func:`read_head_config`.
    """
    kind = config.get("speculators_model_type")
    if kind is not None:
        if kind != "eagle3":
            raise _unsupported(f"speculators_model_type {kind!r}", where)
        return _parse_eagle3(config, _speculators_layer(config, where), where)
    architecture = _architecture(config)
    if parse_num_mtp_modules(config, where=where) or architecture.endswith("MTP"):
        return _parse_mtp(config, architecture, where)
    if "draft_vocab_size" in config or architecture.endswith("Eagle3"):
        return _parse_eagle3(config, _with_family(config, architecture, where), where)
    raise _unsupported(f"architecture {architecture or 'unknown'} without draft_vocab_size", where)


def _parse_eagle3(config: Mapping[str, Any], layer: Mapping[str, Any], where: str) -> HeadConfig:
    """:param layer: the keys of the decoder layer, of a family that :func:`parse_config` knows."""
    reader = ConfigReader(config, {}, where)
    eagle = _object(reader, "eagle_config")
    for name in _OTHER_NORMS:
        if reader.boolean(name) or eagle.boolean(name):
            raise reader.fail(f"{name} is not supported; supported: false")
    if eagle.boolean("norm_before_fc"):
        raise reader.fail(f"eagle_config: {WEIGHTED_NORM}")
    if eagle.get("use_aux_hidden_state") is False:
        raise reader.fail("eagle_config.use_aux_hidden_state is false: EAGLE-3 fuses several hidden states")
    decoder = _one_layer(parse_config(layer, where=where), layer, reader)
    return HeadConfig(
        kind="eagle3",
        decoder=decoder,
        target_hidden_size=reader.integer("target_hidden_size", decoder.hidden_size),
        vocab_size=decoder.vocab_size,
        draft_vocab_size=_draft_vocab_size(reader, decoder),
        hidden_layers=_hidden_layers(listed_layers(config, where=where)),
        norm_before_fc=reader.boolean("norm_before_fc"),
        norm_before_residual=reader.boolean("norm_before_residual"),
    )


def _speculators_layer(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    reader = ConfigReader(config, {}, where)
    if reader.boolean("norm_before_fc"):
        raise reader.fail(WEIGHTED_NORM)
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise reader.fail(f"transformer_layer_config must be an object, found {layer!r}")
    # The layer's own name of a class says nothing: the family is model_type.
    return {key: value for key, value in layer.items() if key != "architectures"}


def _parse_mtp(config: Mapping[str, Any], architecture: str, where: str) -> HeadConfig:
    reader = ConfigReader(config, {}, where)
    num_modules = reader.integer("num_nextn_predict_layers")
    decoder = parse_config(_with_family(config, architecture, where), where=where)
    if decoder.has_recurrent_state:
        raise reader.fail(f"modules of {decoder.architecture} are not supported")
    in_target = not architecture.endswith("MTP")
    return HeadConfig(
        kind="mtp",
        decoder=replace(decoder, num_layers=num_modules),
        target_hidden_size=decoder.hidden_size,
        vocab_size=decoder.vocab_size,
        draft_vocab_size=decoder.vocab_size if in_target else _draft_vocab_size(reader, decoder),
        num_modules=num_modules,
        has_lm_head=False,
        first_layer=decoder.num_layers,
        in_target=in_target,
    )


def _one_layer(decoder: ModelConfig, layer: Mapping[str, Any], reader: ConfigReader) -> ModelConfig:
    if decoder.num_layers != 1:
        raise reader.fail(f"a head of {decoder.num_layers} layers is not supported; supported: 1")
    types = layer.get("layer_types")
    slides = isinstance(types, list) and "sliding_attention" in types and layer.get("sliding_window")
    if slides or decoder.sliding_window is not None:
        raise reader.fail("a head with sliding-window attention is not supported")
    if decoder.has_recurrent_state:
        raise reader.fail(f"a head of {decoder.architecture} layers is not supported")
    return decoder


def _draft_vocab_size(reader: ConfigReader, decoder: ModelConfig) -> int:
    size = reader.integer("draft_vocab_size", decoder.vocab_size)
    if size > decoder.vocab_size:
        raise reader.fail(f"draft_vocab_size {size} is larger than the target's vocabulary, {decoder.vocab_size}")
    return size


def _hidden_layers(listed: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The listed hidden states, as indices that count the embedding as 0.

    Two conventions are in use under one name: the input of layer i, and the output of layer i, which is one less. The
    default's first is 2 in the one and 1 in the other, and no head reads what lies before it: a list that begins with 1
    is of the second kind (https://github.com/sgl-project/sglang/pull/25454).
    """
    return tuple(index + 1 for index in listed) if listed and listed[0] == 1 else listed


def listed_layers(config: Mapping[str, Any], *, where: str) -> tuple[int, ...] | None:
    """The numbers of ``eagle_aux_hidden_state_layer_ids`` as they are written; None where a head lists none.

    :raises CheckpointError: it is no list of numbers.
    """
    reader = ConfigReader(config, {}, where)
    ids = reader.get(LAYER_IDS)
    ids = _object(reader, "eagle_config").get(LAYER_IDS) if ids is None else ids
    if ids is None:
        return None
    if (
        not isinstance(ids, list)
        or not ids
        or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids)
    ):
        raise reader.fail(f"{LAYER_IDS} must be a list of layer numbers that is not empty, found {ids!r}")
    return tuple(ids)


def _object(reader: ConfigReader, key: str) -> ConfigReader:
    value = reader.get(key)
    if value is not None and not isinstance(value, dict):
        raise reader.fail(f"{key} must be an object, found {value!r}")
    return ConfigReader(value or {}, {}, f"{reader.where}: {key}")


def _architecture(config: Mapping[str, Any]) -> str:
    named = config.get("architectures")
    names = named if isinstance(named, list) else [named]
    return str(names[0]) if names and names[0] else ""


def _with_family(config: Mapping[str, Any], architecture: str, where: str) -> dict[str, Any]:
    """``config`` with an architecture that :func:`parse_config` knows, or none, so that ``model_type`` decides."""
    base = architecture
    for suffix in _SUFFIXES:
        base = base.removesuffix(suffix).removeprefix(suffix)
    others = {key: value for key, value in config.items() if key != "architectures"}
    if base in FAMILIES:
        return {**others, "architectures": [base]}
    if config.get("model_type") in {family.model_type for family in FAMILIES.values()}:
        return others
    raise _unsupported(f"architecture {architecture or 'unknown'}", where)


def _unsupported(found: str, where: str) -> CheckpointError:
    return CheckpointError(
        f"is no draft head that is supported: {found}; supported: {SUPPORTED}",
        where=where,
        hint="a whole small model is drafter: draft_model",
    )
