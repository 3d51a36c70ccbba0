"""The tensors of a draft head under canonical names, and its vocabulary.

Names are listed in :mod:`specbench.engine.drafters.head_shapes`. Files: safetensors, whole or in shards, or pickles
that hold tensors alone; :mod:`specbench.engine.drafters.head_files` compares them with the configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from specbench.engine.config import DrafterSpec, ModelSpec
from specbench.engine.drafters.head_config import HeadConfig
from specbench.engine.drafters.head_files import SAME_HEAD, HeadFiles, check_head_files
from specbench.engine.drafters.head_location import find_head, in_drafter_model
from specbench.engine.drafters.head_names import MAPS
from specbench.engine.models.config import ModelConfig
from specbench.engine.models.model_files import read_tensor_headers
from specbench.engine.models.pickle_header import find_pickles
from specbench.engine.models.pickle_weights import PickleSource
from specbench.engine.models.safetensors_weights import SafetensorsSource, find_safetensors
from specbench.engine.models.tensor_header import Shape
from specbench.engine.models.tensor_source import TensorSource, check_finite
from specbench.errors import CheckpointError


class HeadTensors:
    """A head's tensors, read one at a time. Use it in a ``with`` block: it may hold files open.

    :param files: what ``source`` holds.
    """

    def __init__(self, source: TensorSource, files: HeadFiles) -> None:
        self.files = files
        self._source = source

    @property
    def config(self) -> HeadConfig:
        """The head's configuration, knowing which of the tensors that may be left out are here."""
        return self.files.config

    @property
    def directory(self) -> Path:
        """Where the files are, for error messages."""
        return self.files.directory

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Canonical name -> shape of every tensor, the maps included."""
        return {name: header.shape for name, header in self.files.headers.items()}

    def file_of(self, name: str) -> Path:
        """The file a tensor is in, for error messages."""
        return self.files.headers[name].path

    def read(self, name: str) -> Tensor:
        """Return the tensor of a canonical name, in the type it is stored in, on the CPU.

        :raises CheckpointError: the file ends early or cannot be read.
        """
        return self._source.read(self.files.names[name])

    def read_weights(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return every tensor but the maps by its canonical name, as :meth:`read` does.

        :param dtype: what they will be computed in.
        :raises CheckpointError: a number that is not finite in ``dtype``: a head would only draft what is rejected.
        """
        weights = {name: tensor for name, tensor in self.items() if name not in MAPS}
        for name, tensor in weights.items():
            check_finite(self.files.names[name], tensor, self.file_of(name), dtype)
        return weights

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor with its canonical name, one at a time."""
        for name in self.files.names:
            yield name, self.read(name)

    def __enter__(self) -> HeadTensors:
        self._source.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.__exit__(kind, error, trace)


def open_head(directory: Path, config: HeadConfig) -> HeadTensors:
    """Open the tensors of the head in ``directory``.

    :param config: as :func:`~specbench.engine.drafters.head_formats.read_head_config` reads it there.
    :raises CheckpointError: no weights, or files that are truncated, unreadable or unlike ``config``.
    """
    stored = read_tensor_headers(directory, integers=True)
    if stored is None:
        raise CheckpointError(
            "has a config.json but no weights (*.safetensors or pytorch_model*.bin)",
            where=str(directory),
            hint="fetch the head's weight files as well",
        )
    files, paths = check_head_files(config, stored, directory), find_safetensors(directory)
    source = SafetensorsSource(paths, integers=True) if paths else PickleSource(find_pickles(directory), integers=True)
    return HeadTensors(source, files)


@dataclass(frozen=True)
class LoadedHead:
    """A head in memory.

    :param source: what was loaded, for people.
    :param tensors: by canonical name, in the types they are stored in, on the CPU; the maps are not among them.
    :param vocabulary: the target's id of each row of the head's logits, [draft_vocab_size] int64 on the CPU; None where
        row i is id i.
    """

    config: HeadConfig
    tensors: dict[str, Tensor]
    vocabulary: Tensor | None = None
    source: str = ""


def load_head(
    kind: str, spec: DrafterSpec, target: ModelSpec, target_config: ModelConfig, dtype: torch.dtype
) -> LoadedHead:
    """Load the head that ``spec`` means for a target.

    :param kind: ``eagle3`` or ``mtp``.
    :param dtype: what it will compute in.
    :raises InputError: no such head, or none ships for the target; see
        :func:`~specbench.engine.drafters.head_location.find_head`.
    :raises CheckpointError: files that are unreadable, unlike their configuration, or made for another target; or
        weights that are not finite.
    """
    with in_drafter_model():
        location = find_head(kind, spec.model, target)
        with open_head(location.directory, location.read_config(target_config)) as opened:
            vocabulary = read_vocabulary(opened)
            tensors = opened.read_weights(dtype)
    return LoadedHead(opened.config, tensors, vocabulary, location.source)


def read_vocabulary(tensors: HeadTensors) -> Tensor | None:
    """:attr:`LoadedHead.vocabulary` of a checkpoint, checked.

    Checkpoints have it as ``d2t``, how far each id lies beyond its row (id = i + d2t[i]), or as ``t2d``, truth values
    that mark the ids in rising order, or as both.

    :raises CheckpointError: ids that the target does not have or that occur twice, or two maps that say different
        things.
    """
    config, where = tensors.config, str(tensors.directory)
    rows, vocab_size = config.draft_vocab_size, config.vocab_size
    marked = _marked(tensors) if "t2d" in tensors.shapes else None
    if "d2t" in tensors.shapes:
        ids = torch.arange(rows) + _whole(tensors, "d2t")
        _check_ids(ids, vocab_size, where)
        if marked is not None and not torch.equal(ids.sort().values, marked):
            raise CheckpointError("d2t and t2d name different tokens", where=where, hint=SAME_HEAD)
    elif marked is not None:
        ids = marked
    else:
        # Where rows are not ids, a head without a map was refused by its names.
        return None
    return None if rows == vocab_size and torch.equal(ids, torch.arange(rows)) else ids


def _marked(tensors: HeadTensors) -> Tensor:
    """Ids that ``t2d`` marks, in rising order."""
    marks = _whole(tensors, "t2d")
    ids = marks.nonzero().squeeze(1)
    if len(ids) != tensors.config.draft_vocab_size:
        what = f"t2d marks {len(ids)} tokens, draft_vocab_size is {tensors.config.draft_vocab_size}"
        raise CheckpointError(what, where=str(tensors.file_of("t2d")), hint=SAME_HEAD)
    return ids


def _whole(tensors: HeadTensors, name: str) -> Tensor:
    return tensors.read(name).to(torch.int64)


def _check_ids(ids: Tensor, vocab_size: int, where: str) -> None:
    wrong = ((ids < 0) | (ids >= vocab_size)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise CheckpointError(
            f"d2t gives row {row} the token {int(ids[row])}; the target has 0 to {vocab_size - 1}",
            where=where,
            hint="d2t holds each id's distance from its row, not the id itself",
        )
    in_order = ids.sort().values
    if bool((in_order[1:] == in_order[:-1]).any()):
        raise CheckpointError("d2t gives several rows the same token", where=where, hint=SAME_HEAD)
