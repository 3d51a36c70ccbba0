"""What ``drafter.model`` means: the files of a draft head or of a draft model. No torch here.

For a head (eagle3, mtp): a name of ``specbench list heads``, a directory or a hub id; None is the head that ships for
the target, and for mtp the modules that the target's own checkpoint carries come first. For draft_model: any source of
a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specbench.downloads import DownloadError
from specbench.engine.config import RANDOM_PREFIX, ModelSpec
from specbench.engine.drafters.head_config import HeadConfig
from specbench.engine.drafters.head_formats import read_head_config
from specbench.engine.drafters.heads import Head
from specbench.engine.models.checkpoint import (
    WEIGHT_PATTERNS,
    existing_path,
    find_model,
    find_on_hub,
    has_weights,
    looks_like_hub_id,
)
from specbench.engine.models.config import ModelConfig
from specbench.engine.models.hf_config import read_num_mtp_modules
from specbench.engine.models.presets import Preset
from specbench.errors import CheckpointError, InputError, ModelNotFoundError, SpecbenchError, nearest_hint
from specbench.registry import HEADS, PRESETS

KEY = "drafter.model"
DRAFT_MODEL = "draft_model"


@dataclass(frozen=True)
class HeadLocation:
    """A head that was found.

    :param source: what to print: its name, or where it is.
    :param directory: of ``config.json`` and weights; the target's own for modules that it carries.
    """

    drafter: str
    source: str
    directory: Path

    def read_config(self, target: ModelConfig) -> HeadConfig:
        """Read the head's configuration.

        :raises CheckpointError: unreadable, for another drafter, or made for another target.
        """
        config = read_head_config(self.directory, target)
        if config.kind != self.drafter:
            raise CheckpointError(
                f"is a head for {config.kind}, and the drafter is {self.drafter}",
                where=f"{KEY}: {self.source}",
                hint=f"set drafter.name to {config.kind}, or choose another head: specbench list heads",
            )
        return config


def find_head(drafter: str, model: str | None, target: ModelSpec, *, weights: bool = True) -> HeadLocation:
    """Find the files of a head.

    :param drafter: ``eagle3`` or ``mtp``.
    :param model: ``drafter.model``.
    :param weights: False: the configuration is enough, and a hub is asked for no more.
    :raises InputError: nothing ships for the target, or the name is another drafter's.
    :raises ModelNotFoundError: nothing by that name; the message says what to try.
    """
    if model is None:
        return _find_default(drafter, target)
    if model in HEADS:
        return _find_shipped(drafter, model)
    if model in PRESETS or model.startswith(RANDOM_PREFIX):
        raise InputError(
            f"{model} is a whole model, and {drafter} needs a draft head",
            where=KEY,
            hint="a name of `specbench list heads`, a directory or a hub id of a head; or drafter: draft_model",
        )
    return _find_files(drafter, model, weights)


def _find_files(drafter: str, model: str, weights: bool) -> HeadLocation:
    """A directory, else a hub id."""
    path = existing_path(model)
    if path is not None:
        return HeadLocation(drafter, model, _inspect_path(path, model))
    if not looks_like_hub_id(model):
        raise ModelNotFoundError(
            f"no head {model!r}: it is none that ships ({', '.join(HEADS)}), no directory, and no hub id",
            where=KEY,
            hint=nearest_hint(model, HEADS) or "a directory with config.json and weights, or organisation/name",
        )
    try:
        location = find_on_hub(ModelSpec(model), weights=weights)
    except DownloadError as error:
        what = f"no head or directory {model!r}, and {error.what}"
        raise ModelNotFoundError(what, where=KEY, hint=error.hint) from None
    assert location.path is not None
    return HeadLocation(drafter, location.source, _inspect_path(location.path, location.source, weights))


def _inspect_path(path: Path, source: str, weights: bool = True) -> Path:
    """``path``, where it is the directory of a head.

    :param weights: they have to be there.
    """
    where = f"{KEY}: {source}"
    if path.suffix == ".gguf" and path.is_file():
        raise CheckpointError("is a GGUF file, which holds no draft head", where=where, hint="give a head's directory")
    if not path.is_dir():
        raise ModelNotFoundError(
            "is a file", where=where, hint="give the directory that config.json and weights are in"
        )
    if not (path / "config.json").is_file():
        raise ModelNotFoundError("has no config.json", where=where, hint="give the directory of a draft head")
    if weights and not has_weights(path):
        raise ModelNotFoundError(
            f"has a config.json but no weights ({' or '.join(WEIGHT_PATTERNS)})",
            where=where,
            hint="fetch the head's weight files as well",
        )
    return path


@contextmanager
def in_drafter_model() -> Iterator[None]:
    """Say of what is refused inside that ``drafter.model`` named it, unless another key of the drafter is said."""
    try:
        yield
    except InputError as error:
        if error.where is not None and error.where.startswith("drafter."):
            raise
        where = KEY if error.where is None else f"{KEY}: {error.where}"
        raise type(error)(error.what, where=where, hint=error.hint) from None


def find_draft_model(model: str | None) -> ModelSpec:
    """The model that the drafter draft_model runs.

    :param model: ``drafter.model``: what ``model.source`` may be.
    :raises InputError: it is missing.
    """
    if model is None:
        raise InputError(
            "is missing: draft_model drafts with a model of its own",
            where=KEY,
            hint="a preset, a directory, a .gguf file or a hub id of a small model with the target's tokenizer",
        )
    source = model.removeprefix(RANDOM_PREFIX)
    is_random = source != model or (source in PRESETS and not PRESETS.load(source).has_weights)
    return ModelSpec(source, "random" if is_random else "auto")


def check_draft_model(draft: ModelConfig, target: ModelConfig, max_seq_len: int | None = None) -> None:
    """Refuse a draft model that cannot read every sequence of the target.

    :param max_seq_len: tokens of the longest; None: not known yet.
    :raises InputError: it lacks tokens or positions of the target, or keeps recurrent state.
    """
    if draft.vocab_size < target.vocab_size:
        raise InputError(
            f"the draft model has {draft.vocab_size} tokens and the target {target.vocab_size}; allowed: as many or "
            "more",
            where=KEY,
            hint="choose a smaller model of the target's family, with the same tokenizer",
        )
    if draft.has_recurrent_state:
        raise InputError(
            "the draft model keeps recurrent state, which is not supported; supported: attention layers alone",
            where=KEY,
            hint="choose a model of the Llama family",
        )
    limit = min(draft.max_position_embeddings, draft.sliding_window or draft.max_position_embeddings)
    if max_seq_len is not None and max_seq_len > limit:
        raise InputError(
            f"the draft model reads {limit} positions, and engine.max_seq_len is {max_seq_len}",
            where=KEY,
            hint=f"set engine.max_seq_len to {limit} or less, or choose another draft model",
        )


def default_head(drafter: str, target: ModelSpec) -> str | None:
    """The name of the head that ships for ``target``, as a preset or by its hub id; None where none does."""
    names = [name for name in PRESETS if target.source in (name, _hub_id(name))]
    for name in HEADS:
        head: Head = HEADS.load(name)
        if head.drafter == drafter and head.target in names:
            return name
    return None


def _hub_id(preset_name: str) -> str | None:
    preset: Preset = PRESETS.load(preset_name)
    return preset.hub_id


def _find_default(drafter: str, target: ModelSpec) -> HeadLocation:
    if drafter == "mtp" and (own := _own_modules(target)) is not None:
        return own
    name = default_head(drafter, target)
    if name is None:
        heads = {name: HEADS.load(name) for name in HEADS}
        ships = [f"{name} for {head.target}" for name, head in heads.items() if head.drafter == drafter]
        also = ", and its checkpoint carries no modules" if drafter == "mtp" else ""
        raise InputError(
            f"no {drafter} head ships for {target.source}{also}; there is {' and '.join(ships) or 'none'}",
            where=KEY,
            hint="a directory or a hub id of a head that was trained for this model, or drafter: ngram",
        )
    return _find_shipped(drafter, name)


def _own_modules(target: ModelSpec) -> HeadLocation | None:
    """The target's own checkpoint where it carries modules; None where it does not, or is not here."""
    if target.source in PRESETS or target.weights == "random":
        return None
    try:
        location = find_model(target, weights=False)
    except SpecbenchError:
        # Said when the model is resolved.
        return None
    if location.kind != "directory" or location.path is None or not read_num_mtp_modules(location.path):
        return None
    return HeadLocation("mtp", f"modules of {location.source}", location.path)


def _find_shipped(drafter: str, name: str) -> HeadLocation:
    head: Head = HEADS.load(name)
    if head.drafter != drafter:
        raise InputError(
            f"{name} is a head for {head.drafter}, and the drafter is {drafter}",
            where=KEY,
            hint=f"set drafter.name to {head.drafter}, or choose another head: specbench list heads",
        )
    if not head.is_here:
        raise ModelNotFoundError(
            f"the files of head {name!r} are not in this installation (looked in {head.directory})",
            where=KEY,
            hint="install specbench again, or give a directory or a hub id of a head",
        )
    return HeadLocation(drafter, name, head.directory)
