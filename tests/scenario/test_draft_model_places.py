"""What is refused of a drafter's model names the line of the scenario, or the override, that asked for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from head_checkpoints import EAGLE3, MTP, eagle3_tensors, mtp_tensors, write_head

from specbench.errors import InputError
from specbench.scenario.loader import load_scenario
from specbench.scenario.resolve import resolve

Write = Callable[[str], Path]
ROOT = Path(__file__).parents[2]

WORK = {"kind": "random_tokens", "isl": 16, "osl": 16, "concurrency": 2}


def _spoil(directory: Path, what: str, drafter: str) -> str:
    """Write a head that cannot be used, or none; return what ``drafter.model`` is."""
    if what == "missing directory":
        return str(directory / "gone")
    own = drafter.endswith("eagle3")
    tensors, naming = (eagle3_tensors(), EAGLE3) if own else (mtp_tensors(), MTP)
    if what == "missing tensor":
        tensors.pop("fc.weight" if own else "modules.0.enorm.weight")
    write_head(directory, naming, tensors)
    if what == "no config":
        (directory / "config.json").unlink()
    if what == "other target":
        keys = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps({**keys, "vocab_size": 300, "draft_vocab_size": 96}))
    if what == "truncated":
        path = directory / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
    return str(directory)


@pytest.mark.parametrize("what", ["missing directory", "missing tensor", "no config", "other target", "truncated"])
@pytest.mark.parametrize("drafter", ["eagle3", "mtp", "ngram+eagle3"])
def test_a_refused_head_is_said_in_its_line_or_of_its_override(
    write: Write, tmp_path: Path, drafter: str, what: str
) -> None:
    model = _spoil(tmp_path / "head", what, drafter)
    path = write(
        f"model: tiny\nworkload: random_tokens\ndrafter:\n  name: {drafter}\n  draft_len: 2\n  model: {model}\n"
    )
    with pytest.raises(InputError) as caught:
        resolve(load_scenario(path), available_memory=lambda _: None)
    in_file = caught.value
    assert str(in_file.where).startswith(f"{path}:6: drafter.model")
    assert model in str(in_file)
    plain = write(f"model: tiny\nworkload: random_tokens\ndrafter: {{name: {drafter}, draft_len: 2}}\n")
    with pytest.raises(InputError) as caught:
        resolve(load_scenario(plain, [f"drafter.model={model}"]), available_memory=lambda _: None)
    assert str(caught.value.where) == str(in_file.where).replace(f"{path}:6: drafter.model", "--set drafter.model")
    assert (type(caught.value), caught.value.what) == (type(in_file), in_file.what)


@pytest.mark.parametrize(
    ("drafter", "line"),
    [
        ("{name: draft_model, model: /no/such/model}", "x.yaml:3: drafter.model"),
        ("{name: draft_model, model: tiny-hybrid}", "x.yaml:3: drafter.model"),
        ("{name: eagle3, model: tiny}", "x.yaml:3: drafter.model"),
        ("{name: eagle3, model: smollm2-135m-mtp}", "x.yaml:3: drafter.model"),
        ("{name: mtp, draft_len: 3, model: HEAD}", "x.yaml:3: drafter.draft_len"),
    ],
)
def test_whatever_is_refused_of_a_drafter_is_said_in_its_line(
    write: Write, tmp_path: Path, drafter: str, line: str
) -> None:
    head = write_head(tmp_path / "head", MTP, mtp_tensors())
    path = write(f"model: tiny\nworkload: random_tokens\ndrafter: {drafter.replace('HEAD', str(head))}\n")
    with pytest.raises(InputError) as caught:
        resolve(load_scenario(path), available_memory=lambda _: None)
    assert str(caught.value.where).endswith(line)


def test_a_head_that_is_missing_for_the_target_is_said_where_the_drafter_is(write: Write) -> None:
    path = write("model: qwen3-8b\ndrafter: eagle3\nworkload: random_tokens\n")
    with pytest.raises(InputError, match="no eagle3 head ships for qwen3-8b") as caught:
        resolve(load_scenario(path), available_memory=lambda _: None)
    assert str(caught.value.where).endswith("x.yaml:2: drafter.model")


def test_check_refuses_a_head_by_its_headers_without_torch(tmp_path: Path) -> None:
    tensors = eagle3_tensors()
    tensors["fc.weight"] = tensors["fc.weight"].long()
    directory = write_head(tmp_path / "mine", EAGLE3, tensors)
    scenario = tmp_path / "x.yaml"
    scenario.write_text(yaml.safe_dump({"model": "tiny", "drafter": "eagle3", "workload": WORK}))
    code = (
        "import sys; from specbench.cli.app import main; sys.argv = ['specbench', 'check', *sys.argv[1:]]\n"
        "status = main(); print('torch' in sys.modules, status)"
    )
    command = [sys.executable, "-c", code, str(scenario), "--set", f"drafter.model={directory}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["False", "2"]
    assert "--set drafter.model" in done.stderr
    assert "fc.weight is stored as int64 in model.safetensors; it holds floating-point numbers" in done.stderr
