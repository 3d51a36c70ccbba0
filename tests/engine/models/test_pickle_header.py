"""Headers of tensors in pickles: what PyTorch reads, with nothing imported, called or read beside them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.engine.models.pickle_header import find_pickles, read_pickle_headers
from specbench.engine.models.pickle_weights import PickleSource
from specbench.errors import CheckpointError

ROOT = Path(__file__).parents[3]
TENSORS = {
    "a.weight": torch.randn(3, 4),
    "b": torch.ones(2, dtype=torch.bfloat16),
    "c": torch.nn.Parameter(torch.ones(2)),
    "d2t": torch.arange(5),
    "shared": torch.zeros(4, 4)[:2],
    "turned": torch.zeros(3, 5).t(),
    "number": torch.tensor(3.0),
    "marks": torch.ones(7, dtype=torch.bool),
    "halves": torch.zeros(0, 3, dtype=torch.float16),
    "bytes": torch.zeros(2, dtype=torch.uint8),
    "wide": torch.zeros(2, dtype=torch.float64),
    "pairs": torch.zeros(2, dtype=torch.complex64),
}
NEWER = {"new": torch.zeros(2, 3, dtype=torch.uint16), "eighths": torch.zeros(2, dtype=torch.float8_e4m3fn)}
"""Of types that PyTorch's older format cannot be read with."""
FLOATS = {"a.weight": TENSORS["a.weight"], "b": TENSORS["b"]}


def _module_state() -> Any:
    """With the versions of modules that PyTorch keeps beside the tensors."""
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2)).state_dict()


@pytest.mark.parametrize(
    ("state", "zipped"),
    [
        (TENSORS, True),
        (TENSORS, False),
        ({**TENSORS, **NEWER}, True),
        (OrderedDict(TENSORS), True),
        (_module_state(), True),
        (_module_state(), False),
        ({}, True),
    ],
    ids=["dict", "old dict", "newer types", "ordered", "module", "old module", "empty"],
)
def test_headers_are_those_that_torch_loads(tmp_path: Path, state: Any, zipped: bool) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    found = read_pickle_headers([path], integers=True)
    assert list(found) == list(state)
    with PickleSource([path], integers=True) as source:
        assert found == source.headers
    for name, tensor in state.items():
        assert (found[name].dtype, found[name].shape) == (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


@pytest.mark.parametrize("name", ["d2t", "marks", "pairs", "new", "eighths"])
def test_other_numbers_than_floating_point_ones_are_refused_where_weights_are_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({**FLOATS, name: {**TENSORS, **NEWER}[name]}, path)
    kind = str({**TENSORS, **NEWER}[name].dtype).removeprefix("torch.")
    for read in (read_pickle_headers, PickleSource):
        with pytest.raises(
            CheckpointError, match=f"tensor '{name}' is stored as {kind}, which is not supported"
        ) as caught:
            read([path])
        assert caught.value.where == str(path)
    assert list(read_pickle_headers([path], integers=True)) == [*FLOATS, name]


def test_files_of_a_checkpoint_in_shards_are_read_in_turn(tmp_path: Path) -> None:
    for number, (name, tensor) in enumerate(FLOATS.items()):
        torch.save({name: tensor}, tmp_path / f"pytorch_model-{number}.bin")
    found = read_pickle_headers(find_pickles(tmp_path))
    assert {name: header.path.name for name, header in found.items()} == {
        "a.weight": "pytorch_model-0.bin",
        "b": "pytorch_model-1.bin",
    }


class Bomb:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_in_a_pickle_is_run(tmp_path: Path, zipped: bool) -> None:
    marker, path = tmp_path / "ran", tmp_path / "pytorch_model.bin"
    torch.save({"v": torch.ones(1), "w": Bomb(marker)}, path, _use_new_zipfile_serialization=zipped)
    for read in (read_pickle_headers, PickleSource):
        with pytest.raises(CheckpointError, match="the pickle holds more than tensors, and loading it could run code"):
            read([path])
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
        read_pickle_headers([path])
    assert (caught.value.where, caught.value.hint) == (str(path), "the file may be truncated: fetch it again")


@pytest.mark.parametrize(
    "content", [[1, 2], torch.ones(2), {"w": torch.ones(2), "step": 3}], ids=["list", "tensor", "training state"]
)
def test_what_is_no_state_dict_is_refused(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(content, path)
    for read in (read_pickle_headers, PickleSource):
        with pytest.raises(CheckpointError, match="is not a state dict of tensors"):
            read([path])


def test_it_needs_no_torch_and_reads_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"large": torch.zeros(4_000_000)}, path)
    code = (
        "import json, sys, zipfile; from pathlib import Path; from specbench.engine.models import pickle_header\n"
        "members, read = [], zipfile.ZipFile.read\n"
        "def watched(archive, name, *rest): members.append(name); return read(archive, name, *rest)\n"
        "zipfile.ZipFile.read = watched; found = pickle_header.read_pickle_headers([Path(sys.argv[1])])\n"
        "print(json.dumps([{n: h.shape for n, h in found.items()}, members, 'torch' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, cwd=ROOT)
    shapes, members, has_torch = json.loads(done.stdout)
    assert shapes == {"large": [4_000_000]}
    assert [name.rpartition("/")[2] for name in members] == ["data.pkl"]
    assert not has_torch
