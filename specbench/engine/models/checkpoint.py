"""Where a model's files are, and its configuration, without torch: `check` and the planner use this."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specbench.downloads import DownloadError, cache_directory, download_snapshot, read_manifest
from specbench.engine.config import ModelSpec
from specbench.engine.models.config import ModelConfig
from specbench.engine.models.gguf_config import config_from_gguf
from specbench.engine.models.gguf_header import read_header
from specbench.engine.models.hf_config import read_config_directory
from specbench.engine.models.presets import Preset
from specbench.errors import ModelNotFoundError, nearest_hint
from specbench.registry import PRESETS

Kind = Literal["directory", "gguf", "preset"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CONFIG_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "*.jinja")
WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True)
class ModelLocation:
    """A model that was found.

    :param kind: ``directory`` (config.json and weights), ``gguf`` (one file) or ``preset`` (a configuration only).
    :param source: what to print: the name asked for, and where its files came from.
    :param path: the directory or the file; None for a preset.
    :param random: weights are drawn from the seed, whatever files there are.
    """

    kind: Kind
    source: str
    path: Path | None = None
    preset: Preset | None = None
    random: bool = False

    def read_config(self) -> ModelConfig:
        """Read the configuration.

        :raises CheckpointError: unreadable or not supported.
        """
        if self.preset is not None and self.kind == "preset":
            return self.preset.config
        assert self.path is not None
        return config_from_gguf(read_header(self.path)) if self.kind == "gguf" else read_config_directory(self.path)


def model_directory(preset_name: str) -> Path:
    """Where ``specbench pull`` puts a preset."""
    return cache_directory() / "models" / preset_name


def resolve_model_config(spec: ModelSpec) -> ModelConfig:
    """Return the configuration of a model without reading weights; a preset need not have been pulled.

    For a hub id, only its small files are fetched.

    :raises ModelNotFoundError: no such model, or it is not here and cannot be fetched.
    :raises CheckpointError: its configuration is unreadable or not supported.
    """
    name = spec.source
    if name in PRESETS:
        preset: Preset = PRESETS.load(name)
        return preset.config
    return find_model(spec, weights=False).read_config()


def find_model(spec: ModelSpec, *, weights: bool = True) -> ModelLocation:
    """Find the files of a model: a preset name first, then a path, then a hub id.

    :param weights: False: the configuration is enough.
    :raises ModelNotFoundError: nothing by that name; the message says what to run or to try.
    """
    if spec.weights == "random":
        location = _find_config(spec)
        return ModelLocation(
            location.kind,
            f"random:{spec.source} (seed {spec.seed})",
            location.path,
            location.preset,
            random=True,
        )
    if spec.source in PRESETS:
        return _find_preset(spec, PRESETS.load(spec.source))
    if path := existing_path(spec.source):
        return _inspect_path(path, spec.source, weights)
    if looks_like_hub_id(spec.source):
        return _find_on_hub(spec, weights)
    raise ModelNotFoundError(
        f"no model {spec.source!r}: it is no preset ({', '.join(PRESETS)}), no file or directory, and no hub id",
        hint=nearest_hint(spec.source, PRESETS) or "give a preset, a directory, a .gguf file, or organisation/name",
    )


def _find_config(spec: ModelSpec) -> ModelLocation:
    if spec.source in PRESETS:
        # The files of a pulled preset are of use for its tokenizer only.
        directory = model_directory(spec.source)
        pulled = directory if read_manifest(directory) else None
        return ModelLocation("preset", spec.source, pulled, PRESETS.load(spec.source))
    return find_model(ModelSpec(spec.source, revision=spec.revision), weights=False)


def _find_preset(spec: ModelSpec, preset: Preset) -> ModelLocation:
    if not preset.has_weights:
        return ModelLocation("preset", f"random:{spec.source} (seed {spec.seed})", None, preset, random=True)
    directory = model_directory(spec.source)
    manifest = read_manifest(directory)
    if manifest is None:
        raise ModelNotFoundError(
            f"model {spec.source!r} has not been pulled (looked in {directory})",
            hint=f"run: specbench pull {spec.source}  (or random:{spec.source} for random weights)",
        )
    return ModelLocation("directory", f"{spec.source} ({manifest.get('origin', 'unknown origin')})", directory, preset)


def existing_path(source: str) -> Path | None:
    """The path that a model's source names, None where there is nothing."""
    path = Path(source).expanduser()
    try:
        return path if path.exists() else None
    except OSError:
        # A name too long for the file system is no path.
        return None


def looks_like_hub_id(source: str) -> bool:
    """Whether a source that is no path may be ``organisation/name`` on the hub."""
    return bool(_HUB_ID.fullmatch(source)) and not source.endswith(".gguf")


def _inspect_path(path: Path, source: str, weights: bool) -> ModelLocation:
    if path.is_file():
        if path.suffix == ".gguf":
            return ModelLocation("gguf", source, path)
        raise ModelNotFoundError(
            "is a file, but not a .gguf file", where=source, hint="give the checkpoint's directory, or a .gguf file"
        )
    if not (path / "config.json").is_file():
        inside = sorted(path.glob("*.gguf"))
        hint = f"give the file itself: {inside[0]}" if inside else "give a directory that has config.json in it"
        raise ModelNotFoundError("has no config.json", where=source, hint=hint)
    if weights and not has_weights(path):
        raise ModelNotFoundError(
            f"has a config.json but no weights ({' or '.join(WEIGHT_PATTERNS)})",
            where=source,
            hint=f"fetch them, or random:{source} for random weights",
        )
    return ModelLocation("directory", source, path)


def has_weights(directory: Path) -> bool:
    """Whether there are files that may hold weights."""
    return any(any(directory.glob(pattern)) for pattern in WEIGHT_PATTERNS)


def _find_on_hub(spec: ModelSpec, weights: bool) -> ModelLocation:
    try:
        location = find_on_hub(spec, weights=weights)
    except DownloadError as error:
        raise ModelNotFoundError(
            f"no preset, file or directory {spec.source!r}, and {error.what}",
            hint=error.hint,
        ) from None
    assert location.path is not None
    return _inspect_path(location.path, location.source, weights)


def find_on_hub(spec: ModelSpec, *, weights: bool) -> ModelLocation:
    """Where the snapshot of a hub id is; whether all of it is there has not been looked at.

    The hub client's cache comes first: a model that is there needs no network, and stays the same between runs.

    :raises DownloadError: the hub has none, or cannot be reached.
    """
    only = None if weights else _CONFIG_FILES
    try:
        path = download_snapshot(spec.source, revision=spec.revision, only=only, local_only=True)
        is_whole = (path / "config.json").is_file() and (not weights or has_weights(path))
    except DownloadError:
        # Not cached: ask the hub.
        is_whole = False
    if not is_whole:
        path = download_snapshot(spec.source, revision=spec.revision, only=only)
    return ModelLocation("directory", f"hub {spec.source}@{path.name[:12]}", path)
