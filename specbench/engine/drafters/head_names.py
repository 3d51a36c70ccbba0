"""A draft head's tensors: their names in checkpoints and their canonical ones. No torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping

from specbench.engine.drafters.head_config import HeadConfig

MAPS = ("d2t", "t2d")
MIDLAYER = "midlayer."
MODULES = "modules."
_MTP_NAME = re.compile(r"(?:model\.)?layers\.(\d+)\.(.+)")
_SHARED_HEAD = {"shared_head.norm.weight": "norm.weight", "shared_head.head.weight": "lm_head.weight"}
_IGNORED = ("verifier_lm_head.", "verifier_norm.")
"""What training leaves in a checkpoint of speculators: the target's own."""
_BUFFERS = ("rotary_emb.inv_freq",)


def canonical_name(name: str, config: HeadConfig) -> str | None:
    """The canonical name of a tensor, None for one that is not the head's. What is unknown keeps its name."""
    if name in MAPS:
        return name
    if name.endswith(_BUFFERS):
        return None
    return _eagle3_name(name) if config.kind == "eagle3" else _mtp_name(name, config)


def _eagle3_name(name: str) -> str | None:
    bare = name.removeprefix("model.")
    if bare.startswith(_IGNORED):
        return None
    return f"{MIDLAYER}{bare.removeprefix('layers.0.')}" if bare.startswith("layers.0.") else bare


def _mtp_name(name: str, config: HeadConfig) -> str | None:
    match = _MTP_NAME.fullmatch(name)
    module = -1 if match is None else int(match[1]) - (config.first_layer or 0)
    if match is None or not 0 <= module < config.num_modules:
        return None if config.in_target else name
    return f"{MODULES}{module}.{_SHARED_HEAD.get(match[2], match[2])}"


def module_of(name: str) -> int:
    """The number of the module that a canonical ``name`` is of."""
    return int(name.split(".", 2)[1])


def checkpoint_name(name: str, config: HeadConfig, stored: Mapping[str, str]) -> str:
    """What a tensor of the canonical ``name`` is called in the files, or would be where it is missing, for messages.

    :param stored: canonical name -> name in the files, of the tensors that are there.
    """
    if name in stored:
        return stored[name]
    if config.kind == "eagle3" or name in MAPS:
        beside = [found.removesuffix(own.removeprefix(MIDLAYER)) for own, found in stored.items() if _is_layer(own)]
        return f"{beside[0]}{name.removeprefix(MIDLAYER)}" if beside and _is_layer(name) else name
    rest = name.split(".", 2)[2]
    shared = {canonical: stored for stored, canonical in _SHARED_HEAD.items()}
    prefix = "" if any(found.startswith("layers.") for found in stored.values()) else "model."
    return f"{prefix}layers.{(config.first_layer or 0) + module_of(name)}.{shared.get(rest, rest)}"


def _is_layer(name: str) -> bool:
    return name.startswith(MIDLAYER)
