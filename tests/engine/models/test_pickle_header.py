"""Names of tensors in pickles: those that PyTorch reads, with nothing imported, called or read beside them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.engine.models.pickle_header import find_pickles, read_names
from specbench.errors import CheckpointError

ROOT = Path(__file__).parents[3]
TENSORS = {
    "a.weight": torch.randn(3, 4),
    "b": torch.ones(2, dtype=torch.bfloat16),
    "c": torch.nn.Parameter(torch.ones(2)),
    "d2t": torch.arange(5),
    "shared": torch.zeros(4, 4)[:2],
}


def _module_state() -> Any:
    """With the versions of modules that PyTorch keeps beside the tensors."""
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2)).state_dict()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("state", [TENSORS, OrderedDict(TENSORS), _module_state(), {}], ids=str)
def test_names_are_those_that_torch_loads(tmp_path: Path, state: Any, zipped: bool) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    assert read_names([path]) == list(torch.load(path, weights_only=True)) == list(state)


def test_files_of_a_checkpoint_in_shards_are_read_in_turn(tmp_path: Path) -> None:
    for number, (name, tensor) in enumerate(TENSORS.items()):
        torch.save({name: tensor}, tmp_path / f"pytorch_model-{number}.bin")
    assert read_names(find_pickles(tmp_path)) == list(TENSORS)


class Bomb:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_in_a_pickle_is_run(tmp_path: Path, zipped: bool) -> None:
    marker, path = tmp_path / "ran", tmp_path / "pytorch_model.bin"
    torch.save({"w": Bomb(marker), "v": [Path("x"), {1: torch.ones(1)}]}, path, _use_new_zipfile_serialization=zipped)
    assert read_names([path]) == ["w", "v"]
    assert not marker.exists()
    torch.load(path, weights_only=False)
    assert marker.exists()


@pytest.mark.parametrize(("zipped", "share"), [(True, 0.0), (True, 0.1), (True, 0.9), (False, 0.0), (False, 0.1)])
def test_a_file_that_ends_early_is_refused(tmp_path: Path, zipped: bool, share: float) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(TENSORS, path, _use_new_zipfile_serialization=zipped)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CheckpointError, match="cannot be read") as caught:
        read_names([path])
    assert (caught.value.where, caught.value.hint) == (str(path), "the file may be truncated: fetch it again")


@pytest.mark.parametrize("content", [[1, 2], torch.ones(2)], ids=["list", "tensor"])
def test_what_is_no_state_dict_is_refused(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(content, path)
    with pytest.raises(CheckpointError, match="is not a state dict of tensors"):
        read_names([path])


def test_it_needs_no_torch_and_reads_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"large": torch.zeros(4_000_000)}, path)
    code = (
        "import json, sys, zipfile; from pathlib import Path; from specbench.engine.models import pickle_header\n"
        "members, read = [], zipfile.ZipFile.read\n"
        "def watched(archive, name, *rest): members.append(name); return read(archive, name, *rest)\n"
        "zipfile.ZipFile.read = watched; names = pickle_header.read_names([Path(sys.argv[1])])\n"
        "print(json.dumps([names, members, 'torch' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, cwd=ROOT)
    names, members, has_torch = json.loads(done.stdout)
    assert names == ["large"]
    assert [name.rpartition("/")[2] for name in members] == ["data.pkl"]
    assert not has_torch
