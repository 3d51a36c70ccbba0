"""The files of a model's weights: what their headers say, and whether that fits its configuration. No torch here."""

from __future__ import annotations

from pathlib import Path

from specbench.engine.models.checkpoint import ModelLocation
from specbench.engine.models.config import ModelConfig
from specbench.engine.models.gguf_config import tensor_headers
from specbench.engine.models.gguf_header import read_header
from specbench.engine.models.hf_config import read_num_mtp_modules
from specbench.engine.models.pickle_header import find_pickles, read_pickle_headers
from specbench.engine.models.safetensors_header import find_safetensors, read_headers
from specbench.engine.models.tensor_header import TensorHeader, check_headers
from specbench.engine.models.tensor_shapes import layer_prefix, model_shapes
from specbench.registry import MODELS

_HERE = "specbench.engine.models."


def read_tensor_headers(directory: Path, *, integers: bool = False) -> dict[str, TensorHeader] | None:
    """Every tensor of the safetensors in ``directory``, or of its pickles; None where it has neither.

    :param integers: tensors of whole numbers are there as well.
    :raises CheckpointError: a file that is truncated, unreadable, or holds a type that is not supported.
    """
    if paths := find_safetensors(directory):
        return {name: stored.header for name, stored in read_headers(paths, integers=integers).items()}
    if paths := find_pickles(directory):
        return read_pickle_headers(paths, integers=integers)
    return None


def check_model_files(location: ModelLocation, config: ModelConfig) -> None:
    """Compare the weights of a model with its configuration, as loading does, without loading it.

    Nothing is compared where the weights are drawn or not here, and for a family of another package, which alone knows
    its tensors.

    :raises CheckpointError: files that are damaged, or tensors unlike the configuration.
    """
    if location.random or location.path is None or not MODELS[config.architecture].target.startswith(_HERE):
        return
    if location.kind == "gguf":
        found: dict[str, TensorHeader] | None = tensor_headers(read_header(location.path))
    else:
        found = read_tensor_headers(location.path)
    if found is not None:
        foreign = mtp_prefixes(location, config)
        check_headers(model_shapes(config), found, location.path, is_foreign=lambda name: name.startswith(foreign))


def mtp_prefixes(location: ModelLocation, config: ModelConfig) -> tuple[str, ...]:
    """What the names of prediction modules start with, which a checkpoint may carry behind the model's layers."""
    if location.kind != "directory" or location.path is None:
        return ()
    first = config.num_layers
    return tuple(layer_prefix(first + index) for index in range(read_num_mtp_modules(location.path)))
