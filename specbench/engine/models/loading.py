"""From a :class:`ModelSpec` to a model with its weights in place."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from specbench.engine.config import ModelSpec
from specbench.engine.models.checkpoint import ModelLocation, find_model
from specbench.engine.models.config import ModelConfig
from specbench.engine.models.fingerprint import compute_fingerprint
from specbench.engine.models.gguf_header import read_header
from specbench.engine.models.gguf_tokenizer import tokenizer_directory
from specbench.engine.models.gguf_weights import GgufSource
from specbench.engine.models.model_files import mtp_prefixes
from specbench.engine.models.pickle_header import find_pickles
from specbench.engine.models.pickle_weights import PickleSource
from specbench.engine.models.random_weights import RandomSource
from specbench.engine.models.safetensors_weights import SafetensorsSource, find_safetensors
from specbench.engine.models.tensor_source import TensorSource, check_finite, check_tensors
from specbench.errors import ModelNotFoundError, SpecbenchError
from specbench.registry import MODELS, PRESETS

if TYPE_CHECKING:
    from specbench.engine.models.base import CausalLM

_SMALL_MODEL_PARAMETERS = 1_000_000_000
_LARGE_SHARE = 16  # a tensor is large above this fraction of the model


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to run.

    :param source: what was loaded, for people: name and origin.
    :param fingerprint: hex digest that differs between different weights or configurations. It is cheap: file sizes and
        the first and last MiB of each weight file, or the seed.
    :param num_parameters: a tied head counted once.
    :param directory: where the tokenizer's files are; None where there are none.
    """

    model: CausalLM
    config: ModelConfig
    source: str
    fingerprint: str
    num_parameters: int
    directory: Path | None


def load_model(
    spec: ModelSpec, dtype: torch.dtype, device: torch.device, *, require_finite: bool = False
) -> LoadedModel:
    """Build the model of ``spec`` and fill it tensor by tensor, so that no second copy of the weights ever exists.

    :param require_finite: look at every number. A target's show in its logits, which the engine checks; what a draft
        model proposes is only rejected.
    :raises ModelNotFoundError: no such model, or it has not been pulled.
    :raises CheckpointError: files that are truncated, unreadable or unlike the configuration.
    """
    location = find_model(spec)
    config = location.read_config()
    model = build_model(config, dtype=dtype, device=device)
    with _threads_for(config), _open_source(location, config, spec.seed, model, dtype, device) as source:
        where, foreign = location.path or Path(location.source), mtp_prefixes(location, config)
        fill_model(model, source, where, foreign=foreign, finite_in=dtype if require_finite else None)
    return LoadedModel(
        model=model,
        config=config,
        source=location.source,
        fingerprint=compute_fingerprint(location, config, spec.seed),
        num_parameters=config.num_parameters,
        directory=_find_tokenizer(location),
    )


def load_shape(spec: ModelSpec, dtype: torch.dtype) -> LoadedModel:
    """Build the model of ``spec`` without weights or memory for them, for a device that computes nothing.

    A preset need not have been pulled; where it has, its tokenizer is there.

    :raises ModelNotFoundError: no such model.
    :raises CheckpointError: its configuration is unreadable or not supported.
    """
    location = _find_shape(spec)
    config = location.read_config()
    shape = json.dumps(asdict(config), sort_keys=True)
    return LoadedModel(
        model=build_model(config, dtype=dtype, device=torch.device("meta")),
        config=config,
        source=f"{spec.source}, weights not loaded",
        fingerprint=hashlib.sha256(f"{shape} without weights".encode()).hexdigest(),
        num_parameters=config.num_parameters,
        directory=_find_tokenizer(location),
    )


def _find_shape(spec: ModelSpec) -> ModelLocation:
    try:
        return find_model(spec, weights=False)
    except ModelNotFoundError:
        if spec.source not in PRESETS:
            raise
        return ModelLocation("preset", spec.source, None, PRESETS.load(spec.source))


@contextmanager
def _threads_for(config: ModelConfig) -> Iterator[None]:
    """Load a small model on one thread: it is limited by memory, and its tensors are small and many. Waking threads
    for each gains nothing on an idle machine and on a busy one waits for the slowest (7 s instead of 2, measured).
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1 if config.num_parameters < _SMALL_MODEL_PARAMETERS else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def build_model(config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> CausalLM:
    """Build the module of ``config.architecture`` with its weights allocated and not yet filled."""
    model_class = MODELS.load(config.architecture)
    model: CausalLM = model_class(config, dtype=dtype, device=device)
    return model


def fill_model(
    model: CausalLM,
    source: TensorSource,
    where: Path,
    *,
    foreign: tuple[str, ...] = (),
    finite_in: torch.dtype | None = None,
) -> None:
    """Copy every tensor the model expects out of ``source``.

    The largest go first: such a tensor is then in transit beside an empty model, and the peak of memory is not the
    whole model and its embedding once more. The rest go in the model's order, in which those packed together meet.

    :param foreign: what the names of tensors start with that are there for something else.
    :param finite_in: refuse numbers that are not finite in this type; None: do not look.
    :raises CheckpointError: see :func:`check_tensors` and :func:`check_finite`.
    """
    expected = model.expected_tensors()
    check_tensors(expected, source, where, is_foreign=lambda name: name.startswith(foreign))
    large = sum(map(math.prod, expected.values())) // _LARGE_SHARE
    sizes = {name: math.prod(shape) for name, shape in expected.items()}
    # The sort is stable.
    for name in sorted(expected, key=lambda name: -sizes[name] if sizes[name] > large else 0):
        tensor = source.read(name)
        if finite_in is not None:
            check_finite(name, tensor, source.file_of(name), finite_in)
        model.load_tensor(name, tensor)
    model.finish_loading()
    _return_freed_memory()


def _return_freed_memory() -> None:
    """Give back what the allocator keeps of tensors in transit: with glibc, a tenth of a small model."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):
        # Another allocator; nothing depends on it.
        return


def _open_source(
    location: ModelLocation,
    config: ModelConfig,
    seed: int,
    model: CausalLM,
    dtype: torch.dtype,
    device: torch.device,
) -> TensorSource:
    if location.random:
        return RandomSource(config, model.expected_tensors(), seed=seed, dtype=dtype, device=device)
    assert location.path is not None
    if location.kind == "gguf":
        return GgufSource(read_header(location.path), config, dtype)
    if paths := find_safetensors(location.path):
        return SafetensorsSource(paths)
    return PickleSource(find_pickles(location.path))


def _find_tokenizer(location: ModelLocation) -> Path | None:
    if location.kind != "gguf" or location.path is None:
        return location.path
    try:
        return tokenizer_directory(location.path)
    except SpecbenchError:
        # Random token workloads need none; the others report it when they ask for one.
        return None
