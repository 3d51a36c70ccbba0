"""The tensors that the files of a draft head hold, under canonical names and held against its configuration.

Names, shapes and types alone, read off the headers of safetensors or pickles: no torch here. A scenario is checked by
this, and a head is loaded by it. Names are listed in :mod:`specbench.engine.drafters.head_shapes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.engine.drafters.head_config import HeadConfig
from specbench.engine.drafters.head_names import MAPS, MODULES, canonical_name, checkpoint_name, module_of
from specbench.engine.models.tensor_header import TensorHeader, check_headers
from specbench.errors import CheckpointError

SAME_HEAD = "check that config.json and the weights belong to the same head"
INPUT_NORM = "input_norm.weight"
WEIGHTED_NORM = (
    f"norm_before_fc has a norm with weights over all hidden states here ({INPUT_NORM}), which is not supported; "
    "supported: none, or one without weights for each hidden state"
)


@dataclass(frozen=True)
class HeadFiles:
    """What the files hold, which is what the configuration calls for.

    :param config: the head's configuration, knowing which of the tensors that may be left out are here.
    :param names: canonical name -> name in the files, the maps included.
    :param headers: canonical name -> file, type and shape.
    """

    directory: Path
    config: HeadConfig
    names: Mapping[str, str]
    headers: Mapping[str, TensorHeader]


def check_head_files(config: HeadConfig, stored: Mapping[str, TensorHeader], directory: Path) -> HeadFiles:
    """Compare the tensors of a head's files with its configuration.

    :param stored: every tensor under its name in the files.
    :raises CheckpointError: missing, unexpected or differently shaped tensors, numbers of another kind, or a tensor
        that says that the head computes something else.
    """
    if config.kind == "eagle3" and INPUT_NORM in stored:
        raise CheckpointError(WEIGHTED_NORM, where=str(directory))
    names = _find_names(config, stored)
    config = _with_own_tensors(config, names)
    _check_modules(config, names, directory)
    expected = config.expected_tensors()
    sizes = {"d2t": config.draft_vocab_size, "t2d": config.vocab_size}
    expected |= {name: (sizes[name],) for name in MAPS if name in names}
    shown = {name: checkpoint_name(name, config, names) for name in expected}
    check_headers(
        {shown[name]: shape for name, shape in expected.items()},
        {name: stored[name] for name in names.values()},
        directory,
        hint=SAME_HEAD,
        whole=MAPS,
    )
    _check_left_out(config, names, directory)
    return HeadFiles(directory, config, names, {name: stored[found] for name, found in names.items()})


def _find_names(config: HeadConfig, stored: Mapping[str, TensorHeader]) -> dict[str, str]:
    """Canonical name -> name in the files; what is there for something else is left out."""
    found: dict[str, str] = {}
    for name, header in stored.items():
        canonical = canonical_name(name, config)
        if canonical is None:
            continue
        if canonical in found:
            raise CheckpointError(
                f"tensor {name!r} is there as {found[canonical]!r} as well",
                where=str(header.path),
                hint="give a directory with one checkpoint in it",
            )
        found[canonical] = name
    return found


def _with_own_tensors(config: HeadConfig, names: Mapping[str, str]) -> HeadConfig:
    has_lm_head = config.kind == "eagle3" or any(name.endswith(".lm_head.weight") for name in names)
    has_embedding = any(name.endswith("embed_tokens.weight") for name in names)
    return replace(config, has_embedding=has_embedding, has_lm_head=has_lm_head)


def _check_modules(config: HeadConfig, names: Mapping[str, str], directory: Path) -> None:
    """Whole modules that are not there are one mistake, not one for each of their tensors."""
    if config.kind != "mtp":
        return
    held = {module_of(name) for name in names if name.startswith(MODULES)}
    missing = [index for index in range(config.num_modules) if index not in held]
    if missing:
        first = checkpoint_name(f"{MODULES}{missing[0]}.*", config, names)
        raise CheckpointError(
            f"num_nextn_predict_layers is {config.num_modules} in config.json, and the files hold "
            f"{config.num_modules - len(missing)} of these modules: there is no {first}",
            where=str(directory),
            hint=SAME_HEAD,
        )


def _check_left_out(config: HeadConfig, names: Mapping[str, str], directory: Path) -> None:
    """Tensors that may be left out, where what takes their place does not do."""
    hidden, rows, vocab_size = config.decoder.hidden_size, config.draft_vocab_size, config.vocab_size
    if not config.has_embedding and hidden != config.target_hidden_size:
        raise CheckpointError(
            f"the head is {hidden} wide and the target {config.target_hidden_size}, so that it needs an embedding of "
            "its own, and embed_tokens.weight is missing",
            where=str(directory),
            hint=SAME_HEAD,
        )
    if rows != vocab_size and not any(name in names for name in MAPS):
        what = f"draft_vocab_size is {rows} of {vocab_size} tokens, but neither d2t nor t2d says which"
        raise CheckpointError(what, where=str(directory), hint=SAME_HEAD)
