"""The tensors of a draft head, under canonical names and checked against its configuration.

Names are listed in :mod:`specbench.engine.drafters.head_shapes`. Files: safetensors, whole or in shards, or pickles
that hold tensors alone.
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
from specbench.engine.drafters.head_formats import with_own_tensors
from specbench.engine.drafters.head_location import find_head
from specbench.engine.drafters.head_names import MAPS, canonical_name, checkpoint_name
from specbench.engine.models.config import ModelConfig
from specbench.engine.models.pickle_header import find_pickles
from specbench.engine.models.pickle_weights import PickleSource
from specbench.engine.models.safetensors_weights import SafetensorsSource, find_safetensors
from specbench.engine.models.tensor_source import Shape, TensorSource, check_tensors
from specbench.errors import CheckpointError

_TRAINED_FOR = "check that config.json and the weights belong to the same head"


class HeadTensors:
    """A head's tensors, read one at a time. Use it in a ``with`` block: it may hold files open.

    :ivar config: the head's configuration, knowing which of the tensors that may be left out are here.
    :raises CheckpointError: missing, unexpected or differently shaped tensors.
    """

    def __init__(self, source: TensorSource, config: HeadConfig, directory: Path) -> None:
        self.config = with_own_tensors(config, source.shapes, where=str(directory))
        self.directory = directory
        self._source = source
        self._stored = self._find_names()
        self._check()

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Canonical name -> shape of every tensor, the maps included."""
        return {name: self._source.shapes[stored] for name, stored in self._stored.items()}

    def file_of(self, name: str) -> Path:
        """The file a tensor is in, for error messages."""
        return self._source.file_of(self._stored[name])

    def read(self, name: str) -> Tensor:
        """Return the tensor of a canonical name, in the type it is stored in, on the CPU.

        :raises CheckpointError: the file ends early or cannot be read.
        """
        return self._source.read(self._stored[name])

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor with its canonical name, one at a time."""
        for name in self._stored:
            yield name, self.read(name)

    def __enter__(self) -> HeadTensors:
        self._source.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.__exit__(kind, error, trace)

    def _find_names(self) -> dict[str, str]:
        """Canonical name -> name in the files."""
        found: dict[str, str] = {}
        for stored in self._source.shapes:
            name = canonical_name(stored, self.config)
            if name is None:
                continue
            if name in found:
                raise CheckpointError(
                    f"tensor {stored!r} is there as {found[name]!r} as well",
                    where=str(self._source.file_of(stored)),
                    hint="give a directory with one checkpoint in it",
                )
            found[name] = stored
        return found

    def _check(self) -> None:
        config = self.config
        expected = config.expected_tensors()
        sizes = {"d2t": config.draft_vocab_size, "t2d": config.vocab_size}
        expected |= {name: (sizes[name],) for name in MAPS if name in self._stored}
        names = {self._stored.get(name) or checkpoint_name(name, config): shape for name, shape in expected.items()}
        check_tensors(names, self._source, self.directory, is_foreign=lambda name: canonical_name(name, config) is None)
        if not config.has_embedding and config.decoder.hidden_size != config.target_hidden_size:
            raise CheckpointError(
                f"the head is {config.decoder.hidden_size} wide and the target {config.target_hidden_size}, so that it "
                "needs an embedding of its own, and embed_tokens.weight is missing",
                where=str(self.directory),
                hint=_TRAINED_FOR,
            )


def open_head(directory: Path, config: HeadConfig) -> HeadTensors:
    """Open the tensors of the head in ``directory``.

    :param config: as :func:`~specbench.engine.drafters.head_formats.read_head_config` reads it there.
    :raises CheckpointError: no weights, or files that are truncated, unreadable or unlike ``config``.
    """
    paths = find_safetensors(directory)
    if paths:
        return HeadTensors(SafetensorsSource(paths, integers=True), config, directory)
    pickles = find_pickles(directory)
    if not pickles:
        raise CheckpointError(
            "has a config.json but no weights (*.safetensors or pytorch_model*.bin)",
            where=str(directory),
            hint="fetch the head's weight files as well",
        )
    return HeadTensors(PickleSource(pickles), config, directory)


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


def load_head(kind: str, spec: DrafterSpec, target: ModelSpec, target_config: ModelConfig) -> LoadedHead:
    """Load the head that ``spec`` means for a target.

    :param kind: ``eagle3`` or ``mtp``.
    :raises InputError: no such head, or none ships for the target; see
        :func:`~specbench.engine.drafters.head_location.find_head`.
    :raises CheckpointError: files that are unreadable, unlike their configuration, or made for another target.
    """
    location = find_head(kind, spec.model, target)
    with open_head(location.directory, location.read_config(target_config)) as opened:
        vocabulary = read_vocabulary(opened)
        tensors = {name: tensor for name, tensor in opened.items() if name not in MAPS}
    return LoadedHead(opened.config, tensors, vocabulary, location.source)


def read_vocabulary(tensors: HeadTensors) -> Tensor | None:
    """:attr:`LoadedHead.vocabulary` of a checkpoint, checked.

    Checkpoints have it as ``d2t``, how far each id lies beyond its row (id = i + d2t[i]), or as ``t2d``, truth values
    that mark the ids in rising order, or as both.

    :raises CheckpointError: no map where one is needed, ids that the target does not have or that occur twice, or two
        maps that say different things.
    """
    config, where = tensors.config, str(tensors.directory)
    rows, vocab_size = config.draft_vocab_size, config.vocab_size
    marked = _marked(tensors) if "t2d" in tensors.shapes else None
    if "d2t" in tensors.shapes:
        ids = torch.arange(rows) + _whole(tensors, "d2t")
        _check_ids(ids, vocab_size, where)
        if marked is not None and not torch.equal(ids.sort().values, marked):
            raise CheckpointError("d2t and t2d name different tokens", where=where, hint=_TRAINED_FOR)
    elif marked is not None:
        ids = marked
    elif rows == vocab_size:
        return None
    else:
        what = f"draft_vocab_size is {rows} of {vocab_size} tokens, but neither d2t nor t2d says which"
        raise CheckpointError(what, where=where, hint=_TRAINED_FOR)
    return None if rows == vocab_size and torch.equal(ids, torch.arange(rows)) else ids


def _marked(tensors: HeadTensors) -> Tensor:
    """Ids that ``t2d`` marks, in rising order."""
    marks = _whole(tensors, "t2d")
    ids = marks.nonzero().squeeze(1)
    if len(ids) != tensors.config.draft_vocab_size:
        what = f"t2d marks {len(ids)} tokens, draft_vocab_size is {tensors.config.draft_vocab_size}"
        raise CheckpointError(what, where=str(tensors.file_of("t2d")), hint=_TRAINED_FOR)
    return ids


def _whole(tensors: HeadTensors, name: str) -> Tensor:
    values = tensors.read(name)
    if values.is_floating_point() or values.is_complex():
        what = f"{name} is stored as {str(values.dtype).removeprefix('torch.')}; it holds whole numbers"
        raise CheckpointError(what, where=str(tensors.file_of(name)), hint=_TRAINED_FOR)
    return values.to(torch.int64)


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
        raise CheckpointError("d2t gives several rows the same token", where=where, hint=_TRAINED_FOR)
