"""What tells weights from others at little cost: their configuration, and the ends of their files. No torch here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.engine.models.checkpoint import ModelLocation
from specbench.engine.models.config import ModelConfig
from specbench.engine.models.pickle_header import find_pickles
from specbench.engine.models.safetensors_header import find_safetensors

if TYPE_CHECKING:
    from specbench.engine.drafters.head_config import HeadConfig

_END_BYTES = 1 << 20


def weight_files(location: ModelLocation) -> list[Path]:
    """Return the files the weights are read from; none for random weights."""
    if location.random or location.path is None:
        return []
    if location.kind == "gguf":
        return [location.path]
    return find_safetensors(location.path) or find_pickles(location.path)


def describe_configuration(config: ModelConfig | HeadConfig, seed: int | None = None) -> dict[str, Any]:
    """``config`` as JSON can hold it, and the ``seed`` of weights that are drawn with it."""
    return asdict(config) if seed is None else {**asdict(config), "random seed": seed}


def digest_weights(configuration: Mapping[str, Any], files: Iterable[Path]) -> str:
    """Return a hex digest that differs between different weights or configurations.

    Of each file it reads the first and the last MiB, and takes name and size.
    """
    digest = hashlib.sha256(json.dumps(configuration, sort_keys=True).encode())
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with open(path, "rb") as file:
            digest.update(file.read(_END_BYTES))
            file.seek(max(0, size - _END_BYTES))
            digest.update(file.read())
    return digest.hexdigest()


def compute_fingerprint(location: ModelLocation, config: ModelConfig | HeadConfig, seed: int) -> str:
    """Return the digest of a model or of a draft head; ``seed`` counts where its weights are random."""
    return digest_weights(describe_configuration(config, seed if location.random else None), weight_files(location))
